"""PerceptionLM's processor with VidCom²: only what differs from the stock class."""

from transformers import PerceptionLMProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2PerceptionLMProcessor(VidCom2ProcessorMixin, PerceptionLMProcessor):
    """`PerceptionLMProcessor` that writes a placeholder for each video token that stays."""

    def placeholders_per_frame(self) -> int:
        side = self.patch_size * self.pooling_ratio  # pyright: ignore[reportOptionalOperand]  (the default is no size)
        return (self.video_processor.size["height"] // side) * (self.video_processor.size["width"] // side)
