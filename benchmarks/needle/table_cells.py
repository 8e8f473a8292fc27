"""What the tables of the needle benchmark are made of: rows of result files, and what a cell says of one."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from vidcom2.evaluation.accuracy_tables import cell
from vidcom2.toys import TOY

from ..pages import ROOT
from .candidates import SEEN_ALL

RESULTS = ROOT / "benchmarks" / "results" / "needle"
QWEN = "qwen3_vl"
SHORT_TOYS = ("LLaVA-OneVision toy", "Qwen3-VL toy")

Row: TypeAlias = Mapping[str, Any]


def load(group: str, toy: str = TOY.name) -> dict[str, Any]:
    return json.loads((RESULTS / toy / f"{group}.json").read_text())


def together(*groups: str, toy: str = TOY.name) -> dict[str, Any]:
    """Merge groups that answer the same questions: the figures of the first, and the methods of the others.
    Differences are to answers with all tokens from the same run.

    Raises:
        ValueError: if the toy or the questions of one differ.
    """
    first, *others = (load(group, toy) for group in groups)
    asked = [[each["birth_certificate"][f"{what}_sha256"] for what in ("model", "data")] for each in (first, *others)]
    if any(each != asked[0] for each in asked):
        raise ValueError(f"{' and '.join(groups)} of {toy!r} had other questions, or another toy. Run all again.")
    return first | {
        "all": [*first["all"], *(row for each in others for row in each["all"][1:])],
        "levels": {
            level: [*rows, *(row for each in others for row in each["levels"][level][1:])]
            for level, rows in first["levels"].items()
        },
    }


def both(group: str, toys: Sequence[str] = SEEN_ALL) -> list[dict[str, Any]]:
    """Return a group's figures of each of these toys."""
    return [load(group, toy) for toy in toys]


def toys_and_ratios(ratios: Sequence[float]) -> list[str]:
    """Return the headings of columns for each toy and ratio."""
    return [f"{name.split()[0]}, {ratio:.0%}" for name in SHORT_TOYS for ratio in ratios]


def best_first(rows: Sequence[Row], ratios: Sequence[float]) -> list[str]:
    """Return the methods, ordered by their mean share of right answers. A method counts as wrong where it refuses."""

    def mean(name: str) -> float:
        return sum(row["accuracy"] or 0.0 for row in rows if row["method"] == name and row["retention_ratio"] in ratios)

    return sorted(dict.fromkeys(row["method"] for row in rows if row["retention_ratio"] in ratios), key=mean)[::-1]


def row_of(rows: Sequence[Row], method: str, ratio: float) -> Any:
    return next((row for row in rows if (row["method"], row["retention_ratio"]) == (method, ratio)), None)


def percent_by_kind(row: Row, kinds: Sequence[str]) -> list[str]:
    return [percent(row["by_kind"][kind]["accuracy"]) for kind in kinds]


def right(row: Row) -> str:
    return "–" if "refused" in row else percent(row["accuracy"])


def right_and_difference(row: Row) -> str:
    """Format the right answers and their difference from all tokens, in points, with its paired 95 % interval."""
    return "–" if "refused" in row else f"{percent(row['accuracy'])} ({cell(row, 'difference', '+')})"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
