"""The output of `vidcom2 run` over many videos: a JSONL file, whose run it is, and its parts.

`answers.jsonl` has a row for each request, `answers.run.json` what the answers depend on. Of several processes each
writes `answers.rank<n>.jsonl`; the first moves their rows to `answers.jsonl`, when all are done and before a run
begins. Nothing here imports PyTorch.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .jsonl import as_line, complete_rows
from .options import OptionError, written_to
from .run_record import check_record, write_record
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
        there = [each for each in (self.path, *self._parts()) if each.exists()]
        if there and not self.record.is_file():
            raise OptionError(
                f"{str(there[0])!r} is there, and is no output of `vidcom2 run` (no {self.record.name} beside it). "
                "Name another --output."
            )
        check_record(self.record, self.path, arguments)

    def claim(self, arguments: Mapping[str, Any], commit: str) -> None:
        """Make it this run's, with all of its arguments, or go on. Raises as `check`."""
        self.check(arguments)
        with written_to(self.record):
            write_record(self.record, self.path, arguments, commit)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other run writes here in the meantime. Raises an OptionError if one does."""
        lock = FileLock(self.path.with_suffix(".lock"))
        try:
            with written_to(self.path):
                lock.acquire(timeout=0)
        except Timeout:
            raise OptionError(
                f"another run is writing {str(self.path)!r}. Wait for its end, or name another --output."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def part(self, rank: int) -> Path:
        return self.path.with_suffix(f".rank{rank}.jsonl")

    def _parts(self) -> list[Path]:
        name = re.compile(re.escape(self.path.stem) + r"\.rank\d+\.jsonl")
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
