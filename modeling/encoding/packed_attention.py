"""Attention within the windows and frames of a vision tower, without a call for each of them.

Towers of Qwen's kind take the patches of all frames in one row, and `cu_seqlens` says where each window or frame ends.
With SDPA, Transformers asks the device in every layer for these ends, and then calls SDPA segment by segment: a video
of Qwen2.5-VL may need 16,128 calls. Here segments of equal length run as one batch, and the ends are read once.
Transformers passes the ends only to an attention function with "flash" in its name, so the layers get a view of their
config that names this one. On the CPU, features and gradients have the very bits of Transformers' loop.

Transformers' pull request 45153 will do this upstream: then delete this file and the calls of its functions, and let
`WholeFrames` call what Transformers has.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_jit_tracing

from ..methods.compression import on_device

try:
    from torch.nn.attention.varlen import varlen_attn  # since PyTorch 2.10
except ImportError:
    varlen_attn = None

# Each copy of this file, as in a Hub repo, registers a function of its own, under a name that must hold "flash".
# Classes and hooks of other copies are known by their names.
NAME = f"{__name__}.packed_flash"
# The most segments of a batch, which CUDA can launch, and the most scores of a head in it: 1,024 windows of 64 patches.
# Where PyTorch has no kernel that spares memory, all scores of a batch exist at once.
MOST_SEGMENTS, MOST_SCORES = 2**15, 2**22
SEGMENTS = "_vidcom2_segments"  # the attribute of a tensor of ends that keeps what was read of it


# ---------------------------------------------------------------------------------------------------------------------
# In which layers
# ---------------------------------------------------------------------------------------------------------------------


class PackedConfig:
    """A vision tower's config as its attention layers see it: SDPA is the function of this file.

    Everything else is the config's own, at any time: another implementation that the user has set or sets later is used
    as it is. The config itself, which users read and which is saved, names SDPA. Compiled and exported towers run
    Transformers' own code.
    """

    def __init__(self, config: Any):
        self.__dict__["stock"] = config

    @property
    def _attn_implementation(self) -> str | None:
        chosen = self.stock._attn_implementation
        return NAME if chosen == "sdpa" and not torch.compiler.is_compiling() and not is_jit_tracing() else chosen

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` build it without `__init__`, and ask for methods of this class, not of the config's.
        if name == "stock" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.stock, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.stock, name, value)


def pack_attention(model: nn.Module) -> None:
    """Let the vision tower of an inner model attend in batches, in each layer that attends within segments."""
    for attention in _attentions(model):
        if "cu_seqlens" not in inspect.signature(type(attention).forward).parameters or _is_packed(attention):
            continue
        attention.config = PackedConfig(attention.config)
        if "max_seqlen" in inspect.signature(type(attention).forward).parameters:  # not in Transformers 5.19
            attention.register_forward_pre_hook(with_longest, with_kwargs=True)


def unpack_attention(model: nn.Module) -> None:
    """Undo `pack_attention`, also that of another copy of this file."""
    for attention in filter(_is_packed, _attentions(model)):
        attention.config = attention.config.stock
        for number, hook in [*attention._forward_pre_hooks.items()]:
            if getattr(hook, "__name__", None) == with_longest.__name__:
                del attention._forward_pre_hooks[number], attention._forward_pre_hooks_with_kwargs[number]


def vision_tower(model: Any) -> Any:
    """Return the vision tower of an inner model, which Transformers calls by several names; None if it has none."""
    names = ("visual", "vision_model", "vision_tower")
    return next((getattr(model, name) for name in names if hasattr(model, name)), None)


def _attentions(model: nn.Module) -> list[Any]:
    """Return the attention modules of a model's vision tower."""
    return [each for each in getattr(vision_tower(model), "modules", tuple)() if hasattr(each, "is_causal")]


def _is_packed(attention: Any) -> bool:
    return type(getattr(attention, "config", None)).__name__ == PackedConfig.__name__


def with_longest(attention: Any, arguments: Any, by_name: dict[str, Any]) -> Any:
    """Give a layer `max_seqlen`, for which it would ask the device. A hook before `forward`."""
    ends = by_name.get("cu_seqlens")
    if ends is None or by_name.get("max_seqlen") is not None or attention.config._attn_implementation != NAME:
        return None
    return arguments, by_name | {"max_seqlen": segments_of(ends).most_queries}


# ---------------------------------------------------------------------------------------------------------------------
# Segments
# ---------------------------------------------------------------------------------------------------------------------


