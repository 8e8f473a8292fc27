"""Positions of tokens in a prompt: which remain without the dropped tokens, and what stands at them."""

from typing import Any

import torch
from torch import Tensor

IGNORED_LABEL = -100


def remaining_positions(kept: Tensor) -> Tensor:
    """(B, L) bool -> (B, L') int64: where each row is True, in order, padded on the left with -1."""
    length = int(kept.sum(dim=1).max())
    positions = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, kept.shape[1] - length :]
    return torch.where(kept.gather(1, positions), positions, -1)


def positions_by_order(mask: Tensor) -> Tensor:
    """(B, L) mask -> (B, L) position of each token among those that are attended; 0 at padding."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def positions_made_for(text_config: Any) -> int | None:
    """How many positions a language model was made for; None if its config does not say. Rotary positions that are
    scaled by a factor, as in LLaVA-NeXT-Video-7B, reach so many times further than `max_position_embeddings`."""
    limit = getattr(text_config, "max_position_embeddings", None)
    rope = getattr(text_config, "rope_parameters", None) or {}
    if limit is not None and rope.get("rope_type") in ("linear", "dynamic"):
        return int(limit * rope["factor"])
    return limit


def take(full: Tensor, positions: Tensor, padding: Tensor | int) -> Tensor:
    """(B, L) -> (B, L'): the entries at `positions`, `padding` at -1."""
    return torch.where(positions >= 0, full.gather(1, positions.clamp(min=0).to(full.device)), padding)


def labels_at(labels: Tensor, prompt_positions: Tensor) -> Tensor:
    """The labels of the rows of a compressed prompt.

    Args:
        labels: (B, L) of the caller's prompt.
        prompt_positions: (B, L') from the model's output: the position in the prompt of each row, -1 at padding.

    Returns:
        (B, L'), -100 at padding.
    """
    return take(labels, prompt_positions, IGNORED_LABEL)
