"""Train the benchmark's model from scratch, and save it.

    python -m benchmarks.needle.train WORK_FOLDER OUTPUT_FOLDER

A run that was killed continues from its last checkpoint, which is saved every hundred steps.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from .model import build_model
from .train_language import STAGES, train_language
from .train_tower import train_tower

TOWER_STEPS = 3000


def main(
    work: Annotated[Path, typer.Argument(help="Folder for checkpoints and encoded videos.")],
    output: Annotated[Path, typer.Argument(help="Folder to save the model and its processor in.")],
    device: Annotated[str, typer.Option(help="`cpu`, `cuda`, ...")] = "cpu",
) -> None:
    """Train the model in two steps."""
    torch.manual_seed(0)
    model, processor = build_model()
    model.to(device)
    train_tower(model, work, TOWER_STEPS)
    for part in (model.model.vision_tower, model.model.multi_modal_projector):
        part.requires_grad_(False)
    train_language(model, processor.tokenizer, work, STAGES)
    model.save_pretrained(output)
    processor.save_pretrained(output)


if __name__ == "__main__":
    typer.run(main)
