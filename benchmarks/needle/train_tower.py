"""Step 1 of the training: the vision tower and the projector learn what each token of a frame shows.

Labels for each token keep a token's features local. A tower that learns only from whole videos spreads what a frame
shows over all its tokens, so that dropping some of them at random would lose nothing.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from .architectures import Architecture
from .checkpointing import SAVE_EVERY, Training
from .drawing import SIZE
from .frames import IGNORED, LABELS, NONE, LabelledFrames

BATCH = 32
LEARNING_RATE = 1.5e-3
NONE_WEIGHT = 0.1
DEEPSTACK_WEIGHT = 0.3
PLACE_WEIGHT = 0.1  # for row and column, which are easy to learn


class TokenLabels(nn.Module):
    """A linear classifier for each label, on the features that enter the language model."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleDict({name: nn.Linear(width, classes) for name, classes in LABELS.items()})

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        features = self.norm(features)
        return {name: head(features) for name, head in self.heads.items()}


def train_tower(architecture: Architecture, model: PreTrainedModel, folder: Path, steps: int) -> None:
    """Train the model in place, continuing from the checkpoint in `folder` if there is one."""
    probe = torch.zeros(1, architecture.frames_per_group, SIZE, SIZE, 3, dtype=torch.uint8)
    with torch.no_grad():
        _, num_levels, _, width = architecture.features(model, probe).shape
    # Features of the deepstack layers get classifiers of their own, so that they say as much of their token.
    labels = nn.ModuleList([TokenLabels(width) for _ in range(num_levels)]).to(model.device)
    trained = nn.ModuleList([architecture.tower(model), labels])
    training = Training(trained, folder / "tower.pt", steps, LEARNING_RATE, warmup=100)
    data = LabelledFrames(BATCH, architecture.frames_per_group, training.done, steps)
    loader = DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=8)
    for frames, wanted in loader if training.done < steps else []:
        features = architecture.features(model, frames)
        losses = []
        for level, classify in enumerate(labels):
            predicted, weight = classify(features[:, level]), 1.0 if level == 0 else DEEPSTACK_WEIGHT
            of_level = {name: label_loss(name, predicted[name], wanted[name].to(model.device)) for name in LABELS}
            losses.append((weight, of_level))
        total = torch.stack([weight * loss for weight, of_level in losses for loss in of_level.values()]).sum()
        training.step(total, losses[0][1])
        if training.done % (5 * SAVE_EVERY) == 0 or training.done == steps:
            print(json.dumps(label_accuracy(architecture, model, labels[0])), flush=True)


def label_loss(name: str, predicted: Tensor, wanted: Tensor) -> Tensor:
    weight = torch.ones(LABELS[name], device=predicted.device)
    if name in NONE:
        weight[NONE[name]] = NONE_WEIGHT
    loss = functional.cross_entropy(predicted.flatten(0, 1), wanted.flatten(), weight, ignore_index=IGNORED)
    return loss * (PLACE_WEIGHT if name in ("row", "column") else 1.0)


@torch.no_grad()
def label_accuracy(
    architecture: Architecture, model: PreTrainedModel, labels: nn.Module, batches: int = 8
) -> dict[str, float]:
    """Return the share of tokens that are labelled correctly in unseen frames with unseen digits, separately for those
    that show something and for those that show nothing."""
    right: dict[str, list[Tensor]] = {}
    for frames, wanted in LabelledFrames(BATCH, architecture.frames_per_group, 0, batches, split="test"):
        predicted = labels(architecture.features(model, frames)[:, 0])
        for name in LABELS:
            correct, labelled = predicted[name].argmax(-1).cpu() == wanted[name], wanted[name] != IGNORED
            shown = labelled & (wanted[name] != NONE.get(name, -1))
            right.setdefault(name, []).append(correct[shown])
            if name in NONE:
                right.setdefault(f"no {name}", []).append(correct[labelled & ~shown])
    return {name: round(torch.cat(each).float().mean().item(), 4) for name, each in right.items()}
