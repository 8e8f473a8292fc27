"""Several threads that share one model each get the results that they get alone."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from conftest import Family, use_method
from test_generate import make_prompt, run
from torch import Tensor

ROUNDS = 2


@pytest.fixture(autouse=True)
def _often_interrupted() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def answers(family: Family, inputs: Any, **settings: Any) -> Callable[[], Tensor]:
    return lambda: run(family.model, inputs, **settings)


def logits(family: Family, inputs: Any, **settings: Any) -> Callable[[], Tensor]:
    def of_forward() -> Tensor:
        with torch.no_grad():
            return family.model(**inputs, **settings).logits

    return of_forward


def video_tokens(family: Family, inputs: Any, **settings: Any) -> Callable[[], Tensor]:
    def of_videos() -> Tensor:
        with torch.no_grad():
            return torch.cat(family.model.get_video_features(**family.videos_of(inputs), **settings).pooler_output)

    return of_videos


def test_calls_in_several_threads_give_the_results_of_each_alone(family: Family, methods_restored: None) -> None:
    users = {"compression_method": use_method("inner_contrast")}
    short, long, other = (family.one_video(seed=seed, num_frames=frames) for seed, frames in ((0, 4), (1, 8), (2, 8)))
    calls = [
        video_tokens(family, short, **users),
        video_tokens(family, long, **users),
        logits(family, other, **users, vision_chunk_frames=2),
        answers(family, long, **users, retention_ratio=0.5),
        answers(family, other, retention_ratio=0.1),
        answers(family, short, retention_ratio=1.0),
        answers(family, make_prompt(family, "image_and_video")),
        answers(family, make_prompt(family, "text"), repetition_penalty=1.5),
    ]
    alone = [call() for call in calls]
    with ThreadPoolExecutor(len(calls)) as threads:
        for _ in range(ROUNDS):
            together = [threads.submit(call) for call in calls]
            for number, (future, expected) in enumerate(zip(together, alone, strict=True)):
                assert torch.equal(future.result(), expected), number
