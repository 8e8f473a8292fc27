"""The result files of the benchmarks, and the tables of README and docs that are made from them.

A result file holds where its figures come from, and its rows. Each table stands between `<!-- KIND: NAME -->` and
`<!-- end -->`; the words around it are written by hand.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidcom2.records.provenance import birth_certificate, cpu_name
from vidcom2.records.whole_files import write_whole

ROOT = Path(__file__).parents[1]


def certificate(model: str, command: str, **about: Any) -> dict[str, Any]:
    """Return where figures come from, and how busy the machine is. Call it before measuring."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return birth_certificate(model, command, cpu=cpu_name(), cpu_cores=os.cpu_count(), load_average=load, **about)


def write_result(path: Path | None, certified: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a result file, if a path is given."""
    if path is not None:
        content = {"birth_certificate": certified, "rows": rows}
        write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def tables_in(page: str, kind: str) -> list[str]:
    """Return the names of a page's tables of one kind."""
    return [found[2] for found in _block(kind).finditer(page)]


def filled(page: str, kind: str, tables: Mapping[str, str]) -> str:
    """Return a page with its tables of one kind replaced."""
    return _block(kind).sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", page)


def write_tables(pages: Sequence[str], kind: str, tables: Mapping[str, str]) -> None:
    """Replace the tables of one kind in `pages`, whose paths begin at the root of the checkout."""
    for page in pages:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), kind, tables), encoding="utf-8")


def _block(kind: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {kind}: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
