"""The whole benchmark with one command: test set, answers, tables and plots; and, with `--train`, the model before.

    python -m benchmarks.needle WORK_FOLDER [--train]

What a run that was killed has done is not done again.
"""

from pathlib import Path
from typing import Annotated

import typer

from . import compare, dataset, ship, tables, train


def main(
    work: Annotated[Path, typer.Argument(help="Folder for all that is made on the way, about 4 GB.")],
    training: Annotated[bool, typer.Option("--train", help="Train the model from nothing, and ship it.")] = False,
) -> None:
    if training:
        train.main(work / "training", work / "model")
        ship.main(work / "model", work / "training")
    dataset.main(work / "data")
    compare.main(work / "data", work / "answers")
    tables.main()


typer.run(main)
