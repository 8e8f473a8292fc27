"""Write the tables of the benchmark into docs and README, and draw its plots, from the result files.

    python -m benchmarks.needle.tables

Each table stands between `<!-- needle: NAME -->` and `<!-- end -->`. The words around it are written by hand. The docs
show short tables. Those with all figures and intervals are in `benchmarks/results/needle/README.md`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vidcom2.evaluation.accuracy_plot import draw_results
from vidcom2.evaluation.accuracy_tables import cell, pipes
from vidcom2.toys import TOY, TOYS

from ..pages import ROOT, write_tables
from . import hard_tables
from .candidates import ABLATION_RATIOS, ADJUSTED, BUDGET_RATIOS, LEADERBOARD_RATIOS, RATIOS, SEEN_ALL, SEEN_FEW
from .table_cells import (
    QWEN,
    RESULTS,
    SHORT_TOYS,
    Row,
    best_first,
    both,
    load,
    percent,
    percent_by_kind,
    right,
    right_and_difference,
    row_of,
    together,
    toys_and_ratios,
)
from .towers import TOWERS

COSTS = RESULTS.parent / "compress_cpu.json"
COST_DTYPE = "bfloat16"  # that of released models
PUBLISHED_RATIOS = (0.25, 0.15, 0.1)  # of `published.json`, which has more
COST_SIZES = ("llava-onevision-7b", "qwen3-vl-8b")
OF_DOCS = ("live", "needle", "leaderboard")
PAGES = ("README.md", *(f"docs/{name}.md" for name in OF_DOCS), "benchmarks/results/needle/README.md")
HEADLINE_RATIOS = (0.25, 0.15)
FRAME_COUNTS = (8, 16, 32, 64)  # of `frames.json`, which needle.md describes
HARD_RATIO = 0.1  # at which the kinds of questions are told apart
STREAM_TIMES = ("now", "recent", "middle", "far")
ORIGINAL_SUFFIX = ", original positions"

ORIGINAL = f"VidCom² (paper){ORIGINAL_SUFFIX}"
OWN = "coverage"  # this project's method
OF_TWO_POSITIONS = ("VidCom² (paper)", "VidCom² (released)", "EVS", "V-CAST", OWN)  # methods that score tokens
SHORT = {  # the rows of README's table, and what it calls them
    "all tokens": "all tokens",
    OWN: "`vidcom2.RECOMMENDED`",
    "VidCom² (paper)": "VidCom²",
    "V-CAST": "V-CAST",
    "random": "random tokens",
    "uniform_frames": "whole frames, evenly spaced",
}
SHORT_RATIOS = (0.25, 0.1)
TOLD_BY_KIND = ("VidCom² (paper)", "EVS", "SparseVLM", "random", "uniform_frames")
PLOTTED = ("VidCom² (paper)", OWN, "V-CAST", "EVS", "uniform_frames", "random")


def of_the_paper(toy: str) -> dict[str, Any]:
    """Return the paper's methods, those inside the language model among them, without its adjustment of frames."""
    found = together("methods", "in_model", toy=toy)

    def plain(rows: list[Row]) -> list[Row]:
        return [row for row in rows if not row["method"].endswith(ADJUSTED)]

    return found | {"all": plain(found["all"]), "levels": {name: plain(rows) for name, rows in found["levels"].items()}}


def headline(methods: dict[str, Any], of_positions: dict[str, Any]) -> str:
    """Make the table method × the paper's two ratios, with right answers and their difference from all tokens."""
    whole, *rows = methods["all"]
    rows += [row for row in of_positions["all"] if row["method"] in (ORIGINAL, OWN)]
    names = list(dict.fromkeys(row["method"] for row in rows))
    lines = [
        ["method", *(f"R = {ratio:.0%}: right, %" for ratio in HEADLINE_RATIOS), "kept, %"],
        ["all tokens", *[percent(whole["accuracy"])] * len(HEADLINE_RATIOS), "100"],
    ]
    for name in names:
        chosen = [row_of(rows, name, ratio) for ratio in HEADLINE_RATIOS]
        kept = " / ".join("–" if "refused" in row else f"{100 * row['kept_share']:.1f}" for row in chosen)
        lines.append([name, *map(right_and_difference, chosen), kept])
    return pipes(lines)


