"""Summing up the answers of `vidcom2 eval`: accuracy and agreement with their intervals. `tables.py` shows them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..answering.candidates import Candidate, compared_candidates
from ..answering.questions import Question
from ..errors import OptionError
from ..records.whole_files import write_whole
from .folder import PLOT, RESULTS, TABLE
from .plot import draw_results
from .tables import markdown, table

NORMAL_97_5 = 1.959963984540054  # the quantile of the normal distribution for 95 % intervals
RESAMPLES = 4000


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
    """Sum up the answers in a row for each candidate that `evaluate` compares. Questions with an error are left out.

    Args:
        rows: what `evaluate` returns, one row for each of `questions`.

    Returns:
        Rows with `method`, `retention_ratio` and the call's `settings`; `questions` and `kept_share`; `accuracy` and
        `agreement` with `_low`, `_high` and `_n`, the number of questions; `difference`, the accuracy minus that
        with all tokens, with `_low` and `_high`; `letter_share`, the mean probability that letters had where they
        were the answers; `no_option`, how many of the `of_choice` other answers to multiple choice questions name no
        option, or several; and `by_kind`, the shares for each kind of question. A missing figure is None: accuracy
        where no right answer is known, agreement where all tokens did not answer, and all figures of a candidate that
        refuses some question. `refused` then says why.
    """
    answered = [(question, row["answers"]) for question, row in zip(questions, rows, strict=True) if "answers" in row]
    kinds = dict.fromkeys(question.kind for question, _ in answered if question.kind is not None)
    compared = compared_candidates(candidates)
    found = []
    for candidate in compared:
        result: dict[str, Any] = {"method": candidate.method, "retention_ratio": candidate.retention_ratio}
        result["settings"] = candidate.overrides
        given = [(question, answers[candidate.label]) for question, answers in answered]
        refused = [answer["refused"] for _, answer in given if "refused" in answer]
        if refused:
            given = []
        result |= {"questions": len(given), "kept_share": _mean([answer["kept_share"] for _, answer in given])}
        result |= _shares(given)
        letters = [answer["letter_logprobs"] for _, answer in given if "letter_logprobs" in answer]
        result["letter_share"] = _mean([sum(map(math.exp, each.values())) for each in letters])
        texts = [each for each in given if each[0].choices and "letter_logprobs" not in each[1]]
        unnamed = sum(question.names_no_option(answer["text"]) for question, answer in texts)
        result |= {"no_option": unnamed, "of_choice": len(texts)}
        result |= dict.fromkeys(("difference", "difference_low", "difference_high"))
        if candidate is not compared[0] and given:
            result |= _difference(answered, candidate.label, compared[0].label)
        result["by_kind"] = {kind: _shares([each for each in given if each[0].kind == kind]) for kind in kinds}
        if refused:
            result["refused"] = f"{len(refused)} of {len(answered)} questions, the first: {refused[0]}"
        found.append(result)
    return found


def _difference(
    answered: Sequence[tuple[Question, Mapping[str, Any]]], label: str, reference: str
) -> dict[str, float | None]:
    """Return the difference of two candidates' accuracies on the same questions, with its interval."""
    pairs = [(question, answers[label], answers[reference]) for question, answers in answered]
    known = [each for each in pairs if None not in (each[1].get("correct"), each[2].get("correct"))]
    differences = [int(answer["correct"]) - int(other["correct"]) for _, answer, other in known]
    low, high = paired_interval(differences, [question.video for question, *_ in known]) or (None, None)
    return {"difference": _mean(differences), "difference_low": low, "difference_high": high}


def _shares(given: Sequence[tuple[Question, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return accuracy and agreement with their intervals."""
    shares: dict[str, Any] = {}
    for name, key in (("accuracy", "correct"), ("agreement", "agrees")):
        values = [answer[key] for _, answer in given if answer[key] is not None]
        low, high = wilson(sum(values), len(values)) if values else (None, None)
        shares |= {name: _mean(values), f"{name}_low": low, f"{name}_high": high, f"{name}_n": len(values)}
    return shares


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def write_report(
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
        The rows of the table, which are those of `summary`. In results.json they are `figures`.

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
