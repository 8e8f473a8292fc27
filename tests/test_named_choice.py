"""Which option a text names. `named_choices.json` holds texts as models write them, sorted by a person's reading."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from vidcom2.answering.named_choice import LETTERS, final_text, named_choice

TABLES = json.loads((Path(__file__).parent / "named_choices.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["choices"][0])
def test_a_text_names_the_option_that_a_person_reads_in_it(table: dict[str, Any]) -> None:
    """Under "none" are texts that name no option, or several."""
    wrong = []
    for letter, texts in table["texts"].items():
        for text in texts:
            number = named_choice(text, table["choices"])
            found = "none" if number is None else LETTERS[number]
            if found != letter:
                wrong.append(f"{text!r} names {letter}, but was read as {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "again", ["* ", "the answer is ", "\n", "A, ", "(", r"\boxed{", "A. a cat\nB. a dog\n", "not "]
)
def test_a_model_that_repeats_itself_is_read_within_a_second(again: str) -> None:
    started = time.perf_counter()
    named_choice(again * 1000, ["a cat", "a dog", "Person A", "no"])
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("a red car", "a red car"),
        ("<think>blue?</think>a red car", "a red car"),
        (r"So \boxed{\text{a red car}}.", "a red car"),
        ("<answer>a red car</answer>", "a red car"),
        ("<think>a red car", ""),
    ],
)
def test_the_final_text_is_what_follows_thoughts_or_stands_in_a_box(text: str, final: str) -> None:
    assert final_text(text).strip() == final
