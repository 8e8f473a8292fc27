"""Read JSONL files that users write, and read and write files of answers. Nothing here imports PyTorch."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError

# Characters at which readers such as `str.splitlines` end a line, and lone surrogates, which UTF-8 cannot write.
# JSON escapes control characters by itself.
TO_ESCAPE = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


# What a line may hold instead of an object, in JSON's terms.
KINDS = {type(None): "null", bool: "a boolean", str: "a string", list: "an array", int: "a number", float: "a number"}


def numbered_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Read a user's file, and return its lines with their numbers, counted from 1. Empty lines are skipped.

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
    """Return the object that a line holds. Raises an OptionError whose text is only the reason: callers say which line.

    A key that comes twice is refused, of which Python would keep the last, and so are NaN, Infinity and 1e400.
    """
    try:
        given = json.loads(line, object_pairs_hook=_each_key_once, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        raise OptionError(f"it is not valid JSON ({reason}). Write one JSON object per line") from None
    except OptionError:
        raise
    except ValueError:
        raise OptionError("an integer has more digits than Python reads. Write it as a text") from None
    except RecursionError:
        raise OptionError("its values are nested too deeply. Write one flat JSON object per line") from None
    if not isinstance(given, dict):
        raise OptionError(f"it holds {KINDS[type(given)]}, not an object. Write one JSON object per line")
    return given


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"the key {twice!r} comes twice. Write it once")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise OptionError(f"{text} is not a finite number. Write null, or a number that a float can hold")
    return float(text)


def answered_rows(path: Path, with_errors: bool = False) -> dict[str, dict[str, Any]]:
    """Return the rows of an answer file by id, leaving out rows with errors, and a last line that an interruption cut
    off. A missing file has no rows.

    Args:
        with_errors: whether to return the last error of what was never answered, too.

    Raises:
        OptionError: if a row has no id, or does not say what it was `given`, as all rows of `vidcom2` do.
    """
    if not path.is_file():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]]
        if all(isinstance(row["id"], str) and "given" in row for row in rows):
            answered = {row["id"]: row for row in rows if "error" not in row}
            return {row["id"]: row for row in rows} | answered if with_errors else answered
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise OptionError(f"{str(path)!r} has lines that vidcom2 did not write. Name another --output.")


def as_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON with its line break."""
    line = json.dumps(row, ensure_ascii=False)
    return TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n"
