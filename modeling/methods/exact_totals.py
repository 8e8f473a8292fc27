"""Frame budgets whose total depends on the sizes alone: `compression_rounding="exact"`, which is not in the paper.

A method with weights and a total of its own can use `shares_of_total` too.
"""

import math

import torch
from torch import Tensor

REMAINDER_NOISE = 1e-6  # A budget closer than this to a whole number counts as that number: the rest is float64 noise.


def fixed_total_budgets(budgets: Tensor, tokens_per_frame: int, retention_ratio: float) -> Tensor:
    """Turn real-valued budgets (T,) into whole ones: (T,) int64 in [1, M], whose total is `exact_total`."""
    total = exact_total(len(budgets), tokens_per_frame, retention_ratio)
    return shares_of_total(budgets, total, most=tokens_per_frame, least=1)


def shares_of_total(weights: Tensor, total: int, most: int, least: int = 0) -> Tensor:
    """Divide a total among frames in proportion to their weights: (T,) int64 in [least, most], which add up to it.

    All weights are scaled by one factor and held within the bounds. The factor is the one that makes them add up to the
    total, so what a full frame cannot take goes to the others in proportion. Largest remainders then decide which
    shares are rounded up to whole tokens, and the earlier frame wins a tie.

    Args:
        weights: (T,) float64, none negative.
        total: between T · least and T · most.
    """
    # The sum is piecewise linear in the factor, with a bend where a frame reaches a bound. Find the last bend at which
    # the sum is at most the total, and follow the slope of the frames that are between their bounds from there.
    weights = weights.clamp(min=1e-290)  # Otherwise the bends of a tiny retention ratio would be infinite.
    bends = torch.cat([least / weights, most / weights]).sort().values
    sums = (bends[:, None] * weights).clamp(least, most).sum(dim=1)
    bend = bends.gather(0, (sums <= total + 1e-9).sum(0, keepdim=True).sub_(1).clamp_(min=0))
    at_bend = (bend * weights).clamp(least, most)
    growing = (bend * weights >= least - 1e-12) & (bend * weights < most * (1 - 1e-12))
    slope = (growing * weights).sum()
    factor = bend + torch.where(slope > 0, (total - at_bend.sum()) / slope.clamp(min=1e-300), 0.0)
    shares = (factor * weights).clamp(least, most)

    whole, remainders = whole_and_remainders(shares)
    missing = total - whole.sum()
    order = remainders.argsort(descending=True, stable=True)  # The earlier frame wins a tie.
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(weights), device=order.device))
    return (whole + (rank < missing)).long()


def whole_and_remainders(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the whole tokens of each share, and what is left over, in units of `REMAINDER_NOISE`."""
    whole = (shares + REMAINDER_NOISE).floor()
    return whole, (shares - whole).div(REMAINDER_NOISE).round()


def in_float64(scores: Tensor) -> Tensor:
    """Return scores in float64, in which budgets are computed; on the CPU if the device, MPS, has no float64."""
    return scores.cpu().double() if scores.device.type == "mps" else scores.double()


def exact_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K of `compression_rounding="exact"`: ⌊R·T·M⌋, but at least one token per frame."""
    num_tokens = num_frames * tokens_per_frame
    return max(num_frames, min(num_tokens, math.floor(retention_ratio * num_tokens + 1e-6)))
