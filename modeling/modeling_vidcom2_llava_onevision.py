"""LLaVA-OneVision with VidCom²: what differs from the parent class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlavaOnevisionForConditionalGeneration
from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionCausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from .compression import VideoCompression
from .configuration_vidcom2_llava_onevision import VidCom2LlavaOnevisionConfig
from .prompt_compression import VidCom2PromptMixin, VidCom2VideoFeatures, with_signature_of
from .registration import register_like


@dataclass
class VidCom2LlavaOnevisionCausalLMOutputWithPast(LlavaOnevisionCausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        prompt_positions: (B, L') int64, the position in `input_ids` of each remaining token, -1 at padding; None if
            nothing was compressed.
    """

    prompt_positions: torch.LongTensor | None = None


class VidCom2LlavaOnevisionForConditionalGeneration(VidCom2PromptMixin, LlavaOnevisionForConditionalGeneration):
    """LLaVA-OneVision that keeps only the distinctive tokens of each video. Same weights, same processor.

    Modifications:
        - `get_video_features` returns the kept tokens of each video, as a tuple.
        - `forward` and `generate` leave the dropped tokens out of the prompt, and take `retention_ratio`.

    A frame's tokens (14 × 14 in the released checkpoints) are scored; the newline at the end of the video is structure
    and stays, outside `retention_ratio`. Prompts without video, and `retention_ratio=1.0`, take the parent's path. The
    inner `model` is the stock one: its own `get_video_features` does not compress.
    """

    config_class = VidCom2LlavaOnevisionConfig
    output_class = VidCom2LlavaOnevisionCausalLMOutputWithPast

    forward = with_signature_of(LlavaOnevisionForConditionalGeneration.forward)(VidCom2PromptMixin.forward)

    @can_return_tuple
    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        retention_ratio: float | None = None,
        **kwargs: Any,
    ) -> VidCom2VideoFeatures:
        """Encode videos and keep their distinctive tokens.

        Args:
            pixel_values_videos: (num_videos, num_frames, channels, height, width).
            vision_feature_layer, vision_feature_select_strategy: as in the parent class.
            retention_ratio: fraction of the video tokens kept, in (0, 1]; the config's if None.

        Returns:
            The parent's output, but `pooler_output` is a tuple of (K_i, dim) tensors, each with its newline at the
            end, and `video_compressions` tells which tokens of each video they are.

        Raises:
            ValueError: on an empty video or a `retention_ratio` outside (0, 1].
        """
        if pixel_values_videos.ndim != 5 or 0 in pixel_values_videos.shape:
            raise ValueError(
                f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)}, but must be (num_videos, "
                "num_frames, channels, height, width) without an empty axis. Pass at least one frame."
            )
        outputs = self.model.get_video_features(
            pixel_values_videos,
            vision_feature_layer=vision_feature_layer,
            vision_feature_select_strategy=vision_feature_select_strategy,
            return_dict=True,
            **kwargs,
        )
        frames = [self.frames_of(video, pixel_values_videos.shape[1]) for video in outputs.pooler_output]
        return self.keep_distinctive_tokens(outputs, frames, retention_ratio)

    def frames_of(self, video: Tensor, num_frames: int) -> Tensor:
        """The parent's (placeholders, dim) of a video -> the scored tokens, (num_frames, tokens_per_frame, dim)."""
        return video[:-1].unflatten(0, (num_frames, -1))

    def placeholders(self, compression: VideoCompression) -> tuple[Tensor, int]:
        """The kept tokens, and the newline after the last frame."""
        num_tokens = compression.token_uniqueness.numel()
        newline = compression.indices.new_tensor([num_tokens])
        return torch.cat([compression.indices, newline]), num_tokens + 1

    def features_for_parent(self, features: Sequence[Tensor]) -> Tensor:
        """The parent flattens a batch of equally long videos; one video of all tokens is the same to it."""
        return torch.cat(tuple(features))[None]


register_like(VidCom2LlavaOnevisionForConditionalGeneration, parent="llava_onevision")
