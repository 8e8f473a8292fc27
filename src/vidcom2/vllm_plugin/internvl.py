"""InternVL with VidCom² in vLLM, whose class for it is that of InternS1."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from vllm.model_executor.models.interns1 import InternS1ForConditionalGeneration

from .compressed_videos import check_frame_size, with_processor
from .separate_frames import SeparateFramesModel, SeparateFramesProcessor


class CompressedInternVLVideosProcessor(SeparateFramesProcessor):
    """The mixin for InternVL. As in GLM, placeholders have the id of videos, not that of images."""

    @property
    def video_token_id(self) -> int:
        """The id of a video's placeholders, which the config does not have."""
        return self.info.get_tokenizer().get_vocab()[self.info.get_hf_processor().video_token]

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of tokens in a frame. Raises a ValueError on frames of
        another size."""
        check_frame_size(video["pixel_values_videos"].data, self.info.get_hf_config())
        side = math.isqrt(self.info.get_hf_processor().image_seq_length)
        return int(video["video_num_patches"].data), (side, side)

    def texts_of_videos(
        self, mm_items: Any, outputs: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> Iterator[Sequence[int]]:
        """Yield each video's text: before a frame its number, and around its tokens two marks."""
        processor, tokenizer = self.info.get_hf_processor(), self.info.get_tokenizer()
        frame = f"{processor.start_image_token}{processor.image_token}{processor.end_image_token}"
        for num_frames in outputs["video_num_patches"].tolist():
            text = "\n".join(f"Frame{number}: {frame}" for number in range(1, num_frames + 1))
            yield tokenizer.encode(text, add_special_tokens=False)


@with_processor(CompressedInternVLVideosProcessor)
class VidCom2InternVLForVllm(SeparateFramesModel, InternS1ForConditionalGeneration):
    """vLLM's InternVL with only the kept tokens of each video."""

    def rows_of_videos(self, video_num_patches: Tensor, **kwargs: Any) -> Mapping[str, Tensor]:
        """Return how many frames each video has."""
        return {"pixel_values_videos": video_num_patches}

    def scored_tokens(
        self, features: Tensor, video_num_patches: Tensor, **kwargs: Any
    ) -> tuple[Tensor, tuple[int, int]]:
        """Return all tokens of each frame."""
        tokens = features.unflatten(0, (int(video_num_patches[0]), -1))
        side = math.isqrt(tokens.shape[1])
        return tokens, (side, side)
