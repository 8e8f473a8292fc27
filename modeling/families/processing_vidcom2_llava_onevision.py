"""LLaVA-OneVision's processor with VidCom²: only what differs from the stock class."""

from transformers import LlavaOnevisionProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2LlavaOnevisionProcessor(VidCom2ProcessorMixin, LlavaOnevisionProcessor):
    """`LlavaOnevisionProcessor` that writes a placeholder for each video token that stays."""

    def num_structure(self, num_placeholders: int, num_frames: int) -> int:
        return 1  # the newline at the end
