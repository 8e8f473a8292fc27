"""The processors of Qwen's Omni models with VidCom²: only what differs from the stock classes."""

from itertools import zip_longest
from typing import Any

from transformers import Qwen2_5OmniProcessor, Qwen3OmniMoeProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin, WrittenVideos


class QwenSoundProcessorMixin(VidCom2ProcessorMixin):
    """`VidCom2ProcessorMixin` for processors that may write the sound of a video between its frames.

    It also returns `video_group_sizes` (num_videos, groups): how many placeholders each part of a video between its
    sounds has in the stock text, with 0 behind the last.
    """

    def complete(self, processed: dict[str, Any], written: WrittenVideos) -> dict[str, Any]:
        rows = zip(*zip_longest(*written.group_sizes, fillvalue=0))
        return processed | {"video_group_sizes": [list(row) for row in rows]}

    @property
    def model_input_names(self) -> list[str]:
        return [*super().model_input_names, "video_group_sizes"]


class VidCom2Qwen2_5OmniProcessor(QwenSoundProcessorMixin, Qwen2_5OmniProcessor):
    """`Qwen2_5OmniProcessor` that writes a placeholder for each video token that stays."""


class VidCom2Qwen3OmniMoeProcessor(QwenSoundProcessorMixin, Qwen3OmniMoeProcessor):
    """`Qwen3OmniMoeProcessor` that writes a placeholder for each video token that stays."""
