"""JSONL files: the lines of the user's, and the rows of answers. Nothing here imports PyTorch."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError

# Characters at which readers such as `str.splitlines` end a line, and halves of characters, which UTF-8 cannot write.
TO_ESCAPE = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


def numbered_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a user's file with their numbers, counted from 1. Empty lines are skipped.

    Args:
        what: what the lines hold, such as "questions", for the error.

    Raises:
        OptionError: if the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"cannot read the {what} {str(path)!r}: {reason}. Name a JSONL file.") from error
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def json_object(line: str) -> dict[str, Any]:
    """Return the object that a line holds. Raises an OptionError, whose text is only the reason, if it holds none.

    A key that comes twice is refused, of which Python would keep the last, and so are NaN, Infinity and 1e400.
    """
    try:
        given = json.loads(line, object_pairs_hook=_each_key_once, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"it is no JSON ({error}). Write one JSON object per line") from None
    if not isinstance(given, dict):
        raise OptionError(f"it holds a {type(given).__name__}. Write one JSON object per line")
    return given


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} comes twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is no finite number: write null, or a smaller one")
    return float(text)


def answered_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of an answer file by id, without errors, and without a half-written last line that an
    interruption left. A missing file has no rows.

    Raises:
        OptionError: if a run of `vidcom2` did not write the file.
    """
    if not path.is_file():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]]
        if all(isinstance(row["id"], str) and "given" in row for row in rows):
            return {row["id"]: row for row in rows if "error" not in row}
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise OptionError(f"{str(path)!r} has lines that vidcom2 did not write. Name another --output.")


def as_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON with its line break."""
    line = json.dumps(row, ensure_ascii=False)
    return TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n"
