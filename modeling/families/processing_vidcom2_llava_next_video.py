"""LLaVA-NeXT-Video's processor with VidCom²: only what differs from the stock class."""

from typing import Any

from transformers import LlavaNextVideoProcessor

from ...configuration.compression_settings import COUNTED_BY
from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2LlavaNextVideoProcessor(VidCom2ProcessorMixin, LlavaNextVideoProcessor):
    """`LlavaNextVideoProcessor` that writes a placeholder for each video token that stays."""

    def _get_num_multimodal_tokens(self, image_sizes: Any = None, video_sizes: Any = None, **kwargs: Any) -> Any:
        """Count as in the mixin, and count videos too, which the stock class does not."""
        data = super()._get_num_multimodal_tokens(image_sizes=image_sizes, **kwargs)
        if video_sizes is not None:
            size = self.video_processor.crop_size
            per_frame = (size["height"] // self.patch_size) * (size["width"] // self.patch_size) // 4
            settings = self.count_settings(**{name: kwargs[name] for name in COUNTED_BY if name in kwargs})
            data.num_video_tokens = [self._num_placeholders(settings, n * per_frame, n) for n, *_ in video_sizes]
        return data
