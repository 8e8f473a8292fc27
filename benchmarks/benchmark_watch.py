"""Measure what `vidcom2.watch` saves: questions about one video, asked anew, from its features, and from its KV cache.

    PYTHONPATH=src python benchmarks/benchmark_watch.py --questions 10 --threads 1 --json watch.json

The model has the size of a released one and random weights, and each answer the same number of tokens. The ways take
turns at each question, so that other work on the machine affects all alike.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import vidcom2
from vidcom2.measuring.clip import make_video
from vidcom2.measuring.models import random_checkpoint
from vidcom2.measuring.sizes import size_named

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from benchmarks.pages import certificate, write_result  # noqa: E402


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main(
    model_size: Annotated[str, typer.Option(help="A size of `vidcom2 bench`.")] = "llava-onevision-0.5b",
    num_frames: int = 32,
    retention_ratio: float = 0.25,
    questions: Annotated[int, typer.Option(min=2)] = 10,
    new_tokens: int = 16,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows and their origin.")] = None,
) -> None:
    """Time questions about one video."""
    if threads is not None:
        torch.set_num_threads(threads)
    of = random_checkpoint(model_size, size_named(model_size), torch.device("cpu"), torch.float32)
    model: Any = of.model
    given = {"processor": of.processor, "num_frames": num_frames, "retention_ratio": retention_ratio}
    of_answer: dict[str, Any] = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    certified = certificate(
        model_size,
        "benchmarks/benchmark_watch.py",
        torch_threads=torch.get_num_threads(),
        num_frames=num_frames,
        retention_ratio=retention_ratio,
        questions=questions,
        new_tokens=new_tokens,
        statistic="sums, and medians of the second question and those after it",
    )
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.mp4"
        make_video(clip, 640, 360, num_frames)
        watching, features = seconds_of(lambda: vidcom2.watch(clip, model, **given))
        cached = vidcom2.watch(clip, model, **given)
        filling, _ = seconds_of(cached.prefill)
        everything = vidcom2.watch(clip, model, **given | {"retention_ratio": 1.0})
        sizes = {}
        for name, watched in (("features", features), ("cache", cached), ("all", everything)):
            watched.save(Path(folder) / name, prefill=name == "cache")
            sizes[name] = (Path(folder) / name).stat().st_size
        times: dict[str, list[float]] = {"anew": [], "features": [], "cache": []}
        for number in range(questions):
            question = f"What happens in part {number}?"
            ways: dict[str, Callable[[], Any]] = {
                "anew": lambda asked=question: vidcom2.ask(clip, asked, model, **given, **of_answer),
                "features": lambda asked=question: features.ask(asked, **of_answer),
                "cache": lambda asked=question: cached.ask(asked, **of_answer),
            }
            answers = {}
            for name, way in ways.items():
                seconds, answers[name] = seconds_of(way)
                times[name].append(seconds)
            print(question, {name: round(each[-1], 2) for name, each in times.items()}, flush=True)
            assert answers["features"] == answers["anew"]
    before = {"anew": 0.0, "features": watching, "cache": watching + filling}
    rows = [
        {
            "way": name,
            "seconds_before": before[name],
            "seconds_all": before[name] + sum(each),
            "seconds_each_later": statistics.median(each[1:]),
            "file_bytes": sizes.get(name),
            "file_bytes_of_all_tokens": sizes["all"],
        }
        for name, each in times.items()
    ]
    for row in rows:
        row["speedup_all"] = rows[0]["seconds_all"] / row["seconds_all"]
        row["speedup_each_later"] = rows[0]["seconds_each_later"] / row["seconds_each_later"]
        print(row)
    write_result(json_file, certified, rows)


if __name__ == "__main__":
    typer.run(main)
