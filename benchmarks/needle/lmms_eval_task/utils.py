"""The questions of `vidcom2 eval` as a task of lmms-eval: the same prompts, and the same answers count as right.

It reads questions.jsonl in the folder that lmms-eval is started in, so that no file has to name a path:

    cd FOLDER && lmms-eval --include_path .../benchmarks/needle/lmms_eval_task --tasks vidcom2_questions ...
"""

from functools import cache
from pathlib import Path
from typing import Any

from datasets import Dataset

from vidcom2.judging.questions import Question, read_questions

FILE = Path("questions.jsonl")  # as in the task's YAML


@cache
def questions() -> list[Question]:
    """Return the questions of the file.

    Raises:
        ValueError: on a line that is not a question, or on a question without an answer to compare with.
    """
    found = read_questions(FILE)
    unknown = [question.id for question in found if question.answers is None]
    if unknown:
        raise ValueError(
            f"`answer` is missing for {len(unknown)} questions of {str(FILE)!r}, of which the first is {unknown[0]!r}. "
            "lmms-eval counts right answers. For agreement with all tokens, use `vidcom2 eval`."
        )
    return found


def documents(lines: Dataset) -> Dataset:
    """Return a row for each question, in the order of the file. `read_questions` has read the text of the lines."""
    rows = [
        {"number": number, "id": question.id, "kind": question.kind, "question": question.question}
        for number, question in enumerate(questions())
    ]
    return Dataset.from_list(rows)


def video(document: dict[str, Any]) -> list[str]:
    return [questions()[document["number"]].video]


def prompt(document: dict[str, Any]) -> str:
    return questions()[document["number"]].prompt


def accepted(document: dict[str, Any]) -> str:
    return " or ".join(questions()[document["number"]].answers or ())


def score(document: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """Return whether the answer is right, and the video, because questions about one video are not independent."""
    question = questions()[document["number"]]
    return {"accuracy": {"score": int(bool(question.is_correct(texts[0]))), "video": question.video}}


def share(scores: list[dict[str, Any]]) -> float:
    return sum(each["score"] for each in scores) / len(scores)
