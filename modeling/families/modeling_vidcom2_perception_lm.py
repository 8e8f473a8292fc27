"""PerceptionLM with VidCom²: only what differs. What all families share is in `prompt_compression.py` and the like."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PerceptionLMForConditionalGeneration, PerceptionLMModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from ...configuration.configuration_vidcom2_perception_lm import VidCom2PerceptionLMConfig
from ..encoding.video_features import ParentFeatures, VideoFrames
from ..hosting.in_transformers import ParentModel
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import VidCom2ModelMixin


class FramesAsTiles(ParentModel):
    """Gives a parent that encodes frames as tiles of images what the parents of other families have: features of
    videos, and features that `generate` can split into chunks."""

    @can_return_tuple
    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> ParentFeatures:
        """Return the parent's features in Transformers' usual class. `generate` cannot make one of the tower's class
        with a part of `pooler_output` alone, as `prefill_chunk_size` demands."""
        outputs = super().get_image_features(pixel_values=pixel_values, **kwargs, return_dict=True)
        return BaseModelOutputWithPooling(**outputs)

    def get_video_features(self, pixel_values_videos: Tensor, **kwargs: Any) -> ParentFeatures:
        """Return the parent's features of frames, with one (tokens, dim) entry of `pooler_output` per video."""
        outputs = self.get_image_features(pixel_values=pixel_values_videos, **kwargs)
        outputs.pooler_output = outputs.pooler_output.unflatten(0, pixel_values_videos.shape[:2]).flatten(1, 2)
        return outputs


class VidCom2PerceptionLMModel(VidCom2ModelMixin, FramesAsTiles, PerceptionLMModel):
    """PerceptionLM without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video. The parent has no such method.
        - `get_image_features` returns a class of output that can be split for `prefill_chunk_size`.
        - `forward` leaves dropped tokens out of a stock prompt.
    """

    config: VidCom2PerceptionLMConfig

    def frames_of_videos(self, pixel_values_videos: Tensor, **arguments: Any) -> Sequence[VideoFrames]:
        """Return the frames of the pixels (num_videos, num_frames, channels, height, width).

        Raises:
            ValueError: on no frame, or frames of another size than the vision tower was made for.
        """
        patches, shape = self.vision_tower.timm_model.patch_embed, tuple(pixel_values_videos.shape)
        if len(shape) != 5 or 0 in shape or shape[3:] != tuple(patches.img_size):
            raise ValueError(
                f"`pixel_values_videos` has shape {shape}, but must be (num_videos, num_frames, channels, *"
                f"{patches.img_size}) with at least one frame, as the checkpoint's processor returns it."
            )
        rows, columns = (side // self.config.projector_pooling_ratio for side in patches.grid_size)
        size: dict[str, Any] = {"tokens_per_frame": rows * columns, "grid": (rows, columns)}
        return [VideoFrames(pixels=video, **size) for video in pixel_values_videos]

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames as if they were one video's, since the parent takes only videos of one length."""
        return {"pixel_values_videos": torch.cat([pixels for _, pixels in chunk])[None]}

    def features_for_parent(self, features: Sequence[Tensor]) -> Tensor:
        """Return the kept tokens of all videos as one tensor."""
        return torch.cat(tuple(features))


class VidCom2PerceptionLMForConditionalGeneration(VidCom2GenerationMixin, PerceptionLMForConditionalGeneration):
    """PerceptionLM that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2PerceptionLMModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2PerceptionLMConfig
    inner_class = VidCom2PerceptionLMModel

    def get_video_features(self, pixel_values_videos: Tensor, **kwargs: Any) -> Any:
        """Return what the inner model's method returns. The parent has none."""
        return self.model.get_video_features(pixel_values_videos=pixel_values_videos, **kwargs)
