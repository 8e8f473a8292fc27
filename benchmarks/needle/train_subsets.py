"""Step 4 of the training, for the toys of `--subsets`: the language model learns to answer from some of the tokens.

The toys of steps 1 to 3 never saw a video without all of its tokens. So what a method loses with them is partly what it
drops, and partly that the model does not know such prompts. These toys have seen random tokens, which prefer no method.
"""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from .architectures import Architecture
from .encoded import encoded_videos, one_by_one
from .train_language import MOST_TURNS, RATES, TEST_VIDEOS, a_batch, answer_accuracy, beginning, random_tokens
from .train_numbers import TEST_FRAMES

SUBSET_STEPS = 2000
LEARNING_RATE = 1e-3
SHARES = (1.0, 0.5, 0.25, 0.1)  # of a video's tokens, each in a quarter of the steps
VIDEOS = {4: 3000, 8: 4000, 16: 3000}  # frames of a video -> videos
TEST_EVERY = 500


def train_subsets(
    architecture: Architecture, model: PreTrainedModel, processor: Any, folder: Path, steps: int = SUBSET_STEPS
) -> None:
    """Train the model in place, continuing from the checkpoint in `folder` if there is one."""
    path = folder / "subsets.pt"
    student, training = beginning(architecture, model, processor, path, steps, LEARNING_RATE, warmup=50)
    if training.done >= steps:
        return

    encoded = partial(encoded_videos, architecture, model, folder / "encoded")
    videos = {num_frames: encoded(num_frames, number) for num_frames, number in VIDEOS.items()}
    tested = one_by_one(encoded(TEST_FRAMES, TEST_VIDEOS, "test"))
    while training.done < steps:
        share, rng = SHARES[training.done % len(SHARES)], random.Random(f"subset {training.done}")
        num_frames = rng.choice(list(VIDEOS))
        chosen = a_batch(videos[num_frames], num_frames, rng)
        asked = [rng.sample(video.questions, min(MOST_TURNS, len(video.questions))) for video in chosen]
        loss = student.loss(chosen, asked, rng.choice(RATES), random_tokens(chosen, share, rng))
        training.step(loss, {f"loss with {share:.0%} of {num_frames} frames": loss})
        if training.done % TEST_EVERY == 0 or training.done == steps:
            for share in (1.0, 0.25):
                print(f"{share:.0%}", json.dumps(answer_accuracy(student, tested, share=share)), flush=True)
