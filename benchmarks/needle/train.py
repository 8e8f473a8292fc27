"""Train one of the benchmark's models from scratch, and save it.

    python -m benchmarks.needle.train ARCHITECTURE WORK_FOLDER OUTPUT_FOLDER

A run that was killed continues from its last checkpoint, which is saved every hundred steps. With `--trained`, a
model that has learnt the first two steps goes on with the third; and with `--subsets` too, one that has learnt three
goes on with the fourth, as the toys that have seen random tokens did.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from .architectures import ARCHITECTURES
from .train_language import STAGES, train_language
from .train_numbers import train_numbers
from .train_subsets import train_subsets
from .train_tower import train_tower

TOWER_STEPS = 5000


def main(
    architecture: Annotated[str, typer.Argument(help=f"One of {', '.join(ARCHITECTURES)}.")],
    work: Annotated[Path, typer.Argument(help="Folder for checkpoints and encoded videos.")],
    output: Annotated[Path, typer.Argument(help="Folder to save the model and its processor in.")],
    device: Annotated[str, typer.Option(help="`cpu`, `cuda`, ...")] = "cpu",
    trained: Annotated[Path | None, typer.Option(help="Folder of a model that begins with the last step.")] = None,
    subsets: Annotated[bool, typer.Option("--subsets", help="Let a trained model learn from random tokens.")] = False,
) -> None:
    """Train the model in three steps, or from a trained model in the last of them."""
    if subsets and trained is None:
        raise typer.BadParameter(
            "it goes on with a trained model. Name its folder with --trained.", param_hint="--subsets"
        )
    how = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    model, processor = how.build()
    if trained is not None:
        model = type(model).from_pretrained(trained)
    model.to(torch.device(device))
    if trained is None:
        train_tower(how, model, work, TOWER_STEPS)
    how.tower(model).requires_grad_(False)
    if trained is None:
        train_language(how, model, processor, work, STAGES)
    if subsets:
        train_subsets(how, model, processor, work)
    else:
        train_numbers(how, model, processor, work)
    model.save_pretrained(output)
    processor.save_pretrained(output)


if __name__ == "__main__":
    typer.run(main)
