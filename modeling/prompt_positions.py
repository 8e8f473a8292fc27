"""Which positions of the caller's prompt remain in a short one, and which of its rows belongs to each position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .conversation_cache import CachedPrompt

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


@dataclass
class ShortPrompt:
    """The new tokens of a prompt without the dropped ones.

    Attributes:
        kept: (B, L) bool, which of the caller's new tokens are left.
        positions: (B, L') their positions among the caller's new tokens, -1 at padding on the left.
        inputs: `input_ids` and what goes with them, for the new tokens; the mask covers the cached ones too.
        cached: what the KV cache will hold after them.
    """

    kept: Tensor
    positions: Tensor
    inputs: dict[str, Tensor]
    cached: CachedPrompt

    def at_positions(self, rows: Tensor, logits_to_keep: int | Tensor = 0, before_first: int | None = None) -> Tensor:
        """The rows that stand for positions of the caller's prompt: a token's own, or where it was dropped that of the
        last token kept before it, from which the compressed prompt predicts what follows.

        Args:
            rows: (B, L', ...) of the compressed prompt.
            logits_to_keep: which positions, as Transformers has it: the last so many (0 for all), indices (n,) or
                (B, n), or a bool mask (B, L).
            before_first: fills positions before the first kept token; by default an arbitrary row does.

        Returns:
            (B, n, ...), or (number of True, ...) for a mask.
        """
        counts = self.kept.long().cumsum(dim=1)
        padding = self.positions.shape[1] - counts[:, -1:]
        index = (padding + counts - 1).clamp(min=0).to(rows.device)
        prompts = torch.arange(len(index), device=rows.device)[:, None].expand_as(index)
        index, prompts, counts = (_picked(each, logits_to_keep) for each in (index, prompts, counts.to(rows.device)))
        picked = rows[prompts, index]
        return picked if before_first is None else picked.masked_fill(counts == 0, before_first)

    def of_layers(self, hidden_states: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """`at_positions` of each layer's rows; None stays None, of a layer that was not asked for."""
        return tuple(None if rows is None else self.at_positions(rows) for rows in hidden_states)

    def spread(self, layers: Sequence[Tensor], attended: Tensor) -> tuple[Tensor, ...]:
        """Rows of the compressed prompt for a mean over the caller's: each of a prompt's L' fills as many of its L
        attended positions as any other, or one more.

        Args:
            layers: (B·L', ...) each, of the compressed prompt.
            attended: (B, L) the caller's mask.

        Returns:
            (B·L, ...) for each layer, with an arbitrary row where nothing is attended.
        """
        is_kept = self.positions >= 0
        kept, given = (each.long().sum(dim=1, keepdim=True) for each in (is_kept, attended))
        ranks = positions_by_order(attended) * kept // given.clamp(min=1)
        index = is_kept.shape[1] - kept + ranks
        prompts = torch.arange(len(index), device=index.device)[:, None]
        index = (prompts * is_kept.shape[1] + index).flatten()
        return tuple(rows[index.to(rows.device)] for rows in layers)


def _picked(full: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """(B, L) -> the entries that `logits_to_keep` names."""
    if isinstance(logits_to_keep, int):
        return full[:, -logits_to_keep:]  # -0: all
    if not isinstance(logits_to_keep, Tensor):  # a slice or a list
        return full[:, logits_to_keep]
    logits_to_keep = logits_to_keep.to(full.device)
    if logits_to_keep.dtype == torch.bool:
        return full[logits_to_keep]
    return full.take_along_dim(logits_to_keep, dim=1) if logits_to_keep.ndim == 2 else full[:, logits_to_keep]
