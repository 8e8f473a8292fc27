"""LLaVA-NeXT-Video with VidCom² in vLLM. This file holds what differs from LLaVA-OneVision."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import torch
from torch import Tensor
from vllm.model_executor.models.llava_next_video import (
    LlavaNextVideoDummyInputsBuilder,
    LlavaNextVideoForConditionalGeneration,
    LlavaNextVideoMultiModalProcessor,
    LlavaNextVideoProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from ..modeling.methods.compression import VideoCompression
from .llava_onevision import CompressedLlavaVideosModel, CompressedLlavaVideosProcessor


class VidCom2LlavaNextVideoProcessorForVllm(CompressedLlavaVideosProcessor, LlavaNextVideoMultiModalProcessor):
    """vLLM's processor, with a ratio and fewer placeholders for each video."""

    def structure_tokens(self, num_frames: int) -> int:
        """Return 0: all placeholders of a video are scored."""
        return 0


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2LlavaNextVideoProcessorForVllm,
    info=LlavaNextVideoProcessingInfo,
    dummy_inputs=LlavaNextVideoDummyInputsBuilder,
)
class VidCom2LlavaNextVideoForVllm(CompressedLlavaVideosModel, LlavaNextVideoForConditionalGeneration):
    """vLLM's LLaVA-NeXT-Video with only the kept tokens of each video. Like vLLM's class it takes no images."""

    def scored_placeholders(self, video: Tensor, num_frames: int) -> Tensor:
        """Return all placeholders, as (T, M)."""
        return torch.arange(len(video), device=video.device).view(num_frames, -1)

    def kept_placeholders(self, compression: VideoCompression) -> Tensor:
        """Return the indices of the kept tokens: there are no other placeholders."""
        return compression.indices
