"""The tables of `vidcom2 bench`, as rows of cells with the headings first. This file does not import PyTorch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..asking.candidates import method_in_words
from .figures import ALL_TOKENS, EAGER, SETUP, TOTALS

Row = Mapping[str, Any]
NAMES = {"num_frames": "frames", "batch_size": "batch", "attn_implementation": "attention", "steps": "steps"}
TITLES = {"llm_generation": "LLM generation", "model_generation": "model generation", "end_to_end": "end to end"}
# The stages that have a column. Decoding is shown by the time of one step instead.
STAGE_COLUMNS = {
    "read": "read, s",
    "preprocess": "preprocess, s",
    "vision": "vision, s",
    "compression": "compression, s",
    "prompt": "prompt, s",
    "prefill": "prefill, s",
}
# What a column means, by the heading that it begins with.
NOTES = {
    "LLM generation": "LLM generation is the prefill and all new tokens.",
    "model generation": "Model generation adds the vision tower, compression and the prompt.",
    "end to end": "End to end adds reading the file and the processor. In brackets is the change from all tokens in "
    "the same round: its median [least, most].",
    "compression, %": "Compression is a share of the method's own LLM generation.",
    "to random": "To random is how many percentage points more of model generation a method saves than dropping as "
    "many tokens at random.",
}


def efficiency_table(rows: Sequence[Row], spread: bool = True) -> list[list[str]]:
    """Make the paper's Table 3: seconds and how many are saved, memory and throughput. What was varied comes first.

    Args:
        spread: whether each change is followed by its least and most.
    """
    varied = _varied(rows)
    headings = [
        *(NAMES[name] for name in varied),
        *("method", "R, %", "video tokens"),
        *(f"{TITLES[name]}, s" for name in TOTALS),
        *("compression, % of LLM", "to random, points", "peak memory, GB", "samples/s"),
    ]
    cells = [headings]
    for row in rows:
        first = [*(str(row[name]) for name in varied), method_name(row), f"{100 * row['retention_ratio']:g}"]
        if row["failed"] or not row["seconds"]:
            why = "out of memory" if row["failed"] == "out of memory" else "refused" if row["failed"] else "not yet"
            cells.append([*first, why, *["–"] * (len(headings) - len(first) - 1)])
            continue
        over_random = row["saved_over_random"]
        is_whole = row["method"] == ALL_TOKENS
        cells.append(
            [
                *first,
                f"{row['video_tokens']:,}",
                *(_with_change(row, name, spread) for name in TOTALS),
                "–" if is_whole else f"{100 * row['compression_share']:.1f}",
                "–" if over_random is None else signed(100 * over_random["model_generation"]),
                "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.2f}",
                f"{row['samples_per_second']:.3g}",
            ]
        )
    return cells


def stage_table(rows: Sequence[Row]) -> list[list[str]]:
    """Make the table of the stages, without the series that failed."""
    varied = _varied(rows)
    cells = [[*(NAMES[name] for name in varied), "method", "R, %", *STAGE_COLUMNS.values(), "a new token, ms"]]
    for row in rows:
        if row["seconds"]:
            stages = (seconds(row["seconds"][name]) for name in STAGE_COLUMNS)
            first = [*(str(row[name]) for name in varied), method_name(row), f"{100 * row['retention_ratio']:g}"]
            cells.append([*first, *stages, f"{1000 * row['seconds']['decode_step']:.3g}"])
    return cells


def terminal_tables(rows: Sequence[Row]) -> tuple[list[list[str]], list[list[str]]]:
    """Make two tables of one setup, each narrow enough for a terminal: what is saved, and the stages."""
    whole = efficiency_table(rows, spread=False)
    first, others = len(whole[0]) - 4, ("peak memory, GB",)
    parts = {row[0] + row[1]: row[2:] for row in stage_table(rows)[1:]}
    stages = [STAGE_COLUMNS[name] for name in ("vision", "compression", "prefill")] + ["a new token, ms"]
    headings = stage_table(rows)[0][2:]
    chosen = [headings.index(name) for name in stages]
    columns = [whole[0].index(name) for name in others]
    lower = [["method", "R, %", *stages, *others]]
    for row in whole[1:]:
        if row[0] + row[1] in parts:
            of_stages = parts[row[0] + row[1]]
            lower.append([*row[:2], *(of_stages[i] for i in chosen), *(row[i] for i in columns)])
    return [row[:first] for row in whole], lower


def notes(tables: Sequence[Sequence[Sequence[str]]], rows: Sequence[Row]) -> str:
    """Explain the columns that these tables of rows have, and no others."""
    headings = [heading for cells in tables for heading in cells[0]]
    found = [text for begin, text in NOTES.items() if any(each.startswith(begin) for each in headings)]
    return " ".join([f"Times are medians of {rounds(rows)}.", *found])


def ceilings(rows: Sequence[Row]) -> str | None:
    """Say how much faster the whole can become by saving in one part, from the shares of the largest video with all
    tokens; None if that was not measured. Without a part that takes the share s, the whole takes 1 - s."""
    measured = [row for row in rows if row["method"] == ALL_TOKENS and row["seconds"]]
    if not measured:
        return None
    spent = max(measured, key=lambda row: row["num_frames"] * row["batch_size"])["seconds"]
    llm, tower = (spent[name] / spent["end_to_end"] for name in ("llm_generation", "vision"))

    def at_most(share: float) -> str:
        return f"{1 / max(1 - share, 1e-9):.3g}×"

    return (
        f"With all tokens the language model takes {llm:.0%} of the time, and the vision tower {tower:.0%}. So "
        f"dropping video tokens makes the whole at most {at_most(llm)} as fast, leaving patches out of the tower "
        f"(--vision-method) at most {at_most(tower)}, and both at most {at_most(llm + tower)}."
    )


def rounds(rows: Sequence[Row]) -> str:
    """Return how many rounds the medians of rows are of, such as "5 rounds"."""
    numbers = {len(row["turns"]) for row in rows if row["turns"]} or {0}
    least, most = min(numbers), max(numbers)
    return f"{most} round{'s' * (most != 1)}" if least == most else f"{least} to {most} rounds"


def failures(rows: Sequence[Row]) -> list[str]:
    """Return a line for each series that failed, saying which it is and why it failed."""
    return [
        f"{method_name(row)} at {100 * row['retention_ratio']:g} %, {row['num_frames']} frames × {row['batch_size']}, "
        f"{row['attn_implementation']}{'' if row['steps'] == EAGER else ', ' + row['steps']}: {row['failed']}"
        for row in rows
        if row["failed"]
    ]


def method_name(row: Row) -> str:
    return method_in_words(row["method"])


def seconds(value: float) -> str:
    """Format with about three digits."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _with_change(row: Row, name: str, spread: bool) -> str:
    shown = seconds(row["seconds"][name])
    if row["saved"] is None:
        return shown
    between = ""
    if spread and len(row["turns"]) > 1:
        least, most = (signed(-100 * each) for each in sorted(row["saved_range"][name], reverse=True))
        between = f" [{least},\N{NO-BREAK SPACE}{most}]"
    return f"{shown} ({signed(-100 * row['saved'][name])}\N{NO-BREAK SPACE}%{between})"


def _varied(rows: Sequence[Row]) -> list[str]:
    return [name for name in SETUP if len({row[name] for row in rows}) > 1]
