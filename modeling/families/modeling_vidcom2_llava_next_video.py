"""LLaVA-NeXT-Video with VidCom²: only what differs from the parent classes.

What the family shares with others is in `llava_videos.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlavaNextVideoForConditionalGeneration, LlavaNextVideoModel

from ...configuration.configuration_vidcom2_llava_next_video import VidCom2LlavaNextVideoConfig
from ..encoding.video_features import ParentFeatures, VideoFrames
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .llava_videos import LlavaVideosMixin, VideoLayout


class VidCom2LlavaNextVideoModel(LlavaVideosMixin, LlavaNextVideoModel):
    """LLaVA-NeXT-Video without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video, as a tuple.
        - `forward` leaves dropped tokens out of a stock prompt.

    All tokens of a frame (12 × 12 in the released checkpoints) are scored.
    """

    config: VidCom2LlavaNextVideoConfig

    @staticmethod
    def layout_of(config: Any, num_frames: int, size: int) -> VideoLayout:
        """Return the layout of frames whose rows the parent pools from the tower's rows of patches."""
        return VideoLayout(num_frames, size // config.vision_config.patch_size // config.spatial_pool_stride)

    def frames_of_videos(self, pixel_values_videos: Tensor, **arguments: Any) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `LlavaVideosMixin`.

        Raises:
            ValueError: also if frames are not square or their class token stays, since the parent pools a frame's
                states as if they were the rows and columns of a square.
        """
        if pixel_values_videos.ndim == 5 and pixel_values_videos.shape[3] != pixel_values_videos.shape[4]:
            height, width = pixel_values_videos.shape[3:]
            raise ValueError(
                f"`pixel_values_videos` has frames of {height} × {width} pixels, but LLaVA-NeXT-Video can only pool "
                "the patches of square frames. Leave the cropping of the checkpoint's processor on."
            )
        strategy = arguments.get("vision_feature_select_strategy") or self.config.vision_feature_select_strategy
        if strategy == "full" and hasattr(self.vision_tower.embeddings, "class_embedding"):
            raise ValueError(
                "`vision_feature_select_strategy` is 'full', but the vision tower has a class token, which cannot be "
                "pooled with the patches of a video. Pass 'default', which leaves it out."
            )
        return super().frames_of_videos(pixel_values_videos, **arguments)

    def parent_video_features(self, **kwargs: Any) -> ParentFeatures:
        """Return the parent's features of videos, with one (tokens, dim) entry of `pooler_output` per video.

        Before Transformers 5.21, the parent's entries are (num_frames, tokens_per_frame, dim).
        """
        outputs = super().parent_video_features(**kwargs)
        if not isinstance(outputs.pooler_output, Tensor):
            outputs.pooler_output = torch.stack([video.flatten(0, 1) for video in outputs.pooler_output])
        return outputs

    def features_for_parent(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Return each video's kept tokens as (1, tokens, dim), since the parent joins the first two axes.

        In some versions of Transformers these are the frames and their tokens.
        """
        return [video.flatten(0, -2)[None] for video in features]


class VidCom2LlavaNextVideoForConditionalGeneration(VidCom2GenerationMixin, LlavaNextVideoForConditionalGeneration):
    """LLaVA-NeXT-Video that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2LlavaNextVideoModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2LlavaNextVideoConfig
    inner_class = VidCom2LlavaNextVideoModel
