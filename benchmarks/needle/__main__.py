"""Run the whole benchmark with one command: test set, answers, tables and plots. With `--train`, train the model first.

    python -m benchmarks.needle WORK_FOLDER [--train]

A run that was killed can be started again, and repeats nothing that is already done.
"""

from pathlib import Path
from typing import Annotated

import typer

from . import compare, dataset, ship, tables, train


def main(
    work: Annotated[Path, typer.Argument(help="Folder for all intermediate files, about 4 GB.")],
    training: Annotated[bool, typer.Option("--train", help="Train the model from scratch, and ship it.")] = False,
) -> None:
    if training:
        train.main(work / "training", work / "model")
        ship.main(work / "model", work / "training")
    dataset.main(work / "data")
    compare.main(work / "data", work / "answers")
    tables.main()


typer.run(main)
