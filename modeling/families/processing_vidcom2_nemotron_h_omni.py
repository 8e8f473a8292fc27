"""Nemotron 3 Omni's processor with VidCom²: only what differs from the stock class."""

import copy
from typing import Any

import torch
from transformers import NemotronH_Omni_Reasoning_V3Processor

from ...configuration.compression_settings import COUNTED_BY, NUM_KEPT
from ..prompt.processing_short_prompts import VidCom2ProcessorMixin, WrittenVideos


class VidCom2NemotronH_Omni_Reasoning_V3Processor(VidCom2ProcessorMixin, NemotronH_Omni_Reasoning_V3Processor):
    """`NemotronH_Omni_Reasoning_V3Processor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
    placeholder = "image_token"  # that of images, between the marks of a frame
    one_prompt_a_call = True
    whole_milliseconds = True
    prepares_on_cpu = True  # where the means are by which it normalizes

    def __call__(
        self, images: Any = None, text: Any = None, videos: Any = None, audio: Any = None, **kwargs: Any
    ) -> Any:
        """Return what the stock class does, which has a call of its own, with `num_kept_video_tokens`."""
        view = copy.copy(self)  # It holds what this call writes, since other threads may use the processor.
        view._written = WrittenVideos(self.count_settings())
        result = super(VidCom2ProcessorMixin, view).__call__(images, text, videos, audio, **kwargs)
        if videos is not None and not self.writes_all:
            numbers = view._written.num_kept
            as_tensor = isinstance(result["pixel_values_videos"], torch.Tensor)
            result[NUM_KEPT] = torch.tensor(numbers) if as_tensor else numbers
        return result

    def _merge_kwargs(self, *args: Any, **kwargs: Any) -> dict[str, dict]:
        merged = super()._merge_kwargs(*args, **kwargs)
        of_videos = merged["videos_kwargs"]
        given = {name: of_videos.pop(name) for name in COUNTED_BY if name in of_videos}
        if self._written is not None:
            self._written = WrittenVideos(self.count_settings(**given))
        return merged
