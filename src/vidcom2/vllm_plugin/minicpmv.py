"""MiniCPM-V 4.6 with VidCom² in vLLM."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from vllm.model_executor.models.minicpmv4_6 import MiniCPMV4_6ForConditionalGeneration, MiniCPMV4_6ProcessingInfo

from .compressed_videos import with_processor
from .separate_frames import SeparateFramesModel, SeparateFramesProcessor

MOST_FRAMES = 16 * 10  # vLLM's own largest video has 16 frames of up to 10 tiles


class FramesWithoutSlices(MiniCPMV4_6ProcessingInfo):
    """vLLM's sizes, but frames are not cut into slices. A frame's budget does not say which slices its tokens are of,
    and slices make up to ten times as many tokens."""

    def get_video_max_slice_num(self) -> int:
        return 1

    def get_num_frames_with_most_features(self, seq_len: int, mm_counts: Mapping[str, int]) -> int:
        """Return how many frames the largest video has, by which vLLM measures its memory."""
        of_images = self.get_max_image_tokens() * mm_counts.get("image", 0)
        num_frames = self.get_max_video_frames(seq_len - of_images) // max(mm_counts.get("video", 0), 1)
        return max(1, min(num_frames, MOST_FRAMES))

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return vLLM's sizes, with the marks around each frame, which are part of a video's features."""
        tokens = super().get_mm_max_tokens_per_item(seq_len, mm_counts)
        return {**tokens, "video": tokens["video"] + 2 * self.get_num_frames_with_most_features(seq_len, mm_counts)}


def tokens_of_frames(sizes: Tensor, joined: Any, hf_config: Any) -> tuple[int, tuple[int, int]]:
    """Return the number of frames, and the rows and columns of tokens in a frame.

    Args:
        sizes: (T, 2) rows and columns of patches of each frame.
        joined: whether the tower joins patches between two of its layers.

    Raises:
        ValueError: if frames have different sizes.
    """
    if (sizes != sizes[0]).any():
        raise ValueError(f"The frames of a video have different sizes, in patches: {sizes.unique(dim=0).tolist()}.")
    side = (2 if bool(joined) else 1) * hf_config.merge_kernel_size[0] ** hf_config.merger_times
    rows, columns = (sizes[0] // side).tolist()
    return len(sizes), (rows, columns)


class CompressedMiniCPMVVideosProcessor(SeparateFramesProcessor):
    """The mixin for MiniCPM-V."""

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of tokens in a frame."""
        sizes, joined = video["video_tgt_sizes"].data, video["video_use_vit_merger"].data
        return tokens_of_frames(sizes, joined, self.info.get_hf_config())

    def text_before(self, number: int) -> list[int]:
        """Return the ids of the video's number."""
        return self._ids(self._video_local_id_prefix(number))

    def texts_of_videos(
        self, mm_items: Any, outputs: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> Iterator[Sequence[int]]:
        """Yield for each video its frames between two marks."""
        tokenizer = self.info.get_tokenizer()
        begin, end = (self._ids(getattr(tokenizer, f"image_{name}_token")) for name in ("start", "end"))
        for sizes in outputs["video_tgt_sizes"]:
            yield [*begin, self.video_token_id, *end] * len(sizes)

    def _ids(self, text: str) -> list[int]:
        return self.info.get_tokenizer().encode(text, add_special_tokens=False)


@with_processor(CompressedMiniCPMVVideosProcessor, info=FramesWithoutSlices)
class VidCom2MiniCPMV4_6ForVllm(SeparateFramesModel, MiniCPMV4_6ForConditionalGeneration):
    """vLLM's MiniCPM-V 4.6 with only the kept tokens of each video, whose frames have no slices."""

    def _mark_tower_model(self, vllm_config: Any, modalities: set[str], **kwargs: Any) -> Any:
        """Mark the tower as that of videos too. Otherwise vLLM leaves it out where a server takes no images."""
        return super()._mark_tower_model(vllm_config, {*modalities, "video"}, **kwargs)

    def scored_tokens(
        self, features: Tensor, video_tgt_sizes: Any, video_use_vit_merger: Any, **kwargs: Any
    ) -> tuple[Tensor, tuple[int, int]]:
        """Return all tokens of each frame."""
        num_frames, grid = tokens_of_frames(video_tgt_sizes[0], video_use_vit_merger[0], self.config)
        return features.unflatten(0, (num_frames, -1)), grid
