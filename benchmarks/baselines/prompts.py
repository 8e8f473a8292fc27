"""Prompts with one video a row, as the language model of LLaVA-OneVision reads them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LlavaOnevisionForConditionalGeneration

from vidcom2 import compress

Inputs = Mapping[str, Tensor]  # as the processor returns them


@dataclass
class Prompt:
    """B prompts of S tokens, padded on the left, each with one video of T frames of M tokens.

    As in VidCom², the newline that ends a video is structure: it is not ranked, it always stays, and it is not counted.
    """

    embeddings: Tensor  # (B, S, D), with the video features in their places
    attention_mask: Tensor  # (B, S) bool, False for padding
    positions: Tensor  # (B, S) int64, rotary positions
    places: Tensor  # (B, S) int64, the index of each token among the T·M video tokens; -1 for all others
    num_frames: int  # T
    tokens_per_frame: int  # M

    @property
    def num_video_tokens(self) -> int:
        return self.num_frames * self.tokens_per_frame

    @property
    def video_tokens(self) -> Tensor:
        """(B, T·M, D)"""
        return self.embeddings[self.places >= 0].view(len(self.places), self.num_video_tokens, -1)

    @property
    def text_after_video(self) -> Tensor:
        """(B, n) bool: which of the last n tokens come after a row's video. The longest such text has n tokens."""
        last = self.places.argmax(dim=1, keepdim=True) + 1  # the place of the newline
        after = torch.arange(self.places.shape[1], device=last.device) > last
        return after[:, -int(after.sum(1).max()) :]

    @cached_property
    def frame_uniqueness(self) -> Tensor:
        """(B, T) float, VidCom²'s u_t (Algorithm 1, stage 1)."""
        videos = self.video_tokens.unflatten(1, (self.num_frames, self.tokens_per_frame))
        scores = [compress(video).frame_uniqueness for video in videos]
        return torch.stack([score for score in scores if score is not None])  # with VidCom² none is None


def num_layers_of(model: LlavaOnevisionForConditionalGeneration) -> int:
    return cast(Any, model.config.text_config).num_hidden_layers


def token_grid(model: LlavaOnevisionForConditionalGeneration) -> tuple[int, int]:
    """Return the rows and columns of a frame's tokens: half as many as SigLIP has patches, rounded up."""
    vision = cast(Any, model.config.vision_config)
    side = math.ceil(vision.image_size // vision.patch_size / 2)
    return side, side


@torch.no_grad()
def read_prompt(
    model: LlavaOnevisionForConditionalGeneration,
    inputs: Inputs,
    video_features: Tensor | None = None,
    tokens_per_frame: int | None = None,
) -> Prompt:
    """Check the inputs, and make a `Prompt` of them.

    Args:
        inputs: as the processor returns them: `input_ids` (B, S), `attention_mask` (B, S), and `pixel_values_videos`
            (B, T, C, H, W), which may be missing if `video_features` are given.
        video_features: (B, T·M + 1, D), as `get_video_features` returns them.
        tokens_per_frame: M, if it differs from the number that the model makes of a frame.

    Raises:
        ValueError: if the model is of another family, if a row does not have exactly one video with text after it, if
            the number of features does not fit, if the padding is on the right, or if there are images.
    """
    check_fits(model, inputs)
    input_ids = inputs["input_ids"]
    attention_mask = inputs.get("attention_mask")
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    attention_mask = attention_mask.bool()
    if not attention_mask[:, -1].all():
        raise ValueError("inputs are padded on the right. Generation needs padding_side='left' in the processor.")

    if video_features is None:
        if inputs.get("pixel_values_videos") is None:
            raise ValueError("inputs hold no `pixel_values_videos`. Pass them, or `video_features`.")
        video_features = cast(Any, model.get_video_features(inputs["pixel_values_videos"])).pooler_output
    assert video_features is not None
    expected = video_features.shape[1]
    is_video = video_placeholders(model, input_ids, len(video_features), expected)
    tokens_per_frame = tokens_per_frame or math.prod(token_grid(model))
    num_frames, rest = divmod(expected - 1, tokens_per_frame)
    if rest or not num_frames:
        raise ValueError(
            f"a video of {expected} tokens is not made of frames of {tokens_per_frame} tokens and one newline. Pass "
            "the features of one video a row."
        )
    if is_video[:, -1].any():
        raise ValueError("a row ends with its video, but the methods rank by the text after it. Put a question there.")

    embeddings = model.get_input_embeddings()(input_ids)
    embeddings = embeddings.masked_scatter(is_video[..., None], video_features.to(embeddings))
    places = torch.where(is_video, is_video.cumsum(dim=1) - 1, -1)
    places[places == expected - 1] = -1  # the newline
    positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return Prompt(embeddings, attention_mask, positions, places, num_frames, tokens_per_frame)


def check_fits(model: LlavaOnevisionForConditionalGeneration, inputs: Inputs) -> None:
    """Raises:
    ValueError: if the model is of another family or runs attention that is not supported, or if there are images.
    """
    text_config = cast(Any, model.config.text_config)
    if not isinstance(model, LlavaOnevisionForConditionalGeneration) or text_config.model_type != "qwen2":
        raise ValueError(
            f"model is a {type(model).__name__} with the language model {text_config.model_type!r}, but the baselines "
            "need LlavaOnevisionForConditionalGeneration with 'qwen2', so load such a checkpoint."
        )
    if "sliding_attention" in text_config.layer_types:
        raise ValueError("the language model has sliding_attention layers. Load it with use_sliding_window=False.")
    if text_config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(
            f"attn_implementation={text_config._attn_implementation!r} may not support the masks of padded rows, "
            "so load the model with 'sdpa' or 'eager'."
        )
    if inputs.get("pixel_values") is not None:
        raise ValueError("inputs hold images (`pixel_values`), but the baselines only take prompts with a video.")


def video_placeholders(
    model: LlavaOnevisionForConditionalGeneration, input_ids: Tensor, num_videos: int, expected: int
) -> Tensor:
    """Return (B, S) bool, which tokens are placeholders of a video.

    Raises:
        ValueError: if a row does not have the placeholders of one video, which are `expected` with its newline.
    """
    is_video = input_ids == model.config.video_token_id
    counts = is_video.sum(dim=1)
    if num_videos != len(input_ids) or not (counts == expected).all():
        raise ValueError(
            f"the rows of `input_ids` hold {counts.tolist()} video tokens, but there are {num_videos} videos of "
            f"{expected} tokens. The baselines take one video a row: (batch, num_frames, ...) frames, or (batch, video "
            "tokens of a row, width) features."
        )
    return is_video
