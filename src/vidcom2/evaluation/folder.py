"""The output folder of `vidcom2 eval`, and the run that it belongs to. Nothing here imports PyTorch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import OptionError, written_to
from ..records.run_record import check_record, locked, write_record

RUN, ANSWERS, RESULTS, TABLE, PLOT = "run.json", "answers.jsonl", "results.json", "results.md", "results.png"
LOCK = f"{ANSWERS}.lock"


def check_folder(folder: Path, arguments: Mapping[str, Any]) -> None:
    """Check that a run with these arguments may start or continue in a folder.

    Args:
        arguments: all that answers depend on, in values that JSON can represent.

    Raises:
        OptionError: if it holds another run's answers, or other files.
    """
    others = [path for path in folder.iterdir() if path.name != LOCK] if folder.is_dir() else []
    if folder.is_file() or (others and not (folder / RUN).is_file()):
        raise OptionError(f"{str(folder)!r} exists, but is no run of `vidcom2 eval`. Name another --output.")
    check_record(folder / RUN, folder, arguments)


@contextmanager
def locked_folder(folder: Path, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Make the folder, and keep other runs out during the block. Raises as `check_folder`, or if a run writes there."""
    check_folder(folder, arguments)
    with written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ANSWERS):
        yield


def claim(folder: Path, arguments: Mapping[str, Any], commit: str) -> list[str]:
    """Note that a locked folder belongs to this run, or that the run continues there.

    Args:
        commit: the commit of the code that runs now.

    Returns:
        The commits of the code that has written to the folder, including this one.

    Raises:
        OptionError: those of `check_folder`.
    """
    check_folder(folder, arguments)
    return write_record(folder / RUN, folder, arguments, commit).commits
