"""What Gemma's families share: a frame is a list of patches with their columns and rows, padded to a common length. The
tokens of a frame may attend to each other in the language model.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import StaticCache

from ..encoding.video_features import VideoFrames
from ..hosting.in_transformers import CACHE, cached_length, check_patches, with_cache_name
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import VidCom2ModelMixin
from ..prompt.refusals import CHUNKS_FEATURES

Grid = tuple[int, int, int]  # frames, and rows and columns of patches


class GemmaVideosMixin(VidCom2ModelMixin):
    """The video part of Gemma's inner models."""

    frames_stand_apart = True

    @property
    def patches_per_side(self) -> int:
        """How many rows, and columns, of patches a token stands for. Gemma 4 Unified's are merged by the processor."""
        vision = self.config.vision_config
        return 1 if hasattr(vision, "model_patch_size") else vision.pooling_kernel_size

    def _types(self, inputs: dict[str, Any]) -> Tensor | None:
        """Return the types that attention reads; None if tokens of a frame do not attend to each other, as they do in
        the larger of the released models."""
        reads = self.config.get_text_config().use_bidirectional_attention == "vision"
        return inputs.get("mm_token_type_ids") if reads else None

    def with_token_types(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `forward` with the types of all tokens, the cached ones among them."""
        types, cache = self._types(inputs), inputs.get(CACHE)
        if types is None:
            return inputs
        new = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
        num_new = new.shape[1]
        check_types_on_cache(types[:, -num_new:], cache)
        return inputs | {"mm_token_type_ids": types_with_cached(types, cache, num_new)}

    def frames_of_videos(
        self,
        pixel_values_videos: Tensor,
        video_position_ids: Tensor | None = None,
        num_frames_per_video: Tensor | None = None,
        **arguments: Any,
    ) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`.

        Args:
            pixel_values_videos: (F, P, 3 · patch²) patches of all frames, padded behind each frame's own.
            video_position_ids: (F, P, 2) column and row of each patch, (-1, -1) at the padding.
            num_frames_per_video: (num_videos,) how many of the F frames each video has.

        Raises:
            ValueError: if a video is empty, or its frames are not whole grids of one size, row by row.
        """
        grids = self._grids(pixel_values_videos, video_position_ids, num_frames_per_video)
        assert video_position_ids is not None
        check_patches(pixel_values_videos, self.config.vision_config)
        size, lengths = self.patches_per_side, [length for length, _, _ in grids]
        return [
            VideoFrames(
                pixels=pixels,
                tokens_per_frame=rows * columns // size**2,
                grid=(rows // size, columns // size),
                described=places[:1],  # alike in all frames
            )
            for pixels, places, (_, rows, columns) in zip(
                pixel_values_videos.split(lengths), video_position_ids.split(lengths), grids
            )
        ]

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames' patches, with the columns and rows of these."""
        return {
            "pixel_values_videos": torch.cat([frames for _, frames in chunk]),
            "video_position_ids": torch.cat([video.described.expand(len(frames), -1, -1) for video, frames in chunk]),
            "num_frames_per_video": torch.tensor([len(frames) for _, frames in chunk]),
        }

    def _grids(self, patches: Tensor, places: Tensor | None, num_frames: Tensor | None) -> list[Grid]:
        """Return the frames of each video, and their rows and columns of patches. The device is read twice.

        Raises:
            ValueError: if a video is empty, or its frames are not whole grids of one size, row by row, or if the model
                takes text alone.
        """
        if self.config.vision_config is None:
            raise ValueError(
                "There are videos, but this checkpoint takes text alone: its `vision_config` is None. Take one that "
                "takes videos, or leave them out."
            )
        if not isinstance(places, Tensor) or not isinstance(num_frames, Tensor) or patches.numel() == 0:
            raise ValueError(
                f"`pixel_values_videos` has shape {tuple(patches.shape)}, `video_position_ids` is a "
                f"{type(places).__name__} and `num_frames_per_video` a {type(num_frames).__name__}, but all must be "
                "tensors that describe at least one frame. The processor returns them together, with "
                '`return_tensors="pt"`. (On Transformers 5.19, `forward` loses `num_frames_per_video`, as that of the '
                "stock class does: call `generate`, or upgrade.)"
            )
        lengths, places = num_frames.tolist(), places.cpu()
        if min(lengths, default=0) < 1 or not len(patches) == len(places) == sum(lengths):
            raise ValueError(
                f"`num_frames_per_video` is {lengths}, but `pixel_values_videos` holds {len(patches)} frames and "
                f"`video_position_ids` {len(places)}. Pass them as the processor returned them."
            )
        size, grids = self.patches_per_side, []
        for number, (length, video) in enumerate(zip(lengths, places.split(lengths))):
            columns, rows = (video[0].amax(dim=0) + 1).tolist()
            whole = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2).flip(-1)
            expected = torch.full_like(video[0], -1)
            if rows % size or columns % size or len(whole) > len(expected) or not len(whole):
                expected = None
            else:
                expected[: len(whole)] = whole
            if expected is None or not (video == expected).all():
                raise ValueError(
                    f"The frames of video {number} in `video_position_ids` are not all grids of the same {rows} × "
                    f"{columns} patches, row by row, of which {size} × {size} make a token. So they have no common "
                    "number of tokens. Pass them as the processor returned them."
                )
            grids.append((length, rows, columns))
        return grids


class GemmaGenerationMixin(VidCom2GenerationMixin):
    """The part of Gemma's classes with a head that differs from the parents."""

    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        video_position_ids: Tensor | None = None,
        num_frames_per_video: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return what the inner model's method returns, as in the other families. The parent has no such method."""
        return self.model.get_video_features(
            pixel_values_videos=pixel_values_videos,
            video_position_ids=video_position_ids,
            num_frames_per_video=num_frames_per_video,
            **kwargs,
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the inputs of a step. The types end with the prompt, and drafts behind it, of prompt lookup or of an
        assistant, are text."""
        inputs = super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, inputs_embeds=inputs_embeds, **kwargs
        )
        types, new = inputs.get("mm_token_type_ids"), inputs.get("input_ids")
        if kwargs.get("is_first_iteration") and types is not None and new is not None:
            inputs["mm_token_type_ids"] = nn.functional.pad(types, (0, max(0, new.shape[1] - types.shape[1])))
        return inputs

    @classmethod
    def create_masks_for_generate(
        cls,
        config: Any,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        mm_token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the parent's masks. It looks types up by position, but `generate` passes those of the new tokens."""
        cache = args[0] if args else with_cache_name(kwargs).get(CACHE)
        types = types_with_cached(mm_token_type_ids, cache, inputs_embeds.shape[1])
        parent: Any = super()
        return parent.create_masks_for_generate(
            config, inputs_embeds, attention_mask, *args, mm_token_type_ids=types, **kwargs
        )


def types_with_cached(types: Tensor | None, cache: Any, num_new: int) -> Tensor | None:
    """Return the types (B, P + n) of the P cached tokens and the n new ones.

    Attention within an image or a frame looks types up by position. If those of the cached tokens are not at hand, they
    count as text: only a chunk of a prompt continues a frame of which a part is cached, and it has all types.

    Args:
        types: (B, P + n); or of another number of tokens, n or more, of which the last n are taken.

    Raises:
        ValueError: if they are of fewer tokens.
    """
    if types is None:
        return None
    num_cached = cached_length(cache)
    if types.shape[1] == num_cached + num_new:
        return types
    return nn.functional.pad(types_of_new(types, num_new), (num_cached, 0))


def types_of_new(types: Tensor, num_new: int) -> Tensor:
    """Return the types (B, n) of the n new tokens, from those of these or more tokens. Raise as `types_with_cached`."""
    if types.shape[1] < num_new:
        raise ValueError(
            f"`mm_token_type_ids` is {tuple(types.shape)}, but there are {num_new} new tokens. Pass the types of the "
            "new tokens or of the whole conversation, as the processor returns them, or none: then the tokens of a "
            "frame do not attend to later ones."
        )
    return types[:, -num_new:]


def check_types_on_cache(types: Any, cache: Any) -> None:
    """Check that tokens which attend to each other, by their types, do not follow the tokens of a static cache where
    Transformers' masks for it are not right.

    Raises:
        ValueError: if they do, on Transformers 5.19.
    """
    if not CHUNKS_FEATURES and isinstance(cache, StaticCache) and cache.get_seq_length() > 0 and types.any():
        raise ValueError(
            "On Transformers 5.19, images and videos cannot follow the tokens of a static cache, because the tokens of "
            "a frame would attend to others than their own. Pass a `DynamicCache`, or upgrade."
        )
