"""LLaVA-NeXT-Video's processor with VidCom²: only what differs from the stock class."""

from transformers import LlavaNextVideoProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2LlavaNextVideoProcessor(VidCom2ProcessorMixin, LlavaNextVideoProcessor):
    """`LlavaNextVideoProcessor` that writes a placeholder for each video token that stays."""

    def placeholders_per_frame(self) -> int:
        size = self.video_processor.crop_size
        return (size["height"] // self.patch_size) * (size["width"] // self.patch_size) // 4
