"""The output of `vidcom2 run` over many videos: a JSONL file, the record of its run, and parts of several processes.

`answers.jsonl` has a row for each request, and `answers.run.json` says what the answers depend on. Where several
processes run, each writes a part, `answers.<run>.rank<n>.jsonl`. The first process moves the rows of all parts to
`answers.jsonl` before a run begins and when all processes are done. `<run>` is the run's name in `answers.run.json`, so
that no file of another run, or of the user, is taken for a part. Nothing here imports PyTorch.
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

    def part(self, rank: int) -> Path:
        """Return the file that one of several processes writes. The run must be claimed."""
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
        """Return the rows of the file and of all parts by id. Errors are skipped unless `with_errors`."""
        rows: dict[str, dict[str, Any]] = {}
        for path in (self.path, *self._parts()):
            for row in complete_rows(path):
                if "error" not in row or (with_errors and row["id"] not in rows):
                    rows[row["id"]] = row
        return rows

    def gather(self, with_errors: bool) -> dict[str, dict[str, Any]]:
        """Move the rows of all parts to the file, and remove a half-written last line.

        Args:
            with_errors: whether rows of errors stay. If not, they are removed too, so that their requests run again.

        Returns:
            The rows by id.
        """
        parts, rows = self._parts(), self.rows(with_errors)
        with written_to(self.path):
            if self.path.exists() or rows:
                write_whole(self.path, "".join(map(as_line, rows.values())))
            for each in parts:  # their rows are safe now
                each.unlink()
        return rows
