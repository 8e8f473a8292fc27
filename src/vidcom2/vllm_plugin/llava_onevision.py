"""LLaVA-OneVision with VidCom² in vLLM: what differs from vLLM's own classes."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.llava_onevision import (
    LlavaOnevisionDummyInputsBuilder,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionMultiModalProcessor,
    LlavaOnevisionProcessingInfo,
)
from vllm.model_executor.models.utils import WeightsMapper
from vllm.multimodal import MULTIMODAL_REGISTRY

from ..configuration.compression_settings import CompressionSettings
from ..modeling.methods.video_compression import VideoCompression
from .compressed_videos import CompressedVideosModel, CompressedVideosProcessor


class CompressedLlavaVideosProcessor(CompressedVideosProcessor):
    """Of a LLaVA family, whose frames are all squares of the same size."""

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """As the mixin says.

        Raises:
            ValueError: if frames are not of the tower's size, which would otherwise stop the engine in its step.
        """
        frames = video["pixel_values_videos"].data
        pixels = self.info.get_hf_config().vision_config.image_size
        height, width = frames.shape[-2:]
        if (height, width) != (pixels, pixels):
            raise ValueError(
                f"`mm_processor_kwargs` makes frames of {height} × {width} pixels, but the model's vision tower takes "
                f"{pixels} × {pixels}. Leave `size` and `crop_size` out."
            )
        side = math.isqrt(self.info._get_num_frame_tokens(image_width=0, image_height=0))  # which follows the tower
        return len(frames), (side, side)

    def structure_tokens(self, num_frames: int) -> int:
        """Placeholders of a video outside the ratio: the newline at its end."""
        return 1

    def placeholders(self, video: Any, kept: int) -> Any:
        """As the mixin says."""
        return super().placeholders(video, kept + self.structure_tokens(self.size_of(video)[0]))


class CompressedLlavaVideosModel(CompressedVideosModel):
    """Of a LLaVA family. One with other structure tokens than a newline at the end has methods of its own."""

    # Transformers 5 has left out a name inside the SigLIP tower, which vLLM still has.
    hf_to_vllm_mapper = LlavaOnevisionForConditionalGeneration.hf_to_vllm_mapper | WeightsMapper(
        orig_to_new_regex={re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)"): "vision_tower.vision_model."}
    )

    def one_by_one(self, pixel_values_videos: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        """As the mixin says."""
        for frames in pixel_values_videos:
            yield {"pixel_values_videos": frames[None]}

    def compressed_video(self, features: Tensor, settings: CompressionSettings, pixel_values_videos: Tensor) -> Tensor:
        """As the mixin says."""
        video = features.flatten(0, -2)
        scored = self.scored_placeholders(video, num_frames=pixel_values_videos.shape[1])
        side = math.isqrt(scored.shape[1])
        compression = self.compression_of(video[scored], (side, side), settings)
        return compression.kept_among(video, scored.flatten(), self.kept_placeholders(compression))

    def scored_placeholders(self, video: Tensor, num_frames: int) -> Tensor:
        """(T, M) int64: which of a video's (placeholders, dim) features are scored."""
        return torch.arange(len(video) - 1, device=video.device).view(num_frames, -1)

    def kept_placeholders(self, compression: VideoCompression) -> Tensor:
        """Int64: which of them stay, in their order."""
        newline = compression.indices.new_tensor([compression.num_tokens])
        return torch.cat([compression.indices, newline])


class VidCom2LlavaOnevisionProcessorForVllm(CompressedLlavaVideosProcessor, LlavaOnevisionMultiModalProcessor):
    """vLLM's, with a ratio and fewer placeholders for each video."""


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2LlavaOnevisionProcessorForVllm,
    info=LlavaOnevisionProcessingInfo,
    dummy_inputs=LlavaOnevisionDummyInputsBuilder,
)
class VidCom2LlavaOnevisionForVllm(CompressedLlavaVideosModel, LlavaOnevisionForConditionalGeneration):
    """vLLM's LLaVA-OneVision, with the kept tokens of each video in place of all: those that the Transformers class
    keeps with the same settings."""
