"""Attention to whole frames in a tower that computes only some of their patches.

A patch that is left out contributes the key and the value that the same layer computed last at its place. Only the
attention changes: the tower's layers run as they are, on the computed patches of all frames, one after the other. A
hook before a layer's attention receives the attention's arguments, and computes its result. A hook cannot keep the
attention from running, so it runs on a single patch, and a hook after it replaces that output.

The layers pass on arguments that they do not know. By one of these the hooks tell their own call from other threads'.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import is_flash_attention_requested

from .packed_attention import NAME, Segments, ends_of, takes_varlen, varlen

ARGUMENT = "whole_frames"  # the name of the argument
KeysAndValues: TypeAlias = tuple[Tensor, ...]  # two of (patches, heads, dim of a head), or none


class WholeFrames:
    """Lets the computed patches of some frames attend to all patches of their frames.

    While this object is alive, calls of the layers with it as the argument `whole_frames` do so. Gradient checkpointing
    keeps it alive until the backward pass has run the layers once more.

    Args:
        attentions: of the tower's layers, and whether each looks at whole frames. The others look within windows, and
            are left alone.
        sources: (Σ patches,) int64: for each patch of each frame, frame after frame, the row of its key and value among
            those of the computed patches, in the tower's order, and after these those of the frame before the first.
            Negative numbers count from the end.
        num_computed, num_patches: how many patches of each frame are computed, and how many it has.
        before: by layer, keys and values of the frame before the first; empty if the first frame is a video's first.
        carry: whether frames follow that need those of the last frame.
        trained: whether weights of the tower are trained.

    Attributes:
        last: by layer that ran, keys and values of the last frame, or nothing if they are not needed.
    """

    def __init__(
        self,
        attentions: Mapping[nn.Module, bool],
        sources: Tensor,
        num_computed: Sequence[int],
        num_patches: Sequence[int],
        before: Mapping[nn.Module, KeysAndValues],
        carry: bool,
        trained: bool,
    ):
        self.attentions, self.sources, self.before, self.carry = attentions, sources, before, carry
        self.num_computed, self.num_patches = num_computed, num_patches
        self.segments = Segments(num_computed, num_patches)
        self.ends = ends_of(num_computed, sources.device), ends_of(num_patches, sources.device)
        self.carries_gradients = carry and trained and torch.is_grad_enabled()
        self.last: dict[nn.Module, KeysAndValues] = {}
        self.results: dict[nn.Module, tuple[Tensor, Any]] = {}  # what the attention is given instead, and the result
        this, hooks = weakref.ref(self), []
        for attention in attentions:
            hooks.append(attention.register_forward_pre_hook(partial(_compute, this), with_kwargs=True))
            # It stands before the user's hooks, so that these see what the attention returns, and may change it.
            hooks.append(attention.register_forward_hook(partial(_replace, this), prepend=True, with_kwargs=True))
        weakref.finalize(self, _remove, hooks)

    def check_ran(self) -> None:
        """Check that every layer computed its attention here.

        Raises:
            ValueError: if one did not.
        """
        expected = [attention for attention, at_frames in self.attentions.items() if at_frames]
        if len(self.last) != len(expected):
            raise ValueError(
                f"only {len(self.last)} of {len(expected)} layers of the vision tower let the computed patches attend "
                "to those that are left out. Something has replaced what the others compute: undo that, or pass "
                "`vision_method='full'`."
            )

    def attended(
        self, attention: Any, queries: Tensor, keys: Tensor, values: Tensor, scale: float, dropout: float
    ) -> Tensor:
        """Let queries (N, heads, dim) attend to the keys and values of their frames, and return (N, heads · dim).

        Args:
            keys, values: (N, heads, dim) of the computed patches.

        Raises:
            ValueError: if gradients must flow from the next chunk of frames, and would be lost.
        """
        if self.carries_gradients and not torch.is_grad_enabled():
            raise ValueError(
                "gradient checkpointing with `use_reentrant=True` would lose the gradients between chunks of "
                "`vision_chunk_frames` frames, whose patches attend to each other. Pass "
                "`gradient_checkpointing_kwargs={'use_reentrant': False}`, `vision_chunk_frames=None`, or "
                "`vision_method='full'`."
            )
        sources, before = self.sources.to(keys.device), self.before.get(attention, (keys[:0], values[:0]))
        keys, values = (torch.cat(parts)[sources] for parts in zip((keys, values), before, strict=True))
        last = slice(len(sources) - self.num_patches[-1], None)
        self.last[attention] = (keys[last].clone(), values[last].clone()) if self.carry else ()
        dropout = dropout if attention.training else 0.0
        chosen, query_ends, key_ends = attention.config._attn_implementation, *(e.to(keys.device) for e in self.ends)
        if chosen in ("sdpa", NAME) and takes_varlen(queries, keys, scale, dropout):
            return varlen(queries, keys, values, query_ends, key_ends, self.segments).flatten(1)
        if chosen != NAME and is_flash_attention_requested(attention.config):
            attended, _ = ALL_ATTENTION_FUNCTIONS[chosen](
                attention,
                *(each.transpose(0, 1)[None] for each in (queries, keys, values)),  # (1, heads, patches, dim)
                attention_mask=None,
                scaling=scale,
                dropout=dropout,
                is_causal=False,
                cu_seq_lens_q=query_ends,
                cu_seq_lens_k=key_ends,
                max_length_q=max(self.num_computed),
                max_length_k=max(self.num_patches),
            )
            return attended[0].flatten(1)
        attend = partial(nn.functional.scaled_dot_product_attention, dropout_p=dropout, scale=scale)
        return self.segments.attend(queries, keys, values, lambda *parts: attend(*parts).transpose(1, 2)).flatten(1)


# ---------------------------------------------------------------------------------------------------------------------
# The two kinds of attention
# ---------------------------------------------------------------------------------------------------------------------


def _in_clip(frames: WholeFrames, attention: Any, hidden_states: Tensor, **_: Any) -> tuple[Any, dict[str, Any]]:
    """Return what the attention of CLIP and SigLIP gives for states (1, N, dim), and a patch's arguments."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    parts = (project(hidden_states)[0].unflatten(-1, (attention.num_heads, -1)) for project in projections)
    attended = frames.attended(attention, *parts, scale=attention.scale, dropout=attention.dropout)
    return (attention.out_proj(attended[None]), None), {"hidden_states": hidden_states[:, :1]}


