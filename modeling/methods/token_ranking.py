"""Keeping the highest-ranked tokens of each frame, a step that methods share (Algorithm 1, stage 2, step 3)."""

import torch
from torch import Tensor


def most_unique_tokens(token_scores: Tensor, budgets: Tensor, num_kept: int) -> Tensor:
    """The k_t tokens of highest score of each frame, in the order of the video; ties keep the earlier token.

    Args:
        token_scores: (T, M) float without nan.
        budgets: (T,) int64 k_t, each at most M.
        num_kept: K, their sum, so that the device is not asked for it.

    Returns:
        (K,) int64, ascending, into the T·M tokens.
    """
    order = token_scores.argsort(dim=1, descending=True, stable=True)
    within_budget = torch.arange(order.shape[1], device=order.device) < budgets[:, None]
    kept = torch.zeros_like(within_budget).scatter_(1, order, within_budget).flatten()
    # The kept positions come first, in their order. Unlike `nonzero` this does not ask the device how many there are.
    return (~kept).to(torch.uint8).argsort(stable=True)[:num_kept]
