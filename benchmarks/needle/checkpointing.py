"""The part that all steps of the training share: a step of the optimizer, and resuming a training that was killed."""

import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LOG_EVERY, SAVE_EVERY = 50, 100


class Training:
    """A module that learns, and the file from which it goes on if it was killed.

    Attributes:
        steps: after how many steps it ends. The learning rate falls to 0 until then.
        done: how many of them were made, in earlier runs as well.
    """

    def __init__(self, learning: nn.Module, path: Path, steps: int, learning_rate: float, warmup: int):
        self.path, self.steps, self.learning_rate, self.warmup = path, steps, learning_rate, warmup
        self.optimizer = torch.optim.AdamW(
            learning.parameters(), lr=learning_rate, weight_decay=0.05, betas=(0.9, 0.98)
        )
        self.parts = {"learning": learning, "optimizer": self.optimizer}
        self.done = self._load()
        self.started = time.perf_counter()

    def _load(self) -> int:
        """Restore the state, if there is one, and return how many steps were done."""
        if not self.path.exists():
            return 0
        stored = torch.load(self.path, map_location="cpu", weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(stored[name])
        return stored["steps"]

    def step(self, loss: Tensor, shown: dict[str, Tensor]) -> None:
        """Take one step. From time to time, print the losses of `shown`, and save the state."""
        optimize(self.optimizer, loss, self.learning_rate * cosine(self.done, self.steps, self.warmup))
        self.done += 1
        if self.done % LOG_EVERY == 0:
            losses = ", ".join(f"{name} {value.item():.3f}" for name, value in shown.items())
            print(f"{self.path.stem} {self.done}: {losses}; {time.perf_counter() - self.started:.0f} s", flush=True)
        if self.done % SAVE_EVERY == 0 or self.done == self.steps:
            save_whole({name: part.state_dict() for name, part in self.parts.items()} | {"steps": self.done}, self.path)


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
