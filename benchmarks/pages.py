"""Tables of measured figures in README and docs: each stands between `<!-- KIND: NAME -->` and `<!-- end -->`, and a
script writes it from result files. The words around it are written by hand."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tables_in(page: str, kind: str) -> list[str]:
    """The names of the tables of a kind."""
    return [found[2] for found in _block(kind).finditer(page)]


def filled(page: str, kind: str, tables: Mapping[str, str]) -> str:
    """A page with its tables of a kind replaced."""
    return _block(kind).sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", page)


def write_tables(pages: Sequence[str], kind: str, tables: Mapping[str, str]) -> None:
    """Replace the tables of a kind in pages, which are named from the root of the checkout."""
    for page in pages:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), kind, tables), encoding="utf-8")


def _block(kind: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {kind}: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