def short() -> str:
    """Make README's table of right answers on both toys, to all questions and to hard ones: the recommended method,
    others, and the two baselines that say which are hard."""
    columns = [(board, ratio) for board in both("hard") for ratio in SHORT_RATIOS]
    names = [f"{name}, {ratio:.0%}" for name in SHORT_TOYS for ratio in SHORT_RATIOS]
    lines = [["right answers, %/to hard questions", *names]]
    for method, name in SHORT.items():
        lines.append([name, *(hard_tables.right_of_all_and_hard(*column, method) for column in columns)])
    return pipes(lines)


def kinds_at(methods: dict[str, Any], ratio: float) -> str:
    """Make the table method × kind of question at one ratio, of a few methods."""
    whole, *rows = methods["all"]
    kinds = list(whole["by_kind"])
    lines = [["method", *kinds], ["all tokens", *percent_by_kind(whole, kinds)]]
    lines += [[name, *percent_by_kind(row_of(rows, name, ratio), kinds)] for name in TOLD_BY_KIND]
    return pipes(lines)


def by_kind(methods: dict[str, Any]) -> str:
    """Make the paper's Table 2: ratio × method × kind of question."""
    whole, *rows = methods["all"]
    kinds = list(whole["by_kind"])
    lines = [["R", "method", "kept, %", *kinds, "all, %", "difference to all tokens"]]
    lines.append(["100 %", "all tokens", "100", *percent_by_kind(whole, kinds), percent(whole["accuracy"]), ""])
    for ratio in sorted({row["retention_ratio"] for row in rows}, reverse=True):
        for name in dict.fromkeys(row["method"] for row in rows):
            row = row_of(rows, name, ratio)
            if row is None or "refused" in row:
                lines.append([f"{ratio:.0%}", name, *["–"] * (len(kinds) + 3)])
                continue
            lines.append(
                [
                    f"{ratio:.0%}",
                    name,
                    f"{100 * row['kept_share']:.1f}",
                    *percent_by_kind(row, kinds),
                    percent(row["accuracy"]),
                    cell(row, "difference", "+"),
                ]
            )
    return pipes(lines)


def by_level(methods: dict[str, Any]) -> str:
    """Make the table method × level at a quarter of the tokens."""
    levels = methods["levels"]
    lines = [["method", *levels]]
    for first in range(len(methods["all"])):
        row = methods["all"][first]
        if row["retention_ratio"] in (1.0, 0.25):
            lines.append([row["method"], *(right(rows[first]) for rows in levels.values())])
    return pipes(lines)


def positions(methods: dict[str, Any], of_positions: dict[str, Any]) -> str:
    """Make the table of consecutive and original positions × kind of question."""
    whole, *rows = [*methods["all"], *of_positions["all"][1:]]
    kinds = list(whole["by_kind"])
    lines = [["R", "method", "positions", *kinds, "all, %"]]
    for ratio in RATIOS[:-1]:
        for name in OF_TWO_POSITIONS:
            for kind, row in (
                ("consecutive", row_of(rows, name, ratio)),
                ("original", row_of(rows, f"{name}{ORIGINAL_SUFFIX}", ratio)),
            ):
                lines.append([f"{ratio:.0%}", name, kind, *percent_by_kind(row, kinds), right(row)])
    return pipes(lines)