def _in_qwen(
    frames: WholeFrames, attention: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
) -> tuple[Any, dict[str, Any]]:
    """Return what the attention of Qwen's and GLM's towers gives for states (N, dim), and a patch's arguments.

    Rotary positions are a patch's place in its frame, so that the key of an earlier frame needs no other rotation.
    """
    if hasattr(attention, "qkv"):
        projected = attention.qkv(hidden_states).chunk(3, dim=-1)
    else:  # Qwen2.5-Omni's
        projected = (attention.q(hidden_states), attention.k(hidden_states), attention.v(hidden_states))
    queries, keys, values = (each.unflatten(-1, (attention.num_heads, -1)) for each in projected)
    cos, sin = (each[:, None].float() for each in position_embeddings)

    def rotated(states: Tensor) -> Tensor:
        first, second = states.float().chunk(2, dim=-1)
        return (states * cos + torch.cat([-second, first], dim=-1) * sin).to(states.dtype)

    parts = (rotated(queries), rotated(keys), values)
    attended = frames.attended(attention, *parts, scale=attention.scaling, dropout=attention.attention_dropout)
    of_patch = {
        "hidden_states": hidden_states[:1],
        "position_embeddings": tuple(each[:1] for each in position_embeddings),
        "cu_seqlens": ends_of([1], hidden_states.device),
        "max_seqlen": 1,
    }
    return attention.proj(attended), of_patch


# ---------------------------------------------------------------------------------------------------------------------
# Hooks
# ---------------------------------------------------------------------------------------------------------------------

# They hold no `WholeFrames`, which would keep it alive. Another thread that removes its own hooks may make this thread
# call those with fewer arguments.


def _compute(this: Callable[[], WholeFrames | None], attention: nn.Module, arguments: Any, by_name: Any = None) -> Any:
    """Compute what the attention returns, and return the arguments to run it with."""
    frames = this()
    if frames is None or by_name is None or by_name.get(ARGUMENT) is not frames:
        return None
    by_name = {name: value for name, value in by_name.items() if name != ARGUMENT}
    if not frames.attentions[attention]:
        return arguments, by_name
    if arguments:
        (by_name["hidden_states"],) = arguments
    kind = _in_clip if hasattr(attention, "q_proj") else _in_qwen
    result, of_patch = kind(frames, attention, **by_name)
    frames.results[attention] = of_patch["hidden_states"], result
    return (), by_name | of_patch


def _replace(
    this: Callable[[], WholeFrames | None], attention: nn.Module, arguments: Any, by_name: Any, output: Any = None
) -> Any:
    """Replace what the attention returned, if it ran on the patch that it was given instead."""
    frames = this()
    if frames is None or output is None:
        return None
    given, result = frames.results.get(attention, (None, None))
    if given is None or by_name.get("hidden_states") is not given:
        return None
    del frames.results[attention]
    return result


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()
