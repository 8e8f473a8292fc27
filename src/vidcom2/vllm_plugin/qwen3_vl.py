"""Qwen3-VL with VidCom² in vLLM. This file holds what differs from Qwen2-VL."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from .qwen_vl import CompressedQwenVideosProcessor
from .separate_frames import TOKENS, SeparateFramesProcessor, SeparateMRopeFramesModel


class VidCom2Qwen3VLProcessorForVllm(
    SeparateFramesProcessor, CompressedQwenVideosProcessor, Qwen3VLMultiModalProcessor
):
    """vLLM's processor, with a ratio and fewer placeholders for each video."""

    def texts_of_videos(
        self, mm_items: Any, outputs: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> Iterator[Sequence[int]]:
        """Yield for each pair of frames its time, and its tokens between two marks."""
        config = self.info.get_hf_config()
        for timestamps in outputs["timestamps"]:
            whole = self.get_video_repl(
                tokens_per_frame=[1] * len(timestamps),
                timestamps=timestamps,
                tokenizer=self.info.get_tokenizer(),
                vision_start_token_id=config.vision_start_token_id,
                vision_end_token_id=config.vision_end_token_id,
                video_token_id=config.video_token_id,
            )
            yield [TOKENS if token == config.video_token_id else token for token in whole.full]


class CompressedQwen3VideosModel(SeparateMRopeFramesModel):
    """The mixin for Qwen3-VL and what has its layout: the time of a frame stands before its marks."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        multimodal = vllm_config.model_config.multimodal_config
        multimodal.video_pruning_rate = 0.5  # makes the parent reserve room for positions beyond the prompt's length
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        multimodal.video_pruning_rate = None

    @property
    def features_width(self) -> int:
        """Channels of a feature without its shift, including those that are added in the first decoder layers."""
        return self.visual_dim + self.multiscale_dim

    @property
    def frame_marks(self) -> tuple[int, int]:
        """The ids of the marks around the tokens of a frame."""
        return self.config.vision_start_token_id, self.config.vision_end_token_id


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2Qwen3VLProcessorForVllm, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VidCom2Qwen3VLForVllm(CompressedQwen3VideosModel, Qwen3VLForConditionalGeneration):
    """vLLM's Qwen3-VL with only the kept tokens of each video."""
