"""EXAONE 4.5's processor with VidCom²: only what differs from the stock class."""

from transformers import Exaone4_5_Processor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Exaone4_5_Processor(VidCom2ProcessorMixin, Exaone4_5_Processor):
    """`Exaone4_5_Processor` that writes a placeholder for each video token that stays."""
