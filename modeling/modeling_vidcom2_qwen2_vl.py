"""Qwen2-VL with VidCom²: what differs from the parent class."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2VLForConditionalGeneration
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from .configuration_vidcom2_qwen2_vl import VidCom2Qwen2VLConfig
from .prompt_compression import VidCom2PromptMixin, VidCom2VideoFeatures, with_signature_of
from .prompt_positions import CachedPrompt
from .registration import register_like


@dataclass
class VidCom2Qwen2VLCausalLMOutputWithPast(CausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        rope_deltas: as in the parent's output of older Transformers versions.
        prompt_positions: (B, L') int64, the position in `input_ids` of each remaining token, -1 at padding; None if
            nothing was compressed.
    """

    rope_deltas: torch.LongTensor | None = None
    prompt_positions: torch.LongTensor | None = None


class VidCom2Qwen2VLForConditionalGeneration(VidCom2PromptMixin, Qwen2VLForConditionalGeneration):
    """Qwen2-VL that keeps only the distinctive tokens of each video. Same weights, same processor.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` and `generate` leave the dropped tokens out of the prompt, and take `retention_ratio`.
        - M-RoPE positions are computed on the full prompt, and every survivor keeps its own (t, h, w).

    A "frame" is one of the t temporal patches of `video_grid_thw`, two frames of the file, with h·w/4 tokens; all of
    them are scored. Prompts without video, and `retention_ratio=1.0`, take the parent's path. The inner `model` is the
    stock one: its own `get_video_features` does not compress.
    """

    config_class = VidCom2Qwen2VLConfig
    output_class = VidCom2Qwen2VLCausalLMOutputWithPast

    forward = with_signature_of(Qwen2VLForConditionalGeneration.forward)(VidCom2PromptMixin.forward)

    @can_return_tuple
    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        video_grid_thw: Tensor | None = None,
        retention_ratio: float | None = None,
        **kwargs: Any,
    ) -> VidCom2VideoFeatures:
        """Encode videos and keep their distinctive tokens.

        Args:
            pixel_values_videos: (Σ t·h·w, channels · 2 · patch²), the patches of all videos.
            video_grid_thw: (num_videos, 3) int64, (t, h, w) of each video in patches.
            retention_ratio: fraction of the video tokens kept, in (0, 1]; the config's if None.

        Returns:
            The parent's output, but `pooler_output` holds the K_i kept tokens of each video, (K_i, dim), and
            `video_compressions` tells which they are.

        Raises:
            ValueError: on an empty video, a grid that does not fit the patches, or a bad `retention_ratio`.
        """
        if video_grid_thw is None or pixel_values_videos.numel() == 0:
            raise ValueError(
                f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)} and `video_grid_thw` is "
                f"{video_grid_thw}, but both must describe at least one frame. The processor returns them together."
            )
        grids = video_grid_thw.tolist()
        num_patches = sum(t * h * w for t, h, w in grids)
        if len(pixel_values_videos) != num_patches:
            raise ValueError(
                f"`pixel_values_videos` holds {len(pixel_values_videos)} patches, but `video_grid_thw` {grids} asks "
                f"for {num_patches}. Pass both as the processor returned them."
            )
        outputs = self.model.get_video_features(pixel_values_videos, video_grid_thw, return_dict=True, **kwargs)
        frames = [video.unflatten(0, (t, -1)) for video, (t, _, _) in zip(outputs.pooler_output, grids, strict=True)]
        return self.keep_distinctive_tokens(outputs, frames, retention_ratio)

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> Tensor:
        """(3, B, n): the parent's positions of the full prompt, from `start` on."""
        input_ids = new["input_ids"]
        token_types = new.get("mm_token_type_ids")
        if token_types is None:  # 1 for images and 2 for videos
            is_image, is_video = input_ids == self.config.image_token_id, input_ids == self.config.video_token_id
            token_types = is_image.int() + 2 * is_video.int()
        if new.get("video_grid_thw") is None and (token_types == 2).any():
            raise ValueError(
                "`video_grid_thw` is missing, but the prompt has videos. Pass it as the processor returned it, also "
                "with features that were encoded beforehand."
            )
        positions, _ = self.model.get_rope_index(
            input_ids,
            mm_token_type_ids=token_types,
            image_grid_thw=new.get("image_grid_thw"),
            video_grid_thw=new.get("video_grid_thw"),
            attention_mask=new["attention_mask"],
        )
        return positions + start

    def position_offset(self, cached: CachedPrompt) -> Tensor | int:
        """(B, 1) `rope_deltas` of the cached prompt; as in the parent, those of the last call for a stock cache."""
        offset = cached.position_offset
        if offset is None and cached.length > 0:
            offset = self.model.rope_deltas
        return 0 if offset is None else offset

    def forget_positions(self) -> None:
        """The parent keeps `rope_deltas` on the model, where they outlive their prompt."""
        self.model.rope_deltas = None


register_like(VidCom2Qwen2VLForConditionalGeneration, parent="Qwen2VLForConditionalGeneration")
