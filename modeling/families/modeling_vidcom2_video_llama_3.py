"""VideoLLaMA3 with VidCom²: only what differs from the parent classes.

What all families share is in `prompt_compression.py` and `compressed_generation.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import VideoLlama3ForConditionalGeneration, VideoLlama3Model

from ...configuration.configuration_vidcom2_video_llama_3 import VidCom2VideoLlama3Config
from ..encoding.video_features import ParentFeatures, VideoFrames
from ..hosting.in_transformers import check_patches
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import VidCom2ModelMixin

Grid = tuple[int, int, int, int]  # frames, rows and columns of patches, and how many rows and columns make a token


class VidCom2VideoLlama3Model(VidCom2ModelMixin, VideoLlama3Model):
    """VideoLLaMA3 without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video, and takes a `video_compression_mask`.
        - `forward` leaves dropped tokens out of a stock prompt. A frame's time is structure, and stays even if the
          frame keeps nothing.

    The parent's processor leaves a token out of the prompt if its pixels hardly differ from those of the frame before,
    and says so in `video_compression_mask`. The tower encodes all tokens nonetheless, and methods choose among all. Of
    those that they choose, the ones stay that have a placeholder.
    """

    config: VidCom2VideoLlama3Config
    frames_stand_apart = True
    video_arguments = ("video_compression_mask",)

    def frames_of_videos(
        self,
        pixel_values_videos: Tensor,
        video_grid_thw: Tensor | None = None,
        video_merge_sizes: Tensor | None = None,
        video_compression_mask: Tensor | None = None,
        **arguments: Any,
    ) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`. All tokens of a frame are scored, also those
        that the processor left out of the prompt.

        Args:
            pixel_values_videos: (Σ t·h·w, 3 · patch²) patches of all videos.
            video_grid_thw: (num_videos, 3) grids (t, h, w) of the videos, in patches.
            video_merge_sizes: (num_videos,) how many rows, and columns, of patches make a token.
            video_compression_mask: (Σ T·M,) bool: which tokens have a placeholder in the prompt; None if all have.

        Raises:
            ValueError: if a video is empty, or its sizes or its mask do not fit.
        """
        grids = _checked_grids(pixel_values_videos, video_grid_thw, video_merge_sizes)
        masks = _masks(video_compression_mask, grids)
        check_patches(pixel_values_videos, self.config.vision_config)
        of_videos = pixel_values_videos.split([t * h * w for t, h, w, _ in grids])
        return [
            VideoFrames(
                pixels=patches.unflatten(0, (t, -1)),
                tokens_per_frame=h * w // size**2,
                grid=(h // size, w // size),
                in_prompt=mask,
                described=(h, w, size),
            )
            for patches, (t, h, w, size), mask in zip(of_videos, grids, masks, strict=True)
        ]

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames' patches, the grids of these, and how many make a token."""
        patches = torch.cat([frames.flatten(0, 1) for _, frames in chunk])
        numbers = torch.tensor([[len(frames), *video.described] for video, frames in chunk], device=patches.device)
        return {
            "pixel_values_videos": patches,
            "video_grid_thw": numbers[:, :3],
            "video_merge_sizes": numbers[:, 3],
        }

    def parent_video_features(self, *, video_compression_mask: Any = None, **kwargs: Any) -> ParentFeatures:
        """Call the parent, which encodes all tokens, without the mask."""
        return super().parent_video_features(**kwargs)

    def with_placeholders(self, features: Sequence[Tensor], inputs: dict[str, Any]) -> Sequence[Tensor]:
        """Return those of the videos' features (T·M, dim) that have a placeholder in the prompt."""
        mask, lengths = inputs.get("video_compression_mask"), [len(video) for video in features]
        if mask is None:
            return features
        _check_length(mask, sum(lengths))
        of_videos = mask.to(features[0].device).split(lengths)
        return tuple(video[stays] for video, stays in zip(features, of_videos))


def _checked_grids(patches: Tensor, video_grid_thw: Tensor | None, merge_sizes: Tensor | None) -> list[Grid]:
    """Return the grids of all videos, if they fit the patches (Σ t·h·w, ...).

    Raises:
        ValueError: if they do not, or there are none.
    """
    if video_grid_thw is None or merge_sizes is None or patches.numel() == 0:
        raise ValueError(
            f"`pixel_values_videos` has shape {tuple(patches.shape)}, `video_grid_thw` is {video_grid_thw} and "
            f"`video_merge_sizes` is {merge_sizes}, but all must describe at least one frame. The processor returns "
            "them together."
        )
    grids = [(t, h, w, size) for (t, h, w), size in zip(video_grid_thw.tolist(), merge_sizes.tolist())]
    num_patches = sum(t * h * w for t, h, w, _ in grids)
    sizes = merge_sizes.tolist()
    if len(sizes) != len(video_grid_thw) or min(sizes) < 1 or len(patches) != num_patches:
        raise ValueError(
            f"`pixel_values_videos` holds {len(patches)} patches, but `video_grid_thw` {video_grid_thw.tolist()} with "
            f"`video_merge_sizes` {sizes} asks for {num_patches}. Pass all as the processor returned them."
        )
    return grids


def _masks(mask: Tensor | None, grids: Sequence[Grid]) -> list[Tensor | None]:
    """Return for each video which of its tokens have a placeholder, (T, M) bool; None if all have.

    Raises:
        ValueError: if the mask (Σ T·M,) does not fit the videos, or leaves a video without placeholders.
    """
    if mask is None:
        return [None] * len(grids)
    lengths = [t * h * w // size**2 for t, h, w, size in grids]
    _check_length(mask, sum(lengths))
    of_videos = mask.split(lengths)
    left = torch.stack([video.sum() for video in of_videos]).tolist()
    if 0 in left:
        raise ValueError(
            f"`video_compression_mask` leaves {left} placeholders of the videos, but must leave each at least one. "
            "Pass it as the processor returned it."
        )
    return [
        None if count == length else video.unflatten(0, (t, -1))
        for video, count, length, (t, _, _, _) in zip(of_videos, left, lengths, grids, strict=True)
    ]


def _check_length(mask: Tensor, num_tokens: int) -> None:
    if mask.dtype != torch.bool or mask.shape != (num_tokens,):
        raise ValueError(
            f"`video_compression_mask` is {mask.dtype} of shape {tuple(mask.shape)}, but must be bool with an entry "
            f"for each of the videos' {num_tokens} tokens. Pass it as the processor returned it."
        )


class VidCom2VideoLlama3ForConditionalGeneration(VidCom2GenerationMixin, VideoLlama3ForConditionalGeneration):
    """VideoLLaMA3 that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2VideoLlama3Model`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.
        - `get_video_features` also takes a `video_compression_mask`.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2VideoLlama3Config
    inner_class = VidCom2VideoLlama3Model

    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        video_grid_thw: Tensor | None = None,
        video_merge_sizes: Tensor | None = None,
        video_compression_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return what the inner model's method returns. The parent's does not name all of these arguments."""
        kwargs |= {"video_merge_sizes": video_merge_sizes, "video_compression_mask": video_compression_mask}
        return self.model.get_video_features(
            pixel_values_videos=pixel_values_videos, video_grid_thw=video_grid_thw, **kwargs
        )
