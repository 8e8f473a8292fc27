"""Positions of tokens in a prompt: which ones remain when tokens are dropped, and what stands at them."""

from typing import Any

import torch
from torch import Tensor

IGNORED_LABEL = -100


def remaining_positions(kept: Tensor) -> Tensor:
    """Return where each row of a bool mask (B, L) is True: (B, L') int64, ascending, padded on the left with -1."""
    length = int(kept.sum(dim=1).max())
    positions = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, kept.shape[1] - length :]
    return torch.where(kept.gather(1, positions), positions, -1)


def positions_by_order(mask: Tensor) -> Tensor:
    """Return the position of each token among the attended ones of a mask (B, L): (B, L) int64, 0 at padding."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def positions_made_for(text_config: Any) -> int | None:
    """Return how many positions a language model was made for; None if its config does not say.

    Rotary positions that are scaled by a factor, as in LLaVA-NeXT-Video-7B, reach that many times further than
    `max_position_embeddings`.
    """
    limit = getattr(text_config, "max_position_embeddings", None)
    rope = getattr(text_config, "rope_parameters", None) or {}
    if limit is not None and rope.get("rope_type") in ("linear", "dynamic"):
        return int(limit * rope["factor"])
    return limit


def take(full: Tensor, positions: Tensor, padding: Tensor | int) -> Tensor:
    """Return the entries (B, L') of `full` (B, L) at `positions` (B, L'), and `padding` where these are -1."""
    return torch.where(positions >= 0, full.gather(1, positions.clamp(min=0).to(full.device)), padding)


def labels_at(labels: Tensor, prompt_positions: Tensor) -> Tensor:
    """Return the labels of a compressed prompt's rows.

    Args:
        labels: (B, L) labels of the caller's prompt.
        prompt_positions: (B, L') from the model's output: the position in the prompt of each row, -1 at padding.

    Returns:
        (B, L') labels, -100 at padding.
    """
    return take(labels, prompt_positions, IGNORED_LABEL)