def long_positions(consecutive: dict[str, Any], original: dict[str, Any]) -> str:
    """Make the table of consecutive and original positions × ratio, for videos of 64 frames."""
    lines = [["method", "positions", *(f"R = {ratio:.0%}" for ratio in LEADERBOARD_RATIOS)]]
    for name in OF_TWO_POSITIONS:
        for kind, found in (("consecutive", consecutive), ("original", original)):
            chosen = [row_of(found["all"], name, ratio) for ratio in LEADERBOARD_RATIOS]
            lines.append([name, kind, *map(right_and_difference, chosen)])
    return pipes(lines)


def leaderboard(found: dict[str, Any], ratios: Sequence[float] = LEADERBOARD_RATIOS) -> str:
    """Make the table method × ratio of right answers, best first, with their difference from all tokens."""
    whole, *rows = found["all"]
    lines = [["method", *(f"R = {ratio:.0%}" for ratio in ratios)]]
    lines.append(["all tokens", *[percent(whole["accuracy"])] * len(ratios)])
    for name in best_first(rows, ratios):
        chosen = [row_of(rows, name, ratio) for ratio in ratios]
        lines.append([name, *map(right_and_difference, chosen)])
    return pipes(lines)


def both_toys(boards: Sequence[dict[str, Any]], ratios: Sequence[float] = LEADERBOARD_RATIOS) -> str:
    """Make the table method × toy and ratio of right answers, best first."""
    columns = [(board["all"], ratio) for board in boards for ratio in ratios]
    lines = [["method", *toys_and_ratios(ratios)]]
    lines.append(["all tokens", *(percent(rows[0]["accuracy"]) for rows, _ in columns)])
    everything = [row for board in boards for row in board["all"][1:]]
    for name in best_first(everything, ratios):
        lines.append([name, *(right(row_of(rows, name, ratio)) for rows, ratio in columns)])
    return pipes(lines)


def leaderboard_by_kind(found: dict[str, Any], ratio: float = HARD_RATIO) -> str:
    """Make the table method × kind of question at one ratio, best first."""
    whole, *rows = found["all"]
    kinds = list(whole["by_kind"])
    lines = [["method", *kinds], ["all tokens", *percent_by_kind(whole, kinds)]]
    for name in best_first(rows, (ratio,)):
        row = row_of(rows, name, ratio)
        if "refused" not in row:
            lines.append([name, *percent_by_kind(row, kinds)])
    return pipes(lines)


def costs(found: dict[str, Any]) -> str:
    """Make the table of `benchmark_compress.py`: the milliseconds in which each method chooses, at real sizes."""
    rows = [row for row in found["rows"] if row["dtype"] == COST_DTYPE and row["size"] in COST_SIZES]
    shapes = {row["size"]: " × ".join(map(str, row["shape"])) for row in rows}
    lines = [["method", *(f"{size}: {shape}" for size, shape in shapes.items())]]
    times: dict[str, list[str]] = {}
    for row in rows:
        name = f"`{row['method']}`" + (f" ({row['scoring']})" if row["scoring"] else "")
        times.setdefault(name, []).append(_milliseconds(row["ms"]))
    times["two sums over the tokens"] = [
        _milliseconds(next(row["two_passes_ms"] for row in rows if row["size"] == size)) for size in shapes
    ]
    lines += [[name, *of_sizes] for name, of_sizes in times.items()]
    return pipes(lines)


def published() -> str:
    """Make the table of published figures of full models: a row for each source, model and ratio, best method first."""
    rows = json.loads((ROOT / "benchmarks" / "published.json").read_text())["rows"]
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["ratio"] not in PUBLISHED_RATIOS:
            continue
        source = f"[{row['reported_by']}]({row['source_url']})"
        found.setdefault((source, row["model"], str(row["frames"] or "–"), f"{row['ratio']:.0%}"), []).append(row)
    lines = [["source", "model", "frames", "R", "kept, % of the full model's average"]]
    for place, of_place in found.items():
        best = sorted(of_place, key=lambda row: -row["kept_percent"])
        lines.append([*place, "; ".join(f"{row['method']} {row['kept_percent']:.1f}" for row in best)])
    return pipes(lines)


