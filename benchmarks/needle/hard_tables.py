"""The tables of hard questions, of drift, of times, of chats, and of what was tried beside `"coverage"`."""

from collections.abc import Sequence
from typing import Any

from vidcom2.evaluation.accuracy_tables import cell, pipes

from .candidates import HARD_RATIOS, TRIED_METHODS
from .table_cells import SHORT_TOYS, Row, best_first, percent, percent_by_kind, row_of, toys_and_ratios

ALL_TOKENS, OWN = "all tokens", "coverage"
OF_TIME = ("half", "first")  # the kinds of questions about when something was seen
# The kinds of questions, methods and ratio that tell what a toy has learnt from random tokens.
LEARNT_KINDS, LEARNT_RATIO = ("background", "scenes", *OF_TIME, "count", "digit"), 0.1
LEARNT_METHODS = (ALL_TOKENS, OWN, "VidCom² (paper)", "random")


def hard(boards: Sequence[dict[str, Any]]) -> str:
    """Make the table method × toy and ratio of right answers to all questions and to the hard ones, best first."""
    columns = [(board, ratio) for board in boards for ratio in HARD_RATIOS]
    numbers = [f"{_of_hard(*column)[0]['accuracy_n']:,} of {column[0]['questions']:,}" for column in columns]
    lines = [["right, %/to hard questions, %", *toys_and_ratios(HARD_RATIOS)], ["hard questions", *numbers]]
    for name in (ALL_TOKENS, *_methods(boards)):
        lines.append([name, *(right_of_all_and_hard(*column, name) for column in columns)])
    return pipes(lines)


def right_of_all_and_hard(board: dict[str, Any], ratio: float, name: str) -> str:
    """Return a method's right answers to all questions and to the hard ones. It has none of these if it says which are
    hard."""
    row, of_hard = (_row(rows, name, ratio) for rows in (board["all"], _of_hard(board, ratio)))
    return f"{percent(row['accuracy'])}/{percent(of_hard['accuracy'] or None)}"


def drift(boards: Sequence[dict[str, Any]]) -> str:
    """Make the table method × toy and ratio: how many answers are other ones than with all tokens, right or wrong."""
    columns = [(board, ratio) for board in boards for ratio in HARD_RATIOS]
    lines = [["other answers than with all tokens", *toys_and_ratios(HARD_RATIOS)]]
    for name in _methods(boards):
        rows = [_row(board["all"], name, ratio) for board, ratio in columns]
        lines.append([name, *(f"{row['agreement_n'] * (1 - row['agreement']):.0f}" for row in rows)])
    return pipes(lines)


def when(boards: Sequence[dict[str, Any]]) -> str:
    """Make the table method × toy and ratio of right answers to the questions about when something was seen."""
    columns = [(board, ratio) for board in boards for ratio in HARD_RATIOS]
    lines = [["right, %: `half`/`first`", *toys_and_ratios(HARD_RATIOS)]]
    for name in (ALL_TOKENS, *_methods(boards)):
        rows = [_row(board["all"], name, ratio) for board, ratio in columns]
        lines.append([name, *("/".join(percent_by_kind(row, OF_TIME)) for row in rows)])
    return pipes(lines)


def tried(boards: Sequence[dict[str, Any]]) -> str:
    """Make the table of variants of `"coverage"`: right answers beside it on the same questions, with the paired
    interval."""
    beside = [rows for board in boards for rows in board["beside"]]
    lines = [["points more than `coverage`", *toys_and_ratios(HARD_RATIOS)]]
    lines.append(["`coverage`: right, %", *(percent(rows[0]["accuracy"]) for rows in beside)])
    for name in TRIED_METHODS:
        found = [next(row for row in rows if row["method"] == name) for rows in beside]
        lines.append([name, *(cell(row, "difference", "+") for row in found)])
    return pipes(lines)


def learnt(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """Make the table toy and method × kind of question of right answers, before and after it has seen random tokens."""
    lines = [["right, %: before/after", "method", *LEARNT_KINDS]]
    for toy, *boards in zip(SHORT_TOYS, before, after, strict=True):
        for name in LEARNT_METHODS:
            shares = [percent_by_kind(_row(board["all"], name, LEARNT_RATIO), LEARNT_KINDS) for board in boards]
            lines.append([toy, name, *map("/".join, zip(*shares, strict=True))])
    return pipes(lines)


def chats(boards: Sequence[dict[str, Any]]) -> str:
    """Make the table method × toy and ratio of right answers to the first, second and third question of a chat."""
    ratios = sorted({row["retention_ratio"] for row in boards[0]["all"]} - {1.0}, reverse=True)
    lines = [["right, %, by turn", *toys_and_ratios(ratios)]]
    for name in dict.fromkeys(row["method"] for row in boards[0]["all"]):
        rows = [_row(board["all"], name, ratio) for board in boards for ratio in ratios]
        lines.append([name, *("/".join(percent(turn["accuracy"]) for turn in row["turns"]) for row in rows)])
    return pipes(lines)


def _of_hard(board: dict[str, Any], ratio: float) -> list[Row]:
    return board["hard"][f"{ratio:g}"]


def _row(rows: Sequence[Row], name: str, ratio: float) -> Any:
    return row_of(rows, name, 1.0 if name == ALL_TOKENS else ratio)


def _methods(boards: Sequence[dict[str, Any]]) -> list[str]:
    """Return the methods, best first, without all tokens and without variants that were tried."""
    rows = [row for board in boards for row in board["all"]]
    own = [row for row in rows if row["method"] not in (*TRIED_METHODS, ALL_TOKENS)]
    return best_first(own, HARD_RATIOS)
