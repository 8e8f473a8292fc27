"""InternVL with VidCom²: only what differs from the parent classes.

What the family shares with others is in `frame_images.py`.
"""

from transformers import InternVLForConditionalGeneration, InternVLModel

from ...configuration.configuration_vidcom2_internvl import VidCom2InternVLConfig
from .frame_images import FrameImagesGenerationMixin, FrameImagesModelMixin


class VidCom2InternVLModel(FrameImagesModelMixin, InternVLModel):
    """InternVL without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features`, which the parent does not have, returns the kept tokens of each video.
        - `forward` takes frames as `pixel_values_videos`, with `num_frames` of each video, as this project's processor
          passes them. It refuses them among `pixel_values`, unless all tokens stay. "Frame1: " and the marks around a
          frame are structure, and stay even if the frame keeps nothing.

    All tokens of a frame (16 × 16 in the released checkpoints) are scored. Images stay whole.
    """

    config: VidCom2InternVLConfig


class VidCom2InternVLForConditionalGeneration(FrameImagesGenerationMixin, InternVLForConditionalGeneration):
    """InternVL that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2InternVLModel`.
        - `forward` and `generate` run short prompts, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2InternVLConfig
    inner_class = VidCom2InternVLModel
