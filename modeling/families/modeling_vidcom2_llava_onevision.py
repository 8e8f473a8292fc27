"""LLaVA-OneVision with VidCom²: only what differs from the parent classes.

What the family shares with others is in `llava_videos.py`.
"""

import math
from typing import Any

from transformers import LlavaOnevisionForConditionalGeneration, LlavaOnevisionModel

from ...configuration.configuration_vidcom2_llava_onevision import VidCom2LlavaOnevisionConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .llava_videos import LlavaVideosMixin, VideoLayout


class VidCom2LlavaOnevisionModel(LlavaVideosMixin, LlavaOnevisionModel):
    """LLaVA-OneVision without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video, as a tuple.
        - `forward` leaves dropped tokens out of a stock prompt.
        - a `vision_method` other than `"full"` runs the layers of the vision tower itself.

    A frame's tokens (14 × 14 in the released checkpoints) are scored. The newline at the end of the video is structure:
    it stays, and does not count towards `retention_ratio`.
    """

    config: VidCom2LlavaOnevisionConfig

    @staticmethod
    def layout_of(config: Any, num_frames: int, size: int) -> VideoLayout:
        """Return the layout of frames with half as many rows as the tower has rows of patches, rounded up."""
        side = math.ceil(size // config.vision_config.patch_size / 2)
        return VideoLayout(num_frames, side, ends_with_newline=True)


class VidCom2LlavaOnevisionForConditionalGeneration(VidCom2GenerationMixin, LlavaOnevisionForConditionalGeneration):
    """LLaVA-OneVision that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2LlavaOnevisionModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2LlavaOnevisionConfig
    inner_class = VidCom2LlavaOnevisionModel
