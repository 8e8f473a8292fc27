"""Summing up the answers of `vidcom2 eval`: accuracy and agreement with their intervals, as rows and as a table."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..answering.candidates import AllTokens, Candidate
from ..answering.questions import Question
from ..errors import OptionError
from ..records.whole_files import write_whole
from .folder import PLOT, RESULTS, TABLE
from .plot import draw_results

NORMAL_97_5 = 1.959963984540054  # the quantile of the normal distribution for 95 % intervals
RESAMPLES = 4000
# What a column means, by the heading that it begins with.
NOTES = {
    "kept": "`kept` is the measured share of the scored video tokens.",
    "accuracy": "`accuracy` is the share of right answers.",
    "agreement": "`agreement` is the share of answers that equal those with all tokens.",
    "method": "Brackets hold 95 % intervals. Those of shares are Wilson's, which treat questions as independent.",
    "difference": "Those of the difference to all tokens on the same questions come from a bootstrap over videos, "
    "which keeps the questions about a video together. Where no answer changed, they give the most that may have been "
    "missed, 1 − 0.025^(1 / videos).",
}


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score test.

    Source: E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 22, 1927.
    """
    z2 = NORMAL_97_5**2
    share = successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL_97_5 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_interval(differences: Sequence[int], videos: Sequence[str]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean difference between two ways to answer the same questions.

    This is a seeded percentile bootstrap over videos. Questions about one video are not independent, so they stay
    together. Where no difference is seen, the bootstrap's interval would be empty. The exact binomial (Clopper-Pearson)
    interval is used instead: a share of up to 1 − 0.025^(1 / videos) of the videos may differ.

    Args:
        differences: -1, 0 or 1 for each question.
        videos: the video that each question is about.

    Returns:
        The interval; None for a single video, which says nothing about others.
    """
    names, video = np.unique(np.asarray(videos), return_inverse=True)
    if len(names) < 2:
        return None
    if not any(differences):
        most = 1 - 0.025 ** (1 / len(names))
        return -most, most
    sums, counts = np.bincount(video, weights=differences), np.bincount(video)
    generator = np.random.default_rng(0)
    drawn = (generator.integers(len(names), size=(100, len(names))) for _ in range(RESAMPLES // 100))
    means = [sums[each].sum(axis=1) / counts[each].sum(axis=1) for each in drawn]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


def summary(
    questions: Sequence[Question], rows: Sequence[Mapping[str, Any]], candidates: Sequence[Candidate]
) -> list[dict[str, Any]]:
    """Sum up the answers in a row for all tokens and one for each candidate. Questions with an error are left out.

    Args:
        rows: what `evaluate` returns, one row for each of `questions`.

    Returns:
        Rows with `method`, `retention_ratio` and the call's `settings`; `questions` and `kept_share`; `accuracy` and
        `agreement` with `_low`, `_high` and `_n`, the number of questions; `difference`, the accuracy minus that of all
        tokens, with `_low` and `_high`; and `by_kind`, the shares for each kind of question. A missing figure is None:
        accuracy where no right answer is known, and all figures of a candidate that refuses some question. `refused`
        then says why.
    """
    whole = AllTokens()
    answered = [(question, row["answers"]) for question, row in zip(questions, rows, strict=True) if "answers" in row]
    kinds = dict.fromkeys(question.kind for question, _ in answered if question.kind is not None)
    found = []
    for candidate in (whole, *candidates):
        result: dict[str, Any] = {"method": candidate.method, "retention_ratio": candidate.retention_ratio}
        result["settings"] = candidate.overrides
        pairs = [(question, answers[candidate.label], answers[whole.label]) for question, answers in answered]
        refused = [answer["refused"] for _, answer, _ in pairs if "refused" in answer]
        if refused:
            pairs = []
        result |= {"questions": len(pairs), "kept_share": _mean([answer["kept_share"] for _, answer, _ in pairs])}
        result |= _shares(pairs)
        known = [each for each in pairs if each[1]["correct"] is not None]
        differences = [int(answer["correct"]) - int(of_all["correct"]) for _, answer, of_all in known]
        compared = None if candidate is whole else paired_interval(differences, [each[0].video for each in known])
        result["difference"] = None if candidate is whole else _mean(differences)
        result["difference_low"], result["difference_high"] = compared or (None, None)
        result["by_kind"] = {kind: _shares([each for each in pairs if each[0].kind == kind]) for kind in kinds}
        if refused:
            result["refused"] = f"{len(refused)} of {len(answered)} questions, the first: {refused[0]}"
        found.append(result)
    return found


def _shares(pairs: Sequence[tuple[Question, Mapping[str, Any], Any]]) -> dict[str, Any]:
    """Return accuracy and agreement with their intervals."""
    shares: dict[str, Any] = {}
    for name, key in (("accuracy", "correct"), ("agreement", "agrees")):
        values = [answer[key] for _, answer, _ in pairs if answer[key] is not None]
        low, high = wilson(sum(values), len(values)) if values else (None, None)
        shares |= {name: _mean(values), f"{name}_low": low, f"{name}_high": high, f"{name}_n": len(values)}
    return shares


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ---------------------------------------------------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------------------------------------------------


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the results as cells. The first row holds the headings."""
    with_truth = results[0]["accuracy"] is not None
    of_truth = ["accuracy, %", "difference, points"] if with_truth else []
    headings = ["method", "ratio", "kept, %", *of_truth, "agreement, %"]
    cells = [headings]
    for result in results:
        name, ratio = result["method"], f"{result['retention_ratio']:g}"
        if "refused" in result:
            cells.append([name, ratio, *["n/a"] * (len(headings) - 2)])
            continue
        of_truth = [cell(result, "accuracy"), cell(result, "difference", "+")] if with_truth else []
        cells.append([name, ratio, f"{100 * result['kept_share']:.1f}", *of_truth, cell(result, "agreement")])
    return cells


def table_by_kind(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the accuracy, or the agreement where it is not known, of each kind of question; no rows without kinds."""
    measure = "agreement" if results[0]["accuracy"] is None else "accuracy"
    kinds = results[0]["by_kind"]
    if not kinds:
        return []
    cells = [["method", "ratio", *(f"{kind} (n = {shares[f'{measure}_n']})" for kind, shares in kinds.items())]]
    for result in results:
        shown = ["n/a" if "refused" in result else cell(result["by_kind"][kind], measure) for kind in kinds]
        cells.append([result["method"], f"{result['retention_ratio']:g}", *shown])
    return cells


def cell(result: Mapping[str, Any], name: str, sign: str = "") -> str:
    """Return a share, or a difference of shares, and its interval in per cent."""
    if result[name] is None:
        return "–"
    low, high = result[f"{name}_low"], result[f"{name}_high"]
    interval = "" if low is None else f" [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
    return f"{100 * result[name]:{sign}.1f}{interval}".replace("-", "−")


def write_results(
    folder: Path,
    title: str,
    questions: Sequence[Question],
    rows: Sequence[Mapping[str, Any]],
    candidates: Sequence[Candidate],
    certificate: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Write results.json, which `vidcom2 publish --results` takes, results.md and results.png to a folder.

    Args:
        rows: what `evaluate` returns.
        certificate: what `birth_certificate` returns, including the `device`.

    Returns:
        The `summary`. In results.json each row of the table has its part of it as `figures`.

    Raises:
        OptionError: if no question was answered.
    """
    errors = [row["error"] for row in rows if "error" in row]
    if len(errors) == len(rows):
        raise OptionError(f"none of the {len(rows)} questions could be answered. The first: {errors[0]}")
    results = summary(questions, rows, candidates)
    headings, *cells = table(results)
    shown = [
        dict(zip(headings, row, strict=True)) | {"figures": each} for row, each in zip(cells, results, strict=True)
    ]
    content = {"title": title, "birth_certificate": certificate, "errors": len(errors), "rows": shown}
    write_whole(folder / RESULTS, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    origin = (
        f"{certificate['model']} on {certificate['device']}, {certificate['date'][:10]}; torch {certificate['torch']}, "
        f"transformers {certificate['transformers']}, vidcom2 {certificate['vidcom2_commit']}."
    )
    write_whole(folder / TABLE, markdown(title, results, len(errors), origin))
    draw_results(results, title, folder / PLOT)
    return results


def markdown(title: str, results: Sequence[Mapping[str, Any]], num_errors: int, origin: str) -> str:
    """Return the tables as a page of Markdown.

    Args:
        num_errors: how many questions ended in an error and are not in the results.
        origin: what was measured, where and when.
    """
    parts = [f"# {title}", f"{results[0]['questions']} questions; {num_errors} errors. {origin}"]
    by_kind = table_by_kind(results)
    cells = table(results)
    notes = "\n".join(text for begin, text in NOTES.items() if any(each.startswith(begin) for each in cells[0]))
    parts += [pipes(cells), notes, *(["By kind:", pipes(by_kind)] if by_kind else [])]
    refused = [
        f"- {each['method']} at {each['retention_ratio']:g}: {each['refused']}"
        for each in results[1:]
        if "refused" in each
    ]
    return "\n\n".join([*parts, *(["Refused:", "\n".join(refused)] if refused else [])]) + "\n"


def pipes(cells: Sequence[Sequence[str]]) -> str:
    """Return cells as a table in Markdown. Their first row holds the headings."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])
