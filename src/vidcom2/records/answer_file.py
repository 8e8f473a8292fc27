"""The output of `vidcom2 run` over many videos: a JSONL file of answers, and beside it the record of its run.

`answers.jsonl` has a row for each request, and `answers.run.json` says what the answers depend on. Nothing here imports
PyTorch.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import OptionError, written_to
from .run_record import check_record, locked, write_record


class AnswerFile:
    """The answer file of a run.

    Args:
        path: where the JSONL file is, or will be.

    Raises:
        OptionError: if the name does not end in .jsonl, or its folder does not exist.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix != ".jsonl":
            raise OptionError(f"`--output` is {str(path)!r}, but must end in .jsonl.")
        if not path.parent.is_dir():
            raise OptionError(f"`--output` is {str(path)!r}, but there is no folder {str(path.parent)!r}.")
        self.path, self.record = path, path.with_suffix(".run.json")

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check that a run with these arguments may start or continue here.

        Raises:
            OptionError: if the file holds another run's answers, or is not an answer file.
        """
        if self.path.exists() and not self.record.is_file():
            raise OptionError(
                f"{str(self.path)!r} exists, but is no output of `vidcom2 run` (no {self.record.name} beside it). "
                "Name another --output."
            )
        check_record(self.record, self.path, arguments)

    def claim(self, arguments: Mapping[str, Any], commit: str) -> None:
        """Note that the file belongs to this run, or that the run continues it. Raises what `check` raises."""
        self.check(arguments)
        with written_to(self.record):
            write_record(self.record, self.path, arguments, commit)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from writing here during the block. Raises an OptionError if one is writing now."""
        with locked(self.path):
            yield
