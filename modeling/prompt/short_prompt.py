"""A prompt without its dropped tokens, and the map from positions of the caller's prompt to its rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .conversation_cache import CachedPrompt
from .prompt_positions import positions_by_order


@dataclass(frozen=True)
class ShortPrompt:
    """The new tokens of a prompt without the dropped ones.

    Attributes:
        kept: (B, L) bool: which of the caller's new tokens are left.
        positions: (B, L') their positions among the caller's new tokens, -1 at the padding on the left.
        inputs: `input_ids`, `attention_mask` and `position_ids` of the new tokens, and `mm_token_type_ids` where
            attention reads them. The mask and the types cover the cached ones too.
        cached: what the KV cache will hold after them.
    """

    kept: Tensor
    positions: Tensor
    inputs: dict[str, Tensor]
    cached: CachedPrompt

    def at_positions(self, rows: Tensor, logits_to_keep: int | Tensor = 0, before_first: int | None = None) -> Tensor:
        """Return a row for each position of the caller's prompt.

        A kept token has a row of its own. A dropped token gets the row of the last token kept before it, from which the
        compressed prompt predicts what follows.

        Args:
            rows: (B, L', ...) rows of the compressed prompt.
            logits_to_keep: which positions, as in Transformers: the number of last ones (0 for all), indices (n,) or
                (B, n), or a bool mask (B, L).
            before_first: the value at positions before the first kept token; with None, they hold an arbitrary row.

        Returns:
            (B, n, ...), or (number of True, ...) for a bool mask.
        """
        counts = self.kept.long().cumsum(dim=1)
        padding = self.positions.shape[1] - counts[:, -1:]
        index = (padding + counts - 1).clamp(min=0).to(rows.device)
        prompts = torch.arange(len(index), device=rows.device)[:, None].expand_as(index)
        index, prompts, counts = (_picked(each, logits_to_keep) for each in (index, prompts, counts.to(rows.device)))
        picked = rows[prompts, index]
        return picked if before_first is None else picked.masked_fill(counts == 0, before_first)

    def of_layers(self, hidden_states: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Apply `at_positions` to the rows of each layer; a layer that was not asked for is None and stays so."""
        return tuple(None if rows is None else self.at_positions(rows) for rows in hidden_states)

    def spread(self, layers: Sequence[Tensor], attended: Tensor) -> tuple[Tensor, ...]:
        """Repeat the rows of the compressed prompt so that a mean over the caller's prompt counts each token alike.

        Each of a prompt's L' rows fills as many of its L attended positions as any other row, or one more.

        Args:
            layers: (B·L', ...) rows of the compressed prompt, for each layer.
            attended: (B, L) the caller's mask.

        Returns:
            (B·L, ...) for each layer, with an arbitrary row at positions that are not attended.
        """
        is_kept = self.positions >= 0
        kept, given = (each.long().sum(dim=1, keepdim=True) for each in (is_kept, attended))
        ranks = positions_by_order(attended) * kept // given.clamp(min=1)
        index = is_kept.shape[1] - kept + ranks
        prompts = torch.arange(len(index), device=index.device)[:, None]
        index = (prompts * is_kept.shape[1] + index).flatten()
        return tuple(rows[index.to(rows.device)] for rows in layers)


@dataclass(frozen=True)
class CompressedPrompt:
    """What `generate` carries beside the caller's full `input_ids`, while the model runs the compressed prompt.

    Attributes:
        ids: (B, L') token ids of the compressed conversation.
        full_mask: (B, L) the caller's mask.
        is_in_ids: whether the `input_ids` of a step are already these ids.
    """

    ids: Tensor
    full_mask: Tensor
    is_in_ids: bool = False

    @property
    def num_dropped(self) -> int:
        return self.full_mask.shape[1] - self.ids.shape[1]

    def shorten(self, sequences: Tensor) -> Tensor:
        """Put the short ids in front: (B·n, L + new) -> (B·n, L' + new), n sequences of each prompt side by side."""
        prompts = self.ids.repeat_interleave(len(sequences) // len(self.ids), dim=0)
        return torch.cat([prompts.to(sequences.device), sequences[:, self.full_mask.shape[1] :]], dim=1)


def _picked(full: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Return the entries of `full` (B, L) that `logits_to_keep` names."""
    if isinstance(logits_to_keep, int):
        return full[:, -logits_to_keep:]  # 0 takes all of them.
    if not isinstance(logits_to_keep, Tensor):  # It is a slice or a list.
        return full[:, logits_to_keep]
    logits_to_keep = logits_to_keep.to(full.device)
    if logits_to_keep.dtype == torch.bool:
        return full[logits_to_keep]
    return full.take_along_dim(logits_to_keep, dim=1) if logits_to_keep.ndim == 2 else full[:, logits_to_keep]
