"""The output folder of `vidcom2 eval`, and the run that it belongs to. Nothing here imports PyTorch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..asking.candidates import Candidate
from ..configuration.compression_settings import TABLES
from ..errors import OptionError, written_to
from ..judging.questions import Question
from ..records.fingerprints import code_digest
from ..records.run_record import AnswerFile, stamp_of

ANSWERS, RESULTS, TABLE, PLOT = "answers.jsonl", "results.json", "results.md", "results.png"
LOCK = f"{ANSWERS}.lock"
GROWS = ("candidates",)  # arguments of an evaluation to which another run may add


def described(
    candidate: Candidate, settings: Mapping[str, Any], files: Mapping[tuple[str, str], Mapping[str, str]] | None = None
) -> dict[str, Any]:
    """Return what the answers of a candidate depend on: its settings, a fingerprint of the methods and the function of
    the user that it calls, and the files that these methods are in.

    Args:
        settings: those that the candidate may replace.
        files: (setting, method) -> the fingerprints of the files that registered it, by their names.
    """
    meant = {**settings, **candidate.settings}
    users = [(name, str(meant.get(name))) for name in TABLES]
    rows = [row for name, method in users if (row := TABLES[name].rows.get(method)) and not row.own]
    return {
        "settings": candidate.overrides,
        "code": code_digest((candidate.answer, *rows)),
        "files": {file: digest for each in users for file, digest in (files or {}).get(each, {}).items()},
    }


@contextmanager
def locked_folder(folder: Path, arguments: Mapping[str, Any]) -> Iterator[AnswerFile]:
    """Make the folder, and yield the file of its answers. Other runs are kept out during the block.

    Args:
        arguments: all that answers depend on, in values that JSON can represent.

    Raises:
        OptionError: if it holds another run's answers or other files, or if a run writes there.
    """
    file = AnswerFile(folder / ANSWERS, GROWS)
    others = [path for path in folder.iterdir() if path.name != LOCK] if folder.is_dir() else []
    if folder.is_file() or (others and not file.record.is_file()):
        raise OptionError(f"{str(folder)!r} exists, but is no run of `vidcom2 eval`. Name another --output.")
    file.check(arguments)
    with written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with file.locked():
        yield file


def check_questions(file: AnswerFile, questions: Sequence[Question]) -> None:
    """Check that a file has no answers to other questions, or about other videos. Raises an OptionError if it does."""
    stamps = ((question.id, stamp_of(question.given, question.video)) for question in questions)
    file.check_answers(file.answered(), stamps, "question")
