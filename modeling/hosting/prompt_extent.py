"""Tells Transformers where the prompt of each row begins and ends, which it may misread without a mask.

`generate` leaves out a mask that hides nothing. Without one, Transformers takes positions that do not go up by one for
those of several prompts in a row ("packed"), as in training without padding. A compressed prompt that keeps its
original positions looks the same behind each dropped token.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.utils.generic import is_flash_attention_requested

from .transformers_names import CACHE

SEQUENCE_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # Transformers' names for them


def with_prompt_extent(inputs: dict[str, Any], text_config: Any) -> dict[str, Any]:
    """Return the arguments of a parent's `forward` with what makes each row one prompt, from its first token on.

    - Without a KV cache and a mask, masks are made from the positions, and no token attends to what stands before a
      gap. A mask of ones takes precedence.
    - For a single row that is not masked, FlashAttention gets the lengths of packed prompts. Behind a gap it would be
      told of as many keys as queries, and read none of the cached ones. The real lengths take precedence, or, with
      linear attention, the order of the tokens in front of their positions.
    - Without a mask, FlashAttention would also read the empty places of a static cache. `generate` of Transformers 5.23
      keeps the mask for that, but that of 5.19 does not. A mask of ones is added, over what the cache holds.

    Args:
        inputs: arguments, with the positions of the n new tokens: (B, n) or, with M-RoPE, (4, B, n) with the order of
            the tokens in front, which has no gaps.
        text_config: the language model's config.

    Raises:
        ValueError: if FlashAttention is to continue a KV cache whose layers hold different numbers of tokens.
    """
    cache, position_ids = inputs.get(CACHE), inputs.get("position_ids")
    if position_ids is None:
        return inputs
    num_rows, num_new = position_ids.shape[-2:]
    uses_flash = is_flash_attention_requested(text_config)
    is_unmasked = _is_missing(inputs.get("attention_mask"))
    has_empty_places = uses_flash and cache is not None and cache.is_compileable
    may_look_packed = (is_unmasked and cache is None) or (uses_flash and num_rows == 1)
    has_gaps = may_look_packed and _has_gaps(position_ids)
    if is_unmasked and (has_empty_places or (has_gaps and cache is None)):
        num_cached = 0 if cache is None else int(cache.get_seq_length())
        mask = torch.ones(num_rows, num_cached + num_new, dtype=torch.long, device=position_ids.device)
        inputs = inputs | {"attention_mask": mask}
    if has_gaps and uses_flash and num_rows == 1:
        if "linear_attention" in (getattr(text_config, "layer_types", None) or ()):
            return inputs | {"position_ids": _with_order(position_ids, cache)}
        inputs = inputs | _lengths_of_one_sequence(position_ids, cache)
    return inputs


def _is_missing(mask: Any) -> bool:
    """Whether there is no mask. For static caches, `generate` prepares one for each kind of attention."""
    return all(each is None for each in (mask.values() if isinstance(mask, dict) else [mask]))


def _has_gaps(position_ids: Tensor) -> bool:
    if position_ids.ndim != 2 or position_ids.shape[1] == 1:
        return False
    return not bool((position_ids.diff(dim=1) == 1).all())


def _with_order(position_ids: Tensor, cache: Any) -> Tensor:
    """Return (4, 1, n) positions with the order of the tokens in front, as with M-RoPE. Linear attention takes no
    lengths, but the language models that have it, Qwen3.5's, take such positions."""
    num_cached = 0 if cache is None else int(cache.get_seq_length())
    order = num_cached + torch.arange(position_ids.shape[1], device=position_ids.device)
    return torch.stack([order[None], *[position_ids] * 3])


def _lengths_of_one_sequence(position_ids: Tensor, cache: Any) -> dict[str, Any]:
    """Return what FlashAttention takes in place of positions (1, n): n queries, and as many keys as a layer reads."""
    num_queries = num_keys = position_ids.shape[1]
    if cache is not None and cache.get_seq_length() > 0:
        # Layers that read the keys of others hold none.
        holding = [number for number, layer in enumerate(cache.layers) if getattr(layer, "keys", None) is not None]
        of_layers = sorted({int(cache.get_mask_sizes(num_queries, number)[0]) for number in holding})
        if len(of_layers) > 1:
            raise ValueError(
                '`compression_positions="original"` leaves gaps between the positions of a video that follows on '
                "the KV cache. FlashAttention must then be told how many tokens a layer reads, but the layers "
                f"read {of_layers} tokens, since some have a sliding window. Load the model with "
                '`attn_implementation="sdpa"`, use `compression_positions="consecutive"`, or start over without the '
                "cache."
            )
        num_keys = of_layers[0]
    starts = [torch.tensor([0, n], dtype=torch.int32, device=position_ids.device) for n in (num_queries, num_keys)]
    return dict(zip(SEQUENCE_LENGTHS, (*starts, num_queries, num_keys), strict=True))
