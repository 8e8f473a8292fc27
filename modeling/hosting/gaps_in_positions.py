"""Keeps Transformers from taking a prompt whose positions have gaps for several prompts in a row.

For training without padding, Transformers lets prompts follow each other in one row ("packed"), and tells them apart by
their positions, which do not go up by one where a prompt begins. Neither do they behind a dropped token, if a compressed
prompt keeps its original positions. Transformers looks at positions in two places, and in each of them another argument
takes precedence.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.utils.generic import is_flash_attention_requested

SEQUENCE_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # Transformers' names for them


def with_gaps_allowed(inputs: dict[str, Any], text_config: Any) -> dict[str, Any]:
    """Return the arguments of a parent's `forward` so that each row is one prompt, whatever gaps its positions have.

    - Without a KV cache and a mask, which `generate` leaves out if it hides nothing, masks are made from the positions,
      and no token attends to what stands before a gap. A mask of ones is added.
    - For a single row of which nothing is masked, FlashAttention gets the lengths of packed prompts. Behind a gap it
      would be told of as many keys as queries, and read none of the cached ones. The real lengths are added.

    Args:
        inputs: arguments, with the positions (B, n) of the n new tokens. Others, such as those of M-RoPE, need nothing,
            because the order of the tokens goes along with them.
        text_config: the language model's config.

    Raises:
        ValueError: if FlashAttention is to continue a KV cache whose layers hold different numbers of tokens.
    """
    position_ids, cache = inputs.get("position_ids"), inputs.get("past_key_values")
    needs_mask = cache is None and inputs.get("attention_mask") is None
    uses_flash = is_flash_attention_requested(text_config)
    if not isinstance(position_ids, Tensor) or position_ids.ndim != 2 or not (needs_mask or uses_flash):
        return inputs
    if position_ids.shape[1] == 1 or (position_ids.diff(dim=1) == 1).all():
        return inputs
    if needs_mask:
        inputs = inputs | {"attention_mask": torch.ones_like(position_ids)}
    if uses_flash and len(position_ids) == 1:
        inputs = inputs | _lengths_of_one_sequence(position_ids, cache)
    return inputs


def _lengths_of_one_sequence(position_ids: Tensor, cache: Any) -> dict[str, Any]:
    """Return what FlashAttention takes in place of positions (1, n): n queries, and as many keys as a layer reads."""
    num_queries = num_keys = position_ids.shape[1]
    if cache is not None and cache.get_seq_length() > 0:
        of_layers = sorted({int(cache.get_mask_sizes(num_queries, layer)[0]) for layer in range(len(cache.layers))})
        if len(of_layers) > 1:
            raise ValueError(
                '`compression_positions="original"` leaves gaps between the positions of a video that follows on '
                "`past_key_values`. FlashAttention must then be told how many tokens a layer reads, but the layers "
                f"read {of_layers} tokens, since some have a sliding window. Load the model with "
                '`attn_implementation="sdpa"`, use `compression_positions="consecutive"`, or start over without the '
                "cache."
            )
        num_keys = of_layers[0]
    starts = [torch.tensor([0, n], dtype=torch.int32, device=position_ids.device) for n in (num_queries, num_keys)]
    return dict(zip(SEQUENCE_LENGTHS, (*starts, num_queries, num_keys), strict=True))
