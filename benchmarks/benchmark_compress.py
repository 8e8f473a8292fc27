"""Measure what choosing the tokens costs: `vidcom2.compress`, the released algorithm, and plain reads of the tokens.

    PYTHONPATH=src python benchmarks/benchmark_compress.py --repeats 15 --device cpu --json compress.json
    PYTHONPATH=src python benchmarks/benchmark_compress.py --repeats 15 --busy 1 --json compress_busy.json

Any method with two stages must read the tokens at least twice: once for their means, and once to compare each token
with these. The time of two plain sums over the tokens is therefore a lower bound, and `compress / two passes` says how
far `compress` is from it. (If a device's cache holds the tokens, both read them from there.)

The contenders of a shape take turns within one run, so that other work on the machine affects all of them alike. The
table shows medians. The baseline computes the released scoring, also in the rows of the paper's scoring.

On a busy CPU other work does not affect all contenders alike: each parallel step waits for its slowest thread, so a
contender with many short steps waits most. `--busy 1` keeps one core busy with other work during all measurements. The
JSON holds the number of busy cores, the load before the first run, the threads, OMP_WAIT_POLICY, and the fastest and
slowest run of each contender. If other work always shares the cores, try `--threads 1` or OMP_WAIT_POLICY=PASSIVE.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import vidcom2
from vidcom2.records.provenance import cpu_name, git

ROOT = Path(__file__).resolve().parents[1]
# The baseline is a test helper that the tests pin to the released code's output. It is not part of the package.
sys.path.insert(0, str(ROOT / "tests"))
from oracle import released_reference  # noqa: E402

RETENTION_RATIO = 0.25
SHAPES = [(32, 196, 3584), (64, 169, 3584), (32, 196, 896)]  # LLaVA-OneVision-7B, LLaVA-Video-7B, LLaVA-OneVision-0.5B
DTYPES = [torch.float32, torch.bfloat16]
SCORINGS = ["paper", "released"]
OTHERS = ("released_reference", "one_pass", "two_passes")
COLUMNS = {
    "shape": "frames × tokens × dim",
    "dtype": "dtype",
    "scoring": "scoring",
    "compress_ms": "compress\nms",
    "released_reference_ms": "reference\nms",
    "speedup": "reference /\ncompress",
    "one_pass_ms": "one pass\nms",
    "passes": "compress /\none pass",
    "two_pass_bound": "compress /\ntwo passes",
}


def make_video(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> Tensor:
    """Make the tokens of two noisy scenes with a cut half-way. The cost hardly depends on what a video shows."""
    generator = torch.Generator().manual_seed(0)
    num_frames, tokens_per_frame, dim = shape
    scenes = torch.randn(2, tokens_per_frame, dim, generator=generator)
    tokens = torch.randn(shape, generator=generator).mul_(0.3)
    tokens[: num_frames // 2] += scenes[0]
    tokens[num_frames // 2 :] += scenes[1]
    return tokens.to(device, dtype)


def time_in_turns(contenders: dict[str, Callable[[], Any]], repeats: int, device: str) -> dict[str, list[float]]:
    """Return the milliseconds of each run of each contender. A different contender begins each round."""
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, repeats):  # two rounds to warm up
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            synchronize(device)
            begin = time.perf_counter()
            contenders[name]()
            synchronize(device)
            if turn >= 0:
                times[name].append(1000 * (time.perf_counter() - begin))
    return times


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def measure(shape: tuple[int, int, int], dtype: torch.dtype, device: str, repeats: int) -> list[dict[str, Any]]:
    """Return a row for each scoring."""
    tokens = make_video(shape, dtype, device)
    contenders: dict[str, Callable[[], Any]] = {
        "released_reference": lambda: released_reference(tokens, RETENTION_RATIO),
        "one_pass": lambda: tokens.sum(),
        "two_passes": lambda: (tokens.sum(), tokens.sum()),
    }
    for scoring in SCORINGS:
        contenders[scoring] = lambda scoring=scoring: vidcom2.compress(
            tokens, RETENTION_RATIO, compression_scoring=scoring
        )
    times = time_in_turns(contenders, repeats, device)
    median = {name: statistics.median(values) for name, values in times.items()}
    return [
        {
            "shape": list(shape),
            "dtype": str(dtype).removeprefix("torch."),
            "scoring": scoring,
            "compress_ms": median[scoring],
            "released_reference_ms": median["released_reference"],
            "speedup": median["released_reference"] / median[scoring],
            "one_pass_ms": median["one_pass"],
            "passes": median[scoring] / median["one_pass"],
            "two_passes_ms": median["two_passes"],
            "two_pass_bound": median[scoring] / median["two_passes"],
            "fastest_ms": {name: min(times[name]) for name in (scoring, *OTHERS)},
            "slowest_ms": {name: max(times[name]) for name in (scoring, *OTHERS)},
        }
        for scoring in SCORINGS
    ]


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy, each with a process that computes and never waits."""
    workers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
        ended = [worker.returncode for worker in workers if worker.poll() is not None]
        if ended:
            raise RuntimeError(
                f"{len(ended)} of {count} busy processes ended early with {ended}, so the cores were not all busy."
            )
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def birth_certificate(device: str, repeats: int, busy: int) -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "benchmarks/benchmark_compress.py",
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "torch_threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "cpu_cores": os.cpu_count(),
        "busy_cores": busy,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # before the first run
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "vidcom2_commit": git("rev-parse", "HEAD"),
        "vidcom2_dirty": bool(git("status", "--porcelain")),
        "retention_ratio": RETENTION_RATIO,
        "repeats": repeats,
        "statistic": "median",
    }


def shown(value: Any) -> str:
    if isinstance(value, list):
        return " × ".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each contender.")] = 15,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device that holds the tokens.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default as many as torch uses.")] = None,
    busy: Annotated[int, typer.Option(min=0, help="Cores to keep busy with other work while measuring.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows and their origin.")] = None,
) -> None:
    """Time `vidcom2.compress` at the sizes of real models."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("this machine has no CUDA device. Use --device cpu.", param_hint="--device")
    if threads is not None:
        torch.set_num_threads(threads)
    certificate = birth_certificate(device, repeats, busy)
    console = Console(width=None if sys.stdout.isatty() else 120)  # wide enough for the whole table in a log
    rows = []
    with busy_cores(busy):
        for shape in SHAPES:
            for dtype in DTYPES:
                rows += measure(shape, dtype, device, repeats)
                if json_file is not None:  # written after each size, so that nothing is lost if a later one fails
                    json_file.write_text(json.dumps({"birth_certificate": certificate, "rows": rows}, indent=2) + "\n")
    table = Table(
        title=f"vidcom2.compress on {certificate['device']}, {certificate['torch_threads']} threads, "
        f"{busy} of {certificate['cpu_cores']} cores busy with other work"
    )
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(shown(row[name]) for name in COLUMNS))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
