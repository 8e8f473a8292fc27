"""VideoLLaMA3's processor with VidCom²: only what differs from the stock class."""

from typing import Any

from transformers import VideoLlama3Processor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2VideoLlama3Processor(VidCom2ProcessorMixin, VideoLlama3Processor):
    """`VideoLlama3Processor` that writes a placeholder for each video token that stays.

    The stock class leaves out tokens whose pixels hardly change, so how many are left depends on what a video shows.
    Here all tokens are there to choose from, and the ratio alone says how many stay.
    """

    frames_stand_apart = True

    def _process_videos(self, videos: Any, **kwargs: Any) -> tuple[dict[str, Any], list[str]]:
        processed, replacements = super()._process_videos(videos, **kwargs | {"use_token_compression": False})
        del processed["video_compression_mask"]  # true everywhere
        return processed, replacements
