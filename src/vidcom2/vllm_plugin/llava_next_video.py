"""LLaVA-NeXT-Video with VidCom² in vLLM: what differs from LLaVA-OneVision."""
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

from ..modeling.methods.video_compression import VideoCompression
from .llava_onevision import CompressedLlavaVideosModel, CompressedLlavaVideosProcessor


class VidCom2LlavaNextVideoProcessorForVllm(CompressedLlavaVideosProcessor, LlavaNextVideoMultiModalProcessor):
    """vLLM's, with a ratio and fewer placeholders for each video."""

    def structure_tokens(self, num_frames: int) -> int:
        """None."""
        return 0


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2LlavaNextVideoProcessorForVllm,
    info=LlavaNextVideoProcessingInfo,
    dummy_inputs=LlavaNextVideoDummyInputsBuilder,
)
class VidCom2LlavaNextVideoForVllm(CompressedLlavaVideosModel, LlavaNextVideoForConditionalGeneration):
    """vLLM's LLaVA-NeXT-Video, which takes videos but no images, with the kept tokens of each video in place of all."""

    def scored_placeholders(self, video: Tensor, num_frames: int) -> Tensor:
        """As the mixin says: all."""
        return torch.arange(len(video), device=video.device).view(num_frames, -1)

    def kept_placeholders(self, compression: VideoCompression) -> Tensor:
        """As the mixin says."""
        return compression.indices
