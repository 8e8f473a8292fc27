"""Qwen3-VL's processor with VidCom²: only what differs from the stock class."""

from transformers import Qwen3VLProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Qwen3VLProcessor(VidCom2ProcessorMixin, Qwen3VLProcessor):
    """`Qwen3VLProcessor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
