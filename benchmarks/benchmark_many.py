"""Measure videos per second of a loop over `ask`, and of `answer_many` with one and with several requests a batch.

    PYTHONPATH=src:. python benchmarks/benchmark_many.py --videos 24 --rounds 5 --json many.json

The toy answers questions about generated clips of the needle benchmark or, with --folder, one question about each video
of that folder. The contenders take turns within one run, so that other work on the machine affects all of them alike.
The table shows medians over the rounds. Ratios to the loop are medians of the ratios within a round.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.needle.dataset import video_of_level, write_video
from benchmarks.needle.videos import LEVELS, questions_about
from vidcom2 import answer_many, ask
from vidcom2.answering.comparison import environment
from vidcom2.answering.requests import requests_of_folder
from vidcom2.checkpoints import Checkpoint, load_checkpoint
from vidcom2.records.provenance import birth_certificate, cpu_name

FRAMES = 16


def needle_requests(folder: Path, count: int) -> list[dict[str, Any]]:
    """Write `count` clips to the folder, and return a question about each."""
    requests = []
    for number in range(count):
        needle = video_of_level(number, list(LEVELS)[number % len(LEVELS)], FRAMES, "test")
        path = folder / f"{number}.mp4"
        write_video(needle, path)
        requests.append({"video": str(path), "prompt": questions_about(needle)[0].question})
    return requests


def contenders(
    checkpoint: Checkpoint, requests: list[dict[str, Any]], max_new_tokens: int, batch_sizes: list[int]
) -> dict[str, Callable[[], list[str]]]:
    """Return the contenders. Each answers all requests, and returns the answers in the order of the requests."""
    given = {"processor": checkpoint.processor, "num_frames": FRAMES, "max_new_tokens": max_new_tokens}

    def one_by_one() -> list[str]:
        return [ask(each["video"], each["prompt"], checkpoint.model, **given).answer for each in requests]

    def many(batch_size: int) -> list[str]:
        found = answer_many(requests, checkpoint.model, batch_size=batch_size, **given)
        texts = {int(each.request.id): each.answer or f"error: {each.error}" for each in found}
        return [texts[number] for number in sorted(texts)]

    batches = {f"answer_many, batch {size}": lambda size=size: many(size) for size in batch_sizes}
    return {"ask, one by one": one_by_one, **batches}


def main(
    videos: Annotated[int, typer.Option(min=1, help="Number of generated clips.")] = 24,
    rounds: Annotated[int, typer.Option(min=1, help="Timed turns of each contender.")] = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 16,
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes of `answer_many`.")] = "1,8",
    folder: Annotated[Path | None, typer.Option(help="Folder of videos to use instead of generated clips.")] = None,
    model: Annotated[str | None, typer.Option(help="Checkpoint to use instead of the toy.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures and their origin.")] = None,
) -> None:
    """Time the contenders in turns."""
    checkpoint = load_checkpoint(model)
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            requests = needle_requests(Path(made), videos)
        else:
            found = requests_of_folder(folder, "What happens in the video?")
            requests = [{"video": each.video, "prompt": each.prompt} for each in found]
        compared = contenders(checkpoint, requests, max_new_tokens, [int(size) for size in batch_sizes.split(",")])
        seconds: dict[str, list[float]] = {name: [] for name in compared}
        answers: dict[str, list[str]] = {}
        for turn in range(rounds + 1):  # the first is a warm-up
            for name in compared if turn % 2 else reversed(compared):
                start = time.perf_counter()
                answers[name] = compared[name]()
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    first = next(iter(compared))
    rows = []
    for name, times in seconds.items():
        ratios = [alone / own for alone, own in zip(seconds[first], times, strict=True)]
        same = sum(a == b for a, b in zip(answers[first], answers[name], strict=True))
        rows.append(
            {
                "contender": name,
                "videos_per_second": len(requests) / statistics.median(times),
                "ratio": statistics.median(ratios),
                "ratio_least": min(ratios),
                "ratio_most": max(ratios),
                "same_answers": same,
                "seconds": times,
            }
        )
        print(
            f"{name:24} {rows[-1]['videos_per_second']:7.2f} videos/s   {rows[-1]['ratio']:.2f}× "
            f"({min(ratios):.2f}–{max(ratios):.2f})   {same} of {len(requests)} answers the same"
        )
    if json_file is not None:
        certificate = birth_certificate(
            checkpoint.name,
            "benchmarks/benchmark_many.py",
            **environment(checkpoint.model),
            cpu=cpu_name(),
            cpu_cores=os.cpu_count(),
            load_average=os.getloadavg()[0],
            videos=len(requests),
            num_frames=FRAMES,
            max_new_tokens=max_new_tokens,
            rounds=rounds,
        )
        json_file.write_text(json.dumps({"birth_certificate": certificate, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
