"""Qwen3.5-MoE with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_videos.py`.
"""

from typing import Any

from transformers import Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeModel

from ...configuration.configuration_vidcom2_qwen3_5_moe import VidCom2Qwen3_5MoeConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .linear_attention import LinearAttentionMixin
from .qwen_videos import QwenVideoModelMixin


class VidCom2Qwen3_5MoeModel(LinearAttentionMixin, QwenVideoModelMixin, Qwen3_5MoeModel):
    """Qwen3.5-MoE without its head. The language model runs on short prompts.

    Modifications: those of `VidCom2Qwen3_5Model`.
    """

    config: VidCom2Qwen3_5MoeConfig
    frames_stand_apart = True


class VidCom2Qwen3_5MoeForConditionalGeneration(VidCom2GenerationMixin, Qwen3_5MoeForConditionalGeneration):
    """Qwen3.5-MoE that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications: those of `VidCom2Qwen3_5ForConditionalGeneration`, and
        - the inner `model` is a `VidCom2Qwen3_5MoeModel`.
        - `aux_loss` and `router_logits` are over the short prompt.
    """

    config: VidCom2Qwen3_5MoeConfig
    inner_class = VidCom2Qwen3_5MoeModel
    input_modalities: Any = ("image", "video", "text")
