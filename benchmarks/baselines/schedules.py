"""Choosing how many video tokens each layer holds, so that their average over the layers is the retention ratio."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Stage(NamedTuple):
    """A drop of video tokens, which comes after some of the layers and keeps some of the tokens."""

    after: int  # number of layers before it
    selected: int  # tokens that stay as they are
    recycled: int = 0  # tokens that are made from dropped ones

    @property
    def kept(self) -> int:
        return self.selected + self.recycled


def kept_tokens(
    retention_ratio: float,
    num_layers: int,
    layers: Sequence[int],
    num_tokens: int,
    fewest: Callable[[int], int] = lambda before: 1,
) -> list[int]:
    """Return how many tokens are kept after each of the layers, by one factor: N·λ after the first, then N·λ².

    With N tokens and L layers, λ is chosen so that the tokens that all layers hold add up to R·L·N. What rounding
    leaves over goes to the last count, so that the average differs from R by at most (L - last layer) / (2·L·N), or by
    a little more if the last count cannot get any smaller.

    Args:
        retention_ratio: R, in (0, 1].
        num_layers: L.
        layers: ascending numbers of layers after which tokens are dropped, in [1, L - 1].
        num_tokens: N.
        fewest: returns the smallest number of tokens that can be left of a given number.

    Raises:
        ValueError: if R cannot be reached, because all layers up to the first drop hold all tokens.
    """
    check_layers(layers, num_layers)
    check_ratio(retention_ratio)
    lengths = [end - start for start, end in pairwise((0, *layers, num_layers))]
    target = retention_ratio * num_layers * num_tokens

    def counts(factor: float) -> list[int]:
        counts = [num_tokens]
        for drop in range(1, len(lengths)):
            wanted = max(fewest(counts[-1]), round(num_tokens * factor**drop))
            counts.append(min(counts[-1], wanted))
        return counts

    def total(counts: list[int]) -> int:
        return sum(length * count for length, count in zip(lengths, counts))

    lowest = total(counts(0.0))
    if target < lowest:
        reachable = lowest / (num_layers * num_tokens)
        raise ValueError(
            f"retention_ratio={retention_ratio!r} cannot be reached: with drops after layers {list(layers)} of "
            f"{num_layers}, on average at least {reachable:.4f} of the {num_tokens} video tokens stay. Pass a larger "
            "ratio, or drop after earlier layers."
        )
    low, high = 0.0, 1.0
    for _ in range(50):  # bisection, to the precision of a float
        middle = (low + high) / 2
        low, high = (middle, high) if total(counts(middle)) <= target else (low, middle)
    kept = counts(high if total(counts(high)) <= target else low)
    last = kept[-1] + round((target - total(kept)) / lengths[-1])
    kept[-1] = min(kept[-2], max(fewest(kept[-2]), last))
    return kept[1:]


def check_ratio(retention_ratio: float) -> None:
    """Raise a ValueError if the retention ratio is not in (0, 1]."""
    if not 0 < retention_ratio <= 1:
        raise ValueError(
            f"retention_ratio={retention_ratio!r} is not in (0, 1]. Pass the share of video tokens to keep."
        )


def check_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raise a ValueError if the layers to drop after are not ascending numbers in [1, L - 1]."""
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 1 or layers[-1] >= num_layers:
        raise ValueError(
            f"layers to drop after are {list(layers)}, but must be ascending numbers from 1 to {num_layers - 1} for a "
            f"language model with {num_layers} layers."
        )
