"""Measure what choosing the tokens costs, at the sizes of real models: each method, and plain reads of the tokens.

    PYTHONPATH=src python benchmarks/benchmark_compress.py --repeats 15 --device cpu --json compress.json
    PYTHONPATH=src python benchmarks/benchmark_compress.py --size llava-video-7b --method vidcom2 --method vcast

Every method of this project's table runs, with each scoring that it reads, and those of `benchmarks/methods/`. The
attention by which these choose is random here, and what reading it from the tower takes does not count.

Any method that compares tokens with their mean must read them at least twice: once for the mean, and once to compare
each token. The time of two plain sums over the tokens is therefore a lower bound, and `two_pass_bound` says how far a
method is from it. (If a device's cache holds the tokens, both read them from there.) VidCom² is also timed beside a
plain implementation of its released code, whose scoring it has also where the row is of the paper's.

The contenders of a size take turns within one run, so that other work on the machine affects all of them alike. The
table shows medians and quartiles, and the JSON also the fastest and slowest run.

On a busy CPU other work does not affect all contenders alike: each parallel step waits for its slowest thread, so a
contender with many short steps waits most. The JSON holds the load before the first run, the threads, and
OMP_WAIT_POLICY. If other work always shares the cores, try `--threads 1` or OMP_WAIT_POLICY=PASSIVE.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import vidcom2
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.measuring.bench import order
from vidcom2.records.provenance import cpu_name

ROOT = Path(__file__).resolve().parents[1]
# The baseline is a test helper that the tests pin to the released code's output. It is not part of the package.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from oracle import released_reference  # noqa: E402

from benchmarks.methods import METHODS, register  # noqa: E402
from benchmarks.methods.attended_tokens import AttendedTokens  # noqa: E402
from benchmarks.pages import certificate, write_result  # noqa: E402


@dataclass(frozen=True)
class Size:
    """The sizes of a video in a model.

    Attributes:
        num_frames: T, as the method sees them: Qwen's families join two frames of the file.
        grid: rows and columns of a frame's tokens.
        dim: channels of a token.
    """

    num_frames: int
    grid: tuple[int, int]
    dim: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.num_frames, self.grid[0] * self.grid[1], self.dim


SIZES = {
    "llava-onevision-7b": Size(32, (14, 14), 3584),
    "llava-video-7b": Size(64, (13, 13), 3584),
    "qwen3-vl-8b": Size(32, (16, 28), 4096),  # 64 frames of 896 × 512 pixels
    "llava-onevision-0.5b": Size(32, (14, 14), 896),
}
RETENTION_RATIO = 0.25
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REFERENCE, ONE_PASS, TWO_PASSES = OTHERS = ("released_reference", "one_pass", "two_passes")
COLUMNS = {
    "size": "size",
    "dtype": "dtype",
    "method": "method",
    "scoring": "scoring",
    "ms": "ms",
    "quartiles_ms": "quartiles",
    "two_pass_bound": "/ two\npasses",
    "speedup": "released\ncode /",
}


def make_video(size: Size, dtype: torch.dtype, device: str) -> Tensor:
    """Make the tokens of two noisy scenes with a cut half-way. The cost hardly depends on what a video shows."""
    generator = torch.Generator().manual_seed(0)
    num_frames, tokens_per_frame, dim = size.shape
    scenes = torch.randn(2, tokens_per_frame, dim, generator=generator)
    tokens = torch.randn(size.shape, generator=generator).mul_(0.3)
    tokens[: num_frames // 2] += scenes[0]
    tokens[num_frames // 2 :] += scenes[1]
    return tokens.to(device, dtype)


def attended(tokens: Tensor, size: Size) -> AttendedTokens:
    """Return the video with its grid, and random attention that its tokens received."""
    attention = torch.rand(size.shape[:2], generator=torch.Generator().manual_seed(1))
    return AttendedTokens(tokens, size.grid, attention=attention.to(tokens.device))


def settings_of_methods(methods: Collection[str]) -> list[dict[str, str]]:
    """Return the settings of each contender: every method, with each scoring if it reads `compression_scoring`."""
    settings = []
    for name in methods:
        settings.append({"compression_method": name})
        if COMPRESSION_METHODS[name].reads("compression_scoring"):
            settings.append({"compression_method": name, "compression_scoring": "released"})
    return settings


def time_in_turns(contenders: dict[str, Callable[[], Any]], repeats: int, device: str) -> dict[str, list[float]]:
    """Return the milliseconds of each run of each contender."""
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn, places in enumerate(order(len(names), repeats + 2)):
        for place in places:
            synchronize(device)
            begin = time.perf_counter()
            contenders[names[place]]()
            synchronize(device)
            if turn >= 2:  # two rounds to warm up
                times[names[place]].append(1000 * (time.perf_counter() - begin))
    return times


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def measure(
    name: str, size: Size, dtype: str, device: str, repeats: int, methods: Collection[str]
) -> list[dict[str, Any]]:
    """Return a row for each method and scoring, at one size."""
    tokens = make_video(size, DTYPES[dtype], device)
    video = attended(tokens, size)
    contenders: dict[str, Callable[[], Any]] = {
        REFERENCE: lambda: released_reference(tokens, RETENTION_RATIO),
        ONE_PASS: lambda: tokens.sum(),
        TWO_PASSES: lambda: (tokens.sum(), tokens.sum()),
    }
    compared = settings_of_methods(methods)
    for settings in compared:
        contenders[str(settings)] = lambda settings=settings: vidcom2.compress(video, RETENTION_RATIO, **settings)
    times = time_in_turns(contenders, repeats, device)
    median = {contender: statistics.median(values) for contender, values in times.items()}
    rows = []
    for settings in compared:
        method, runs = settings["compression_method"], sorted(times[str(settings)])
        reads_scoring = COMPRESSION_METHODS[method].reads("compression_scoring")
        row = {
            "size": name,
            "shape": list(size.shape),
            "dtype": dtype,
            "method": method,
            "scoring": settings.get("compression_scoring", "paper") if reads_scoring else None,
            "ms": median[str(settings)],
            "quartiles_ms": [runs[len(runs) // 4], runs[-1 - len(runs) // 4]],
            "fastest_ms": runs[0],
            "slowest_ms": runs[-1],
            "one_pass_ms": median[ONE_PASS],
            "two_passes_ms": median[TWO_PASSES],
            "two_pass_bound": median[str(settings)] / median[TWO_PASSES],
        }
        if method == "vidcom2":
            row |= {REFERENCE + "_ms": median[REFERENCE], "speedup": median[REFERENCE] / median[str(settings)]}
        rows.append(row)
    return rows


def shown(value: Any) -> str:
    if isinstance(value, list):
        return "–".join(map(shown, value))
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)


def measured_methods() -> list[str]:
    """Return the names of this project's methods, and of those in `benchmarks/methods/`."""
    return [*(name for name, method in COMPRESSION_METHODS.items() if method.own), *METHODS]


