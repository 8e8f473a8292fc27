"""The output folder of `vidcom2 eval`: whose it is. Nothing here imports PyTorch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import OptionError, written_to
from ..records.run_record import check_record, locked, write_record

RUN, ANSWERS, RESULTS, TABLE, PLOT = "run.json", "answers.jsonl", "results.json", "results.md", "results.png"
LOCK = f"{ANSWERS}.lock"


def check_folder(folder: Path, arguments: Mapping[str, Any]) -> None:
    """That a run with these arguments may begin or go on in a folder.

    Args:
        arguments: all that answers depend on, as JSON has it.

    Raises:
        OptionError: if it holds another run's answers, or other files.
    """
    others = [path for path in folder.iterdir() if path.name != LOCK] if folder.is_dir() else []
    if folder.is_file() or (others and not (folder / RUN).is_file()):
        raise OptionError(f"{str(folder)!r} is there, and is no run of `vidcom2 eval`. Name another --output.")
    check_record(folder / RUN, folder, arguments)


@contextmanager
def locked_folder(folder: Path, arguments: Mapping[str, Any]) -> Iterator[None]:
    """No other run writes to the folder, which is made, in the meantime. Raises as `check_folder`, or if one does."""
    check_folder(folder, arguments)
    with written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ANSWERS):
        yield


def claim(folder: Path, arguments: Mapping[str, Any], commit: str) -> list[str]:
    """Make the folder, which is locked, this run's with all of its arguments, or continue there.

    Args:
        commit: of the code that runs now.

    Returns:
        The commits of the code that has written to the folder, with this one.

    Raises:
        OptionError: as `check_folder`.
    """
    check_folder(folder, arguments)
    return write_record(folder / RUN, folder, arguments, commit).commits
