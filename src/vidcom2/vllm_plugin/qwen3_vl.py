"""Qwen3-VL with VidCom² in vLLM. This file holds what differs from Qwen2-VL."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from typing import Any

from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from .qwen_vl import CompressedQwenVideosProcessor
from .separate_frames import SeparateFramesModel


class VidCom2Qwen3VLProcessorForVllm(CompressedQwenVideosProcessor, Qwen3VLMultiModalProcessor):
    """vLLM's processor, with a ratio and fewer placeholders for each video.

    When the prompt is made, it is not yet known how many tokens each frame keeps. The prompt therefore has all of them
    in the first frame, and the model later puts them, and the text between frames, where they belong.
    """

    def placeholders(self, video: Any, kept: int) -> Any:
        """Return the ids for a video whose kept tokens are all in its first frame."""
        timestamps = video["timestamps"].data
        return group_of_frames([kept] + [0] * (len(timestamps) - 1), timestamps, self.info.get_tokenizer(), self.config)

    @property
    def config(self) -> Any:
        return self.info.get_hf_config()


def group_of_frames(tokens_per_frame: list[int], timestamps: Any, tokenizer: Any, config: Any) -> Any:
    """Return what stands in the prompt for a video: for each frame its time, and its tokens between two marks."""
    return Qwen3VLMultiModalProcessor.get_video_repl(
        tokens_per_frame=tokens_per_frame,
        timestamps=timestamps,
        tokenizer=tokenizer,
        vision_start_token_id=config.vision_start_token_id,
        vision_end_token_id=config.vision_end_token_id,
        video_token_id=config.video_token_id,
    )


class CompressedQwen3VideosModel(SeparateFramesModel):
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

    def group_of_video(self, tokens_per_frame: list[int], timestamps: Any = (), **kwargs: Any) -> Any:
        """Return the ids of a video's text and tokens."""
        return group_of_frames(tokens_per_frame, timestamps[0], self._tokenizer, self.config).full


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2Qwen3VLProcessorForVllm, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VidCom2Qwen3VLForVllm(CompressedQwen3VideosModel, Qwen3VLForConditionalGeneration):
    """vLLM's Qwen3-VL with only the kept tokens of each video."""
