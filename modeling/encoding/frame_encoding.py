"""Which frames of a prompt's videos the vision tower encodes together: a few at a time, and repeated ones once.

The towers of these families look at one frame at a time. So their memory need not grow with the video, and a frame that
equals the one before it, as in screen recordings and slides, reuses the features of that one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Consecutive frames of one video that are encoded together.

    Attributes:
        video: the number of the video.
        frames: the numbers of the frames that are encoded, ascending.
        shown: the numbers of all frames that take their features from one of these.
        sources: for each of `shown`, the place in `frames` of the frame whose features it takes.
    """

    video: int
    frames: Sequence[int]
    shown: Sequence[int]
    sources: Sequence[int]


@dataclass(frozen=True)
class FramePlan:
    """How the frames of some videos are encoded.

    Attributes:
        lengths: how many frames each video has.
        chunks: the runs that each call of the tower encodes.
    """

    lengths: Sequence[int]
    chunks: Sequence[Sequence[Run]]

    @property
    def is_one_call(self) -> bool:
        """Whether the tower encodes every frame, all of them in one call."""
        return len(self.chunks) == 1 and sum(len(run.frames) for run in self.chunks[0]) == sum(self.lengths)


def plan_frames(
    videos: Sequence[Tensor],
    chunk_frames: int | None,
    arguments: dict[str, Any],
    computed: Sequence[Tensor] | None = None,
) -> FramePlan:
    """Plan how to encode videos of (T, ...) pixels each.

    Args:
        chunk_frames: how many frames the tower takes at a time; None for all.
        arguments: the encoder's other arguments. If they ask for the tower's own states, or hold something precomputed
            for all frames (`video_cu_seqlens`), the tower takes all frames in one call.
        computed: (T, G) bool for each video, which groups of patches are computed. A frame of which none is repeats the
            one before it. None: the tower computes all patches of what it encodes.
    """
    whole = any(arguments.get(name) for name in ("output_hidden_states", "output_attentions"))
    whole = whole or any(name.startswith("video_") for name in arguments)
    chunks: list[list[Run]] = [[]]
    room = limit = sum(map(len, videos)) if whole or chunk_frames is None else chunk_frames
    for number, video in enumerate(videos):
        if computed is not None:
            repeats = (~computed[number].any(dim=1)).tolist()
        else:
            repeats = [False] * len(video) if whole else repeats_the_one_before(video)
        distinct = [t for t, repeated in enumerate(repeats) if not repeated]
        ranks = list(accumulate(not repeated for repeated in repeats))
        while distinct:
            if not room:
                chunks.append([])
                room = limit
            frames, distinct = distinct[:room], distinct[room:]
            shown = range(frames[0], distinct[0] if distinct else len(video))
            sources = [ranks[t] - ranks[frames[0]] for t in shown]
            chunks[-1].append(Run(number, frames, shown, sources))
            room -= len(frames)
    return FramePlan([len(video) for video in videos], chunks)


def repeats_the_one_before(frames: Tensor) -> list[bool]:
    """Return for each of the frames (T, ...) whether it is bit-identical to the one before it. Waits for the device
    once."""
    # A compiled model keeps its shapes, and a model that is trained with dropout keeps its frames independent.
    if len(frames) == 1 or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return [False] * len(frames)
    return [False, *torch.stack([(frame == before).all() for before, frame in pairwise(frames)]).tolist()]


def frames_of_runs(videos: Sequence[Tensor], runs: Sequence[Run]) -> Tensor:
    """Gather the frames to encode, (n, ...), from videos (T, ...) whose frames have one shape."""
    parts = [videos[run.video][_rows(run.frames)] for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class FrameBuffers:
    """Collect the features of chunks of frames in one tensor per video, so that no feature is in memory twice.

    Args:
        plan: how the frames are encoded.
        rows_after: how many empty rows to leave behind the features of each video.

    Attributes:
        videos: a tensor (T·M + rows_after, ...) for each video.
    """

    def __init__(self, plan: FramePlan, rows_after: int = 0):
        self.plan, self.rows_after = plan, rows_after
        self.videos: list[Tensor] = []

    def put(self, run: Run, encoded: Tensor) -> None:
        """Put the features (n, M, ...) of a run in their place. Runs must come in the order of the plan."""
        length, (num_rows, *rest) = self.plan.lengths[run.video], encoded.shape[1:]
        if run.video == len(self.videos):
            self.videos.append(encoded.new_empty(length * num_rows + self.rows_after, *rest))
        frames = self.videos[run.video][: length * num_rows].view(length, num_rows, *rest)
        repeated = len(run.shown) > len(run.frames)
        frames[_rows(run.shown)] = encoded[list(run.sources)] if repeated else encoded

    def by_frame(self) -> list[Tensor]:
        """Return the features (T, M, ...) of each video, if no rows follow them."""
        return [video.unflatten(0, (length, -1)) for video, length in zip(self.videos, self.plan.lengths, strict=True)]


def encode_in_chunks(
    plan: FramePlan, encode: Callable[[Sequence[Run]], Mapping[str, Sequence[Tensor]]], rows_after: int = 0
) -> dict[str, FrameBuffers]:
    """Encode the frames of a plan, one chunk after the other, and return their features by name.

    What `encode` does not return, such as the tower's own states, is freed before the next chunk.

    Args:
        encode: takes the runs of a chunk, and returns by name the features (n, M, ...) of each run. The name of those
            that enter the language model is "tokens".
        rows_after: how many empty rows to leave behind the "tokens" of each video.
    """
    found: dict[str, FrameBuffers] = {}

    def put(runs: Sequence[Run], features: Mapping[str, Sequence[Tensor]]) -> None:
        for name, of_runs in features.items():
            buffers = found.setdefault(name, FrameBuffers(plan, rows_after if name == "tokens" else 0))
            for run, encoded in zip(runs, of_runs, strict=True):
                buffers.put(run, encoded)

    for runs in plan.chunks:
        put(runs, encode(runs))
    return found


def _rows(frames: Sequence[int]) -> slice | list[int]:
    """Return an index for ascending frames: a slice, which copies nothing, where they are consecutive."""
    if frames[-1] - frames[0] == len(frames) - 1:
        return slice(frames[0], frames[-1] + 1)
    return list(frames)
