"""The figures that the turns of `vidcom2 bench` amount to. This file does not import PyTorch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import linear_regression, median
from typing import Any

ALL_TOKENS = "all tokens"
# The sums in the paper's Table 3, and the stages that each adds up.
SUMS = {
    "llm_generation": ("prefill", "decode"),
    "model_generation": ("vision", "compression", "prompt", "prefill", "decode"),
}
TOTALS = (*SUMS, "end_to_end")
SETUP = ("num_frames", "batch_size", "attn_implementation", "steps")
EAGER, COMPILED, STATIC = "eager", "compiled", "static cache"  # how the steps of decoding run


def figures(every: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add to each series the figures that its turns amount to.

    Args:
        every: as returned by `Series.as_json`. The first series of each setup is that of all tokens.

    Returns:
        The series, each with
        - `seconds`: a median for each stage, for the sums of the paper's Table 3 (`llm_generation`,
          `model_generation`), for `end_to_end` and for `decode_step`; and `seconds_range`: their least and most;
        - `peak_bytes`: a median; `samples_per_second`: end to end; `compression_share`: of its own LLM generation;
        - where all tokens ran, `saved`: the share of the seconds that all tokens take in the same round which it saves,
          a median for the prefill and each of `TOTALS`; `saved_range`: their least and most; and `saved_over_random`:
          `saved` minus that of random dropping at the same ratio.
        A figure that cannot be computed is None, and so are all of a series without turns.
    """
    rows = [{"steps": EAGER, **series, **_of_turns(series)} for series in every]  # older results do not say
    for row in rows:
        whole = _beside(rows, row, lambda other: other["method"] == ALL_TOKENS)
        row["saved"], row["saved_range"] = _saved(row, whole)
    for row in rows:
        by_chance = _beside(
            rows,
            row,
            lambda other, ratio=row["retention_ratio"]: (
                other["settings"].get("compression_method") == "random" and other["retention_ratio"] == ratio
            ),
        )
        row["saved_over_random"] = None
        if row["saved"] and by_chance is not None and by_chance is not row and by_chance["saved"]:
            row["saved_over_random"] = {name: row["saved"][name] - by_chance["saved"][name] for name in TOTALS}
    return rows


def _of_turns(series: Mapping[str, Any]) -> dict[str, Any]:
    turns = series["turns"]
    if not turns:
        return {"seconds": None, "seconds_range": None, "peak_bytes": None, "samples_per_second": None} | {
            "compression_share": None
        }
    of_each = [_totals(turn) for turn in turns]
    middle = {name: median(each[name] for each in of_each) for name in of_each[0]}
    peaks = [turn["peak_bytes"] for turn in turns]
    return {
        "prompt_tokens": turns[0]["prompt_tokens"],
        "video_tokens": turns[0]["video_tokens"],
        "kept_share": turns[0]["kept_share"],
        "seconds": middle,
        "seconds_range": {name: [f(each[name] for each in of_each) for f in (min, max)] for name in of_each[0]},
        "peak_bytes": None if None in peaks else median(peaks),
        "samples_per_second": series["batch_size"] / middle["end_to_end"],
        "compression_share": middle["compression"] / middle["llm_generation"],
    }


def _totals(turn: Mapping[str, Any]) -> dict[str, float]:
    """Return a turn's seconds by stage and by sum."""
    seconds = dict(turn["seconds"])
    sums = {name: sum(seconds[stage] for stage in stages) for name, stages in SUMS.items()}
    return seconds | sums | {"end_to_end": turn["end_to_end_seconds"], "decode_step": median(turn["step_seconds"])}


def _saved(
    row: Mapping[str, Any], whole: Mapping[str, Any] | None
) -> tuple[dict[str, float], dict[str, tuple[float, float]]] | tuple[None, None]:
    """Return the medians, and the least and most, over the rounds. The two are compared within a round because the
    machine's other work differs most between rounds."""
    if whole is None or whole is row or not row["seconds"] or not whole["seconds"]:
        return None, None
    rounds = [(_totals(own), _totals(of_all)) for own, of_all in zip(row["turns"], whole["turns"])]
    shares = {name: [1 - own[name] / of_all[name] for own, of_all in rounds] for name in ("prefill", *TOTALS)}
    return {name: median(each) for name, each in shares.items()}, {
        name: (min(each), max(each)) for name, each in shares.items()
    }


def _beside(rows: Iterable[dict[str, Any]], row: Mapping[str, Any], is_it: Any) -> dict[str, Any] | None:
    """Return the first row of the same setup for which `is_it` holds."""
    return next((other for other in rows if of_setup(other) == of_setup(row) and is_it(other)), None)


def of_setup(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in SETUP)


def fitted_exponent(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """Return (a, c) of y = c·x^a, fitted by least squares on the logarithms. Return None for fewer than three different
    x, because a line goes through any two points."""
    if len(set(x)) < 3:
        return None
    slope, intercept = linear_regression([math.log(each) for each in x], [math.log(each) for each in y])
    return slope, math.exp(intercept)
