"""How questions show their options, how their right answers name one, and what is refused because it cannot be told."""

from pathlib import Path
from typing import Any

import pytest
from test_evaluation import write_lines

from vidcom2.errors import OptionError
from vidcom2.judging.questions import Question, checked_questions, prompt_of, read_questions

LIST = "Which?\nA. cat\nB. dog"
ASKED = "Where is the scene?"
OPTIONS = ("kitchen", "street")
ANSWER = "Answer with the letter of the right option."


def read(folder: Path, **given: Any) -> Question:
    (question,) = read_questions(write_lines(folder / "q.jsonl", {"video": "a.mp4", "question": ASKED, **given}))
    return question


# -- options in the question ------------------------------------------------------------------------------------------

LABELS = tuple(
    (first, first.translate(str.maketrans("Aa01", "Bb12")))
    for first in (
        *(
            "A. {}",
            "A.{}",
            "(A) {}",
            "(A){}",
            "A) {}",
            "A: {}",
            "A、{}",
            "A．{}",
            "A：{}",
            "（A）{}",
            "[A] {}",
            "【A】{}",
        ),
        *("**A.** {}", "**A**. {}", "**(A)** {}", "- A. {}", "Option A: {}", "a) {}", "a. {}", "(a) {}"),
        *("1. {}", "1) {}", "(1) {}", "0: {}", "Option 1: {}"),
    )
)
RIGHT = ("{label}", "{label}.", "{label}:", "({label})", "[{label}]", "**{label}**", "（{label}）", "Option {label}")
RIGHT += ("option {label}", "{label}. street", "({label}) street", "{label}、street", "street", "Street.")


@pytest.mark.parametrize("form", LABELS, ids=lambda form: form[0])
@pytest.mark.parametrize("between", ["\n", " "], ids=["on lines of their own", "on one line"])
def test_a_question_shows_its_options_in_every_common_form(form: tuple[str, str], between: str, tmp_path: Path) -> None:
    """The model reads them behind capital letters, since it is asked for one of these."""
    shown = between.join([ASKED, *(label.format(text) for label, text in zip(form, OPTIONS))])
    label = form[1].replace("Option", "").strip(" -.():：．、[]【】（）*{}")
    for right in (each.format(label=label) for each in RIGHT):
        question = read(tmp_path, question=shown, answer=right)
        assert (question.choices, question.answers) == (OPTIONS, ("street",)), right
        assert question.is_correct("B") and not question.is_correct("A")
    lettered = f"{shown}\nA. kitchen\nB. street\n{ANSWER}"
    assert question.prompt == (shown if label == "B" else lettered)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("What does Samuel L. Jackson do? A. sit B. stand", ("sit", "stand")),
        ("What does Samuel L. Jackson do?\nA. sit\nB. stand\n", ("sit", "stand")),
        ("Does he take vitamin C. or not? A. yes B. no", ("yes", "no")),
        ("A man meets J. K. Rowling.\nWho is older? (A) he (B) she", ("he", "she")),
        ("Which?\nA. vitamin A.\nB. vitamin B.\nC. vitamin C.", ("vitamin A.", "vitamin B.", "vitamin C.")),
        ("Which? A. cat B. dog\nC. fish D. cow\nAnswer with A, B, C or D.", ("cat", "dog", "fish", "cow")),
        ("Which? (A) cat (B) dog\nAnswer (A) or (B) only.", ("cat", "dog")),
        ("Of the cards (A) red and (B) blue, which is seen? (A) the first (B) the last", ("the first", "the last")),
        ("Subtitles: A: hi! B: ho!\nWho speaks?\nA. cat\nB. dog", ("cat", "dog")),
        ("Which?\nA. at 10 a.m.\nB. at 1.5 km\nC. 1. place", ("at 10 a.m.", "at 1.5 km", "1. place")),
        ("画面是什么？A、厨房 B、街道", ("厨房", "街道")),
        ("画面是什么？\nA．厨房\nB．街道", ("厨房", "街道")),
        ("Which?\nOptions:\n(A) cat\n(B) dog\nBest option:", ("cat", "dog")),
        ("Which?\n1. cat\n2. dog\n3. A. Smith", ("cat", "dog", "A. Smith")),
    ],
)
def test_options_are_read_from_the_end_of_the_question(text: str, options: tuple[str, ...], tmp_path: Path) -> None:
    question = read(tmp_path, question=text, answer="2" if "\n1." in text else "B")
    assert question.choices == options and question.is_correct("B") and not question.is_correct("A")


