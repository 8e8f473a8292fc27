"""Train one of the benchmark's models from scratch, and save it.

    python -m benchmarks.needle.train ARCHITECTURE WORK_FOLDER OUTPUT_FOLDER

A run that was killed continues from its last checkpoint, which is saved every hundred steps.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from .architectures import ARCHITECTURES
from .train_language import STAGES, train_language
from .train_tower import train_tower

TOWER_STEPS = 5000


def main(
    architecture: Annotated[str, typer.Argument(help=f"One of {', '.join(ARCHITECTURES)}.")],
    work: Annotated[Path, typer.Argument(help="Folder for checkpoints and encoded videos.")],
    output: Annotated[Path, typer.Argument(help="Folder to save the model and its processor in.")],
    device: Annotated[str, typer.Option(help="`cpu`, `cuda`, ...")] = "cpu",
) -> None:
    """Train the model in two steps."""
    how = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    model, processor = how.build()
    model.to(torch.device(device))
    train_tower(how, model, work, TOWER_STEPS)
    how.tower(model).requires_grad_(False)
    train_language(how, model, processor, work, STAGES)
    model.save_pretrained(output)
    processor.save_pretrained(output)


if __name__ == "__main__":
    typer.run(main)
