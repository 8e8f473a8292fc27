"""Run the whole benchmark with one command: test sets, answers, tables and plots. With `--train`, train the toys first.

    python -m benchmarks.needle WORK_FOLDER [--train]

A run that was killed can be started again, and repeats nothing that is already done.
"""

from pathlib import Path
from typing import Annotated

import typer

from vidcom2.toys import TOYS

from . import chats, compare, dataset, ship, streams, tables, train


def main(
    work: Annotated[Path, typer.Argument(help="Folder for all intermediate files, about 8 GB.")],
    training: Annotated[bool, typer.Option("--train", help="Train the toys from scratch, and ship them.")] = False,
) -> None:
    for toy in TOYS if training else ():
        train.main(toy, work / toy / "training", work / toy / "model")
        ship.main(toy, work / toy / "model", work / toy / "training")
    # Each group has the test set of the published figures.
    for part, size in dict.fromkeys((group.data, group.videos_per_level) for group in compare.GROUPS.values()):
        dataset.write_part(work / f"data-{size}", part, size)
    dataset.write_part(work / f"data-{chats.VIDEOS_PER_LEVEL}", dataset.CHATS, chats.VIDEOS_PER_LEVEL)
    for toy in TOYS:
        for name, group in compare.GROUPS.items():
            if toy in group.toys:
                compare.main(work / f"data-{group.videos_per_level}", work / "answers", toy, [name])
        chats.main(work / f"data-{chats.VIDEOS_PER_LEVEL}", work / "answers", toy)
        streams.main(work / "streams", toy)
    tables.main()


typer.run(main)
