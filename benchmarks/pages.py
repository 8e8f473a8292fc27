"""Writing the tables of README and docs. Each stands between `<!-- KIND: NAME -->` and `<!-- end -->`, and a script
writes it, mostly from result files. The words around it are written by hand."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
