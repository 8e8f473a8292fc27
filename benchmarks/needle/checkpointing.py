"""The part that all steps of the training share: a step of the optimizer, and resuming a training that was killed."""

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Checkpoint:
    """A file that holds the state of some modules and optimizers, and the number of steps done."""

    def __init__(self, path: Path, parts: dict[str, Any]):
        self.path, self.parts = path, parts

    def load(self) -> int:
        """Restore the state, if there is one, and return how many steps were done."""
        if not self.path.exists():
            return 0
        stored = torch.load(self.path, map_location="cpu", weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(stored[name])
        return stored["steps"]

    def save(self, steps: int) -> None:
        save_whole({name: part.state_dict() for name, part in self.parts.items()} | {"steps": steps}, self.path)


def save_whole(stored: Any, path: Path) -> None:
    """Save a file so that it exists complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(stored, part)
    os.replace(part, path)


def optimize(optimizer: torch.optim.Optimizer, loss: Tensor, learning_rate: float) -> None:
    """Take one step, with gradients clipped to a norm of 1."""
    optimizer.zero_grad()
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    nn.utils.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], 1.0)
    optimizer.step()


def cosine(step: int, steps: int, warmup: int) -> float:
    """Return the share of the learning rate, which rises from 0 and then falls to 0 along half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
