"""LLaVA-NeXT-Video with VidCom² in vLLM. This file holds what differs from LLaVA-OneVision."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from vllm.model_executor.models.llava_next_video import (
    LlavaNextVideoDummyInputsBuilder,
    LlavaNextVideoForConditionalGeneration,
    LlavaNextVideoMultiModalProcessor,
    LlavaNextVideoProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from ..modeling.families.modeling_vidcom2_llava_next_video import VidCom2LlavaNextVideoModel
from .llava_onevision import CompressedLlavaVideosModel, CompressedLlavaVideosProcessor


class VidCom2LlavaNextVideoProcessorForVllm(CompressedLlavaVideosProcessor, LlavaNextVideoMultiModalProcessor):
    """vLLM's processor, with a ratio and fewer placeholders for each video."""

    layout_of = staticmethod(VidCom2LlavaNextVideoModel.layout_of)


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2LlavaNextVideoProcessorForVllm,
    info=LlavaNextVideoProcessingInfo,
    dummy_inputs=LlavaNextVideoDummyInputsBuilder,
)
class VidCom2LlavaNextVideoForVllm(CompressedLlavaVideosModel, LlavaNextVideoForConditionalGeneration):
    """vLLM's LLaVA-NeXT-Video with only the kept tokens of each video. Like vLLM's class it takes no images."""

    layout_of = staticmethod(VidCom2LlavaNextVideoModel.layout_of)
