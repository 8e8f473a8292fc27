"""Molmo2's processor with VidCom²: only what differs from the stock class."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import Molmo2Processor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Molmo2Processor(VidCom2ProcessorMixin, Molmo2Processor):
    """`Molmo2Processor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
    patch_token = "<im_patch>"
    placeholder = "patch_token"  # that of images, between the marks of a frame

    def num_frames(self, video_inputs: Mapping[str, Any], video_idx: int, group_sizes: Sequence[int]) -> int:
        if self.video_use_col_tokens or not self.use_frame_special_tokens:
            raise ValueError(
                f"`video_use_col_tokens` is {self.video_use_col_tokens} and `use_frame_special_tokens` is "
                f"{self.use_frame_special_tokens}, but a prompt is short only between the marks of frames, and without "
                "marks of columns. Set them to False and True, as in the released checkpoints."
            )
        return len(group_sizes)
