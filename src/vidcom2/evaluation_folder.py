"""The output folder of `vidcom2 eval`: whose it is. Nothing here imports PyTorch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .options import OptionError
from .run_record import check_record, write_record

RUN, ANSWERS, RESULTS, TABLE, PLOT = "run.json", "answers.jsonl", "results.json", "results.md", "results.png"


def check_folder(folder: Path, arguments: Mapping[str, Any]) -> None:
    """That a run with these arguments may begin or go on in a folder.

    Args:
        arguments: what answers depend on, as JSON has it, or some of it.

    Raises:
        OptionError: if it holds another run's answers, or other files.
    """
    if not (folder / RUN).is_file() and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
        raise OptionError(f"{str(folder)!r} is there, and is no run of `vidcom2 eval`. Name another --output.")
    check_record(folder / RUN, folder, arguments)


def claim(folder: Path, arguments: Mapping[str, Any], commit: str) -> list[str]:
    """Make the folder this run's, with all of its arguments, or go on there.

    Args:
        commit: of the code that runs now.

    Returns:
        The commits of the code that has written to the folder, with this one.

    Raises:
        OptionError: as `check_folder`.
    """
    check_folder(folder, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    return write_record(folder / RUN, folder, arguments, commit)
