"""Gemma 4 with VidCom² in vLLM."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.gemma4_mm import (
    _VIDEO_MAX_FRAMES,
    Gemma4ForConditionalGeneration,
    Gemma4ProcessingInfo,
)

from ..modeling.methods.compression import VideoCompression
from .compressed_videos import WithoutTowerGraphs, with_integers, with_processor, without_integers
from .separate_frames import SeparateFramesModel, SeparateFramesProcessor

TIME_IN_VLLM = 6  # tokens of a frame's time for which vLLM's own sizes have room


def tokens_of_frames(places: Tensor, hf_config: Any) -> tuple[int, tuple[int, int]]:
    """Return the number of frames, and the rows and columns of tokens in a frame, from the columns and rows (T, P, 2)
    of their patches, which are -1 at the padding.

    Raises:
        ValueError: if frames have different sizes.
    """
    size = hf_config.vision_config.pooling_kernel_size
    sides = ((places.amax(dim=1) + 1) // size).unique(dim=0).tolist()
    if len(sides) > 1:
        raise ValueError(f"The frames of a video have different sizes, in columns and rows of tokens: {sides}.")
    ((columns, rows),) = sides
    return len(places), (rows, columns)


class SizesWithTimes(Gemma4ProcessingInfo):
    """vLLM's sizes, with room for all of the text around a frame, which is part of a video's features."""

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int] | None:
        """Return the most tokens of an image, a sound and a video."""
        tokens = super().get_mm_max_tokens_per_item(seq_len, mm_counts)
        if tokens is None:
            return None
        longest = len(self.get_tokenizer().encode(" 00:00 ", add_special_tokens=False))
        return {**tokens, "video": tokens["video"] + _VIDEO_MAX_FRAMES * max(0, longest - TIME_IN_VLLM)}


class CompressedGemma4VideosProcessor(SeparateFramesProcessor):
    """The mixin for Gemma 4."""

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of tokens in a frame."""
        return tokens_of_frames(video["pixel_position_ids_videos"].data, self.info.get_hf_config())

    def texts_of_videos(
        self, mm_items: Any, outputs: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> Iterator[Sequence[int]]:
        """Yield for each frame its time, and its tokens between two marks."""
        for timestamps in outputs["video_timestamps"]:
            whole = self.info.get_video_repl(
                timestamps=timestamps,
                num_soft_tokens_per_frame=[1] * len(timestamps),
                processor=self.info.get_hf_processor(),
            )
            yield whole.full


@with_processor(CompressedGemma4VideosProcessor, info=SizesWithTimes)
class VidCom2Gemma4ForVllm(WithoutTowerGraphs, SeparateFramesModel, Gemma4ForConditionalGeneration):
    """vLLM's Gemma 4 with only the kept tokens of each video.

    In the smaller models each layer adds to a token an embedding by its id, which for a video token is the padding's.
    The prompt's ids within a video are not those of the tokens that come there, so the features bring the ids.
    """

    def rows_of_videos(self, video_frame_counts: Tensor, **kwargs: Any) -> Mapping[str, Tensor]:
        """Return how many frames each video has."""
        return dict.fromkeys(("pixel_values_videos", "pixel_position_ids_videos"), video_frame_counts.flatten())

    def scored_tokens(
        self, features: Tensor, pixel_position_ids_videos: Tensor, **kwargs: Any
    ) -> tuple[Tensor, tuple[int, int]]:
        """Return all tokens of each frame."""
        num_frames, grid = tokens_of_frames(pixel_position_ids_videos, self.config)
        return features.unflatten(0, (num_frames, -1)), grid

    def placed(self, whole: Tensor, group: Tensor, compression: VideoCompression, grid: tuple[int, int]) -> Tensor:
        """Return the features with the ids of the tokens, of which those of video tokens are 0."""
        return with_integers(whole, group.clamp(min=0)[:, None])

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Sequence[Tensor] | None = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        """Embed as the parent does, and give the text within videos the embeddings that layers add."""
        if not multimodal_embeddings:
            return super().embed_input_ids(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)
        assert is_multimodal is not None  # vLLM says where they belong
        multimodal_embeddings, ids = without_integers(multimodal_embeddings, self.features_width, 1)
        embedded = super().embed_input_ids(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)
        if self.per_layer_embeddings is not None:
            places = is_multimodal.to(input_ids.device)
            ids = torch.where(places, 0, input_ids).masked_scatter(places, ids[:, 0].to(input_ids))
            of_layers = self.language_model.model.get_per_layer_inputs(ids)
            self.per_layer_embeddings[: len(ids)] = of_layers.view(len(ids), *self.per_layer_embeddings.shape[1:])
        return embedded
