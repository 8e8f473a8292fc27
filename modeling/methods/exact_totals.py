"""`compression_rounding="exact"`: frame budgets whose total depends on the sizes alone. This is not in the paper."""

import math
from itertools import pairwise

import torch
from torch import Tensor

REMAINDER_NOISE = 1e-6  # A budget closer than this to a whole number counts as that number: the rest is float64 noise.


def fixed_total_budgets(budgets: Tensor, tokens_per_frame: int, retention_ratio: float) -> Tensor:
    """Turn real-valued budgets (T,) into whole ones: (T,) int64 in [1, M], whose total is `exact_total`.

    All budgets are scaled by one factor and held within [1, M]. The factor is the one that makes them add up to the
    total, so what a full frame cannot take goes to the others in proportion. Largest remainders then decide which
    budgets are rounded up to whole tokens. This is not in the paper.
    """
    num_frames = len(budgets)
    total = exact_total(num_frames, tokens_per_frame, retention_ratio)
    # The sum is piecewise linear in the factor, with a bend where a frame reaches 1 or M. Find the last bend at which
    # the sum is at most the total, and follow the slope of the frames that are between their bounds from there.
    budgets = budgets.clamp(min=1e-290)  # Otherwise the bends of a tiny retention ratio would be infinite.
    bends = torch.cat([1 / budgets, tokens_per_frame / budgets]).sort().values
    sums = (bends[:, None] * budgets).clamp(1, tokens_per_frame).sum(dim=1)
    bend = bends.gather(0, (sums <= total + 1e-9).sum(0, keepdim=True).sub_(1).clamp_(min=0))
    at_bend = (bend * budgets).clamp(1, tokens_per_frame)
    growing = (bend * budgets >= 1 - 1e-12) & (bend * budgets < tokens_per_frame * (1 - 1e-12))
    slope = (growing * budgets).sum()
    factor = bend + torch.where(slope > 0, (total - at_bend.sum()) / slope.clamp(min=1e-300), 0.0)
    budgets = (factor * budgets).clamp(1, tokens_per_frame)

    whole = (budgets + REMAINDER_NOISE).floor()
    remainders = (budgets - whole).div(REMAINDER_NOISE).round()
    missing = total - whole.sum()
    order = remainders.argsort(descending=True, stable=True)  # The earlier frame wins a tie.
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(num_frames, device=order.device))
    return (whole + (rank < missing)).long()


def exact_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K of `compression_rounding="exact"`: ⌊R·T·M⌋, but at least one token per frame."""
    num_tokens = num_frames * tokens_per_frame
    return max(num_frames, min(num_tokens, math.floor(retention_ratio * num_tokens + 1e-6)))


def equal_shares(total: int, num_frames: int) -> list[int]:
    """Divide K among frames alike. Where K is no multiple of T, the frames with one more are evenly spaced in time."""
    ends = [total * frame // num_frames for frame in range(num_frames + 1)]
    return [end - start for start, end in pairwise(ends)]
