"""Qwen2.5-VL's processor with VidCom²: only what differs from the stock class."""

from transformers import Qwen2_5_VLProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Qwen2_5_VLProcessor(VidCom2ProcessorMixin, Qwen2_5_VLProcessor):
    """`Qwen2_5_VLProcessor` that writes a placeholder for each video token that stays."""
