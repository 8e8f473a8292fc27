"""Keeps the tokens with the highest scores: of each frame (Algorithm 1, stage 2, step 3), or of the whole video.

All methods that score tokens share this step.
"""

import torch
from torch import Tensor


def most_unique_tokens(token_scores: Tensor, budgets: Tensor, num_kept: int) -> Tensor:
    """Return the k_t tokens with the highest scores in each frame, in the order of the video.

    In a tie the earlier token is kept.

    Args:
        token_scores: (T, M) float without nan.
        budgets: (T,) int64: k_t of each frame, at most M.
        num_kept: K, the sum of the budgets, so that the device need not be asked for it.

    Returns:
        (K,) int64, ascending: indices into the T·M tokens.
    """
    order = token_scores.argsort(dim=1, descending=True, stable=True)
    within_budget = torch.arange(order.shape[1], device=order.device) < budgets[:, None]
    kept = torch.zeros_like(within_budget).scatter_(1, order, within_budget).flatten()
    # The stable sort puts the kept positions first, in order. Unlike `nonzero`, it need not ask the device for K.
    return (~kept).to(torch.uint8).argsort(stable=True)[:num_kept]


def most_unique_tokens_of_video(token_scores: Tensor, num_kept: int) -> tuple[Tensor, Tensor]:
    """Return the K tokens with the highest scores in the whole video; a frame may keep nothing.

    In a tie the earlier token is kept.

    Args:
        token_scores: (T, M) float without nan.
        num_kept: K.

    Returns:
        (K,) int64, ascending: indices into the T·M tokens. And (T,) int64: how many of them each frame keeps.
    """
    num_frames, tokens_per_frame = token_scores.shape
    # The whole video is ranked as if it were a single frame.
    whole = torch.full((1,), num_kept, device=token_scores.device)
    indices = most_unique_tokens(token_scores.reshape(1, -1), whole, num_kept)
    budgets = torch.zeros(num_frames, dtype=torch.int64, device=token_scores.device)
    return indices, budgets.index_add_(0, indices // tokens_per_frame, torch.ones_like(indices))


def mask_of(indices: Tensor, like: Tensor) -> Tensor:
    """Return a bool mask of the shape of `like`, (T, M), that is true at these indices into the T·M tokens."""
    return torch.zeros(like.numel(), dtype=torch.bool, device=like.device).index_fill(0, indices, True).view_as(like)