def checked(given: list[str] | None, known: Collection[str], option: str) -> list[str]:
    """Return the names given, or all that are known if none is.

    Raises:
        typer.BadParameter: on an unknown name.
    """
    for name in given or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is unknown; choose from {', '.join(known)}.", param_hint=option)
    return given or list(known)


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each contender.")] = 15,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device that holds the tokens.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default as many as torch uses.")] = None,
    size: Annotated[list[str] | None, typer.Option(help="Size to measure. Repeatable; by default all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Method to measure. Repeatable; by default all.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="dtype of the tokens. Repeatable; by default both.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows and their origin.")] = None,
) -> None:
    """Time `vidcom2.compress` at the sizes of real models."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("this machine has no CUDA device. Use --device cpu.", param_hint="--device")
    if threads is not None:
        torch.set_num_threads(threads)
    register()
    sizes, methods = checked(size, SIZES, "--size"), checked(method, measured_methods(), "--method")
    certified = certificate(
        "random tokens",
        "benchmarks/benchmark_compress.py",
        device=torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        torch_threads=torch.get_num_threads(),
        omp_wait_policy=os.environ.get("OMP_WAIT_POLICY"),
        retention_ratio=RETENTION_RATIO,
        repeats=repeats,
        statistic="median",
    )
    rows = []
    for name in sizes:
        for each in checked(dtype, DTYPES, "--dtype"):
            rows += measure(name, SIZES[name], each, device, repeats, methods)
            write_result(json_file, certified, rows)  # after each size, so that nothing is lost if a later one fails
    table = Table(title=f"vidcom2.compress on {certified['device']}, {certified['torch_threads']} threads")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(shown(row.get(column)) for column in COLUMNS))
    Console(width=None if sys.stdout.isatty() else 120).print(table)  # wide enough for the whole table in a log


if __name__ == "__main__":
    typer.run(main)
