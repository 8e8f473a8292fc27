"""What a run's answers depend on, noted in a file beside them, so that only the same run goes on with them.

Nothing here imports PyTorch.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .options import OptionError
from .whole_files import write_whole


def versions_of_answers() -> dict[str, str]:
    """Of the packages that answers depend on."""
    return {name: version(name) for name in ("vidcom2", "torch", "transformers")}


def check_record(record: Path, output: Path, arguments: Mapping[str, Any]) -> list[str]:
    """That a run with these arguments may go on with the answers of the one that wrote the record.

    Args:
        record: may be missing; then there is nothing to go on with.
        output: what holds the answers, for the errors.
        arguments: what answers depend on, as JSON has it, or some of it.

    Returns:
        The commits of the code that has written the answers.

    Raises:
        OptionError: if it was another run, or the record cannot be read.
    """
    if not record.is_file():
        return []
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        before, commits = dict(content["arguments"]), list(content["commits"])
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{str(record)!r} is not what vidcom2 wrote. Name another --output.") from error
    for name, value in arguments.items():
        if before.get(name) != value:
            raise OptionError(
                f"{str(output)!r} holds the answers of another run: `{name}` was {before.get(name)!r} and is "
                f"{value!r}. Name another --output, or go on with the same arguments."
            )
    return commits


def write_record(record: Path, output: Path, arguments: Mapping[str, Any], commit: str) -> list[str]:
    """Note this run with all of its arguments, or that it goes on.

    Args:
        commit: of the code that runs now.

    Returns:
        The commits of the code that has written the answers, with this one.

    Raises:
        OptionError: as `check_record`.
    """
    before = check_record(record, output, arguments)
    commits = before if commit in before else [*before, commit]
    write_whole(record, json.dumps({"arguments": arguments, "commits": commits}, indent=2) + "\n")
    return commits
