"""JSONL files: lines that a user wrote, and rows that a run appends and goes on from. Nothing here imports PyTorch."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from ..errors import OptionError
from .whole_files import write_whole


def numbered_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """The lines of a user's file with their numbers, the first 1; empty lines are left out.

    Args:
        what: that the lines are, for the error.

    Raises:
        OptionError: on a file that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"cannot read the {what} {str(path)!r}: {reason}. Name a JSONL file.") from error
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def json_object(line: str) -> dict[str, Any]:
    """The object that a line holds. Raises an OptionError, whose text is a reason alone, if it holds none."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"it is no JSON ({error}). Write one JSON object a line") from None
    if not isinstance(given, dict):
        raise OptionError(f"it holds a {type(given).__name__}. Write one JSON object a line")
    return given


def complete_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an answer file, without a last line that an interruption left half-written; of a missing one, none.

    Raises:
        OptionError: if it is not what a run of `vidcom2` wrote.
    """
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]]
        if all(isinstance(row["id"], str) for row in rows):
            return rows
    except (ValueError, TypeError, KeyError):
        pass
    raise OptionError(f"{str(path)!r} has lines that vidcom2 did not write. Name another --output.")


def answered_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The complete rows of an answer file by their ids, without those of errors. Raises as `complete_rows`."""
    return {row["id"]: row for row in complete_rows(path) if "error" not in row}


def rows_so_far(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of an answer file by their ids. What is to be asked again leaves the file: rows of errors, and a last
    line that an interruption left half-written. Raises as `complete_rows`."""
    rows = answered_rows(path)
    if path.is_file():
        write_whole(path, "".join(map(as_line, rows.values())))
    return rows


def as_line(row: Mapping[str, Any]) -> str:
    line = json.dumps(row, ensure_ascii=False) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in names of files that are not UTF-8
        return json.dumps(row) + "\n"
    return line


def append_rows(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows at the end of an open file, and to the disk: an interruption loses at most the last line's end."""
    file.write("".join(map(as_line, rows)))
    file.flush()
    os.fsync(file.fileno())
