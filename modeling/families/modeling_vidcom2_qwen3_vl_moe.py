"""Qwen3-VL-MoE with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_videos.py`.
"""

from transformers import Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeModel

from ...configuration.configuration_vidcom2_qwen3_vl_moe import VidCom2Qwen3VLMoeConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin


class VidCom2Qwen3VLMoeModel(QwenVideoModelMixin, Qwen3VLMoeModel):
    """Qwen3-VL-MoE without its head. The language model runs on short prompts.

    Modifications: those of `VidCom2Qwen3VLModel`.
    """

    config: VidCom2Qwen3VLMoeConfig
    frames_stand_apart = True


class VidCom2Qwen3VLMoeForConditionalGeneration(VidCom2GenerationMixin, Qwen3VLMoeForConditionalGeneration):
    """Qwen3-VL-MoE that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications: those of `VidCom2Qwen3VLForConditionalGeneration`, and
        - the inner `model` is a `VidCom2Qwen3VLMoeModel`.
        - `aux_loss` and `router_logits` are over the short prompt.
    """

    config: VidCom2Qwen3VLMoeConfig
    inner_class = VidCom2Qwen3VLMoeModel
