"""Qwen2.5-VL with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_videos.py`.
"""

from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLModel

from ...configuration.configuration_vidcom2_qwen2_5_vl import VidCom2Qwen2_5_VLConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin


class VidCom2Qwen2_5_VLModel(QwenVideoModelMixin, Qwen2_5_VLModel):
    """Qwen2.5-VL without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt.
        - M-RoPE positions are computed on the full prompt, and every kept token keeps its own (t, h, w), where t
          follows the time in `second_per_grid_ts`.
    """

    config: VidCom2Qwen2_5_VLConfig


class VidCom2Qwen2_5_VLForConditionalGeneration(VidCom2GenerationMixin, Qwen2_5_VLForConditionalGeneration):
    """Qwen2.5-VL that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Qwen2_5_VLModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path. Their positions are the
    conversation's own, even while other chats run on the same model.
    """

    config: VidCom2Qwen2_5_VLConfig
    inner_class = VidCom2Qwen2_5_VLModel