def variants(found: dict[str, Any], ratios: Sequence[float]) -> str:
    """Make a table of each variant at some ratios."""
    whole, *rows = found["all"]
    lines = [["variant", *(f"R = {ratio:.0%}: right, %" for ratio in ratios)]]
    lines.append(["all tokens", *[percent(whole["accuracy"])] * len(ratios)])
    for name in dict.fromkeys(row["method"] for row in rows):
        chosen = [row_of(rows, name, ratio) for ratio in ratios]
        lines.append([name, *("–" if row is None else right_and_difference(row) for row in chosen)])
    return pipes(lines)


def roundings(boards: Sequence[dict[str, Any]]) -> str:
    """Make the table toy × ratio × rounding: right answers, and how many answers differ from those with `"ceil"`."""
    lines = [["toy", "R, %", "rounding", "kept, %", "right, %", "other answers"]]
    for name, found in zip(SHORT_TOYS, boards, strict=True):
        for of_ratio in found["beside"]:
            for row in of_ratio:
                told = [name, f"{100 * row['retention_ratio']:g}", f'`"{row["method"]}"`']
                others = f"{row['agreement_n'] * (1 - row['agreement']):,.0f}"
                right = [percent(row["accuracy"]), "–"] if row is of_ratio[0] else [right_and_difference(row), others]
                lines.append([*told, f"{100 * row['kept_share']:.1f}", *right])
    return pipes(lines)


def origins() -> str:
    """Make the table of the result files: what each holds, and where its figures come from."""
    lines = [["toy", "file", "questions", "date", "commit"]]
    for toy in TOYS:
        for path in sorted((RESULTS / toy).glob("*.json")):
            found = json.loads(path.read_text())
            made = found["birth_certificate"]
            lines.append([toy, path.name, f"{found['questions']:,}", made["date"][:10], made["vidcom2_commit"][:10]])
    return pipes(lines)


def frame_counts(found: dict[str, Any]) -> str:
    """Make the table way to spend tokens × number of frames, with the difference from all tokens of the fewest."""
    rows = found["all"]
    lines = [["", *(f"{count} frames" for count in FRAME_COUNTS)]]
    for name in dict.fromkeys(row["method"] for row in rows):
        of_counts = [row for row in rows if row["method"] == name]
        lines.append(
            [
                name,
                *(percent(row["accuracy"]) if row is of_counts[0] else right_and_difference(row) for row in of_counts),
            ]
        )
    of_budget = [row for row in rows if row["method"] == name]
    lines.append(["tokens in the prompt: a method", *(f"{row['prompt_tokens']:.0f}" for row in of_budget)])
    lines.append(["all tokens", *(f"{row['prompt_tokens']:.0f}" for row in rows[: len(FRAME_COUNTS)])])
    return pipes(lines)


def frames_of_both(boards: Sequence[dict[str, Any]]) -> str:
    """Make the table way to spend tokens × toy and number of frames, with right answers alone."""
    names = list(dict.fromkeys(row["method"] for row in boards[0]["all"]))
    columns = [
        (board["all"], f"{name.split()[0]}, {count}", count)
        for board, name in zip(boards, SHORT_TOYS, strict=True)
        for count in FRAME_COUNTS
    ]
    lines = [["frames", *(title for _, title, _ in columns)]]
    for name in names:
        shares = [
            next(row["accuracy"] for row in rows if (row["method"], row["num_frames"]) == (name, count))
            for rows, _, count in columns
        ]
        lines.append([name, *map(percent, shares)])
    return pipes(lines)


