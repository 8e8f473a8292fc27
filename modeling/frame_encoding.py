"""Which frames of a prompt's videos the vision tower encodes together: a few at a time, and repeated ones once.

A tower of these families looks at one frame at a time, so that its memory need not grow with the video, and a frame
that equals the one before it, as in screen recordings and slides, has the features of that one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class FramePlan:
    """Which of N frames are encoded, and how many at a time.

    Attributes:
        encoded: the frames that are encoded, ascending.
        places: for each of the N frames, which of `encoded` has its features.
        chunk_frames: how many are encoded at a time; None for all.
    """

    encoded: Sequence[int]
    places: Sequence[int]
    chunk_frames: int | None

    def of_videos(self, lengths: Sequence[int]) -> "list[FramePlan]":
        """The plan for each of the videos, of so many frames, that it is for."""
        plans, start = [], 0
        for length in lengths:
            places = self.places[start : start + length]
            encoded = [frame - start for frame in self.encoded[places[0] : places[-1] + 1]]
            plans.append(FramePlan(encoded, [place - places[0] for place in places], self.chunk_frames))
            start += length
        return plans

    @property
    def is_one_call(self) -> bool:
        """Whether the tower takes all frames as they are, at once."""
        whole = self.chunk_frames is None or len(self.places) <= self.chunk_frames
        return whole and len(self.encoded) == len(self.places)

    def chunks(self) -> Iterator[Sequence[int]]:
        """The frames of each call of the tower."""
        step = self.chunk_frames or len(self.encoded)
        for start in range(0, len(self.encoded), step):
            yield self.encoded[start : start + step]

    def chunks_of_groups(self, lengths: Sequence[int], group_frames: int) -> Iterator[list[Sequence[int]]]:
        """As `chunks`, of videos of so many frames each, but in groups: so many encoded frames of a video that follow
        each other, its last group fewer. A group is never split: where `chunk_frames` is less, a chunk is one group."""
        groups: list[Sequence[int]] = []
        start = 0
        for length, plan in zip(lengths, self.of_videos(lengths), strict=True):
            frames = [start + frame for frame in plan.encoded]
            groups += [frames[first : first + group_frames] for first in range(0, len(frames), group_frames)]
            start += length
        chunk: list[Sequence[int]] = []
        for group in groups:
            if chunk and self.chunk_frames and sum(map(len, chunk)) + len(group) > self.chunk_frames:
                yield chunk
                chunk = []
            chunk.append(group)
        yield chunk

    def of_all_frames(self, encoded: Sequence[Tensor]) -> Tensor:
        """Of what the chunks gave, (n, ...) each, that of all frames (N, ...)."""
        joined = encoded[0] if len(encoded) == 1 else torch.cat(tuple(encoded))
        if len(self.encoded) == len(self.places):
            return joined
        return joined.index_select(0, torch.tensor(self.places, device=joined.device))


def plan_frames(videos: Sequence[Tensor], chunk_frames: int | None, arguments: dict[str, Any]) -> FramePlan:
    """The plan for videos of (T, ...) pixels each, whose frames follow each other.

    Args:
        arguments: other ones of the encoder. Where they ask for the tower's own states, or hold something precomputed
            for all frames (`video_cu_seqlens`), these are of one call.
    """
    asked = any(arguments.get(name) for name in ("output_hidden_states", "output_attentions"))
    if asked or any(name.startswith("video_") for name in arguments):
        every = range(sum(map(len, videos)))
        return FramePlan(every, every, None)
    encoded: list[int] = []
    places: list[int] = []
    for video in videos:
        for repeats in repeats_the_one_before(video):
            if not repeats:
                encoded.append(len(places))
            places.append(len(encoded) - 1)
    return FramePlan(encoded, places, chunk_frames)


def repeats_the_one_before(frames: Tensor) -> list[bool]:
    """Of frames (T, ...), whether each is bit-identical to the one before it. One question to the device."""
    # What is compiled, or trained with dropout, keeps its shapes and its independent frames.
    if len(frames) == 1 or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return [False] * len(frames)
    return [False, *torch.stack([(frame == before).all() for before, frame in pairwise(frames)]).tolist()]


def rows_of(frames: Sequence[int]) -> slice | list[int]:
    """An index for some frames, ascending: a slice where they follow each other, which copies nothing."""
    if frames[-1] - frames[0] == len(frames) - 1:
        return slice(frames[0], frames[-1] + 1)
    return list(frames)
