"""Qwen3-VL with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_videos.py`.
"""

from transformers import Qwen3VLForConditionalGeneration, Qwen3VLModel

from ...configuration.configuration_vidcom2_qwen3_vl import VidCom2Qwen3VLConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin


class VidCom2Qwen3VLModel(QwenVideoModelMixin, Qwen3VLModel):
    """Qwen3-VL without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video, and the deepstack features of the same tokens for
          each of the first decoder layers. Scores come from the tokens alone, as in the authors' code.
        - `forward` leaves dropped tokens out of a stock prompt. A frame's time and the marks around it are structure,
          and stay even if the frame keeps nothing.
        - M-RoPE positions are computed on the full prompt, and every kept token keeps its own (t, h, w).
    """

    config: VidCom2Qwen3VLConfig
    frames_stand_apart = True


class VidCom2Qwen3VLForConditionalGeneration(VidCom2GenerationMixin, Qwen3VLForConditionalGeneration):
    """Qwen3-VL that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Qwen3VLModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path. Their positions are the
    conversation's own, even while other chats run on the same model.
    """

    config: VidCom2Qwen3VLConfig
    inner_class = VidCom2Qwen3VLModel