class Segments:
    """How consecutive segments of some rows are put into batches.

    Args:
        queries: how many queries each segment has.
        keys: how many keys each segment has; None for as many as queries.

    Attributes:
        most_queries, most_keys: how many the longest segment has.
        batches: how many segments each batch has, and how many queries and keys each of these.
    """

    def __init__(self, queries: Sequence[int], keys: Sequence[int] | None = None):
        self.most_queries, self.most_keys = max(queries, default=0), max(keys or queries, default=0)
        sizes: dict[tuple[int, int], list[int]] = {}
        for number, size in enumerate(zip(queries, keys or queries, strict=True)):
            sizes.setdefault(size, []).append(number)
        self.batches: list[tuple[int, int, int]] = []
        for (num_queries, num_keys), numbers in sizes.items():
            room = max(1, min(MOST_SEGMENTS, MOST_SCORES // max(1, num_queries * num_keys)))
            counts = [min(room, len(numbers) - start) for start in range(0, len(numbers), room)]
            self.batches += [(count, num_queries, num_keys) for count in counts]
        order = [number for numbers in sizes.values() for number in numbers]
        is_in_order = order == [*range(len(order))]
        self._query_rows = None if is_in_order else _rows_of(queries, order)
        self._key_rows = self._query_rows if is_in_order or keys is None else _rows_of(keys, order)
        self._places = None if self._query_rows is None else self._query_rows.argsort()
        self._on: dict[torch.device, tuple[Tensor, ...]] = {}

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Let the queries of each segment attend to its keys, and return (N, heads, dim).

        Args:
            query: (N, heads, dim).
            key, value: (rows, heads, dim).
            attend: takes queries, keys and values of a batch, (segments, heads, rows of a segment, dim), and returns
                (segments, rows of a segment, heads, dim).
        """
        if (places := self._places) is not None:
            query_rows, key_rows, places = self._orders(query.device)
            query = query.index_select(0, query_rows)
            key, value = key.index_select(0, key_rows), value.index_select(0, key_rows)
        queries, (keys, values) = self._batched(query, 1), (self._batched(each, 2) for each in (key, value))
        attended = [attend(*of_batch).flatten(0, 1) for of_batch in zip(queries, keys, values, strict=True)]
        rows = attended[0] if len(attended) == 1 else torch.cat(attended)
        return rows if places is None else rows.index_select(0, places)

    def _batched(self, rows: Tensor, size: int) -> list[Tensor]:
        """Return rows (N, heads, dim) in the order of the batches as (segments, heads, rows of a segment, dim) of each.

        Args:
            size: which entry of `batches` says how many rows a segment has.
        """
        shapes = [(batch[0], batch[size]) for batch in self.batches]
        parts = rows.split([count * length for count, length in shapes])
        return [part.unflatten(0, shape).transpose(1, 2) for part, shape in zip(parts, shapes, strict=True)]

    def _orders(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the rows of the queries and of the keys in the order of the batches, and where each query went."""
        if device not in self._on:
            assert self._query_rows is not None and self._key_rows is not None and self._places is not None
            rows = self._query_rows, self._key_rows, self._places
            self._on[device] = tuple(on_device(each, device) for each in rows)
        return self._on[device]


def _rows_of(lengths: Sequence[int], order: Sequence[int]) -> Tensor:
    """Return the rows of consecutive segments of these lengths, int64, with the segments in another order."""
    of_segments = torch.tensor(lengths)
    starts = of_segments.cumsum(0) - of_segments
    of_segments, starts = of_segments[list(order)], starts[list(order)]
    moved_by = starts - (of_segments.cumsum(0) - of_segments)
    return torch.arange(int(of_segments.sum())) + moved_by.repeat_interleave(of_segments)


def segments_of(ends: Tensor) -> Segments:
    """Return the segments between `ends`, an int tensor that begins with 0. Waits for the device once for each tensor,
    since a tower passes one to all layers of a kind; of an inference tensor it does not see later changes."""
    version = None if ends.is_inference() else ends._version
    known = getattr(ends, SEGMENTS, None)
    if known is None or known[0] != version:
        known = version, Segments([end - start for start, end in pairwise(ends.tolist())])
        setattr(ends, SEGMENTS, known)
    return known[1]


def ends_of(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return where parts of these lengths begin, and where the last one ends. `segments_of` need not wait for it."""
    ends = on_device(torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32), device)
    setattr(ends, SEGMENTS, (None if ends.is_inference() else ends._version, Segments(lengths)))
    return ends


# ---------------------------------------------------------------------------------------------------------------------
# Attention
# ---------------------------------------------------------------------------------------------------------------------


def packed_flash(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: Any = None,
    max_length_k: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within segments, as Transformers' `AttentionInterface` says, and return (1, N, heads, dim) and None.

    Args:
        query, key, value: (1, heads, N, dim).
        cu_seq_lens_q: where segments end; None if there are none.
        cu_seq_lens_k, max_length_q, max_length_k: follow from it.
        **kwargs: those of SDPA's function, which is called as Transformers' loop calls it.
    """
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if cu_seq_lens_q is None:
        return sdpa(module, query, key, value, attention_mask, **kwargs)
    segments = segments_of(cu_seq_lens_q)
    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))
    if takes_varlen(query, key, kwargs.get("scaling"), kwargs.get("dropout", 0.0)):
        return varlen(queries, keys, values, cu_seq_lens_q, cu_seq_lens_q, segments)[None], None
    attended = segments.attend(queries, keys, values, lambda *of_batch: sdpa(module, *of_batch, None, **kwargs)[0])
    return attended[None], None


def takes_varlen(query: Tensor, key: Tensor, scale: float | None, dropout: float) -> bool:
    """Return whether PyTorch's attention to segments of any lengths in one call takes these queries and keys.

    Args:
        query, key: (..., dim), with the heads on their second axis.
    """
    # PyTorch 2.10 takes as many heads of keys as of queries, and no other scale; later versions do. The sizes of heads
    # are FlashAttention's.
    dim, fits = query.shape[-1], query.shape[1] == key.shape[1]
    is_usual = scale is None or math.isclose(scale, dim**-0.5)
    if varlen_attn is None or dropout or not fits or not is_usual or dim % 8 or dim > 256:
        return False
    if query.dtype not in (torch.float16, torch.bfloat16) or not query.is_cuda or torch.version.hip is not None:
        return False
    if not (torch.backends.cuda.is_flash_attention_available() and torch.backends.cuda.flash_sdp_enabled()):
        return False  # The build lacks it, or the user forbids it, as by `sdpa_kernel`.
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def varlen(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, segments: Segments
) -> Tensor:
    """Attend within segments by PyTorch's function for it, and return (N, heads, dim)."""
    attend: Any = varlen_attn
    return attend(query, key, value, query_ends.int(), key_ends.int(), segments.most_queries, segments.most_keys)


AttentionInterface.register(NAME, packed_flash)
