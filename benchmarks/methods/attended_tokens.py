"""How much attention each token received in the vision tower, read by a hook on the tower's last layer.

The fast kernels of attention return no weights. But the weights follow from the layer's queries and keys, so they are
computed once more, for this one layer, beside whatever kernel the tower runs. It works for the towers of the two toys:
SigLIP in LLaVA-OneVision, and Qwen3-VL's. In both, a token stands for 2 × 2 patches.

Shapes: T frames, M tokens and P = 4·M patches per frame. F of the T frames are encoded, since a frame that repeats the
one before takes its features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration, Qwen3VLForConditionalGeneration

from vidcom2 import VideoTokens
from vidcom2.asking.generation import Batch, EncodedVideos, run_tower

from .compressed_answers import compressed_answers


@dataclass(frozen=True, kw_only=True)
class AttendedTokens(VideoTokens):
    """The tokens of one video, and what the vision tower made of them.

    Attributes:
        attention: (T, M) float32, how much attention each token's patches receive in the last layer of the tower: its
            weights, a mean over the heads, over the frame's patches that pay it, and over the token's patches.
    """

    attention: Tensor


def attention_of(video: VideoTokens) -> Tensor:
    """Return the attention that a video's tokens received, (T, M).

    Raises:
        ValueError: if it was not read.
    """
    if not isinstance(video, AttendedTokens):
        raise ValueError(
            f"the video is a {type(video).__name__}, but this method chooses by the attention of the vision tower. "
            "Pass what `benchmarks.methods.attended_tokens.with_attention` returns."
        )
    return video.attention


class AttendedAnswers:
    """Answers batches with methods that choose by the tower's attention, which it reads once for each video."""

    def __init__(self) -> None:
        self._read = WeakKeyDictionary[EncodedVideos, EncodedVideos]()

    def answer(
        self, model: Any, batch: Batch, max_new_tokens: int, overrides: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Answer a batch with the settings of a call, in the form of `Candidate.answer`."""
        for video in batch.videos:
            if video not in self._read:
                self._read[video] = with_attention(model, video)
        attended = replace(batch, videos=tuple(self._read[video] for video in batch.videos))
        return compressed_answers(model, attended, model.config.compression_settings(**overrides), max_new_tokens)


@torch.no_grad()
def with_attention(model: Any, videos: EncodedVideos) -> EncodedVideos:
    """Encode a video once more, and return it with the attention that its tokens received.

    Raises:
        ValueError: on another tower than the toys', and on several videos.
    """
    if isinstance(model, LlavaOnevisionForConditionalGeneration):
        attention, read, order = model.model.vision_tower.encoder.layers[-1].self_attn, _of_siglip, _row_by_row
    elif isinstance(model, Qwen3VLForConditionalGeneration):
        attention, read, order = model.model.visual.blocks[-1].attn, _of_qwen, _block_by_block
    else:
        raise ValueError(
            f"the model is a {type(model).__name__}, but attention is read only in the towers of the toys, "
            "LLaVA-OneVision's and Qwen3-VL's."
        )
    received: list[Tensor] = []
    hook = attention.register_forward_pre_hook(
        lambda module, arguments, by_name: received.append(read(module, *arguments, **by_name)), with_kwargs=True
    )
    try:
        encoded = run_tower(model, videos.inputs, model.config.compression_settings())
    finally:
        hook.remove()
    (video,) = encoded.tokens
    patches = torch.cat([each.flatten() for each in received])
    # What the tower encoded are the frames whose tokens differ from those of the frame before.
    is_new = torch.ones(len(video.tokens), dtype=torch.bool)
    is_new[1:] = (video.tokens[1:] != video.tokens[:-1]).flatten(1).any(dim=1)
    num_patches = int(is_new.sum()) * 4 * video.tokens.shape[1]
    if video.grid is None or len(patches) != num_patches:
        raise ValueError(
            f"the tower's last layer saw {len(patches)} patches, but tokens of 2 × 2 patches in a grid {video.grid} "
            f"have {num_patches}. Take a model whose tower is made like a toy's."
        )
    of_frames = order(patches.view(int(is_new.sum()), -1), *video.grid)
    of_tokens = nn.functional.avg_pool2d(of_frames[:, None], 2).flatten(1)[is_new.cumsum(0) - 1]
    attended = AttendedTokens(**vars(video), attention=of_tokens)
    return replace(encoded, tokens=[attended])


def _of_siglip(attention: Any, hidden_states: Tensor, **_: Any) -> Tensor:
    """Return the attention (F, P) that patches receive in a layer of SigLIP, from what the layer's attention is given:
    states (F, P, dim)."""
    parts = (project(hidden_states) for project in (attention.q_proj, attention.k_proj))
    queries, keys = (each.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for each in parts)
    return torch.stack([_received(*of_frame, attention.scale) for of_frame in zip(queries, keys)])


def _of_qwen(
    attention: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
) -> Tensor:
    """Return the attention (F · P,) that patches receive in a layer of Qwen3-VL's tower, from what the layer's
    attention is given: states (F · P, dim), where frames begin and end, and cosines and sines of rotary positions."""
    queries, keys, _values = attention.qkv(hidden_states).chunk(3, dim=-1)
    cos, sin = (each[:, None].float() for each in position_embeddings)

    def rotated(states: Tensor, part: slice) -> Tensor:
        states = states[part].unflatten(-1, (attention.num_heads, -1)).float()
        first, second = states.chunk(2, dim=-1)
        return (states * cos[part] + torch.cat([-second, first], dim=-1) * sin[part]).transpose(0, 1)

    frames = [slice(start, end) for start, end in pairwise(cu_seqlens.tolist())]
    return torch.cat([_received(rotated(queries, at), rotated(keys, at), attention.scaling) for at in frames])


def _received(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return how much attention each patch of a frame receives, (P,) float32: a mean over the heads and the patches
    that pay it.

    Args:
        queries, keys: (heads, P, dim), any float dtype.
    """
    weights = (queries.float() @ (keys.float().mT * scale)).softmax(dim=-1)
    return weights.mean(dim=0).sum(dim=0) / queries.shape[1]


def _row_by_row(patches: Tensor, rows: int, columns: int) -> Tensor:
    """Return values of patches (F, P) as pictures (F, 2 · rows, 2 · columns), of a tower that has them row by row."""
    return patches.unflatten(1, (2 * rows, 2 * columns))


def _block_by_block(patches: Tensor, rows: int, columns: int) -> Tensor:
    """Return what `_row_by_row` does, of a tower that has the patches of a token one after the other."""
    return patches.unflatten(1, (rows, columns, 2, 2)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
