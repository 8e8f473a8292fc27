"""Which frames of a prompt's videos the vision tower encodes together: a few at a time, and repeated ones once.

A tower of these families looks at one frame at a time, so that its memory need not grow with the video, and a frame
that equals the one before it, as in screen recordings and slides, has the features of that one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Consecutive frames to encode of one video.

    Attributes:
        video: number of the video.
        frames: the frames that are encoded, of those of the video, ascending.
        shown: all frames of the video that show one of these.
        sources: for each of `shown`, which of `frames` it shows.
    """

    video: int
    frames: Sequence[int]
    shown: Sequence[int]
    sources: Sequence[int]


@dataclass(frozen=True)
class FramePlan:
    """How the frames of some videos are encoded.

    Attributes:
        lengths: frames of each video.
        chunks: for each call of the tower, the runs that it encodes.
    """

    lengths: Sequence[int]
    chunks: Sequence[Sequence[Run]]

    @property
    def is_one_call(self) -> bool:
        """Whether the tower takes all frames as they are, at once."""
        return len(self.chunks) == 1 and sum(len(run.frames) for run in self.chunks[0]) == sum(self.lengths)


def plan_frames(
    videos: Sequence[Tensor], chunk_frames: int | None, arguments: dict[str, Any], group_frames: int = 1
) -> FramePlan:
    """The plan for videos of (T, ...) pixels each.

    Args:
        chunk_frames: how many frames the tower takes at a time; None for all.
        arguments: other ones of the encoder. Where they ask for the tower's own states, or hold something precomputed
            for all frames (`video_cu_seqlens`), these are of one call.
        group_frames: so many encoded frames of a video that follow each other, of its last group fewer, are never
            split: a chunk has room for one group at least.
    """
    whole = any(arguments.get(name) for name in ("output_hidden_states", "output_attentions"))
    whole = whole or any(name.startswith("video_") for name in arguments)
    chunks: list[list[Run]] = [[]]
    room = limit = sum(map(len, videos)) if whole or chunk_frames is None else max(chunk_frames, group_frames)
    for number, video in enumerate(videos):
        repeats = [False] * len(video) if whole else repeats_the_one_before(video)
        distinct = [t for t, repeated in enumerate(repeats) if not repeated]
        ranks = list(accumulate(not repeated for repeated in repeats))
        while distinct:
            fitting = len(distinct) if len(distinct) <= room else room - room % group_frames
            if not fitting:
                chunks.append([])
                room = limit
                continue
            frames, distinct = distinct[:fitting], distinct[fitting:]
            shown = range(frames[0], distinct[0] if distinct else len(video))
            sources = [ranks[t] - ranks[frames[0]] for t in shown]
            chunks[-1].append(Run(number, frames, shown, sources))
            room -= len(frames)
    return FramePlan([len(video) for video in videos], chunks)


def repeats_the_one_before(frames: Tensor) -> list[bool]:
    """Of frames (T, ...), whether each is bit-identical to the one before it. One question to the device."""
    # What is compiled, or trained with dropout, keeps its shapes and its independent frames.
    if len(frames) == 1 or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return [False] * len(frames)
    return [False, *torch.stack([(frame == before).all() for before, frame in pairwise(frames)]).tolist()]


def frames_of_runs(videos: Sequence[Tensor], runs: Sequence[Run]) -> Tensor:
    """The frames to encode (n, ...) of videos (T, ...) whose frames have one shape."""
    parts = [videos[run.video][_rows(run.frames)] for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class FrameBuffers:
    """What chunks of frames were encoded to, put in its place in the videos, so that nothing is there twice.

    Args:
        plan: of these chunks.
        rows_after: room behind the rows of a video.

    Attributes:
        videos: a tensor (T·M + rows_after, D) for each video, from (n, M, D) of its runs.
    """

    def __init__(self, plan: FramePlan, rows_after: int = 0):
        self.plan, self.rows_after = plan, rows_after
        self.videos: list[Tensor] = []

    def put(self, run: Run, encoded: Tensor) -> None:
        """The runs come in their order."""
        length, (num_rows, dim) = self.plan.lengths[run.video], encoded.shape[1:]
        if run.video == len(self.videos):
            self.videos.append(encoded.new_empty(length * num_rows + self.rows_after, dim))
        frames = self.videos[run.video][: length * num_rows].view(length, num_rows, dim)
        repeated = len(run.shown) > len(run.frames)
        frames[_rows(run.shown)] = encoded[list(run.sources)] if repeated else encoded


def _rows(frames: Sequence[int]) -> slice | list[int]:
    """An index for some frames, ascending: a slice where they follow each other, which copies nothing."""
    if frames[-1] - frames[0] == len(frames) - 1:
        return slice(frames[0], frames[-1] + 1)
    return list(frames)
