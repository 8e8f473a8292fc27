"""Gemma 4 Unified's processor with VidCom²: only what differs from the stock class."""

from transformers import Gemma4UnifiedProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Gemma4UnifiedProcessor(VidCom2ProcessorMixin, Gemma4UnifiedProcessor):
    """`Gemma4UnifiedProcessor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
