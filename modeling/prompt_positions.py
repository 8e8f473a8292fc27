"""Which positions of the caller's prompt remain, in a short prompt and in the KV cache that it fills."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def remaining_positions(kept: Tensor) -> Tensor:
    """(B, L) bool -> (B, L') int64: where each row is True, in order, padded on the left with -1."""
    length = int(kept.sum(dim=1).max())
    positions = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, kept.shape[1] - length :]
    return torch.where(kept.gather(1, positions), positions, -1)


def positions_by_order(mask: Tensor) -> Tensor:
    """(B, L) mask -> (B, L) position of each token among those that are attended; 0 at padding."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def take(full: Tensor, positions: Tensor, padding: Tensor | int) -> Tensor:
    """(B, L) -> (B, L'): the entries at `positions`, `padding` at -1."""
    return torch.where(positions >= 0, full.gather(1, positions.clamp(min=0)), padding)


@dataclass
class CachedPrompt:
    """What a KV cache holds of the caller's prompt. Kept on the cache itself, for the turns that follow.

    Attributes:
        positions: (B, P) the caller's prompt position of each cached token, -1 at padding.
        prompt_length: the number of the caller's tokens that the cache stands for, dropped ones among them.
        position_offset: (B, 1) next M-RoPE position minus number of tokens; None where positions are mere order.
    """

    positions: Tensor
    prompt_length: int
    position_offset: Tensor | None = None

    @property
    def length(self) -> int:
        return self.positions.shape[1]

    @staticmethod
    def attached_to(cache: Any) -> "CachedPrompt | None":
        """What was remembered of a cache's prompt; None if it is empty or was never filled with a compressed one."""
        known = getattr(cache, "compressed_prompt", None)
        return known if known is not None and cache.get_seq_length() > 0 else None

    @classmethod
    def forget_if_empty(cls, inputs: dict[str, Any]) -> None:
        """A static cache is emptied and used again, perhaps for a prompt that is not compressed."""
        cache, input_ids = inputs.get("past_key_values"), inputs.get("input_ids")
        is_decoding_step = input_ids is not None and input_ids.shape[1] == 1  # on a GPU its length is dear to ask
        if not is_decoding_step and hasattr(cache, "compressed_prompt") and cls.attached_to(cache) is None:
            cache.compressed_prompt = None

    @classmethod
    def of(cls, cache: Any, input_ids: Tensor) -> "CachedPrompt":
        """What `cache` holds; all of it as it was for a cache that never saw a compressed prompt."""
        length = 0 if cache is None else int(cache.get_seq_length())
        known = cls.attached_to(cache) or cls(input_ids.new_empty(len(input_ids), 0), 0)
        if length < known.length or len(known.positions) != len(input_ids):
            raise ValueError(
                f"`past_key_values` holds {length} tokens, but was filled by {len(known.positions)} prompts compressed "
                f"to {known.length} tokens, and `input_ids` has {len(input_ids)} rows. Pass the cache as `generate` "
                "returned it, with the same rows, or start anew without it."
            )
        return known.extended(torch.arange(length - known.length, device=input_ids.device).expand(len(input_ids), -1))

    def extended(self, positions: Tensor, num_tokens: int | None = None) -> "CachedPrompt":
        """With `num_tokens` more tokens of the conversation, of which those at `positions` (B, n), -1 for none."""
        num_tokens = positions.shape[1] if num_tokens is None else num_tokens
        positions = torch.where(positions >= 0, positions + self.prompt_length, -1)
        return CachedPrompt(
            torch.cat([self.positions.to(positions.device), positions], dim=1),
            self.prompt_length + num_tokens,
            self.position_offset,
        )

    def repeated(self, repeats: int) -> "CachedPrompt":
        """For `repeats` sequences of each prompt, side by side, as beams are."""
        offset = None if self.position_offset is None else self.position_offset.repeat_interleave(repeats, dim=0)
        return CachedPrompt(self.positions.repeat_interleave(repeats, dim=0), self.prompt_length, offset)

    def attach_to(self, cache: Any) -> None:
        if cache is not None:
            cache.compressed_prompt = self


@dataclass
class ShortPrompt:
    """The new tokens of a prompt without the dropped ones.

    Attributes:
        positions: (B, n) their positions among the caller's new tokens, -1 at padding on the left.
        inputs: `input_ids` and what goes with them, for the new tokens; the mask covers the cached ones too.
        cached: what the KV cache will hold after them.
    """

    positions: Tensor
    inputs: dict[str, Tensor]
    cached: CachedPrompt
