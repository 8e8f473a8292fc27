"""Cosmos 3 Edge with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_videos.py`.
"""

from transformers import Cosmos3EdgeForConditionalGeneration, Cosmos3EdgeModel

from ...configuration.configuration_vidcom2_cosmos3_edge import VidCom2Cosmos3EdgeConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin


class VidCom2Cosmos3EdgeModel(QwenVideoModelMixin, Cosmos3EdgeModel):
    """Cosmos 3 Edge without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt, and gives the kept ones the parent's positions. A
          frame's time and marks are structure, and stay even if the frame keeps nothing.

    A frame is one of the file. Its vision tower is SigLIP2's.
    """

    config: VidCom2Cosmos3EdgeConfig
    frames_stand_apart = True


class VidCom2Cosmos3EdgeForConditionalGeneration(VidCom2GenerationMixin, Cosmos3EdgeForConditionalGeneration):
    """Cosmos 3 Edge that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Cosmos3EdgeModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2Cosmos3EdgeConfig
    inner_class = VidCom2Cosmos3EdgeModel
