"""How much attention each patch receives in a layer of the vision tower, for methods that choose tokens by it.

The fast kernels of attention return no weights. But the weights follow from the layer's queries and keys, so they are
computed once more, for this one layer, beside whatever kernel the tower runs. A hook before the layer's attention is
given what the attention itself is given: normed states, rotary positions, and where frames and windows end. It is there
only during a call that asks for it.
"""

from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..methods.compression import without_autocast

BLOCK_BYTES = 64 * 2**20  # how much memory the weights of one block of queries may take

# What the hooks of the current thread have found. A hook on a tower that threads share sees the videos of all of them.
_found_here: ContextVar[tuple[list[Tensor], ...]] = ContextVar("found_here", default=())


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

    def without_gradients(*arguments: Any, **by_name: Any) -> Tensor:
        with torch.no_grad():
            return received(*arguments, **by_name)

    return with_input_of(encode, attention, without_gradients, "`tower_attention`", "attention of its last layer")


def with_needs_of_tower(
    encode: Callable[[], Any],
    needs: Collection[str],
    attention: nn.Module,
    received: Callable[..., Tensor],
    merger: nn.Module,
    states: Callable[..., Tensor],
    what: str,
) -> tuple[Any, dict[str, Tensor]]:
    """Encode frames, and return beside the result what is needed of the tower, by name.

    Args:
        encode, attention, received: see `with_attention_received`.
        needs: the names of what is needed.
        merger: the module of the tower whose input are the states before patches become tokens.
        states: takes this module and the arguments that it is called with, and returns these states.
        what: the module's name, for the error.

    Raises:
        ValueError: if the tower does not call one of the two modules once.
    """
    read: dict[str, Tensor] = {}
    if "tower_states" in needs:
        encode = partial(with_input_of, encode, merger, states, "`tower_states`", what)
    if "tower_attention" in needs:
        outputs, read["tower_attention"] = with_attention_received(encode, attention, received)
    else:
        outputs = encode()
    if "tower_states" in needs:
        outputs, read["tower_states"] = outputs
    return outputs, read


def with_input_of(
    encode: Callable[[], Any], module: nn.Module, read: Callable[..., Tensor], need: str, what: str
) -> tuple[Any, Tensor]:
    """Encode frames, and return beside the result what `read` makes of the arguments of a module of the tower.

    Args:
        encode: runs the vision tower once, and returns something.
        module: a module of the tower.
        read: takes this module and the arguments that it is called with.
        need, what: what is read, and the module's name, for the error.

    Raises:
        ValueError: if the tower does not call the module once.
    """
    if "_dynamo" not in vars(torch):  # nothing is compiled; the compiler itself takes seconds to import
        return _with_input_of(encode, module, read, need, what)
    global _uncompiled
    if _uncompiled is None:  # a compiled graph would keep the hook of its first call
        _uncompiled = torch.compiler.disable(_with_input_of)
    return _uncompiled(encode, module, read, need, what)


_uncompiled: Any = None  # made when it is first needed


def _with_input_of(
    encode: Callable[[], Any], module: nn.Module, read: Callable[..., Tensor], need: str, what: str
) -> tuple[Any, Tensor]:
    found: list[Tensor] = []

    # Another thread that removes its own hook may make this thread call that one without `by_name`.
    def look(module: nn.Module, arguments: Any, by_name: Any = None) -> None:
        if any(each is found for each in _found_here.get()):
            found.append(read(module, *arguments, **by_name))

    before = _found_here.set((*_found_here.get(), found))
    hook = module.register_forward_pre_hook(look, with_kwargs=True)
    try:
        encoded = encode()
    finally:
        hook.remove()
        _found_here.reset(before)
    if len(found) != 1:
        raise ValueError(
            f"the compression method needs {need}, but the vision tower called the {what} {len(found)} times, not "
            "once. Something has replaced what the tower computes: undo that, or choose another `compression_method`."
        )
    return encoded, found[0]


def received_in_frames(attention: Any, hidden_states: Tensor, *_: Any, has_class_token: bool, **__: Any) -> Tensor:
    """Return the attention that the patches of frames receive in a layer of a CLIP, SigLIP or InternVL tower.

    Args:
        hidden_states: (F, patches, dim), what the layer's attention is given.
        has_class_token: whether the first of the patches is a class token. Then the attention is what the class token
            pays, otherwise the mean of what all patches pay.

    Returns:
        (F, P) float32, a mean over the heads.
    """
    queries = attention.q_proj(hidden_states[:, :1] if has_class_token else hidden_states)
    keys = attention.k_proj(hidden_states)
    if hasattr(attention, "q_norm"):  # InternVL's, which is an identity in its smaller towers
        queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    queries, keys = (each.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for each in (queries, keys))
    frames = [summed_weights(*of_frame, attention.scale) for of_frame in zip(queries, keys)]
    received = torch.stack(frames) / queries.shape[2]
    return received[:, 1:] if has_class_token else received