def repeats(found: dict[str, Any]) -> str:
    """Make the table method × `vision_tolerance`, with right answers at each rate of H.264, their difference from the
    whole tower, and the kinds of questions that lose at some rate."""
    rates = found["rates"]
    lines = [["", "`vision_tolerance`", *(f"crf {rate}: right, %" for rate in rates), "kinds that lose, at worst"]]
    for place, of_rates in enumerate(zip(*(of_rate["all"] for of_rate in rates.values()), strict=True)):
        row = of_rates[0]
        if row["tolerance"] is None:
            lines.append([_named(row), "whole tower", *(percent(each["accuracy"]) for each in of_rates), ""])
            continue
        lost: dict[str, float] = {}
        for of_rate in rates.values():
            for kind, rows in of_rate["kinds"].items():
                if (rows[place]["difference_high"] or 0.0) < 0:
                    lost[kind] = min(lost.get(kind, 0.0), rows[place]["difference"])
        told = ", ".join(f"{kind} −{-100 * lost[kind]:.0f}" for kind in sorted(lost, key=lost.__getitem__))
        lines.append([_named(row), f"{row['tolerance']:g}", *map(right_and_difference, of_rates), told or "none"])
    return pipes(lines)


def repeats_computed(toys: Mapping[str, dict[str, Any]]) -> str:
    """Make the table toy × `vision_tolerance` × level of the share of groups that the tower computes, one number for
    each rate of H.264."""
    levels = list(dict.fromkeys(level for found in toys.values() for level in _computed_of(found)[0]))
    lines = [["", "`vision_tolerance`", *levels]]
    for name, found in toys.items():
        of_rates = _computed_of(found)
        for place, tower in enumerate(TOWERS[1:], start=1):
            cells = [
                " / ".join(f"{100 * of_rate[level][place]:.0f}" for of_rate in of_rates) if level in of_rates[0] else ""
                for level in levels
            ]
            lines.append([name, f"{tower.tolerance:g}", *cells])
    return pipes(lines)


def streams(toy: str, usual: bool) -> str:
    """Make the table kind of stream × memory × time that is asked about: right answers, and how many more ours has.

    Args:
        usual: take all streams but the busiest together.
    """
    lines = [["streams", "frames", "memory", "tokens", *STREAM_TIMES]]
    for row in json.loads((RESULTS / toy / "streams.json").read_text())["rows"]:
        if (row["kind"] == "usual") == usual:
            of_stream = [row["kind"], f"{row['frames']:,}"] if row["frames"] else []
            shown = [percent(row[when]["accuracy"]) for when in STREAM_TIMES]
            if row["memory"] != OWN:
                more = [cell(row[when], "difference", "+") for when in STREAM_TIMES]
                shown = [f"{share} ({each})" for share, each in zip(shown, more)]
            lines.append([*of_stream, row["memory"], f"{row['tokens']:.0f}", *shown])
    return pipes([lines[0][2:], *lines[1:]] if usual else lines)


def streams_of_both() -> str:
    """Make the table memory × toy and time that is asked about, with right answers alone, of all but the busiest."""
    lines = [["memory", *(f"{name.split()[0]}, {when}" for name in SHORT_TOYS for when in STREAM_TIMES)]]
    of_toys = [json.loads((RESULTS / toy / "streams.json").read_text())["rows"] for toy in (TOY.name, QWEN)]
    for rows in zip(*([row for row in of_toy if row["kind"] == "usual"] for of_toy in of_toys), strict=True):
        assert len({row["memory"] for row in rows}) == 1
        shown = (percent(row[when]["accuracy"]) for row in rows for when in STREAM_TIMES)
        lines.append([rows[0]["memory"], *shown])
    return pipes(lines)


def _computed_of(found: dict[str, Any]) -> list[dict[str, list[float]]]:
    return [of_rate["computed"] for of_rate in found["rates"].values()]


