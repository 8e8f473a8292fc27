"""Training videos that the frozen vision tower has encoded once. They are stored in files and read many times."""

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlavaOnevisionForConditionalGeneration

from .checkpointing import save_whole
from .train_tower import frame_features
from .videos import LEVELS, Needle, Question, make_needle, questions_about

CHUNK = 250  # videos in a file


@dataclass
class Encoded:
    """A video's tokens (T · 25, D), float16, and the questions about it."""

    tokens: Tensor
    questions: list[Question]


def video_of_any_level(number: int, num_frames: int, split: str) -> Needle:
    """Return video `number` of a split. The levels take turns."""
    level = list(LEVELS)[number % len(LEVELS)]
    return make_needle((4, split == "test", num_frames, number), level, num_frames, split)


def encoded_videos(
    model: LlavaOnevisionForConditionalGeneration, folder: Path, num_frames: int, number: int, split: str = "train"
) -> list[Encoded]:
    """Return those of the first `number` videos of a split that have a question. Videos in `folder` are not encoded
    again."""
    videos: list[Encoded] = []
    for first in range(0, number, CHUNK):
        path = folder / f"{split}-{num_frames}-{first}.pt"
        if not path.exists():
            made = list(_encode(model, range(first, min(first + CHUNK, number)), num_frames, split))
            stored = {
                "tokens": torch.stack([video.tokens for video in made]),
                "questions": json.dumps([[vars(question) for question in video.questions] for video in made]),
            }
            save_whole(stored, path)
        stored = torch.load(path, weights_only=True)
        questions = [[Question(**asked) for asked in each] for each in json.loads(stored["questions"])]
        videos += [Encoded(tokens, asked) for tokens, asked in zip(stored["tokens"], questions) if asked]
    return videos


def _encode(
    model: LlavaOnevisionForConditionalGeneration, numbers: range, num_frames: int, split: str
) -> Iterator[Encoded]:
    make = partial(video_of_any_level, num_frames=num_frames, split=split)
    with ProcessPoolExecutor() as pool, torch.no_grad():
        for needle in pool.map(make, numbers, chunksize=8):
            tokens = frame_features(model, torch.from_numpy(needle.frames))
            yield Encoded(tokens.flatten(0, 1).half().cpu(), questions_about(needle))
