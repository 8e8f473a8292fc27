"""Gemma 4's processor with VidCom²: only what differs from the stock class."""

from transformers import Gemma4Processor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Gemma4Processor(VidCom2ProcessorMixin, Gemma4Processor):
    """`Gemma4Processor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
