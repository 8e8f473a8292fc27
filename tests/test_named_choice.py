"""Which option a text names. The files hold texts as models write them, sorted by a person's reading."""

import json
import time
from pathlib import Path

import pytest

from vidcom2.judging.named_choice import LETTERS, named_choice, normalised

FOLDER = Path(__file__).parent


@pytest.mark.parametrize(("file", "texts", "missed"), [("named_choices", 883, 3), ("named_choices_by_kind", 448, 8)])
def test_a_text_names_the_option_that_a_person_reads_in_it(file: str, texts: int, missed: int) -> None:
    """Under "none" are texts that name no option, or several. A text may be read as naming none, but never as naming
    another option. The second file has kinds that the reader was not made from: corrections, verdicts on each option,
    signs and decimals, letters in names, and models that write the next question, too."""
    named = [
        (letter, "none" if number is None else LETTERS[number], text)
        for table in json.loads((FOLDER / f"{file}.json").read_text(encoding="utf-8"))
        for letter, of_letter in table["texts"].items()
        for text in of_letter
        for number in [named_choice(text, table["choices"])]
    ]
    assert len(named) == texts
    assert [each for each in named if each[1] not in (each[0], "none")] == []
    assert sum(expected != found for expected, found, _ in named) <= missed


@pytest.mark.parametrize(
    "again",
    [
        *("* ", "the answer is ", "\n", "A, ", "(", r"\boxed{", "A. a cat\nB. a dog\n", "not ", "wait "),
        *("if A would ", "word "),
    ],
)
def test_a_model_that_repeats_itself_is_read_within_a_second(again: str) -> None:
    started = time.perf_counter()
    named_choice(again * 1000, ["a cat", "a dog", "Person A", "no"])
    assert time.perf_counter() - started < 5


def test_the_sign_and_the_point_of_a_number_are_no_punctuation() -> None:
    numbers = ("5", "-5", ".5", "<5", ">5", "<=5")
    assert [normalised(f"({each}).") for each in numbers] == list(numbers)
    assert normalised("−5") == normalised("–5") == "-5" and normalised("< 5") == "<5" and normalised("≤5") == "≤5"
