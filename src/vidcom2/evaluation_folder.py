"""The output folder of `vidcom2 eval`: whose it is, and the answers in it. Nothing here imports PyTorch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .options import OptionError

RUN, ANSWERS, RESULTS, TABLE, PLOT = "run.json", "answers.jsonl", "results.json", "results.md", "results.png"


def check_folder(folder: Path, arguments: Mapping[str, Any]) -> list[str]:
    """That a run with these arguments may begin or go on in a folder.

    Args:
        arguments: what answers depend on, as JSON has it, or some of it.

    Returns:
        The commits of the code that has written to the folder.

    Raises:
        OptionError: if it holds another run's answers, or other files.
    """
    path = folder / RUN
    if not path.is_file():
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise OptionError(f"{str(folder)!r} is there, and is no run of `vidcom2 eval`. Name another --output.")
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        before, commits = dict(content["arguments"]), list(content["commits"])
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{str(path)!r} is not what `vidcom2 eval` wrote. Name another --output.") from error
    for name, value in arguments.items():
        if before.get(name) != value:
            raise OptionError(
                f"{str(folder)!r} holds the answers of another run: `{name}` was {before.get(name)!r} and is "
                f"{value!r}. Name another --output, or go on with the same arguments."
            )
    return commits


def claim(folder: Path, arguments: Mapping[str, Any], commit: str) -> list[str]:
    """Make the folder this run's, with all of its arguments, or go on there.

    Args:
        commit: of the code that runs now.

    Returns:
        The commits of the code that has written to the folder, with this one.

    Raises:
        OptionError: as `check_folder`.
    """
    before = check_folder(folder, arguments)
    commits = before if commit in before else [*before, commit]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RUN, json.dumps({"arguments": arguments, "commits": commits}, indent=2) + "\n")
    return commits


def answers_so_far(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of an answer file by the questions' ids. What is to be asked again leaves the file: rows of errors, and
    a last line that an interruption left half-written."""
    if not path.is_file():
        return {}
    *lines, half = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    every = [json.loads(line) for line in lines]
    rows = {row["id"]: row for row in every if "error" not in row}
    if half or len(rows) < len(every):
        write_whole(path, "".join(map(as_line, rows.values())))
    return rows


def as_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there as a whole or, after an interruption, as it was."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
