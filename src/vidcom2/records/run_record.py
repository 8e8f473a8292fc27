"""Whose answers a file holds: what a run's answers depend on is noted in a file beside them, so that only the same run
continues them, and a lock keeps others out in the meantime.

Nothing here imports PyTorch.
"""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import OptionError, written_to
from .whole_files import write_whole

DIFFERENCES_SHOWN = 3


@dataclass(frozen=True)
class RunRecord:
    """What a run noted.

    Attributes:
        run: a name of its own, which no other run has.
        arguments: what the answers depend on.
        commits: of the code that has written the answers.
    """

    run: str
    arguments: dict[str, Any]
    commits: list[str]


def versions_of_answers() -> dict[str, str]:
    """Of the packages that answers depend on."""
    return {name: version(name) for name in ("vidcom2", "torch", "transformers")}


def read_record(path: Path) -> RunRecord | None:
    """The record in a file; None if there is none.

    Raises:
        OptionError: on a file that is no record, and on the record of an earlier vidcom2.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        run, arguments, commits = content.get("run"), dict(content["arguments"]), list(content["commits"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"{str(path)!r} is not what vidcom2 wrote. Name another --output.") from error
    if run is None:
        raise OptionError(
            f"{str(path)!r} was written by an earlier vidcom2, and does not say which weights gave the answers. They "
            "cannot be continued. Name another --output."
        )
    return RunRecord(run, arguments, commits)


def check_record(path: Path, output: Path, arguments: Mapping[str, Any]) -> RunRecord | None:
    """That a run with these arguments may continue the answers of the one that wrote the record.

    Args:
        path: of the record, which may be missing; then there is nothing to continue.
        output: what holds the answers, for the errors.
        arguments: all that the answers depend on, as JSON has it.

    Returns:
        The record.

    Raises:
        OptionError: if it was another run, or as `read_record`.
    """
    record = read_record(path)
    if record is None:
        return None
    before, now = _flat(record.arguments), _flat(arguments)
    differing = [name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name)]
    if differing:
        shown = [f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in differing]
        more = f", and {len(shown) - DIFFERENCES_SHOWN} more" if len(shown) > DIFFERENCES_SHOWN else ""
        raise OptionError(
            f"{str(output)!r} holds the answers of another run: {', '.join(shown[:DIFFERENCES_SHOWN])}{more}. Name "
            "another --output, or continue with the same model and arguments."
        )
    return record


def write_record(path: Path, output: Path, arguments: Mapping[str, Any], commit: str) -> RunRecord:
    """Note this run with all of its arguments, or that it continues.

    Args:
        commit: of the code that runs now.

    Raises:
        OptionError: as `check_record`.
    """
    record = check_record(path, output, arguments) or RunRecord(secrets.token_hex(8), dict(arguments), [])
    if commit not in record.commits:
        record.commits.append(commit)
    write_whole(path, json.dumps(vars(record), indent=2) + "\n")
    return record


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """No other run writes a file of answers in the meantime. `<name>.lock` beside it, an empty file, stays there.

    Raises:
        OptionError: if another run writes it, or the lock's name is that of another file.
    """
    path = output.with_name(f"{output.name}.lock")
    lock = FileLock(path)
    try:
        with written_to(output):
            if path.exists() and path.stat().st_size:  # which some versions of FileLock would empty
                raise OptionError(f"{str(path)!r} is there, and is no lock of vidcom2. Name another --output.")
            lock.acquire(timeout=0)
    except Timeout:
        raise OptionError(
            f"another run is writing {str(output)!r}. Wait for its end, or name another --output."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _flat(arguments: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of dicts in dicts by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
