"""The record of a run. A file beside the answers notes what they depend on, so that only the same run continues them,
and a lock keeps other runs out meanwhile.

Nothing here imports PyTorch.
"""

import json
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
    """The content of a record.

    Attributes:
        arguments: all that the answers depend on.
        commits: the commits of the code that has written the answers.
    """

    arguments: dict[str, Any]
    commits: list[str]


def versions_of_answers() -> dict[str, str]:
    """Return the versions of the packages that answers depend on."""
    return {name: version(name) for name in ("vidcom2", "torch", "transformers")}


def read_record(path: Path) -> RunRecord | None:
    """Read the record in a file. Return None if there is no such file.

    Raises:
        OptionError: on a file that is no record.
    """
    return parse_record(path.read_text(encoding="utf-8", errors="replace"), str(path)) if path.is_file() else None


def parse_record(text: str, name: str) -> RunRecord:
    """Return the record that the file of this name holds as text. Raises what `read_record` raises."""
    try:
        content = json.loads(text)
        arguments, commits = dict(content["arguments"]), list(content["commits"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"{name!r} is not what vidcom2 wrote. Name another --output.") from error
    return RunRecord(arguments, commits)


def check_record(path: Path, output: Path, arguments: Mapping[str, Any]) -> RunRecord | None:
    """Check that a run with these arguments may continue the answers that belong to a record.

    Args:
        path: the file of the record. If it is missing, there is nothing to continue.
        output: what holds the answers, for the errors.
        arguments: all that the answers depend on, in values that JSON can represent.

    Returns:
        The record; None if it is missing.

    Raises:
        OptionError: if another run wrote the record, and what `read_record` raises.
    """
    record = read_record(path)
    if record is not None:
        check_same_run(record, str(output), arguments)
    return record


def check_same_run(record: RunRecord, output: str, arguments: Mapping[str, Any]) -> None:
    """Check that a run with these arguments may continue the answers in `output`. Raises an OptionError if not."""
    before, now = _flat(record.arguments), _flat(arguments)
    differing = [name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name)]
    if differing:
        shown = [f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in differing]
        more = f", and {len(shown) - DIFFERENCES_SHOWN} more" if len(shown) > DIFFERENCES_SHOWN else ""
        raise OptionError(
            f"{output!r} holds the answers of another run: {', '.join(shown[:DIFFERENCES_SHOWN])}{more}. Name "
            "another --output, or continue with the same model and arguments."
        )


def write_record(path: Path, output: Path, arguments: Mapping[str, Any], commit: str) -> RunRecord:
    """Write the record of a new run, or add the commit to that of a run that continues.

    Args:
        commit: the commit of the code that runs now.

    Raises:
        OptionError: those of `check_record`.
    """
    record = continued(check_record(path, output, arguments), arguments, commit)
    write_whole(path, json.dumps(vars(record), indent=2) + "\n")
    return record


def continued(record: RunRecord | None, arguments: Mapping[str, Any], commit: str) -> RunRecord:
    """Return the record of a run that starts (None) or goes on, with the commit of the code that runs now."""
    commits = [] if record is None else record.commits
    return RunRecord(dict(arguments), commits if commit in commits else [*commits, commit])


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Keep other runs from writing a file of answers during the block. An empty file `<name>.lock` stays beside it.

    Raises:
        OptionError: if another run is writing the file, or if a file of the lock's name exists that is no lock.
    """
    path = output.with_name(f"{output.name}.lock")
    lock = FileLock(path)
    try:
        with written_to(output):
            if path.exists() and path.stat().st_size:  # some versions of FileLock would empty it
                raise OptionError(f"{str(path)!r} exists, but is no lock of vidcom2. Name another --output.")
            lock.acquire(timeout=0)
    except Timeout:
        raise OptionError(
            f"another run is writing {str(output)!r}. Wait until it ends, or name another --output."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _flat(arguments: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts: each value is keyed by its dotted name."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
