"""The result file of `vidcom2 bench`. This file does not import PyTorch."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..records.whole_files import write_whole
from .bench_tables import efficiency_table, notes
from .figures import figures

SCHEMA = 1  # of result files; it grows when a key goes or changes its meaning


def new_file(folder: Path, name: str, now: datetime | None = None) -> Path:
    """Create an empty file whose name is the model's and the time. A number is added if the folder has that name."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
    safe = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in name)
    number = 1
    while True:
        path = folder / f"{safe}-{stamp}{'' if number == 1 else f'-{number}'}.json"
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            number += 1


def write_results(
    path: Path,
    title: str,
    certificate: Mapping[str, Any],
    every: Sequence[Mapping[str, Any]],
    complete: bool,
    again: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Write the file that `vidcom2 publish --results` reads: for each series the cells of its row, and its `figures`.

    Args:
        every: the series that were measured, as `Series.as_json` returns them.
        complete: whether nothing is left to measure.
        again: what `ask_again` measured, if it was asked to.
    """
    rows = figures(every)
    headings, *cells = made = efficiency_table(rows)
    shown = [
        dict(zip(headings, row, strict=True)) | {"figures": dict(each)} for row, each in zip(cells, every, strict=True)
    ]
    content = {"schema": SCHEMA, "title": title, "birth_certificate": certificate, "complete": complete, "rows": shown}
    content["notes"] = notes([made], rows)
    content |= {"ask_again": again} if again else {}
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return rows


def read_results(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a file of `vidcom2 bench`, and return its content and the rows that `figures` makes of it.

    Raises:
        OptionError: if it is not such a file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if missing := {"title", "birth_certificate", "complete"} - content.keys():
            raise KeyError(*missing)
        return content, figures([row["figures"] for row in content["rows"]])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise OptionError(
            f"{str(path)!r} is not a result file of `vidcom2 bench` ({type(error).__name__}: {error})."
        ) from error
