"""MiniCPM-V 4.6's processor with VidCom²: only what differs from the stock class."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import MiniCPMV4_6Processor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2MiniCPMV4_6Processor(VidCom2ProcessorMixin, MiniCPMV4_6Processor):
    """`MiniCPMV4_6Processor` that writes a placeholder for each video token that stays.

    It also returns how many frames each video has, and how many tiles each frame: itself, and its slices.
    """

    def num_frames(self, video_inputs: Mapping[str, Any], video_idx: int, group_sizes: Sequence[int]) -> int:
        return int(video_inputs["num_frames_per_video"][video_idx])

    @property
    def unused_input_names(self) -> list[str]:
        return [
            each for each in super().unused_input_names if each not in ("num_frames_per_video", "num_patches_per_frame")
        ]
