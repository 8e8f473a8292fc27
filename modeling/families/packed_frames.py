"""Frames of MiniCPM-V 4.6: which frames belong to which video, and how their patches are packed.

The processor packs the patches of all videos behind each other, and passes only the size of each tile. A tile is a
frame as a whole, or one of the slices that follow it if it is large. How many frames each video has, and how many tiles
each frame, follows from the prompt, where marks stand around each tile:

    <image>…</image><slice>…</slice><slice>…</slice>⏎<slice>…</slice><slice>…</slice><image>…</image>…
    frame 1          its slices                                                       frame 2

Two tiles of one video have only these marks between them. So other text, or the number that the processor writes before
each video, begins the next one.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encoding.video_features import ParentFeatures
from ..hosting.in_transformers import ParentModel, without

LAYOUT = ("num_frames_per_video", "num_patches_per_frame")  # the processor's own names for what it does not return


class PackedVideo(NamedTuple):
    """How many frames a video has, and the rows and columns of patches of each tile of a frame, in their order."""

    length: int
    tiles: tuple[tuple[int, int], ...]

    @property
    def patches(self) -> int:
        return sum(rows * columns for rows, columns in self.tiles)


def videos_in(prompt: Sequence[int], placeholder: int) -> list[list[int]]:
    """Return for each video of a prompt how many tiles each of its frames has.

    Args:
        prompt: token ids.
        placeholder: the id that stands for a video's tokens.
    """
    videos: list[list[int]] = []
    end = 0  # of the last tile
    opening = None  # the mark before a frame as a whole
    place = 0
    for token, run in groupby(prompt):
        start, place = place, place + len(list(run))
        if token != placeholder:
            continue
        between = prompt[end:start]
        if videos and len(between) == 2 and between[-1] == opening:
            videos[-1].append(1)
        elif videos and len(between) in (2, 3) and between[-1] != opening:  # between rows of slices is a newline
            videos[-1][-1] += 1
        else:
            videos.append([1])
            opening = prompt[start - 1] if start else None
        end = place
    return videos


def layout_of(videos: Sequence[PackedVideo], pixels: Tensor) -> dict[str, Tensor]:
    """Return the arguments of `get_video_features` that describe packed videos."""

    def on_device(numbers: Sequence[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=pixels.device)

    return {
        "target_sizes_videos": on_device([tile for video in videos for tile in video.tiles * video.length]),
        "num_frames_per_video": on_device([video.length for video in videos]),
        "num_patches_per_frame": on_device([len(video.tiles) for video in videos for _ in range(video.length)]),
    }


class VideosByTile(ParentModel):
    """Gives a parent whose features are those of single tiles what the parents of other families have: features of
    videos. It comes right before the parent among the bases."""

    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        target_sizes_videos: Tensor,
        downsample_mode: str | None = None,
        num_frames_per_video: Tensor | None = None,
        num_patches_per_frame: Tensor | None = None,
        **kwargs: Any,
    ) -> ParentFeatures:
        """Encode the tiles of all videos as the parent does.

        Args:
            num_frames_per_video: (num_videos,) how many frames each video has.
            num_patches_per_frame: (F,) how many tiles each of these frames has; None for one.

        Returns:
            The parent's features. If the numbers of frames are given, `pooler_output` has one (tokens, dim) entry per
            video, otherwise one per tile.
        """
        of_videos = None
        if num_frames_per_video is not None:  # They are read before the tower runs, for which reading would wait.
            tiles = num_patches_per_frame
            tiles = torch.ones(len(target_sizes_videos)).long() if tiles is None else tiles.cpu()
            of_videos = [int(video.sum()) for video in tiles.split(num_frames_per_video.tolist())]
        outputs = super().get_video_features(
            pixel_values_videos=pixel_values_videos,
            target_sizes_videos=target_sizes_videos,
            downsample_mode=downsample_mode,
            **kwargs,
        )
        if of_videos is not None:
            tokens = iter(outputs.pooler_output)
            outputs.pooler_output = [torch.cat([next(tokens) for _ in range(number)]) for number in of_videos]
        return outputs

    def forward(self, **inputs: Any) -> Any:
        """Run the parent's `forward`, which has no use for the numbers of frames."""
        return super().forward(**without(inputs, LAYOUT))
