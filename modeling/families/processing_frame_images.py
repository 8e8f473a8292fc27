"""The processors of InternVL and SmolVLM with VidCom²: only what differs from the stock classes.

Their stock classes pass the frames of videos as images. These say which pixels and which placeholders are a video's.
"""

import copy
from typing import Any, cast

import torch
from transformers import InternVLProcessor, ProcessorMixin, SmolVLMProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin, WrittenVideos

IMAGE, VIDEO = 1, 2  # types of tokens, as in Transformers


class FrameImagesProcessorMixin(VidCom2ProcessorMixin):
    """`VidCom2ProcessorMixin` for a processor that writes the placeholders of images for the frames of videos.

    It returns frames as `pixel_values_videos` (frames of all videos, ...) with the `num_frames` of each, and in
    `mm_token_type_ids` which placeholders are theirs: 2, beside 1 of images.
    """

    frames_stand_apart = True
    placeholder = "image_token"
    _types: list[list[int]]  # of the placeholders of each prompt

    def __call__(self, images: Any = None, text: Any = None, videos: Any = None, **kwargs: Any) -> Any:
        """Do what the stock class does, but keep the pixels of frames apart from those of images."""
        view = copy.copy(self)  # It holds what this call writes, since other threads may use the processor.
        text = [text] if isinstance(text, str) else text
        return ProcessorMixin.__call__(view, images=images, text=text, videos=videos, **kwargs)

    def _merge_kwargs(self, *args: Any, **kwargs: Any) -> dict[str, dict]:
        merged = super()._merge_kwargs(*args, **kwargs)
        merged["text_kwargs"]["return_mm_token_type_ids"] = True
        return merged

    def complete(self, processed: dict[str, Any], written: WrittenVideos) -> dict[str, Any]:
        name = "pixel_values_videos" if "pixel_values_videos" in processed else "pixel_values"  # SmolVLM's name
        videos = zip(processed.pop(name), written.group_sizes, strict=True)
        # SmolVLM's video processor pads shorter videos with frames that the prompt does not show.
        frames = [torch.as_tensor(video)[: len(sizes)] for video, sizes in videos]
        processed.pop("pixel_attention_mask", None)  # 1 at all pixels of frames
        lengths = [len(video) for video in frames]
        return processed | {"pixel_values_videos": torch.cat(frames), "num_frames": lengths}

    def get_text_with_replacements(self, *args: Any, **kwargs: Any) -> Any:
        written: tuple[Any, Any] = super().get_text_with_replacements(*args, **kwargs)
        text, of_prompts = written
        token = cast(Any, self).image_token
        self._types = [
            [
                VIDEO if each["type"] == "video" else IMAGE
                for each in of_prompt
                for _ in range(each["replacement"].count(token))
            ]
            for of_prompt in of_prompts
        ]
        return text, of_prompts

    def create_mm_token_type_ids(self, input_ids: Any) -> list[list[int]]:
        """Return which tokens are placeholders of images and of videos, in the order in which they were written."""
        types, token = [], cast(Any, self).image_token_id
        for ids, of_prompt in zip(input_ids, self._types, strict=True):
            left = iter(of_prompt)
            types.append([next(left) if int(each) == token else 0 for each in ids])
        return types

    @property
    def unused_input_names(self) -> list[str]:
        return [*super().unused_input_names, "num_patches"]

    @property
    def model_input_names(self) -> list[str]:
        return [*super().model_input_names, "pixel_values_videos", "num_frames", "mm_token_type_ids"]


class VidCom2InternVLProcessor(FrameImagesProcessorMixin, InternVLProcessor):
    """`InternVLProcessor` that writes a placeholder for each video token that stays."""


class VidCom2SmolVLMProcessor(FrameImagesProcessorMixin, SmolVLMProcessor):
    """`SmolVLMProcessor` that writes a placeholder for each video token that stays."""
