"""Step 1 of the training: the vision tower and the projector learn what each token of a frame shows.

Labels for each token keep a token's features local. A tower that learns only from whole videos spreads what a frame
shows over all its tokens, so that dropping some of them at random would lose nothing.
"""

import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import LlavaOnevisionForConditionalGeneration

from .checkpointing import Checkpoint, cosine, optimize
from .frames import IGNORED, LABELS, NONE, LabelledFrames

BATCH = 32
LEARNING_RATE = 1.5e-3
NONE_WEIGHT = 0.1
PLACE_WEIGHT = 0.1  # for row and column, which are easy to learn
LOG_EVERY, SAVE_EVERY = 50, 100


class TokenLabels(nn.Module):
    """A linear classifier for each label, on the features that enter the language model."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleDict({name: nn.Linear(width, classes) for name, classes in LABELS.items()})

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        features = self.norm(features)
        return {name: head(features) for name, head in self.heads.items()}


def frame_features(model: LlavaOnevisionForConditionalGeneration, frames: Tensor) -> Tensor:
    """Return (N, 25, D), the tokens of frames (N, 140, 140, 3) uint8 as they enter the language model."""
    pixels = (frames.to(model.device).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    features = model.model.get_video_features(pixels[None]).pooler_output
    features = features[0] if isinstance(features, (list, tuple)) else features
    return features.reshape(-1, features.shape[-1])[:-1].unflatten(0, (len(frames), -1))  # without the newline


def train_tower(model: LlavaOnevisionForConditionalGeneration, folder: Path, steps: int) -> None:
    """Train the model in place, continuing from the checkpoint in `folder` if there is one."""
    labels = TokenLabels(model.config.text_config.hidden_size).to(model.device)
    trained = nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector, labels])
    optimizer = torch.optim.AdamW(trained.parameters(), lr=LEARNING_RATE, weight_decay=0.05, betas=(0.9, 0.98))
    checkpoint = Checkpoint(folder / "tower.pt", {"trained": trained, "optimizer": optimizer})
    first = checkpoint.load()
    loader = DataLoader(LabelledFrames(BATCH, first, steps), batch_size=None, num_workers=1, prefetch_factor=8)
    started = time.perf_counter()
    for step, (frames, wanted) in enumerate(loader if first < steps else [], start=first):
        predicted = labels(frame_features(model, frames))
        losses = {name: label_loss(name, predicted[name], wanted[name].to(model.device)) for name in LABELS}
        optimize(optimizer, torch.stack(list(losses.values())).sum(), LEARNING_RATE * cosine(step, steps, warmup=100))
        if (step + 1) % LOG_EVERY == 0:
            shown = ", ".join(f"{name} {loss.item():.3f}" for name, loss in losses.items())
            print(f"tower {step + 1}: {shown}; {time.perf_counter() - started:.0f} s", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint.save(step + 1)
        if (step + 1) % (5 * SAVE_EVERY) == 0 or step + 1 == steps:
            print(json.dumps(label_accuracy(model, labels)), flush=True)


def label_loss(name: str, predicted: Tensor, wanted: Tensor) -> Tensor:
    weight = torch.ones(LABELS[name], device=predicted.device)
    if name in NONE:
        weight[NONE[name]] = NONE_WEIGHT
    loss = functional.cross_entropy(predicted.flatten(0, 1), wanted.flatten(), weight, ignore_index=IGNORED)
    return loss * (PLACE_WEIGHT if name in ("row", "column") else 1.0)


@torch.no_grad()
def label_accuracy(
    model: LlavaOnevisionForConditionalGeneration, labels: TokenLabels, batches: int = 8
) -> dict[str, float]:
    """Return the share of tokens that are labelled correctly in unseen frames with unseen digits, separately for those
    that show something and for those that show nothing."""
    right: dict[str, list[Tensor]] = {}
    for frames, wanted in LabelledFrames(BATCH, 0, batches, split="test"):
        predicted = labels(frame_features(model, frames))
        for name in LABELS:
            correct, labelled = predicted[name].argmax(-1).cpu() == wanted[name], wanted[name] != IGNORED
            shown = labelled & (wanted[name] != NONE.get(name, -1))
            right.setdefault(name, []).append(correct[shown])
            if name in NONE:
                right.setdefault(f"no {name}", []).append(correct[labelled & ~shown])
    return {name: round(torch.cat(each).float().mean().item(), 4) for name, each in right.items()}