def test_options_are_read_without_a_right_answer_too(tmp_path: Path) -> None:
    """Agreement then compares options. A numbered list may be anything, such as steps to describe."""
    assert read(tmp_path, question=f"{ASKED}\nA. kitchen\nB. street").choices == OPTIONS
    assert read(tmp_path, question="Describe\n1. the place\n2. the people").choices is None
    assert read(tmp_path, question="Describe\n1. the place\n2. the people", answer="a kitchen").choices is None


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many people are seen?", "2"),
        ("At what time?", "10:30"),
        ("Who wrote it?", "J. K. Rowling"),
        ("Where do they live?", "U.S."),
        ("Which letter is shown?", ["B", "the letter B"]),
        ("What is seen?", "A dog"),
        ("What do A: the man, and B: the dog do?", "run"),
        ("What is seen at 1. the door 2. the gate?", "a dog"),
        ("Which?\nA. cat\nB. dog", ["nothing", "none"]),
    ],
)
def test_open_questions_stay_open(question: str, answer: Any, tmp_path: Path) -> None:
    found = read(tmp_path, question=question, answer=answer)
    assert found.choices is None and found.prompt == question


# -- options by the key `choices` -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", LABELS, ids=lambda form: form[0])
def test_choices_may_bring_labels_and_the_right_answer_names_one_by_them(form: tuple[str, str], tmp_path: Path) -> None:
    choices = [label.format(text).removeprefix("- ") for label, text in zip(form, OPTIONS)]
    label = form[1].replace("Option", "").strip(" -.():：．、[]【】（）*{}")
    for right in (*(each.format(label=label) for each in RIGHT), choices[1]):
        question = read(tmp_path, choices=choices, answer=right)
        assert (question.choices, question.answers) == (OPTIONS, ("street",)), right
    assert question.prompt == f"{ASKED}\nA. kitchen\nB. street\n{ANSWER}"


@pytest.mark.parametrize(
    "choices",
    [["1.5 km", "2.5 km"], ["1:30", "2:30"], ["B. Obama", "C. Smith"], ["2", "3"], ["-1", "+1"], ["A", "B"]],
    ids=str,
)
def test_texts_that_only_look_labelled_stay_whole(choices: list[str], tmp_path: Path) -> None:
    question = read(tmp_path, choices=choices, answer=choices[1])
    assert question.choices == tuple(choices) and question.is_correct("B")


def test_a_question_is_not_shown_its_options_twice() -> None:
    in_brackets = "Which?\n[A] cat\n[B] dog\nAnswer with a letter."
    for shown in ("Which?\nA.cat\nB.dog", "Which? （A）cat （B）dog", in_brackets):
        assert prompt_of(shown, ("cat", "dog")) == shown
    for shown in ("Which? a) cat b) dog", "Which?\n1. cat\n2. dog", LIST):
        assert prompt_of(shown, ("cat", "cow")) == f"{shown}\nA. cat\nB. cow\n{ANSWER}"


# -- what is refused --------------------------------------------------------------------------------------------------

OF_A_LIST = [
    ("Which? A cat, B dog", "B", "reads like the label of an option"),
    ("Which?\nA - cat\nB - dog", "B. dog", "reads like the label of an option"),
    ("Is it A or B?", "b", "reads like the label of an option"),
    (ASKED, "Option 2", "reads like the label of an option"),
    (ASKED, "(2)", "reads like the label of an option"),
    (ASKED, "B、street", "reads like the label of an option"),
    ("Which?\nA. cat\nB) dog", "dog", "['A. cat', 'B) dog'] in `question` read like options"),
    ("Which?\nA. cat\nC. dog", "dog", "['A. cat', 'C. dog'] in `question` read like options"),
    ("Which?\nA. cat\nB. dog\nD. cow", "B", "'D. cow'"),
    (LIST, "C", "must be one of the options"),
    (LIST, "A. dog", "must be one of the options"),
    (LIST, "a mouse", "must be one of the options"),
    (LIST, ["A", "B"], "must be one of the options"),
    (LIST, ["A", "cat"], "must be one of the options"),
    ("Which?\nA. cat\nB. Cat!", "cat", "must be one of the options"),
    ("A. cat\nB. dog\nWhich of them is seen?", "B", "read like options"),
    ("Steps:\n1. cut\n2. fry\n3. eat\nHow many steps are seen?", "2", "read like options"),
    ("Steps: 1. cut 2. fry. How many steps are seen?", "2", "read like options"),
]


