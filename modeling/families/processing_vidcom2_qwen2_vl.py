"""Qwen2-VL's processor with VidCom²: only what differs from the stock class."""

from transformers import Qwen2VLProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Qwen2VLProcessor(VidCom2ProcessorMixin, Qwen2VLProcessor):
    """`Qwen2VLProcessor` that writes a placeholder for each video token that stays."""