def received_in_parts(
    attention: Any,
    hidden_states: Tensor,
    cu_seqlens: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> Tensor:
    """Return the attention that patches receive in a layer of the tower of Qwen, VideoLLaMA3 or Cosmos 3 Edge, summed
    over the patches that pay it.

    Args:
        hidden_states: (N, dim), what the layer's attention is given, in the tower's order.
        cu_seqlens: where the parts begin and end within which patches attend to each other, frames or windows.
        position_embeddings: cosines and sines (N, dim of a head) of the rotary positions; None in Cosmos 3 Edge, whose
            tower adds places to patches before its first layer.

    Returns:
        (N,) float32 in the tower's order, a mean over the heads.
    """
    queries, keys, _values = queries_keys_values(attention, hidden_states)
    scale = attention.scaling if hasattr(attention, "scaling") else attention.scale
    turns = None if position_embeddings is None else [each[:, None].float() for each in position_embeddings]

    def rotated(states: Tensor, part: slice) -> Tensor:
        states = states[part].float()
        if turns is not None:
            cos, sin = (each[part] for each in turns)
            first, second = states.chunk(2, dim=-1)
            states = states * cos + torch.cat([-second, first], dim=-1) * sin
        return states.transpose(0, 1)

    parts = [slice(start, end) for start, end in pairwise(cu_seqlens.tolist())]
    return torch.cat([summed_weights(rotated(queries, at), rotated(keys, at), scale) for at in parts])


def queries_keys_values(attention: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries, keys and values (N, heads, dim) of states (N, width) in the attention of a Qwen tower."""
    if hasattr(attention, "qkv"):
        parts = attention.qkv(hidden_states).chunk(3, dim=-1)
    elif hasattr(attention, "q_proj"):  # VideoLLaMA3's and Cosmos 3 Edge's
        parts = (attention.q_proj(hidden_states), attention.k_proj(hidden_states), attention.v_proj(hidden_states))
    else:  # Qwen2.5-Omni's
        parts = (attention.q(hidden_states), attention.k(hidden_states), attention.v(hidden_states))
    queries, keys, values = (part.unflatten(-1, (attention.num_heads, -1)) for part in parts)
    return queries, keys, values


def received_in_packed_frames(attention: Any, hidden_states: Tensor, cu_seqlens: Tensor, **_: Any) -> Tensor:
    """Return the attention that the patches of frames receive in a layer of MiniCPM-V 4.6's tower.

    Args:
        hidden_states: (1, N, dim), what the layer's attention is given, frame after frame.
        cu_seqlens: where the frames begin and end.

    Returns:
        (N,) float32, a mean over the heads and over the patches of the frame, which pay it.
    """
    lengths = cu_seqlens.diff()
    received = received_in_parts(attention, hidden_states[0], cu_seqlens)
    return received / lengths.repeat_interleave(lengths)


def received_in_padded_frames(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    position_ids: Tensor,
    rotate: Callable[..., Tensor],
    **_: Any,
) -> Tensor:
    """Return the attention that the patches of frames receive in a layer of Gemma 4's tower.

    Args:
        hidden_states: (F, P, dim), what the layer's attention is given.
        position_embeddings: cosines and sines of the rotary positions.
        position_ids: (F, P, 2) column and row of each patch, (-1, -1) at padding, which neither pays nor receives.
        rotate: applies these positions to queries or keys (F, P, heads, dim of a head).

    Returns:
        (F, P) float32, a mean over the heads and over the patches that pay it; 0 at padding.
    """

    def heads(project: Any, norm: Any) -> Tensor:
        states = norm(project(hidden_states).unflatten(-1, (-1, attention.head_dim)))
        return rotate(states, *position_embeddings, position_ids).transpose(1, 2)

    queries = heads(attention.q_proj, attention.q_norm)
    keys = heads(attention.k_proj, attention.k_norm).repeat_interleave(attention.num_key_value_groups, dim=1)
    is_patch = (position_ids != -1).all(dim=-1)
    received = torch.zeros(is_patch.shape, dtype=torch.float32, device=hidden_states.device)
    for frame, of_queries, of_keys, within in zip(received, queries, keys, is_patch):
        weights = summed_weights(of_queries[:, within], of_keys[:, within], attention.scaling)
        frame[within] = weights / within.sum()
    return received


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
