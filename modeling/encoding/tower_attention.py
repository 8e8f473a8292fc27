"""How much attention each patch receives in a layer of the vision tower, for methods that choose tokens by it.

The fast kernels of attention return no weights. But the weights follow from the layer's queries and keys, so they are
computed once more, for this one layer, beside whatever kernel the tower runs. A hook before the layer's attention is
given what the attention itself is given: normed states, rotary positions, and where frames and windows end. It is there
only during a call that asks for it.
"""

from collections.abc import Callable
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..methods.compression import without_autocast

BLOCK_BYTES = 64 * 2**20  # how much memory the weights of one block of queries may take

# What the hook of the current thread has found. A hook on a tower that threads share sees the videos of all of them.
_found_here: ContextVar[list[Tensor] | None] = ContextVar("found_here", default=None)


def with_attention_received(
    encode: Callable[[], Any], attention: nn.Module, received: Callable[..., Tensor]
) -> tuple[Any, Tensor]:
    """Encode frames, and return beside the result what `received` makes of the arguments of an attention.

    Args:
        encode: runs the vision tower once, and returns something.
        attention: the attention of one of the tower's layers.
        received: takes this module and the arguments that it is called with.

    Raises:
        ValueError: if the tower does not call the attention once.
    """
    if "_dynamo" not in vars(torch):  # nothing is compiled; the compiler itself takes seconds to import
        return _with_attention_received(encode, attention, received)
    global _uncompiled
    if _uncompiled is None:  # a compiled graph would keep the hook of its first call
        _uncompiled = torch.compiler.disable(_with_attention_received)
    return _uncompiled(encode, attention, received)


_uncompiled: Any = None  # made when it is first needed


def _with_attention_received(
    encode: Callable[[], Any], attention: nn.Module, received: Callable[..., Tensor]
) -> tuple[Any, Tensor]:
    found: list[Tensor] = []

    # Another thread that removes its own hook may make this thread call that one without `by_name`.
    def look(module: nn.Module, arguments: Any, by_name: Any = None) -> None:
        if _found_here.get() is found:
            with torch.no_grad():
                found.append(received(module, *arguments, **by_name))

    before = _found_here.set(found)
    hook = attention.register_forward_pre_hook(look, with_kwargs=True)
    try:
        encoded = encode()
    finally:
        hook.remove()
        _found_here.reset(before)
    if len(found) != 1:
        raise ValueError(
            "the compression method needs `tower_attention`, but the vision tower called the attention of its last "
            f"layer {len(found)} times, not once. Something has replaced what the layer computes: undo that, or choose "
            "another `compression_method`."
        )
    return encoded, found[0]


def received_in_frames(attention: Any, hidden_states: Tensor, *_: Any, has_class_token: bool, **__: Any) -> Tensor:
    """Return the attention that the patches of frames receive in a layer of a CLIP or SigLIP tower.

    Args:
        hidden_states: (F, patches, dim), what the layer's attention is given.
        has_class_token: whether the first of the patches is a class token. Then the attention is what the class token
            pays, otherwise the mean of what all patches pay.

    Returns:
        (F, P) float32, a mean over the heads.
    """
    queries = attention.q_proj(hidden_states[:, :1] if has_class_token else hidden_states)
    keys = attention.k_proj(hidden_states)
    queries, keys = (each.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for each in (queries, keys))
    frames = [summed_weights(*of_frame, attention.scale) for of_frame in zip(queries, keys)]
    received = torch.stack(frames) / queries.shape[2]
    return received[:, 1:] if has_class_token else received


def received_in_parts(
    attention: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
) -> Tensor:
    """Return the attention that patches receive in a layer of a Qwen tower, summed over the patches that pay it.

    Args:
        hidden_states: (N, dim), what the layer's attention is given, in the tower's order.
        cu_seqlens: where the parts begin and end within which patches attend to each other, frames or windows.
        position_embeddings: cosines and sines (N, dim of a head) of the rotary positions.

    Returns:
        (N,) float32 in the tower's order, a mean over the heads.
    """
    queries, keys, _values = attention.qkv(hidden_states).unflatten(-1, (3, attention.num_heads, -1)).unbind(1)
    cos, sin = (each[:, None].float() for each in position_embeddings)

    def rotated(states: Tensor, part: slice) -> Tensor:
        states = states[part].float()
        first, second = states.chunk(2, dim=-1)
        turned = states * cos[part] + torch.cat([-second, first], dim=-1) * sin[part]
        return turned.transpose(0, 1)

    parts = [slice(start, end) for start, end in pairwise(cu_seqlens.tolist())]
    return torch.cat([summed_weights(rotated(queries, at), rotated(keys, at), attention.scaling) for at in parts])


def summed_weights(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return the attention that each key receives: its weights, a mean over the heads, summed over the queries.

    Args:
        queries, keys: (heads, Q, dim) and (heads, P, dim), any float dtype.
        scale: by which their products are multiplied.

    Returns:
        (P,) float32.
    """
    heads, num_keys = keys.shape[:2]
    received = torch.zeros(num_keys, dtype=torch.float32, device=keys.device)
    with without_autocast(keys.device.type):
        transposed = keys.float().mT * scale
        for block in queries.split(max(1, BLOCK_BYTES // (4 * heads * num_keys)), dim=1):
            received += (block.float() @ transposed).softmax(dim=-1).mean(dim=0).sum(dim=0)
    return received
