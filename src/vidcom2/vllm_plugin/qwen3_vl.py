"""Qwen3-VL with VidCom² in vLLM. This file holds what differs from Qwen2-VL."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from ..configuration.compression_settings import CompressionSettings
from .qwen_vl import CompressedQwenVideosModel, CompressedQwenVideosProcessor, tokens_of_grid


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


class CompressedQwen3VideosModel(CompressedQwenVideosModel):
    """The mixin for the families in which each frame has a group of placeholders of its own, behind its time."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        multimodal = vllm_config.model_config.multimodal_config
        multimodal.video_pruning_rate = 0.5  # makes the parent reserve room for positions beyond the prompt's length
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        multimodal.video_pruning_rate = None

    @property
    def features_width(self) -> int:
        """Channels of a feature without its shift, including those that are added in the first decoder layers."""
        return self.visual_dim + self.multiscale_dim

    def extent_of_video(self, feature: Any, other_tokens: int) -> int:
        """Return how many positions a video takes. Each frame takes as many as its longer side has tokens."""
        t, grid = tokens_of_grid(feature.data["video_grid_thw"].data.tolist(), self.config)
        return other_tokens + t * max(grid)

    def compressed_video(
        self,
        features: Tensor,
        settings: CompressionSettings,
        video_grid_thw: Tensor,
        timestamps: Any = (),
        **kwargs: Any,
    ) -> Tensor:
        """Return the kept tokens, those of each frame behind the embedded text of its time."""
        t, grid = tokens_of_grid(video_grid_thw[0].tolist(), self.config)
        tokens = features[:, : self.visual_dim].unflatten(0, (t, -1))  # features for deeper layers are not scored
        compression = self.compression_of(tokens, grid, settings)
        per_frame = compression.frame_budgets.tolist()
        group = torch.tensor(group_of_frames(per_frame, timestamps[0], self._tokenizer, self.config).full)
        shifts = _shifts(group, compression.indices.cpu(), grid, self.config)
        group = group.to(features.device)
        is_token = group == self.config.video_token_id
        whole = features.new_zeros(len(group), self.features_width)  # text has no features for deeper layers
        whole[is_token] = compression.kept(features)
        whole[~is_token, : self.visual_dim] = self.get_language_model().embed_input_ids(group[~is_token]).to(whole)
        return self.with_shifts(whole, shifts)


def _shifts(group: Tensor, indices: Tensor, grid: tuple[int, int], config: Any) -> Tensor:
    """Return (n, 3), how far each token of a video's group is from the position that it has in the prompt. There each
    token before the first placeholder has a position of its own, and all others have the first placeholder's."""
    rows, columns = grid
    is_token = group == config.video_token_id
    ended = (group == config.vision_end_token_id).cumsum(0)  # the mark that ends a frame is positioned after it
    text_before = (~is_token).cumsum(0) - (~is_token).long()
    places = (text_before + ended * max(grid))[:, None].repeat(1, 3)
    of_frame = indices % (rows * columns)
    places[is_token, 1] += of_frame // columns
    places[is_token, 2] += of_frame % columns
    first = int((group == config.vision_start_token_id).nonzero()[0]) + 1
    places[:first] = first
    return places - first


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2Qwen3VLProcessorForVllm, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VidCom2Qwen3VLForVllm(CompressedQwen3VideosModel, Qwen3VLForConditionalGeneration):
    """vLLM's Qwen3-VL with only the kept tokens of each video."""
