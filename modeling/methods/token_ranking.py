"""Keeping the highest-ranked tokens, a step that methods share: of each frame (Algorithm 1, stage 2, step 3), or of the
whole video."""

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


def most_unique_tokens_of_video(token_scores: Tensor, num_kept: int) -> tuple[Tensor, Tensor]:
    """The K tokens of highest score of the whole video; ties keep the earlier token. A frame may keep nothing.

    Args:
        token_scores: (T, M) float without nan.
        num_kept: K.

    Returns:
        (K,) int64, ascending, into the T·M tokens; and (T,) int64, how many of them are of each frame.
    """
    num_frames, tokens_per_frame = token_scores.shape
    # One ranking: the whole video as a single frame.
    whole = torch.full((1,), num_kept, device=token_scores.device)
    indices = most_unique_tokens(token_scores.reshape(1, -1), whole, num_kept)
    budgets = torch.zeros(num_frames, dtype=torch.int64, device=token_scores.device)
    return indices, budgets.index_add_(0, indices // tokens_per_frame, torch.ones_like(indices))
