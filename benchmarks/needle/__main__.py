"""Run the whole benchmark with one command: test sets, answers, tables and plots. With `--train`, train the toys first.

    python -m benchmarks.needle WORK_FOLDER [--train]

A run that was killed can be started again, and repeats nothing that is already done.
"""

from pathlib import Path
from typing import Annotated

import typer

from vidcom2.toys import TOYS

from . import chats, compare, dataset, ship, streams, tables, train
from .candidates import SEEN_ALL


def main(
    work: Annotated[Path, typer.Argument(help="Folder for all intermediate files, about 8 GB.")],
    training: Annotated[bool, typer.Option("--train", help="Train the toys from scratch, and ship them.")] = False,
) -> None:
    for name, toy in TOYS.items() if training else ():
        architecture, trained = toy.trained_from or name, toy.trained_from and TOYS[toy.trained_from].folder
        folder, model = work / architecture / "training", work / name / "model"
        train.main(architecture, folder, model, trained=trained, subsets=trained is not None)
        ship.main(name, model, folder)
    # Each group has the test set of the published figures.
    for part, size in dict.fromkeys((group.data, group.videos_per_level) for group in compare.GROUPS.values()):
        dataset.write_part(work / f"data-{size}", part, size)
    dataset.write_part(work / f"data-{chats.VIDEOS_PER_LEVEL}", dataset.CHATS, chats.VIDEOS_PER_LEVEL)
    for toy in TOYS:
        for name, group in compare.GROUPS.items():
            if toy in group.toys:
                compare.main(work / f"data-{group.videos_per_level}", work / "answers", toy, [name])
    for toy in SEEN_ALL:
        chats.main(work / f"data-{chats.VIDEOS_PER_LEVEL}", work / "answers", toy)
        streams.main(work / "streams", toy)
    tables.main()


typer.run(main)
