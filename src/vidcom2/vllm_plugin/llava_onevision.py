"""LLaVA-OneVision with VidCom² in vLLM. This file holds what differs from vLLM's own classes."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.interfaces import SupportsLoRA
from vllm.model_executor.models.llava_onevision import (
    LlavaOnevisionDummyInputsBuilder,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionMultiModalProcessor,
    LlavaOnevisionProcessingInfo,
)
from vllm.model_executor.models.module_mapping import MultiModelKeys
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.utils import WeightsMapper
from vllm.multimodal import MULTIMODAL_REGISTRY

from ..configuration.compression_settings import CompressionSettings
from ..modeling.methods.compression import VideoCompression
from .compressed_videos import CompressedVideosModel, CompressedVideosProcessor


class CompressedLlavaVideosProcessor(CompressedVideosProcessor):
    """The mixin for LLaVA families, whose frames are all squares of the same size."""

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of tokens in a frame.

        Raises:
            ValueError: if frames do not have the tower's size, which would otherwise stop the engine mid-step.
        """
        frames = video["pixel_values_videos"].data
        pixels = self.info.get_hf_config().vision_config.image_size
        height, width = frames.shape[-2:]
        if (height, width) != (pixels, pixels):
            raise ValueError(
                f"`mm_processor_kwargs` makes frames of {height} × {width} pixels, but the model's vision tower takes "
                f"{pixels} × {pixels}. Leave `size` and `crop_size` out."
            )
        side = math.isqrt(self.info._get_num_frame_tokens(image_width=0, image_height=0))  # fixed by the tower
        return len(frames), (side, side)

    def structure_tokens(self, num_frames: int) -> int:
        """Return how many placeholders of a video the ratio does not count. Here it is the newline at the end."""
        return 1

    def placeholders(self, video: Any, kept: int) -> Any:
        """Return the ids for the kept tokens and the structure tokens."""
        return super().placeholders(video, kept + self.structure_tokens(self.size_of(video)[0]))


class CompressedLlavaVideosModel(CompressedVideosModel):
    """The mixin for LLaVA families. A family whose structure tokens are not one newline at the end overrides the last
    two methods."""

    # Transformers 5 has dropped `vision_model` from the names of the SigLIP tower's weights; vLLM still has it.
    hf_to_vllm_mapper = LlavaOnevisionForConditionalGeneration.hf_to_vllm_mapper | WeightsMapper(
        orig_to_new_regex={re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)"): "vision_tower.vision_model."}
    )

    def one_by_one(self, pixel_values_videos: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        """Yield the frames of each video."""
        for frames in pixel_values_videos:
            yield {"pixel_values_videos": frames[None]}

    def compressed_video(self, features: Tensor, settings: CompressionSettings, pixel_values_videos: Tensor) -> Tensor:
        """Return the features of the kept tokens and of the structure tokens, in their order."""
        video = features.flatten(0, -2)
        scored = self.scored_placeholders(video, num_frames=pixel_values_videos.shape[1])
        side = math.isqrt(scored.shape[1])
        compression = self.compression_of(video[scored], (side, side), settings)
        return compression.kept_among(video, scored.flatten(), self.kept_placeholders(compression))

    def scored_placeholders(self, video: Tensor, num_frames: int) -> Tensor:
        """Return (T, M) int64, which of a video's (placeholders, dim) features are scored."""
        return torch.arange(len(video) - 1, device=video.device).view(num_frames, -1)

    def kept_placeholders(self, compression: VideoCompression) -> Tensor:
        """Return int64 indices of the placeholders that stay, in their order."""
        newline = compression.indices.new_tensor([compression.num_tokens])
        return torch.cat([compression.indices, newline])


class VidCom2LlavaOnevisionProcessorForVllm(CompressedLlavaVideosProcessor, LlavaOnevisionMultiModalProcessor):
    """vLLM's processor, with a ratio and fewer placeholders for each video."""


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2LlavaOnevisionProcessorForVllm,
    info=LlavaOnevisionProcessingInfo,
    dummy_inputs=LlavaOnevisionDummyInputsBuilder,
)
class VidCom2LlavaOnevisionForVllm(CompressedLlavaVideosModel, LlavaOnevisionForConditionalGeneration, SupportsLoRA):
    """vLLM's LLaVA-OneVision with only the kept tokens of each video. They are those that the Transformers class keeps
    with the same settings. Unlike vLLM's own class it takes LoRA adapters of the language model, which is Qwen2."""

    packed_modules_mapping = Qwen2ForCausalLM.packed_modules_mapping

    def get_mm_mapping(self) -> MultiModelKeys:
        """Return which modules are the language model, so that adapters leave the vision tower alone."""
        return MultiModelKeys.from_string_field("language_model", "multi_modal_projector", "vision_tower")
