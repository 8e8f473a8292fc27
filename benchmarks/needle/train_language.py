"""Step 2 of the training: the language model learns to answer from the features of the frozen tower. Videos have one
frame at first, and in the end up to 64."""

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .architectures import Architecture
from .checkpointing import SAVE_EVERY, Training
from .encoded import Encoded, encoded_videos
from .videos import Question

LEARNING_RATE = 2e-3
MOST_TURNS = 6
MOST_VIDEOS, MOST_FRAMES = 48, 256  # of a batch
RATES = (0.5, 1.0, 2.0, 4.0)  # frames per second
IGNORED = -100
TEST_EVERY = 4 * SAVE_EVERY
TEST_VIDEOS = 250


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum.

    Attributes:
        videos: frames of a video -> how many videos of this length there are.
        steps: how many steps it takes, with videos of one length each.
    """

    videos: dict[int, int]
    steps: int


STAGES = (
    Stage({1: 8000}, 800),
    Stage({4: 5000}, 500),
    Stage({8: 4000}, 500),
    Stage({8: 4000, 16: 3000}, 1000),
    Stage({8: 4000, 16: 3000, 32: 1000, 64: 600}, 600),
)


class Conversations:
    """Makes the token ids of conversations as the processor does, but split where the video's tokens end."""

    def __init__(self, architecture: Architecture, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.before_question = tokenizer, architecture.before_question

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def turns(self, questions: list[Question]) -> tuple[list[int], list[int]]:
        """Return the ids of all that follows the video's tokens, and the labels, which are answers and their ends."""
        ids: list[int] = []
        labels: list[int] = []
        for number, asked in enumerate(questions):
            start = self.before_question if number == 0 else "\n<|im_start|>user\n"
            question = self.ids(f"{start}{asked.question}<|im_end|>\n<|im_start|>assistant\n")
            answer = self.ids(f"{asked.answer}<|im_end|>")
            ids += question + answer
            labels += [IGNORED] * len(question) + answer
        return ids, labels


@dataclass(frozen=True)
class Student:
    """A model that learns to answer.

    Attributes:
        conversations: of the model's tokenizer.
    """

    architecture: Architecture
    model: PreTrainedModel
    processor: Any
    conversations: Conversations

    @classmethod
    def of(cls, architecture: Architecture, model: PreTrainedModel, processor: Any) -> "Student":
        return cls(architecture, model, processor, Conversations(architecture, processor.tokenizer))

    def answers(
        self,
        videos: list[Encoded],
        questions: list[list[Question]],
        rate: float = RATES[-1],
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of all that comes after the videos, and the labels that they should predict. All videos
        must have the same length. `kept` (B, K) are the tokens that enter the prompt, by default all."""
        device = self.model.device
        turns = [self.conversations.turns(asked) for asked in questions]
        ids, labels = (
            pad_sequence([torch.tensor(turn[part]) for turn in turns], batch_first=True, padding_value=padding)
            for part, padding in ((0, 0), (1, IGNORED))
        )
        features = torch.stack([video.features for video in videos]).to(device, torch.float32)
        hidden = self.architecture.hidden(self.model, self.processor, features, rate, ids.to(device), kept)
        head: Any = self.model.get_output_embeddings()
        return head(hidden[:, :-1]), labels.to(device)

    def loss(
        self, videos: list[Encoded], questions: list[list[Question]], rate: float, kept: Tensor | None = None
    ) -> Tensor:
        """Return the mean loss of the answers to these questions."""
        logits, labels = self.answers(videos, questions, rate, kept)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def beginning(
    architecture: Architecture,
    model: PreTrainedModel,
    processor: Any,
    path: Path,
    steps: int,
    learning_rate: float,
    warmup: int,
) -> tuple[Student, Training]:
    """Return how each training of the language model begins: the model as one that learns to answer, and its training,
    which continues from the checkpoint at `path` if there is one."""
    learning = architecture.language(model).requires_grad_(True)
    training = Training(learning, path, steps, learning_rate, warmup)
    return Student.of(architecture, model, processor), training


def train_language(
    architecture: Architecture,
    model: PreTrainedModel,
    processor: Any,
    folder: Path,
    stages: tuple[Stage, ...] = STAGES,
) -> None:
    """Train the model in place, continuing from the checkpoint in `folder` if there is one."""
    steps, path = sum(stage.steps for stage in stages), folder / "language.pt"
    student, training = beginning(architecture, model, processor, path, steps, LEARNING_RATE, warmup=100)
    sets: dict[tuple[int, str], list[Encoded]] = {}

    def encoded(num_frames: int, number: int, split: str = "train") -> list[Encoded]:
        if (num_frames, split) not in sets:
            sets[num_frames, split] = encoded_videos(architecture, model, folder / "encoded", num_frames, number, split)
        return sets[num_frames, split]

    end = 0  # of the stage
    for stage in stages:
        end += stage.steps
        if training.done >= end:
            continue
        for num_frames, number in stage.videos.items():
            encoded(num_frames, number)
        while training.done < end:
            rng = random.Random(training.done)
            num_frames = rng.choice(list(stage.videos))
            videos = a_batch(encoded(num_frames, stage.videos[num_frames]), num_frames, rng)
            asked = [rng.sample(video.questions, min(MOST_TURNS, len(video.questions))) for video in videos]
            loss = student.loss(videos, asked, rng.choice(RATES))
            training.step(loss, {f"loss with {num_frames} frames": loss})
            if training.done % TEST_EVERY == 0 or training.done == end:
                longest = max(stage.videos)
                found = answer_accuracy(student, encoded(longest, TEST_VIDEOS, "test"))
                print(longest, json.dumps(found), flush=True)


def a_batch(videos: list[Encoded], num_frames: int, rng: random.Random) -> list[Encoded]:
    """Choose as many videos of `num_frames` frames as a step takes."""
    return rng.sample(videos, min(MOST_VIDEOS, MOST_FRAMES // num_frames))


def random_tokens(videos: list[Encoded], share: float, rng: random.Random) -> Tensor | None:
    """Return (B, K) int64, ascending: for each of some videos of the same length the random tokens that stay; None if
    all do."""
    if share == 1.0:
        return None
    num_groups, _, tokens_per_group, _ = videos[0].features.shape
    every = range(num_groups * tokens_per_group)
    return torch.tensor([sorted(rng.sample(every, max(1, round(share * len(every))))) for _ in videos])


@torch.no_grad()
def answer_accuracy(student: Student, videos: list[Encoded], batch: int = 16, share: float = 1.0) -> dict[str, float]:
    """Return the share of questions answered correctly, by kind, if each token is predicted from the correct tokens
    before it. One question is asked about each video, of which a random share of the tokens is seen."""
    rng = random.Random(0)
    right: dict[str, list[bool]] = defaultdict(list)
    for first in range(0, len(videos), batch):
        chosen = videos[first : first + batch]
        asked = [[rng.choice(video.questions)] for video in chosen]
        logits, labels = student.answers(chosen, asked, kept=random_tokens(chosen, share, rng))
        correct = ((logits.argmax(-1) == labels) | (labels == IGNORED)).all(dim=1)
        for (question,), hit in zip(asked, correct.tolist()):
            right[question.kind].append(hit)
    return {kind: round(sum(hits) / len(hits), 3) for kind, hits in sorted(right.items())}
