"""What LLaVA's families share: videos as frames of pixels, and tokens that are pooled patches of a square frame. Pixels
are (num_videos, num_frames, channels, height, width), and the vision tower looks at one frame at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..encoding.video_features import VideoFrames
from ..hosting.in_transformers import check_frame_size
from ..prompt.prompt_compression import VidCom2ModelMixin


@dataclass(frozen=True)
class VideoLayout:
    """How the tokens of a video stand in the prompt: frames of scored tokens, and maybe a newline behind the last.

    Attributes:
        num_frames: T.
        side: the number of rows, and of columns, of a frame's scored tokens.
    """

    num_frames: int
    side: int
    ends_with_newline: bool = False

    @property
    def num_tokens(self) -> int:
        """T·M, the number of scored tokens."""
        return self.num_frames * self.side**2

    @property
    def placeholders_per_frame(self) -> int:
        return self.side**2

    @property
    def num_placeholders(self) -> int:
        return self.num_frames * self.placeholders_per_frame + self.ends_with_newline

    def placeholders_of(self, indices: Tensor) -> Tensor:
        """Return the placeholders of scored tokens."""
        return indices

    def frames_of(self, features: Tensor) -> Tensor:
        """Return the scored tokens (T, M, dim) among a video's features (placeholders, dim)."""
        return features[: self.num_tokens].unflatten(0, (self.num_frames, -1))

    def kept(self, indices: Tensor) -> Tensor:
        """Return the placeholders of kept tokens and of newlines that stay, in the order of their features."""
        return torch.cat([indices, indices.new_full((int(self.ends_with_newline),), self.num_tokens)])


class LlavaVideosMixin(VidCom2ModelMixin):
    """What the inner models of LLaVA's families add to the parent's. It comes before the parent's among their bases."""

    @staticmethod
    def layout_of(config: Any, num_frames: int, size: int) -> VideoLayout:
        """Return how a video's tokens stand in the prompt, if its frames are squares of `size` × `size` pixels."""
        raise NotImplementedError

    def features_for_parent(self, features: Sequence[Tensor]) -> Any:
        """Return the kept tokens of all videos as if they were one: the parent flattens its batch of videos anyway."""
        return torch.cat(tuple(features))[None]

    def frames_of_videos(self, pixel_values_videos: Tensor, **arguments: Any) -> Sequence[VideoFrames]:
        """Return the frames of the pixels (num_videos, num_frames, channels, height, width)."""
        _check_shape(pixel_values_videos)
        if not arguments.get("interpolate_pos_encoding"):
            check_frame_size(pixel_values_videos, self.config.vision_config)
        layout = self.layout_of(self.config, pixel_values_videos.shape[1], pixel_values_videos.shape[-1])
        side, end = layout.side, self.image_newline if layout.ends_with_newline else None
        return [
            VideoFrames(pixels=video, tokens_per_frame=side**2, grid=(side, side), layout=layout, end=end)
            for video in pixel_values_videos
        ]

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames as if they were one video's, since the parent takes only videos of one length."""
        parts = [pixels for _, pixels in chunk]
        return {"pixel_values_videos": (parts[0] if len(parts) == 1 else torch.cat(parts))[None]}


def _check_shape(pixel_values_videos: Tensor) -> None:
    if pixel_values_videos.ndim != 5 or 0 in pixel_values_videos.shape:
        raise ValueError(
            f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)}, but must be (num_videos, "
            "num_frames, channels, height, width) with at least one frame, as the checkpoint's processor returns it."
        )
