"""The report of a finished evaluation, written anew without a model: with another reference, or another margin."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..asking.candidates import AllTokens, Candidate
from ..errors import OptionError
from ..judging.questions import Question
from ..records.jsonl import answered_rows
from ..records.run_record import AnswerFile
from .folder import ANSWERS, GROWS, RESULTS, check_questions
from .report import write_report


def report_again(
    folder: Path, questions: Sequence[Question], reference: str | None, margin: float, command: str | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, int]]:
    """Write results.json, results.md and results.png of the answers in a folder.

    Candidates that have not answered every question, since their run was stopped or ended with an error, are left out.

    Args:
        command: what chose only a part of the questions; None if nothing did.

    Returns:
        The rows of the answers, those of the table, and of each candidate that is left out how many answers it lacks.

    Raises:
        OptionError: if the folder has no finished evaluation, or one of other questions.
    """
    file = AnswerFile(folder / ANSWERS, GROWS)
    try:
        before = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        title, certificate = before["title"], before["birth_certificate"]
        record = json.loads(file.record.read_text(encoding="utf-8"))
        asked, commits = dict(record["arguments"]["candidates"]), list(record["commits"])
        commands = [*record.get("commands", [certificate["command"]]), *([] if command is None else [command])]
        certificate |= {"command": " && ".join(commands), "questions": len(questions), "vidcom2_commits": commits}
        certificate |= {"arguments": dict(certificate["arguments"])}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise OptionError(
            f"{str(folder)!r} has no finished evaluation of `vidcom2 eval` ({type(error).__name__}: {error}). Leave "
            "--report-only out, to answer the questions."
        ) from error
    check_questions(file, questions)
    of_id = answered_rows(file.path, with_errors=True)
    rows = [of_id.get(question.id) or _unanswered(question) for question in questions]
    answers = [row["answers"] for row in rows if "answers" in row]
    lacking = {label: sum(label not in each for each in answers) for label in asked if label != AllTokens().label}
    candidates = [_candidate(label, asked[label]["settings"]) for label, number in lacking.items() if not number]
    # The certificate of the last run is about its own candidates.
    certificate["arguments"]["candidates"] = {each.label: asked[each.label] for each in candidates}
    results = write_report(folder, title, questions, rows, candidates, certificate, reference, margin)
    return rows, results, {label: number for label, number in lacking.items() if number}


def _unanswered(question: Question) -> dict[str, Any]:
    return {"id": question.id, "given": question.given, "error": "it was not answered. Leave --report-only out."}


def _candidate(label: str, overrides: dict[str, Any]) -> Candidate:
    ratio = overrides["retention_ratio"]
    settings = {name: value for name, value in overrides.items() if name != "retention_ratio"}
    return Candidate(label.removesuffix(f" {ratio:g}"), ratio, settings)
