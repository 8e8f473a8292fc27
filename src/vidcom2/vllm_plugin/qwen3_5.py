"""Qwen3.5 with VidCom² in vLLM. It differs from Qwen3-VL only in the parent class."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from vllm.model_executor.models.qwen3_5 import (
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeProcessingInfo,
    Qwen3_5ProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl import Qwen3VLDummyInputsBuilder
from vllm.multimodal import MULTIMODAL_REGISTRY

from .qwen3_vl import CompressedQwen3VideosModel, VidCom2Qwen3VLProcessorForVllm


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2Qwen3VLProcessorForVllm, info=Qwen3_5ProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VidCom2Qwen3_5ForVllm(CompressedQwen3VideosModel, Qwen3_5ForConditionalGeneration):
    """vLLM's Qwen3.5 with only the kept tokens of each video."""


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2Qwen3VLProcessorForVllm, info=Qwen3_5MoeProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VidCom2Qwen3_5MoeForVllm(CompressedQwen3VideosModel, Qwen3_5MoeForConditionalGeneration):
    """vLLM's Qwen3.5-MoE with only the kept tokens of each video."""
