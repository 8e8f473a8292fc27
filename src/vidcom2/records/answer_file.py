"""The output of `vidcom2 run` over many videos: a JSONL file, whose run it is, and its parts.

`answers.jsonl` has a row for each request, `answers.run.json` what the answers depend on. Of several processes each
writes a part, `answers.<run>.rank<n>.jsonl`; the first moves their rows to `answers.jsonl`, when all are done and
before a run begins. `<run>` is the name that the run gave itself in `answers.run.json`, so that no file of another run,
or of the user, is taken for a part. Nothing here imports PyTorch.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import OptionError, written_to
from .jsonl import as_line, complete_rows
from .run_record import check_record, locked, read_record, write_record
from .whole_files import write_whole


class AnswerFile:
    """
    Args:
        path: of the JSONL file.

    Raises:
        OptionError: if nothing can be written there.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix != ".jsonl":
            raise OptionError(f"`--output` is {str(path)!r}, but must end in .jsonl.")
        if not path.parent.is_dir():
            raise OptionError(f"`--output` is {str(path)!r}, but there is no folder {str(path.parent)!r}.")
        self.path, self.record = path, path.with_suffix(".run.json")

    def check(self, arguments: Mapping[str, Any]) -> None:
        """That a run with these arguments may begin or go on here.

        Raises:
            OptionError: if there are another run's answers, or another file.
        """
        if self.path.exists() and not self.record.is_file():
            raise OptionError(
                f"{str(self.path)!r} is there, and is no output of `vidcom2 run` (no {self.record.name} beside it). "
                "Name another --output."
            )
        check_record(self.record, self.path, arguments)

    def claim(self, arguments: Mapping[str, Any], commit: str) -> None:
        """Make it this run's, with all of its arguments, or continue it. Raises as `check`."""
        self.check(arguments)
        with written_to(self.record):
            write_record(self.record, self.path, arguments, commit)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other run writes here in the meantime. Raises an OptionError if one does."""
        with locked(self.path):
            yield

    def part(self, rank: int) -> Path:
        """The file of one of several processes, when the run is claimed."""
        record = read_record(self.record)
        assert record is not None
        return self.path.with_suffix(f".{record.run}.rank{rank}.jsonl")

    def _parts(self) -> list[Path]:
        record = read_record(self.record)
        if record is None:
            return []
        name = re.compile(re.escape(f"{self.path.stem}.{record.run}.rank") + r"\d+\.jsonl")
        return sorted(each for each in self.path.parent.iterdir() if name.fullmatch(each.name))

    def rows(self, with_errors: bool) -> dict[str, dict[str, Any]]:
        """Those of the file and of all parts, by their ids."""
        rows: dict[str, dict[str, Any]] = {}
        for path in (self.path, *self._parts()):
            for row in complete_rows(path):
                if "error" not in row or (with_errors and row["id"] not in rows):
                    rows[row["id"]] = row
        return rows

    def gather(self, with_errors: bool) -> dict[str, dict[str, Any]]:
        """Move the rows of all parts to the file, and repair it: half of a last line leaves it, and, unless they are to
        stay, rows of errors, which are asked again.

        Returns:
            The rows by their ids.
        """
        parts, rows = self._parts(), self.rows(with_errors)
        with written_to(self.path):
            if self.path.exists() or rows:
                write_whole(self.path, "".join(map(as_line, rows.values())))
            for each in parts:  # whose rows are now safe
                each.unlink()
        return rows
