"""Step 3 of the training: the language model learns to read numbers, whose digits lie in several tokens.

In step 2 one video in five has a number, and LLaVA-OneVision's toy then reads one number in four. Here two steps in
three have such videos alone, with few frames, so that many of them fit into a batch. They are new: trained further on
the videos of step 2, the toy knew them by heart (it read 90 % of their numbers, and 60 % of those in unseen videos).
"""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from .architectures import Architecture
from .encoded import encoded_videos, one_by_one
from .train_language import MOST_TURNS, RATES, STAGES, TEST_EVERY, TEST_VIDEOS, a_batch, answer_accuracy, beginning
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
    path = folder / "numbers.pt"
    student, training = beginning(architecture, model, processor, path, steps, LEARNING_RATE, warmup=50)
    if training.done >= steps:
        return

    encoded = partial(encoded_videos, architecture, model, folder / "encoded")
    of_all_levels = {num_frames: encoded(num_frames, number) for num_frames, number in STAGES[-1].videos.items()}
    with_numbers = {
        num_frames: encoded(num_frames, number, level="numbers") for num_frames, number in WITH_NUMBERS.items()
    }
    while training.done < steps:
        rng, reads_numbers = random.Random(f"number {training.done}"), training.done % 3 > 0
        num_frames = rng.choice(OFTEN if reads_numbers else tuple(of_all_levels))
        pool = (with_numbers if reads_numbers else of_all_levels)[num_frames]
        videos = a_batch(pool, num_frames, rng)
        shuffled = [rng.sample(video.questions, len(video.questions)) for video in videos]
        if reads_numbers:
            shuffled = [sorted(questions, key=lambda question: not is_number(question)) for questions in shuffled]
        asked = [questions[:MOST_TURNS] for questions in shuffled]
        loss = student.loss(videos, asked, rng.choice(RATES))
        training.step(loss, {f"loss with {num_frames} frames": loss})
        if training.done % TEST_EVERY == 0 or training.done == steps:
            tested = one_by_one(encoded(TEST_FRAMES, TEST_VIDEOS, "test"))
            print(TEST_FRAMES, json.dumps(answer_accuracy(student, tested)), flush=True)


def is_number(question: Question) -> bool:
    """Return whether the answer is a number of several digits."""
    return question.kind.endswith("number")
