"""The output of `vidcom2 run --engine ray`: a folder of parts, and in it the record of the run, `_run.json`.

Each part is a JSONL or a Parquet file that is written whole or not at all. The folder may be on any file system that
PyArrow knows (`s3://`, `gs://`). Needs PyArrow, which comes with Ray Data. Nothing here imports PyTorch.
"""
# Ray and PyArrow come with the extra `ray`:
# pyright: reportMissingImports=false

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ..errors import OptionError, one_line, sentence, written_to
from .jsonl import as_line
from .run_record import RequestStamp, RunOutput, locked_output, stamps_in
from .whole_files import write_whole

RECORD = "_run.json"  # readers of Parquet folders skip names that begin so
FORMATS = (".jsonl", ".parquet")
COUNTS = (*("prompt_tokens", "video_tokens", "full_prompt_tokens", "full_video_tokens", "new_tokens", "lost_frames"),)
TEXTS = ("id", "given", "answer", "error", "video_file")
SCHEMA = pa.schema([(name, pa.string()) for name in TEXTS] + [(name, pa.int64()) for name in COUNTS])


class AnswerParts(RunOutput):
    """The folder of a run's parts.

    Args:
        output: a path or a URL that ends in .jsonl or .parquet, which is the format of the parts.

    Raises:
        OptionError: on another ending, a file of this name, or a file system that does not answer.
    """

    def __init__(self, output: str) -> None:
        self.name, self.suffix = output.rstrip("/"), Path(output).suffix
        if self.suffix not in FORMATS:
            raise OptionError(f"`--output` is {output!r}, but with --engine ray must end in .jsonl or .parquet.")
        try:
            if "://" in output:
                self.system, self.folder = fs.FileSystem.from_uri(self.name)
            else:
                self.system, self.folder = fs.LocalFileSystem(), os.path.realpath(self.name)
            kind = self.system.get_file_info(self.folder).type
        except (OSError, ValueError) as error:
            raise OptionError(f"cannot write to `--output` {output!r}: {' '.join(str(error).split())}.") from None
        if kind == fs.FileType.File:
            raise OptionError(
                f"`--output` is {output!r}, which is a file, but --engine ray writes a folder. Name another."
            )

    @property
    def is_local(self) -> bool:
        return isinstance(self.system, fs.LocalFileSystem)

    def _files(self) -> list[str]:
        selector = fs.FileSelector(self.folder, allow_not_found=True)
        return sorted(each.path for each in self.system.get_file_info(selector) if each.type == fs.FileType.File)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file that appears under its name only when it is complete, as objects of S3 do by themselves."""
        if self.is_local:
            with written_to(Path(self.folder, name)):
                self.system.create_dir(self.folder, recursive=True)
                write_whole(Path(self.folder, name), content)
            return
        try:
            self.system.create_dir(self.folder, recursive=True)
            with self.system.open_output_stream(f"{self.folder}/{name}") as file:
                file.write(content)
        except OSError as error:  # such as a bucket that does not exist
            raise OptionError(f"cannot write to `--output` {self.name!r}: {sentence(one_line(error))}") from error

    def _content(self, path: str) -> bytes:
        with self.system.open_input_file(path) as file:
            return file.read()

    def _parts(self) -> list[str]:
        """Return the files whose names are those of parts. Others are the user's, and are left alone."""
        part = re.compile(rf"part-[0-9a-f]{{32}}{re.escape(self.suffix)}")
        return [path for path in self._files() if part.fullmatch(path.rpartition("/")[2])]

    def _record(self) -> str | None:
        """Return the text of the record. One without any part is of a run that answered nothing, and does not count."""
        record, files = f"{self.folder}/{RECORD}", self._files()
        if record not in files and any(path.endswith(self.suffix) for path in files):
            raise OptionError(
                f"{self.name!r} exists, but is no output of `vidcom2 run --engine ray` (no {RECORD} in it). Name "
                "another --output."
            )
        return self._content(record).decode(errors="replace") if record in files and self._parts() else None

    def _write_record(self, text: str) -> None:
        self._write(RECORD, text.encode())

    def locked(self) -> AbstractContextManager[None]:
        """Keep other runs from writing here during the block, if the folder is on this machine's file system."""
        return locked_output(Path(self.folder)) if self.is_local else nullcontext()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a part. The rows' ids name it, so that the same part written again replaces itself."""
        name = hashlib.sha256("\n".join(sorted(row["id"] for row in rows)).encode(errors="surrogatepass")).hexdigest()
        self._write(f"part-{name[:32]}{self.suffix}", self._encoded(rows))

    def _encoded(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        if self.suffix == ".jsonl":
            return "".join(map(as_line, rows)).encode()
        file = BytesIO()
        as_text = [{**row, "given": json.dumps(row["given"])} for row in rows]
        pq.write_table(pa.Table.from_pylist(as_text, SCHEMA), file)
        return file.getvalue()

    def _rows(self, path: str) -> list[dict[str, Any]]:
        content = self._content(path)
        if self.suffix == ".jsonl":
            return [json.loads(line) for line in content.decode().split("\n") if line]
        rows = pq.read_table(BytesIO(content), schema=SCHEMA).to_pylist()  # no type that would be unpickled
        named = [{name: value for name, value in row.items() if value is not None} for row in rows]
        return [{**row, "given": json.loads(row["given"])} for row in named]

    def answered(self) -> dict[str, RequestStamp]:
        """Return, for each id with an answer, what was asked.

        Rows of errors are removed from their parts, so that their requests are asked again. So is a row whose id an
        earlier part has: workers of a job that was killed live on for a moment, in which the next job may start.

        Raises:
            OptionError: on a part that no run wrote.
        """
        found: dict[str, RequestStamp] = {}
        for path in self._parts():
            try:
                rows = self._rows(path)
                kept = [row for row in rows if "error" not in row and row["id"] not in found]
                found |= stamps_in(kept)
            except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:  # PyArrow's are ValueErrors
                raise OptionError(f"{path!r} is no part that vidcom2 wrote. Name another --output.") from error
            if len(kept) < len(rows):
                with written_to(Path(path)):
                    if kept:
                        self._write(path.rpartition("/")[2], self._encoded(kept))
                    else:
                        self.system.delete_file(path)
        return found
