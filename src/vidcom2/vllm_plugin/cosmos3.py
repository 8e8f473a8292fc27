"""Cosmos 3 with VidCom² in vLLM. Its part that understands videos is Qwen3-VL, in vLLM as in Transformers."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from typing import ClassVar

from vllm.model_executor.models.cosmos3 import Cosmos3ForConditionalGeneration, Cosmos3ProcessingInfo
from vllm.model_executor.models.qwen3_vl import Qwen3VLDummyInputsBuilder, Qwen3VLForConditionalGeneration
from vllm.multimodal import MULTIMODAL_REGISTRY

from .qwen3_vl import CompressedQwen3VideosModel, VidCom2Qwen3VLProcessorForVllm


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2Qwen3VLProcessorForVllm, info=Cosmos3ProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VidCom2Cosmos3OmniForVllm(CompressedQwen3VideosModel, Cosmos3ForConditionalGeneration):
    """vLLM's Cosmos 3 with only the kept tokens of each video. It reads weights both where and as the released
    checkpoints have them, and as Transformers saves them."""

    allow_patterns_overrides: ClassVar = ["*.safetensors", *Cosmos3ForConditionalGeneration.allow_patterns_overrides]
    hf_to_vllm_mapper = (
        Qwen3VLForConditionalGeneration.hf_to_vllm_mapper | Cosmos3ForConditionalGeneration.hf_to_vllm_mapper
    )
