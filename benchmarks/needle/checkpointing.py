"""What a training that may be killed needs."""

import math
import os
from pathlib import Path
from typing import Any

import torch


class Checkpoint:
    """The state of some modules and optimizers in a file, with the number of steps done."""

    def __init__(self, path: Path, parts: dict[str, Any]):
        self.path, self.parts = path, parts

    def load(self) -> int:
        """Restores the state, if there is one; returns how many steps were done."""
        if not self.path.exists():
            return 0
        stored = torch.load(self.path, map_location="cpu", weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(stored[name])
        return stored["steps"]

    def save(self, steps: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self.path.with_suffix(".part")
        torch.save({name: part.state_dict() for name, part in self.parts.items()} | {"steps": steps}, whole)
        os.replace(whole, self.path)


def cosine(step: int, steps: int, warmup: int) -> float:
    """Share of the learning rate: up from 0, then down to 0 in half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
