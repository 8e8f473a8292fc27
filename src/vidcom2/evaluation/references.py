"""The reference of `vidcom2 eval`: a method, or one of its candidates, that all others are compared with too."""

from collections.abc import Sequence

from ..asking.candidates import Candidate, method_in_words
from ..errors import OptionError, did_you_mean


def reference_labels(reference: str, candidates: Sequence[Candidate]) -> dict[str, str | None]:
    """Return with which candidate each is compared, by their labels; None for one that has no counterpart.

    Args:
        reference: a method, such as `vidcom2`, for a comparison at the same ratio; or one of its candidates, such as
            `vidcom2:0.25`, with which all are compared.

    Raises:
        OptionError: if no candidate is meant.
    """
    labels = {(each.method, each.retention_ratio): each.label for each in candidates}
    fixed = {f"{method}:{ratio:g}": label for (method, ratio), label in labels.items()}.get(reference)
    methods = list(dict.fromkeys(each.method for each in candidates))
    if fixed is None and reference not in methods:
        raise OptionError(
            f"`--reference` is {reference!r}, but must be one of the methods, {', '.join(methods)}, or one of them at "
            f"a ratio that is asked, such as {candidates[0].method}:{candidates[0].retention_ratio:g}."
            f"{did_you_mean(reference, methods)}"
        )
    return {each.label: fixed or labels.get((reference, each.retention_ratio)) for each in candidates}


def reference_in_words(reference: str) -> str:
    """Return what reports call a reference: a method, or a method at a ratio."""
    method, _, ratio = reference.rpartition(":")
    is_ratio = method != "" and "=" not in ratio
    return f"{method_in_words(method)} at {ratio}" if is_ratio else method_in_words(reference)
