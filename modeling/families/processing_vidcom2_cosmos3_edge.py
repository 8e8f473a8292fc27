"""Cosmos 3 Edge's processor with VidCom²: only what differs from the stock class."""

from transformers import Cosmos3EdgeProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Cosmos3EdgeProcessor(VidCom2ProcessorMixin, Cosmos3EdgeProcessor):
    """`Cosmos3EdgeProcessor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
