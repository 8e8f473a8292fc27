"""Training videos that the frozen vision tower has encoded once. They are stored in files and read many times."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .architectures import Architecture
from .checkpointing import save_whole
from .videos import LEVELS, Needle, Question, make_needle, questions_about

CHUNK = 250  # videos in a file


@dataclass
class Encoded:
    """A video's features (T, L, 25, D) in float16, from `Architecture.features`, and the questions about it."""

    features: Tensor
    questions: list[Question]


def training_video(number: int, num_frames: int, split: str, level: str | None = None) -> Needle:
    """Return video `number` of a split and a level. Without a level, they take turns, the two hardest to learn
    twice."""
    if level is not None:
        return make_needle((5, split == "test", num_frames, number), level, num_frames, split)
    turns = (*LEVELS, "named", "numbers")
    return make_needle((4, split == "test", num_frames, number), turns[number % len(turns)], num_frames, split)


def encoded_videos(
    architecture: Architecture,
    model: PreTrainedModel,
    folder: Path,
    num_frames: int,
    number: int,
    split: str = "train",
    level: str | None = None,
) -> list[Encoded]:
    """Return those of the first `number` videos of a split and a level, or of all levels, that have a question. Videos
    in `folder` are not encoded again."""
    name = split if level is None else f"{split}-{level}"
    make = partial(training_video, num_frames=num_frames, split=split, level=level)
    videos: list[Encoded] = []
    for first in range(0, number, CHUNK):
        path = folder / f"{name}-{num_frames}-{first}.pt"
        if not path.exists():
            made = list(_encode(architecture, model, make, range(first, min(first + CHUNK, number))))
            stored = {
                "features": torch.stack([video.features for video in made]),
                "questions": json.dumps([[vars(question) for question in video.questions] for video in made]),
            }
            save_whole(stored, path)
        stored = torch.load(path, weights_only=True)
        questions = [[Question(**asked) for asked in each] for each in json.loads(stored["questions"])]
        videos += [Encoded(features, asked) for features, asked in zip(stored["features"], questions) if asked]
    return videos


def one_by_one(videos: list[Encoded]) -> list[Encoded]:
    """Return each question with its video, for a test that asks all of them."""
    return [Encoded(video.features, [question]) for video in videos for question in video.questions]


def _encode(
    architecture: Architecture, model: PreTrainedModel, make: Callable[[int], Needle], numbers: range
) -> Iterator[Encoded]:
    with ProcessPoolExecutor() as pool, torch.no_grad():
        for needle in pool.map(make, numbers, chunksize=8):
            frames = torch.from_numpy(needle.frames)
            if len(frames) < architecture.frames_per_group:  # processors repeat a single frame as well
                frames = frames.expand(architecture.frames_per_group, -1, -1, -1)
            groups = frames.unflatten(0, (-1, architecture.frames_per_group))
            yield Encoded(architecture.features(model, groups).half().cpu(), questions_about(needle))
