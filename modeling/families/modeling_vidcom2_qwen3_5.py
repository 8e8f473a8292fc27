"""Qwen3.5 with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_videos.py`.
"""

from typing import Any

from transformers import Qwen3_5ForConditionalGeneration, Qwen3_5Model

from ...configuration.configuration_vidcom2_qwen3_5 import VidCom2Qwen3_5Config
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .linear_attention import LinearAttentionMixin
from .qwen_videos import QwenVideoModelMixin


class VidCom2Qwen3_5Model(LinearAttentionMixin, QwenVideoModelMixin, Qwen3_5Model):
    """Qwen3.5 without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt, so that the states of the linear attention never hold
          them. A frame's time and the marks around it are structure, and stay even if the frame keeps nothing.
        - M-RoPE positions are computed on the full prompt, and every kept token keeps its own (t, h, w).
        - prompts of a batch that continue a KV cache with different numbers of tokens are refused.
    """

    config: VidCom2Qwen3_5Config
    frames_stand_apart = True


class VidCom2Qwen3_5ForConditionalGeneration(VidCom2GenerationMixin, Qwen3_5ForConditionalGeneration):
    """Qwen3.5 that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Qwen3_5Model`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.
        - beams and several sequences per prompt are right with images and videos, in Transformers 5.19 too.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path. Their positions are the
    conversation's own, even while other chats run on the same model.
    """

    config: VidCom2Qwen3_5Config
    inner_class = VidCom2Qwen3_5Model
    # Transformers 5.19 lists text alone, and for beams repeats single patches where the whole image or video is needed.
    input_modalities: Any = ("image", "video", "text")
