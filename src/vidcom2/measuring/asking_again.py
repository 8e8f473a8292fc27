"""Measure what further questions about a video cost: asked anew, and from the features or the KV cache of a `Watched`.

Importing this file does not import PyTorch.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from .bench_tables import seconds as shown

if TYPE_CHECKING:
    from ..asking.candidates import Candidate
    from ..asking.watched import Watched
    from ..loading.checkpoints import Checkpoint

QUESTIONS = 10  # about one video, of which the table shows the sum
QUESTION = "What happens?"


def ask_again(
    checkpoint: "Checkpoint", candidate: "Candidate", video: str, num_frames: int, max_new_tokens: int, repeats: int
) -> list[dict[str, Any]]:
    """Ask a question about a video in three ways, which take turns. The first turn of each is a warm-up.

    Returns:
        A row for each `way`: the seconds `once`, which are spent before the first question, and a list of those of
        `each` question, with what was asked. All answers have `max_new_tokens` tokens.
    """
    from ..asking.stopwatch import synchronize
    from ..asking.watched import watch_frames
    from ..video.reading import read_video

    def timed(call: Callable[[], Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        result = call()
        synchronize(checkpoint.model.device)
        return time.perf_counter() - start, result

    def watch() -> "Watched":
        return watch_frames(checkpoint, read_video(video, num_frames), candidate.overrides)

    of_answer = {"max_new_tokens": max_new_tokens, "min_new_tokens": max_new_tokens}
    watch().prefill()  # a warm-up, as the first turns below are
    watching, features = timed(watch)
    cached = watch()
    filling, _ = timed(cached.prefill)
    ways: dict[str, tuple[float, Callable[[], Any]]] = {
        "anew": (0.0, lambda: watch().ask(QUESTION, **of_answer)),
        "features": (watching, partial(features.ask, QUESTION, **of_answer)),
        "KV cache": (watching + filling, partial(cached.ask, QUESTION, **of_answer)),
    }
    each: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats + 1):
        for way, (_, ask) in ways.items():
            each[way].append(timed(ask)[0])
    about = {
        "method": candidate.method,
        "retention_ratio": candidate.retention_ratio,
        "frames": num_frames,
        "attention": checkpoint.model.config._attn_implementation,
    }
    return [about | {"way": way, "once": once, "each": each[way][1:]} for way, (once, _) in ways.items()]


def table_of_asking_again(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Make the table of the rows of `ask_again`, with how many times as fast as anew each way is."""
    cells = [["", "once, s", "a question, s", f"{QUESTIONS} questions, s"]]
    anew = median(rows[0]["each"])
    for row in rows:
        one = median(row["each"])
        whole = row["once"] + QUESTIONS * one
        times = [(one, anew), (whole, QUESTIONS * anew)]
        faster = [f"{shown(own)} ({before / own:.1f}×)" for own, before in times]
        is_anew = row is rows[0]
        way, once = ("anew", "–") if is_anew else (f"from the {row['way']}", shown(row["once"]))
        cells.append([way, once, *faster])
    return cells
