"""Step 2 of the training: the language model learns to answer from the tokens of the frozen tower. Videos have one
frame at first, then four, then eight, and finally eight or sixteen."""

import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerBase

from .checkpointing import Checkpoint, cosine, optimize
from .encoded import Encoded, encoded_videos
from .videos import Question

LEARNING_RATE = 2e-3
MOST_TURNS = 6
IGNORED = -100
LOG_EVERY, SAVE_EVERY = 50, 100


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum."""

    num_frames: tuple[int, ...]  # the lengths of its videos
    videos: int  # of each length
    steps: int
    batch: int  # videos in a step


STAGES = (
    Stage((1,), 6000, 400, 48),
    Stage((4,), 5000, 400, 32),
    Stage((8,), 3000, 400, 24),
    Stage((8, 16), 3000, 1900, 16),
)


class Conversations:
    """Makes the token ids of conversations as the processor does, but split where the video's tokens go."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.head = self.ids("<|im_start|>user\n")

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def turns(self, questions: list[Question]) -> tuple[list[int], list[int]]:
        """Return the ids of all that follows the video's tokens, and the labels, which are answers and their ends."""
        ids: list[int] = []
        labels: list[int] = []
        for number, asked in enumerate(questions):
            start = "\n" if number == 0 else "\n<|im_start|>user\n"
            question = self.ids(f"{start}{asked.question}<|im_end|>\n<|im_start|>assistant\n")
            answer = self.ids(f"{asked.answer}<|im_end|>")
            ids += question + answer
            labels += [IGNORED] * len(question) + answer
        return ids, labels


def forward_batch(
    model: LlavaOnevisionForConditionalGeneration,
    conversations: Conversations,
    videos: list[Encoded],
    questions: list[list[Question]],
) -> tuple[Tensor, Tensor]:
    """Return the logits of all that comes after the videos, and the labels that they should predict. All videos must
    have the same length."""
    device = model.device
    turns = [conversations.turns(asked) for asked in questions]
    ids = pad_sequence([torch.tensor(each) for each, _ in turns], batch_first=True).to(device)
    labels = pad_sequence([torch.tensor(each) for _, each in turns], batch_first=True, padding_value=IGNORED).to(device)
    embed = model.get_input_embeddings()
    tokens = torch.stack([video.tokens for video in videos]).to(device, torch.float32)
    head = embed(torch.tensor(conversations.head, device=device)).expand(len(videos), -1, -1)
    newline = model.model.image_newline.expand(len(videos), 1, -1)
    embeds = torch.cat([head, tokens, newline, embed(ids)], dim=1)
    hidden = model.model.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    before = hidden[:, -ids.shape[1] - 1 : -1]
    return model.lm_head(before), labels


def train_language(
    model: LlavaOnevisionForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    stages: tuple[Stage, ...] = STAGES,
) -> None:
    """Train the model in place, continuing from the checkpoint in `folder` if there is one."""
    conversations = Conversations(tokenizer)
    learning = nn.ModuleDict({"language": model.model.language_model, "head": model.lm_head})
    model.model.image_newline.requires_grad_(True)
    parameters = [*learning.parameters(), model.model.image_newline]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.05, betas=(0.9, 0.98))
    newline = nn.ParameterList([model.model.image_newline])
    checkpoint = Checkpoint(folder / "language.pt", {"learning": learning, "newline": newline, "optimizer": optimizer})
    done, steps = checkpoint.load(), sum(stage.steps for stage in stages)
    test = encoded_videos(model, folder / "encoded", 16, 500, "test")
    before, started = 0, time.perf_counter()
    for stage in stages:
        if done >= before + stage.steps:
            before += stage.steps
            continue
        sets = [encoded_videos(model, folder / "encoded", n, stage.videos) for n in stage.num_frames]
        for step in range(max(before, done), before + stage.steps):
            rng = random.Random(step)
            videos = rng.sample(rng.choice(sets), stage.batch)
            asked = [rng.sample(video.questions, min(MOST_TURNS, len(video.questions))) for video in videos]
            logits, labels = forward_batch(model, conversations, videos, asked)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            optimize(optimizer, loss, LEARNING_RATE * cosine(step, steps, warmup=100))
            if (step + 1) % LOG_EVERY == 0:
                took = time.perf_counter() - started
                print(f"language {step + 1} {stage.num_frames} loss {loss.item():.3f} {took:.0f} s", flush=True)
            if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
                checkpoint.save(step + 1)
            if (step + 1) % (4 * SAVE_EVERY) == 0 or step + 1 == before + stage.steps:
                print(json.dumps(answer_accuracy(model, conversations, test)), flush=True)
        before += stage.steps


@torch.no_grad()
def answer_accuracy(
    model: LlavaOnevisionForConditionalGeneration, conversations: Conversations, videos: list[Encoded], batch: int = 32
) -> dict[str, float]:
    """Return the share of questions answered correctly, by kind, if each token is predicted from the correct tokens
    before it. One question is asked about each video."""
    rng = random.Random(0)
    right: dict[str, list[bool]] = defaultdict(list)
    for first in range(0, len(videos), batch):
        chosen = videos[first : first + batch]
        asked = [[rng.choice(video.questions)] for video in chosen]
        logits, labels = forward_batch(model, conversations, chosen, asked)
        correct = ((logits.argmax(-1) == labels) | (labels == IGNORED)).all(dim=1)
        for (question,), hit in zip(asked, correct.tolist()):
            right[question.kind].append(hit)
    return {kind: round(sum(hits) / len(hits), 3) for kind, hits in sorted(right.items())}
