"""Qwen2-VL and Qwen2.5-VL with VidCom² in vLLM, and what M-RoPE requires of all Qwen families."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from vllm.model_executor.models.qwen2_vl import Qwen2VLForConditionalGeneration
from vllm.sequence import IntermediateTensors

from ..configuration.compression_settings import CompressionSettings
from .compressed_videos import (
    CompressedVideosModel,
    CompressedVideosProcessor,
    WithoutTowerGraphs,
    with_integers,
    with_processor,
    without_integers,
)

SHIFTS = "vidcom2_shifts"  # the shifts of a step's tokens, among what a pipeline stage passes on to the next


class CompressedQwenVideosProcessor(CompressedVideosProcessor):
    """The mixin for Qwen families. A frame is one of the t temporal patches of `video_grid_thw`, and has a token for
    each block of patches that the tower merges."""

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of tokens in a frame."""
        return tokens_of_grid(video["video_grid_thw"].data.tolist(), self.info.get_hf_config())


def tokens_of_grid(grid_thw: Sequence[int], hf_config: Any) -> tuple[int, tuple[int, int]]:
    """Convert (t, h, w) patches to the number of frames, and the rows and columns of tokens in a frame."""
    t, h, w = grid_thw
    size = hf_config.vision_config.spatial_merge_size
    return t, (h // size, w // size)


class MRopeVideosModel(WithoutTowerGraphs, CompressedVideosModel):
    """The mixin for models with M-RoPE: every kept token keeps its own (t, h, w), computed on the full prompt.

    vLLM asks for positions before it has seen a video. The positions of text follow from sizes alone. All tokens of a
    video first get the first position that the video takes. Each token's shift is its distance from there. It travels
    with the token's features, which vLLM keeps for later requests, to `embed_input_ids`, and `forward` adds it. Later
    stages of a pipeline have positions, but no features, so each stage passes the shifts on with its hidden states.

    A family adds `extent_of_video` and `compressed_video`.
    """

    supported_video_pruning_methods = ("evs", "vidcom2")  # lets the flag pass, so that `SettingsAtStart` can read it

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.is_multimodal_pruning_enabled = False  # the parent's own pruning
        # The shifts of a step's tokens. CUDA graphs read them, so their address never changes; zero after each step.
        num_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.shifts = torch.zeros(3, num_tokens, dtype=torch.int64)
        self.make_empty_intermediate_tensors = _with_room_for_shifts(self.make_empty_intermediate_tensors)

    def extent_of_video(self, feature: Any, other_tokens: int) -> int:
        """Return how many positions a video takes that has `other_tokens` tokens of text among its placeholders."""
        raise NotImplementedError

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """Return the positions (3, N) of a prompt with compressed videos, and the number to add to the index of a later
        token to get its position. All tokens of a video get the position of its first token."""
        size = self.config.vision_config.spatial_merge_size
        positions = np.empty((3, len(input_tokens)), dtype=np.int64)
        done = place = 0
        for feature in sorted(mm_features, key=lambda each: each.mm_position.offset):
            start, end = feature.mm_position.offset, feature.mm_position.offset + feature.mm_position.length
            if feature.modality == "video":
                tokens = input_tokens[start:end]
                of_video = tokens.count(self.config.video_token_id)
                extent = self.extent_of_video(feature, other_tokens=len(tokens) - of_video)
                before = tokens.index(self.config.video_token_id)  # in some families the range begins with text
                start, extent, grid = start + before, extent - before, 0
            else:
                _, h, w = feature.data["image_grid_thw"].data.tolist()
                grid = np.indices((1, h // size, w // size)).reshape(3, -1)
                extent = int(grid.max()) + 1
            positions[:, done:start] = place + np.arange(start - done)
            place += start - done
            positions[:, start:end] = place + grid
            place, done = place + extent, end
        positions[:, done:] = place + np.arange(len(input_tokens) - done)
        place += len(input_tokens) - done
        return torch.from_numpy(positions), place - len(input_tokens)

    @property
    def features_width(self) -> int:
        """Channels of a feature, without its shift."""
        return self.config.text_config.hidden_size

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Sequence[Tensor] | None = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        """Embed as the parent does, and store the shifts of the features for `forward`."""
        self.shifts.zero_()
        if multimodal_embeddings:
            assert is_multimodal is not None  # vLLM says where they belong
            multimodal_embeddings, shifts = without_integers(multimodal_embeddings, self.features_width, 3)
            of_step = self.shifts[:, : len(input_ids)]
            of_step.masked_scatter_(is_multimodal.to(of_step.device), shifts.T.to(of_step))
        return super().embed_input_ids(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Add the shifts to the positions, and run the parent's."""
        of_features = self.shifts[:, : positions.shape[-1]]
        shifts = of_features if intermediate_tensors is None else intermediate_tensors[SHIFTS].T
        if positions.ndim == 2:  # they are in vLLM's own buffer, which it fills anew for each step
            positions[:, : shifts.shape[1]] += shifts
        output = super().forward(input_ids, positions, intermediate_tensors, *args, **kwargs)
        if isinstance(output, IntermediateTensors):  # for the next stage
            output[SHIFTS] = shifts.T.clone(memory_format=torch.contiguous_format)
        of_features.zero_()
        return output


def _with_room_for_shifts(make_empty: Callable[..., IntermediateTensors]) -> Callable[..., IntermediateTensors]:
    """Return a function that makes the buffers in which a stage takes what the stage before it passes on: those that
    `make_empty` makes, and one for the shifts."""

    def make(batch_size: int, dtype: torch.dtype, device: torch.device) -> IntermediateTensors:
        buffers = make_empty(batch_size, dtype, device)
        buffers[SHIFTS] = torch.zeros(batch_size, 3, dtype=torch.int64, device=device)
        return buffers

    return make


class CompressedQwenVideosModel(MRopeVideosModel):
    """The mixin for Qwen families, which have the patches of all videos in one tensor, and their grids."""

    def rows_of_videos(self, video_grid_thw: Tensor, **kwargs: Any) -> Mapping[str, Tensor]:
        """Return how many patches each video has, and how many tokens where a request brings these."""
        patches = video_grid_thw.prod(dim=1)
        merged = patches // self.config.vision_config.spatial_merge_size**2
        return {"pixel_values_videos": patches, "video_embeds": merged}


class CompressedQwen2VideosModel(CompressedQwenVideosModel):
    """The mixin for the families in which a video is one run of placeholders.

    Text continues after the largest of a video's positions t, h and w, as it does in vLLM's own classes and in the code
    with which the models were trained. Transformers 5.19 to 5.24 looks only at h and w.
    """

    def extent_of_video(self, feature: Any, other_tokens: int) -> int:
        """Return how many positions a video takes."""
        ((_, t, h, w, t_factor),) = self.iter_mm_grid_thw([feature])
        return int(_places(t, h, w, t_factor).max()) + 1

    def compressed_video(
        self,
        features: Tensor,
        settings: CompressionSettings,
        video_grid_thw: Tensor,
        second_per_grid_ts: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the features of the kept tokens, with their shifts."""
        t, grid = tokens_of_grid(video_grid_thw[0].tolist(), self.config)
        compression = self.compression_of(features.unflatten(0, (t, -1)), grid, settings)
        seconds = 1.0 if second_per_grid_ts is None else float(second_per_grid_ts[0])
        t_factor = seconds * getattr(self.config.vision_config, "tokens_per_second", 1.0)
        places = torch.from_numpy(_places(t, *grid, t_factor))
        return with_integers(compression.kept(features), places[compression.indices.to(places.device)])


def _places(t: int, h: int, w: int, t_factor: float) -> np.ndarray:
    """Return (t·h·w, 3), the positions of a whole video's tokens, beginning at 0."""
    grid = np.indices((t, h, w)).reshape(3, -1)
    grid[0] = (grid[0] * t_factor).astype(np.int64)
    return grid.T.copy()


@with_processor(CompressedQwenVideosProcessor)
class VidCom2Qwen2VLForVllm(CompressedQwen2VideosModel, Qwen2VLForConditionalGeneration):
    """vLLM's Qwen2-VL with only the kept tokens of each video."""


@with_processor(CompressedQwenVideosProcessor)
class VidCom2Qwen2_5_VLForVllm(CompressedQwen2VideosModel, Qwen2_5_VLForConditionalGeneration):
    """vLLM's Qwen2.5-VL with only the kept tokens of each video."""
