"""Which ratio is enough, for each method of `vidcom2 eval`: the smallest whose loss is surely small."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..asking.candidates import method_in_words

MARGIN = 5.0  # points; the loss of right answers that is accepted where no other is named


def enough(results: Sequence[Mapping[str, Any]], margin: float) -> dict[str, float | None]:
    """Return the smallest ratio of each method that is enough; None where none of those asked is.

    A ratio is enough if the interval of its difference to all tokens, and those of all larger ratios that were asked,
    lie above a loss of `margin` points.

    Larger ratios count too, because the more ratios are asked, the more likely one of them is good by chance.

    Args:
        results: what `report.summary` returns.
    """
    found: dict[str, float | None] = {}
    for method in _methods(results):
        found[method] = None
        for result in _from_the_largest(results, method):
            if not is_enough(result, margin):
                break
            found[method] = result["retention_ratio"]
    return found


def is_enough(result: Mapping[str, Any], margin: float) -> bool:
    """Tell whether the interval of a difference lies above a loss of so many points."""
    low = result["difference_low"]
    return "refused" not in result and low is not None and 100 * low >= -margin


def enough_in_words(results: Sequence[Mapping[str, Any]], margin: float) -> str | None:
    """Say which ratio is enough for each method; None where right answers are not known, or nothing is compared.

    The next smaller ratio is undecided if it loses no more than the margin, but its interval reaches beyond.
    """
    found = enough(results, margin)
    if results[0]["accuracy"] is None or not found:
        return None
    parts, more = [], ""
    for method, ratio in found.items():
        name, said = method_in_words(method), "none" if ratio is None else percent(ratio)
        failed = next((each for each in _from_the_largest(results, method) if not is_enough(each, margin)), None)
        if failed is None or failed["difference"] is None or 100 * failed["difference"] < -margin:
            parts.append(f"{name} at {said}")
            continue
        more, undecided = " More videos would decide.", percent(failed["retention_ratio"])
        parts.append(
            f"{name} undecided ({undecided})" if ratio is None else f"{name} at {said} ({undecided} undecided)"
        )
    return f"Enough for a loss of at most {margin:g} points: {', '.join(parts)}.{more}"


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _methods(results: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(each["method"] for each in results[1:]))


def _from_the_largest(results: Sequence[Mapping[str, Any]], method: str) -> list[Mapping[str, Any]]:
    of_method = [each for each in results[1:] if each["method"] == method]
    return sorted(of_method, key=lambda each: -each["retention_ratio"])