def _named(row: Row) -> str:
    """Name a row's method with its ratio, if it drops anything."""
    return row["method"] if row["retention_ratio"] == 1.0 else f"{row['method']}, R = {row['retention_ratio']:.0%}"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def blocks() -> dict[str, str]:
    """Return name -> text for all blocks of the pages."""
    (methods, of_qwen), original = map(of_the_paper, SEEN_ALL), load("positions")
    boards = [together("leaderboard", "leaderboard_attention", toy=toy) for toy in SEEN_ALL]

    made: dict[str, Callable[[], str]] = {
        "headline": lambda: headline(methods, original),
        "short": short,
        "kinds": lambda: by_kind(methods),
        "kinds-25": lambda: kinds_at(methods, 0.25),
        "methods-qwen3-vl": lambda: variants(of_qwen, RATIOS),
        "levels-qwen3-vl": lambda: by_level(of_qwen),
        "levels": lambda: by_level(methods),
        "positions": lambda: positions(methods, original),
        "long-positions": lambda: long_positions(load("long_positions"), load("long")),
        "ablations": lambda: variants(together("ablations", "in_model"), ABLATION_RATIOS),
        "ablations-qwen3-vl": lambda: variants(together("ablations", "in_model", toy=QWEN), ABLATION_RATIOS),
        "budgets": lambda: variants(load("budgets"), BUDGET_RATIOS),
        "budgets-qwen3-vl": lambda: variants(load("budgets", QWEN), BUDGET_RATIOS),
        "roundings": lambda: roundings(both("roundings")),
        "frames": lambda: frame_counts(load("frames")),
        "frames-qwen3-vl": lambda: frame_counts(load("frames", QWEN)),
        "frames-both": lambda: frames_of_both(both("frames")),
        "repeats": lambda: repeats(load("repeats")),
        "repeats-qwen3-vl": lambda: repeats(load("repeats", QWEN)),
        "repeats-computed": lambda: repeats_computed(dict(zip(SHORT_TOYS, both("repeats"), strict=True))),
        "both-toys": lambda: both_toys(boards),
        "both-toys-long": lambda: both_toys(both("long")),
        "both-toys-few": lambda: both_toys(both("leaderboard", SEEN_FEW)),
        "hard": lambda: hard_tables.hard(both("hard")),
        "hard-few": lambda: hard_tables.hard(both("hard", SEEN_FEW)),
        "drift": lambda: hard_tables.drift(both("hard")),
        "when": lambda: hard_tables.when(both("hard")),
        "tried": lambda: hard_tables.tried(both("hard")),
        "learnt": lambda: hard_tables.learnt(both("hard"), both("hard", SEEN_FEW)),
        "tried-few": lambda: hard_tables.tried(both("hard", SEEN_FEW)),
        "chats": lambda: hard_tables.chats(both("chats")),
        "origins": origins,
        "leaderboard": lambda: leaderboard(boards[0]),
        "leaderboard-kinds": lambda: leaderboard_by_kind(boards[0]),
        "leaderboard-long": lambda: leaderboard(load("long")),
        "leaderboard-qwen3-vl": lambda: leaderboard(boards[1]),
        "leaderboard-qwen3-vl-long": lambda: leaderboard(load("long", QWEN)),
        "leaderboard-qwen3-vl-kinds": lambda: leaderboard_by_kind(boards[1]),
        "streams": lambda: streams(TOY.name, usual=True),
        "streams-qwen3-vl": lambda: streams(QWEN, usual=True),
        "streams-both": streams_of_both,
        "streams-all": lambda: streams(TOY.name, usual=False),
        "streams-all-qwen3-vl": lambda: streams(QWEN, usual=False),
        "costs": lambda: costs(json.loads(COSTS.read_text())),
        "published": published,
    }
    return {name: make() for name, make in made.items()}


def draw_plot(folder: Path) -> None:
    """Draw the plot of docs/needle.md, in which methods have the names of commands and of other plots."""
    whole, *rows = load("methods")["all"]
    rows += load("positions")["all"]
    drawn = [
        row | {"method": row["settings"]["compression_method"]}
        for name in PLOTTED
        for row in rows
        if row["method"] == name
    ]
    draw_results([whole, *drawn], "Needle benchmark: right answers over tokens kept", folder / "needle.png")


def main() -> None:
    write_tables(PAGES, "needle", blocks())
    draw_plot(ROOT / "docs")


if __name__ == "__main__":
    main()
