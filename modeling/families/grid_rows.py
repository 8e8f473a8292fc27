"""Videos with several rows of `video_grid_thw`, as in Kimi-K2.5: the frames of a row attend to each other in the vision
tower, which averages them over time. So a row makes one scored frame, and is encoded whole.
"""

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from ..encoding.video_features import ParentFeatures, VideoFrames, repeats_the_one_before
from ..hosting.in_transformers import ParentModel, check_patches
from ..methods.compression import VideoTokens
from ..prompt.calls import USE_OURS
from .qwen_videos import GridVideosMixin, checked_grids

ROWS_PER_VIDEO = "num_chunks_per_video"  # Transformers' own name for what the stock processor does not return


class GridRowsMixin(GridVideosMixin):
    """Takes videos as patches with one or more rows of the grid for each. It comes before the parent's inner model
    among the bases.

    A "frame" is a row: the average of the frames of the file that it shows. It has a token for each block of
    `merge_kernel_size` patches, and all its tokens are scored.
    """

    video_arguments = (ROWS_PER_VIDEO,)

    def frames_of_videos(
        self,
        pixel_values_videos: Tensor,
        video_grid_thw: Tensor | None = None,
        num_chunks_per_video: Tensor | None = None,
        **arguments: Any,
    ) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`. Their `pixels` are only numbers, since the last
        row may show fewer frames of the file: a row that repeats the one before it has the same number as that.

        Args:
            pixel_values_videos: (Σ t·h·w, channels, patch, patch) patches of all videos.
            video_grid_thw: (rows, 3) grids (t, h, w) in patches.
            num_chunks_per_video: (num_videos,) how many of these rows each video has.

        Raises:
            ValueError: if a video is empty, if the grids do not fit the patches, if the rows of a video differ in their
                height or width, or if it is not known which rows are a video's.
        """
        grids = checked_grids(pixel_values_videos, video_grid_thw)
        check_patches(pixel_values_videos.flatten(1), self.config.vision_config)
        down, across = self.config.vision_config.merge_kernel_size
        rows = list(zip(grids, pixel_values_videos.split([t * h * w for t, h, w in grids])))
        found = []
        for number in _rows_per_video(grids, num_chunks_per_video):
            of_video, rows = rows[:number], rows[number:]
            (_, h, w), _ = of_video[0]
            found.append(
                VideoFrames(
                    pixels=_numbers([patches for _, patches in of_video]),
                    tokens_per_frame=h // down * (w // across),
                    grid=(h // down, w // across),
                    described=of_video,
                )
            )
        return found

    def encode_videos(
        self, settings: CompressionSettings, **arguments: Any
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """Encode videos, as in `VideoFeaturesMixin`. If nothing is dropped, it does not matter which rows are a
        video's: without numbers, each counts as one, as in the parent's features."""
        grids, numbers = arguments.get("video_grid_thw"), arguments.get(ROWS_PER_VIDEO)
        if numbers is not None:
            arguments[ROWS_PER_VIDEO] = numbers.cpu()  # copied before the tower runs, so that nothing waits for it
        elif grids is not None and not settings.may_drop:
            arguments[ROWS_PER_VIDEO] = torch.ones(len(grids), dtype=torch.int64)
        return super().encode_videos(settings=settings, **arguments)

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the patches of whole rows, and the grids of these."""
        numbers = [pixels.tolist() for _, pixels in chunk]
        rows = [video.described[row] for (video, _), of_video in zip(chunk, numbers) for row in of_video]
        patches = torch.cat([each for _, each in rows])
        return {
            "pixel_values_videos": patches,
            "video_grid_thw": torch.tensor([grid for grid, _ in rows], device=patches.device),
            ROWS_PER_VIDEO: torch.tensor([len(of_video) for of_video in numbers]),
        }

    def parent_video_features(self, num_chunks_per_video: Tensor | None = None, **kwargs: Any) -> ParentFeatures:
        """Return the parent's features, which have an entry for each row, with one for each video."""
        outputs = super().parent_video_features(**kwargs)
        if num_chunks_per_video is not None:
            rows = iter(outputs.pooler_output)
            numbers = num_chunks_per_video.tolist()
            outputs.pooler_output = tuple(torch.cat([next(rows) for _ in range(number)]) for number in numbers)
        return outputs


class HeadOfGridRowsMixin(ParentModel):
    """Names the argument that the inner model takes in addition to the parent's. It comes before
    `VidCom2GenerationMixin`."""

    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        video_grid_thw: Tensor | None = None,
        num_chunks_per_video: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return what the inner model's method returns, with its arguments by name."""
        return self.model.get_video_features(
            pixel_values_videos=pixel_values_videos,
            video_grid_thw=video_grid_thw,
            num_chunks_per_video=num_chunks_per_video,
            **kwargs,
        )


def _rows_per_video(grids: Sequence[tuple[int, int, int]], numbers: Tensor | None) -> list[int]:
    """Return how many rows each video has. If the caller does not say, the prompt does not show it: two videos of two
    rows look like one of four.

    Raises:
        ValueError: if there are several rows of which it is not known, or if the numbers do not fit the grids.
    """
    if numbers is None and len(grids) > 1:
        raise ValueError(
            f"`video_grid_thw` has {len(grids)} rows, but neither it nor a stock processor's prompt says how many "
            f"belong to each video. {USE_OURS}, pass `{ROWS_PER_VIDEO}`, which is a number of rows for each video, "
            "or pass `retention_ratio=1.0` without a budget."
        )
    lengths = [1] if numbers is None else numbers.tolist()
    if min(lengths, default=0) < 1 or sum(lengths) != len(grids):
        raise ValueError(
            f"`{ROWS_PER_VIDEO}` is {lengths}, but `video_grid_thw` has {len(grids)} rows. Pass both as the processor "
            "made them, with at least a row for each video."
        )
    ends = list(accumulate(lengths))
    for end, length in zip(ends, lengths):
        sizes = {(h, w) for _, h, w in grids[end - length : end]}
        if len(sizes) > 1:
            raise ValueError(
                f"The rows of a video have different sizes in `video_grid_thw`, {sorted(sizes)}, and so no common "
                f"number of tokens. Check `{ROWS_PER_VIDEO}`, which is {lengths}."
            )
    return lengths


def _numbers(rows: Sequence[Tensor]) -> Tensor:
    """Return (T,) the number of each row. A row that repeats the one before it, bit for bit, has that one's number."""
    alike = list(takewhile(lambda row: len(row) == len(rows[0]), rows))
    repeats = repeats_the_one_before(alike) + [False] * (len(rows) - len(alike))
    return torch.tensor(list(accumulate(range(len(rows)), lambda before, row: before if repeats[row] else row)))
