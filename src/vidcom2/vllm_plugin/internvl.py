"""InternVL with VidCom² in vLLM, whose class for it is that of InternS1."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from vllm.model_executor.models.interns1 import (
    InternS1DummyInputsBuilder,
    InternS1ForConditionalGeneration,
    InternS1MultiModalProcessor,
    InternS1ProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from .separate_frames import TOKENS, SeparateFramesModel, SeparateFramesProcessor


class VidCom2InternVLProcessorForVllm(SeparateFramesProcessor, InternS1MultiModalProcessor):
    """vLLM's processor, with a ratio and fewer placeholders for each video. They have the id of videos, not that of
    images as in Transformers, which tells the two apart."""

    @property
    def video_token_id(self) -> int:
        """The id of a video's placeholders, which the config does not have."""
        return self.info.get_tokenizer().get_vocab()[self.info.get_hf_processor().video_token]

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of tokens in a frame.

        Raises:
            ValueError: if frames do not have the tower's size, which would otherwise stop the engine mid-step.
        """
        height, width = self.info.get_hf_config().vision_config.image_size
        found = tuple(video["pixel_values_videos"].data.shape[-2:])
        if found != (height, width):
            raise ValueError(
                f"`mm_processor_kwargs` makes frames of {found[0]} × {found[1]} pixels, but the model's vision tower "
                f"takes {height} × {width}. Leave `size` and `do_resize` out."
            )
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
            ids = tokenizer.encode(text, add_special_tokens=False)
            yield [TOKENS if token == processor.image_token_id else token for token in ids]


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2InternVLProcessorForVllm, info=InternS1ProcessingInfo, dummy_inputs=InternS1DummyInputsBuilder
)
class VidCom2InternVLForVllm(SeparateFramesModel, InternS1ForConditionalGeneration):
    """vLLM's InternVL with only the kept tokens of each video."""

    def one_by_one(
        self, pixel_values_videos: Tensor, video_num_patches: Tensor, **kwargs: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the frames of each video."""
        shared = {"video_token_id": kwargs.pop("video_token_id")}
        for i, frames in enumerate(pixel_values_videos.split(video_num_patches.tolist())):
            one = {name: each[i : i + 1] for name, each in kwargs.items()}
            yield {**one, **shared, "pixel_values_videos": frames, "video_num_patches": video_num_patches[i : i + 1]}

    def scored_tokens(
        self, features: Tensor, video_num_patches: Tensor, **kwargs: Any
    ) -> tuple[Tensor, tuple[int, int]]:
        """Return all tokens of each frame."""
        tokens = features.unflatten(0, (int(video_num_patches[0]), -1))
        side = math.isqrt(tokens.shape[1])
        return tokens, (side, side)
