"""Step 3 of the training: the language model learns to read numbers, whose digits lie in several tokens.

In step 2 one video in five has a number, and LLaVA-OneVision's toy then reads one number in four. Here two steps in
three have such videos alone, with few frames, so that many of them fit into a batch. They are new: trained further on
the videos of step 2, the toy knew them by heart (it read 90 % of their numbers, and 60 % of those in unseen videos).
"""

import json
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from .architectures import Architecture
from .checkpointing import Checkpoint, cosine, optimize
from .encoded import Encoded, encoded_videos
from .train_language import (
    LOG_EVERY,
    MOST_FRAMES,
    MOST_TURNS,
    MOST_VIDEOS,
    RATES,
    SAVE_EVERY,
    STAGES,
    TEST_VIDEOS,
    Student,
    answer_accuracy,
)
from .videos import Question

NUMBER_STEPS = 2000
LEARNING_RATE = 1.2e-3
WITH_NUMBERS = {1: 12000, 4: 12000, 8: 4000, 16: 2000}  # frames of a video -> videos
OFTEN = (1, 4, 4, 8, 16)  # frames of a step's videos with numbers; four are the fewest in which two numbers fit
TEST_FRAMES = 16


def train_numbers(
    architecture: Architecture, model: PreTrainedModel, processor: Any, folder: Path, steps: int = NUMBER_STEPS
) -> None:
    """Train the model in place, continuing from the checkpoint in `folder` if there is one."""
    student = Student.of(architecture, model, processor)
    learning = architecture.language(model).requires_grad_(True)
    optimizer = torch.optim.AdamW(learning.parameters(), lr=LEARNING_RATE, weight_decay=0.05, betas=(0.9, 0.98))
    checkpoint = Checkpoint(folder / "numbers.pt", {"learning": learning, "optimizer": optimizer})
    done, started = checkpoint.load(), time.perf_counter()
    if done >= steps:
        return

    encoded = partial(encoded_videos, architecture, model, folder / "encoded")
    of_all_levels = {num_frames: encoded(num_frames, number) for num_frames, number in STAGES[-1].videos.items()}
    with_numbers = {
        num_frames: encoded(num_frames, number, level="numbers") for num_frames, number in WITH_NUMBERS.items()
    }
    for step in range(done, steps):
        rng, reads_numbers = random.Random(f"number {step}"), step % 3 > 0
        num_frames = rng.choice(OFTEN if reads_numbers else tuple(of_all_levels))
        pool = (with_numbers if reads_numbers else of_all_levels)[num_frames]
        videos = rng.sample(pool, min(MOST_VIDEOS, MOST_FRAMES // num_frames))
        shuffled = [rng.sample(video.questions, len(video.questions)) for video in videos]
        if reads_numbers:
            shuffled = [sorted(questions, key=lambda question: not is_number(question)) for questions in shuffled]
        asked = [questions[:MOST_TURNS] for questions in shuffled]
        loss = student.loss(videos, asked, rng.choice(RATES))
        optimize(optimizer, loss, LEARNING_RATE * cosine(step, steps, warmup=50))
        if (step + 1) % LOG_EVERY == 0:
            took = time.perf_counter() - started
            print(f"numbers {step + 1}, {num_frames} frames: loss {loss.item():.3f}; {took:.0f} s", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint.save(step + 1)
        if (step + 1) % (4 * SAVE_EVERY) == 0 or step + 1 == steps:
            each = [
                Encoded(video.features, [question])
                for video in encoded(TEST_FRAMES, TEST_VIDEOS, "test")
                for question in video.questions
            ]
            print(TEST_FRAMES, json.dumps(answer_accuracy(student, each)), flush=True)


def is_number(question: Question) -> bool:
    """Return whether the answer is a number of several digits."""
    return question.kind.endswith("number")