@pytest.mark.parametrize(("question", "answer", "reason"), OF_A_LIST)
def test_what_looks_like_options_and_is_not_read_as_such_is_refused(
    question: str, answer: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as refused:
        read(tmp_path, id="q7", question=question, answer=answer)
    assert reason in str(refused.value) and "`choices`" in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {f"a{i}": text for i, text in enumerate(OPTIONS)} | {"answer": 1},  # NExT-QA
        {"option": ["A. kitchen", "B. street"], "answer": "1"},  # EgoSchema
        {"option 0": "kitchen", "option 1": "street", "truth": 1},
        {"option0": "kitchen", "option1": "street", "correct_choice": 1},  # LongVideoBench
        {"candidates": list(OPTIONS), "answer": "street"},  # MVBench, MLVU
        {"options": ["A. kitchen", "B. street"], "answer": "B"},  # Video-MME
        {"options": list(OPTIONS), "answer_id": 1},  # Perception Test
        *({"options": text, "answer": "B"} for text in ("kitchen, street", "kitchen\nstreet", "kitchen;street")),
        {"options": "A.kitchen B.street", "answer": "B"},
        {"option": "(A)kitchen (B)street", "answer": "street"},
        {"choice": ["kitchen", "street"], "answer": "street"},
        {"answer_choices": list(OPTIONS), "answer": "street"},
        {"a": "kitchen", "b": "street", "answer": "street"},
        {"0": "kitchen", "1": "street", "answer": "street"},
        {"choice_a": "kitchen", "choice_b": "street", "answer": "street"},  # SEED-Bench
        {"choice1": "kitchen", "choice2": "street", "answer": "A"},
        {"candidates": {"1": "kitchen", "2": "street"}, "answer": "A"},
        {"options": "['kitchen', 'street']", "answer": "A"},
        {"choices": {"A": "kitchen", "B": "street"}, "answer": "A"},
        {"choices": "A. kitchen B. street", "answer": "A"},
        {"choices": list(OPTIONS), "answer": 1},
        {"choices": list(OPTIONS), "answer": "1"},
    ],
    ids=str,
)
def test_keys_of_other_benchmarks_are_refused_with_what_to_write(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"line 1 of .*(?:`choices`|must be a text)"):
        read(tmp_path, **given)


def test_questions_of_other_benchmarks_that_show_their_options_are_understood(tmp_path: Path) -> None:
    """These are the forms of TempCompass; and a data set may hold the options under other keys besides."""
    asked = "Which description is a more suitable match for the video?"
    shown = f"{asked}\nOption 1: The man is dribbling.\nOption 2: A man is dunking."
    question = read(tmp_path, question=shown, answer="Option 2: A man is dunking.")
    assert question.is_correct("B") and question.prompt.endswith(f"\nB. A man is dunking.\n{ANSWER}")
    assert read(tmp_path, question="What is it?\nA. a cat\nB. a dog", answer="B. a dog").is_correct("B")
    both = read(tmp_path, question="Which?\nA. cat\nB. dog", answer="B", a0="cat", a1="dog")
    assert both.choices == ("cat", "dog")
    assert read(tmp_path, answer="a dog", choice="B", options="ABCD", A="mine", B=3).choices is None  # the user's keys


def test_choices_in_another_order_than_the_question_shows_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="in another order"):
        read(tmp_path, question=LIST, choices=["dog", "cat"], answer="dog")


def test_each_refusal_names_the_question(tmp_path: Path) -> None:
    lines = [{"id": f"q{i}", "video": "a.mp4", "question": ASKED, "answer": right} for i, right in enumerate("Bb")]
    found = [reason for _, reason in checked_questions(write_lines(tmp_path / "q.jsonl", *lines))]
    assert all(isinstance(each, str) and f"question 'q{i}'" in each for i, each in enumerate(found))


@pytest.mark.parametrize(
    ("answers", "choices", "reason"),
    [
        (("C",), OPTIONS, r"`answers` is \['C'\], but must be one of the options"),
        (("B. kitchen",), OPTIONS, "must be one of the options"),
        (("kitchen", "street"), OPTIONS, "must be one of the options"),
        ("B", OPTIONS, "`answers` is 'B', but must be a tuple of texts"),
        ((), None, r"`answers` is \(\), but must be a tuple of texts"),
        (("dog", "..."), None, r"`answers` is \('dog', '...'\), but"),
        ((3,), None, r"`answers` is \(3,\), but"),
        (None, "AB", "`choices` is 'AB', but"),
        (None, (), r"`choices` is \(\), but"),
    ],
)
def test_a_question_of_python_is_refused_where_no_answer_could_be_right(
    answers: Any, choices: Any, reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        Question("q7", "v", ASKED, answers, choices)


def test_the_right_answer_in_python_may_be_a_letter_or_a_text() -> None:
    for right in ("b", "B", "(B)", "Option B", "B. street", "street"):
        question = Question("1", "v", ASKED, (right,), OPTIONS)
        assert question.is_correct("The answer is B.") and not question.is_correct("A")
