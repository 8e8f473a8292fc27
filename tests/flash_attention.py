"""A stand-in for the package flash-attn: its functions as plain matrix products, on any device and in any precision.

With it in place of the package, `attn_implementation="flash_attention_2"` takes Transformers' whole path to the kernels
on a CPU: which masks are made, when prompts are taken for packed ones, and what is unpadded. The kernels themselves are
not tested. Arguments that a kernel would answer by reading another's memory are an AssertionError here.
"""

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, modeling_flash_attention_utils

ENDLESS = (-1, -1)  # a window without bounds to the left and right


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = ENDLESS,
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Return the attention (B, n, heads, dim) of queries (B, n, heads, dim) to keys and values (B, m, kv_heads, dim).

    The last query belongs to the last key, as in flash-attn since 2.1. A query without a key gets zeros.
    """
    assert dropout_p == 0.0 and softcap == 0.0, "the stand-in has no dropout and no softcap"
    assert len(q) == len(k) == len(v) and k.shape[1] == v.shape[1], (q.shape, k.shape, v.shape)
    groups = q.shape[2] // k.shape[2]
    k, v = (each.repeat_interleave(groups, dim=2) for each in (k, v))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    left, right = window_size
    ahead = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])  # 0: its own key
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        allowed &= ahead <= 0
    if left >= 0:
        allowed &= ahead >= -left
    if right >= 0:
        allowed &= ahead <= right
    allowed = allowed.to(q.device)
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1).nan_to_num(0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = ENDLESS,
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Return the attention (total, heads, dim) of sequences that lie one after the other.

    Args:
        q, k, v: (total, heads, dim) of all sequences.
        cu_seqlens_q, cu_seqlens_k: (sequences + 1,) int32: where each sequence begins, and the total.
        max_seqlen_q, max_seqlen_k: the length of the longest sequence.
    """
    for name, lengths, longest, packed in (("q", cu_seqlens_q, max_seqlen_q, q), ("k", cu_seqlens_k, max_seqlen_k, k)):
        assert lengths.dtype == torch.int32, f"cu_seqlens_{name} is {lengths.dtype}"
        assert lengths[0] == 0 and lengths[-1] == len(packed), f"cu_seqlens_{name} {lengths}, {len(packed)} tokens"
        assert int(longest) >= int(lengths.diff().max()), f"max_seqlen_{name} is {longest}, but {lengths}"
    assert len(cu_seqlens_q) == len(cu_seqlens_k) and len(k) == len(v)
    sizes_q, sizes_k = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    of_each = [
        flash_attn_func(*(part[None] for part in parts), dropout_p, softmax_scale, causal, window_size, softcap)[0]
        for parts in zip(q.split(sizes_q), k.split(sizes_k), v.split(sizes_k), strict=True)
    ]
    return torch.cat(of_each)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Return the rows of (B, n, ...) that a mask (B, n) keeps, one after the other, and what tells where they were."""
    lengths = attention_mask.sum(dim=1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)])
    return hidden_states.flatten(0, 1)[indices], indices, starts, int(lengths.max()), lengths


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return the rows at their places in (batch, seqlen, ...), with zeros elsewhere."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices.long(), hidden_states).unflatten(0, (batch, seqlen))


def put_in_place_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Transformers load the stand-in where it would import flash-attn, and let it run on a CPU."""
    package, padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
    package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    contents: dict[ModuleType, tuple[Any, ...]] = {
        package: (flash_attn_func, flash_attn_varlen_func),
        padding: (pad_input, unpad_input),
    }
    for module, functions in contents.items():
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for function in functions:
            setattr(module, function.__name__, function)
    package.flash_attn_with_kvcache = None  # only for paged caches
    utils = modeling_flash_attention_utils
    monkeypatch.setattr(utils, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(PreTrainedModel, "_flash_attn_can_dispatch", lambda self, **kwargs: True)
    for name in ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn"):
        monkeypatch.setattr(utils, name, None)
    for name in ("_unpad_fn", "_process_flash_kwargs_fn", "_process_with_kvcache_kwargs_fn"):
        monkeypatch.setattr(utils, name, None)
