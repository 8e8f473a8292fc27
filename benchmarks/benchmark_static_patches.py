"""Time a SigLIP tower that computes only a share of the patches between reference frames, and the whole tower.

    python benchmarks/benchmark_static_patches.py --json benchmarks/results/static_patches_cpu.json

The tower is LLaVA-OneVision's (so400m, 729 patches a frame), with its real widths but few layers, as all layers do the
same. The contenders take turns, so that other work on the machine affects all of them alike. A time is a median, and a
ratio is the median of the rounds' ratios. Beside it stands the ratio of floating-point operations, counted by PyTorch.
The video is a still scene, so that only every fourth frame is a reference frame: this is the most that can be gained.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import SiglipVisionConfig, SiglipVisionModel

from vidcom2.modeling.encoding.vision_changed_patches import REFERENCE_INTERVAL, patch_states
from vidcom2.records.provenance import birth_certificate, cpu_name

SIDE = 384  # pixels per side of a frame


@dataclass
class Contender:
    """One way to encode the frames.

    Attributes:
        update_ratio: `vision_update_ratio`; None for Transformers' own tower.
        seconds: the median time.
        speedup: how many times as fast as Transformers' own tower it is: median, lowest and highest of the rounds.
        operations: its operations as a share of those of Transformers' own tower.
    """

    dtype: str
    update_ratio: float | None
    seconds: float
    speedup: tuple[float, float, float]
    operations: float


def build_tower(layers: int, device: str, dtype: torch.dtype) -> SiglipVisionModel:
    torch.manual_seed(0)
    config = SiglipVisionConfig(
        hidden_size=1152,
        intermediate_size=4304,
        num_attention_heads=16,
        num_hidden_layers=layers,
        patch_size=14,
        image_size=SIDE,
        vision_use_head=False,
    )
    return SiglipVisionModel(config).to(device, dtype).eval()


def encoder(tower: SiglipVisionModel, frames: Tensor, update_ratio: float | None) -> Callable[[], Tensor]:
    """Return a call that computes the last layer's hidden states."""
    if update_ratio is None:
        return lambda: tower(frames, output_hidden_states=[-1]).hidden_states[-1]
    whole, rest = divmod(len(frames), REFERENCE_INTERVAL)
    groups = [REFERENCE_INTERVAL] * whole + [rest] * bool(rest)
    return lambda: patch_states(tower, frames, groups, update_ratio, [-1])


def seconds_of(encode: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    encode()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def operations_of(encode: Callable[[], Tensor]) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # all products of MATH are counted
        encode()
    return counter.get_total_flops()


def still_scene(frames: int) -> Tensor:
    """Return (frames, 3, SIDE, SIDE): a scene with a little noise, and something new in a twentieth of each frame."""
    video = torch.randn(1, 3, SIDE, SIDE) + 0.02 * torch.randn(frames, 3, SIDE, SIDE)
    video[:, :, : SIDE // 4, : SIDE // 5] = torch.randn(frames, 3, SIDE // 4, SIDE // 5)
    return video


@torch.no_grad()
def measure(frames: int, layers: int, ratios: list[float], repeats: int, device: str, dtype: str) -> list[Contender]:
    tower = build_tower(layers, device, getattr(torch, dtype))
    pixels = still_scene(frames).to(device, getattr(torch, dtype))
    contenders: list[float | None] = [None, *ratios]
    calls = [encoder(tower, pixels, ratio) for ratio in contenders]
    # One group of frames is enough to count, because its share is the same. This also prepares the kernels.
    operations = [operations_of(encoder(tower, pixels[:REFERENCE_INTERVAL], ratio)) for ratio in contenders]
    rounds = []
    for number in range(repeats):
        order = range(len(calls)) if number % 2 else reversed(range(len(calls)))
        seconds = {i: seconds_of(calls[i]) for i in order}
        rounds.append([seconds[i] for i in range(len(calls))])
    found = []
    for i, ratio in enumerate(contenders):
        times = [each[0] / each[i] for each in rounds]
        speedup = (median(times), min(times), max(times))
        share = operations[i] / operations[0]
        found.append(Contender(dtype, ratio, median(each[i] for each in rounds), speedup, share))
    return found


def main(
    frames: Annotated[int, typer.Option(help="Frames of the video.", min=1)] = 16,
    layers: Annotated[int, typer.Option(help="Layers of the tower. The released one has 26.", min=1)] = 2,
    ratio: Annotated[list[float], typer.Option(help="`vision_update_ratio`. May be repeated.")] = [0.5, 0.25, 0.1],  # noqa: B006
    repeats: Annotated[int, typer.Option(help="Number of rounds.", min=1)] = 5,
    device: Annotated[Literal["cpu", "cuda"], typer.Option()] = "cpu",
    dtype: Annotated[list[str], typer.Option(help="May be repeated.")] = ["float32", "bfloat16"],  # noqa: B006
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures and their origin.")] = None,
) -> None:
    """Measure the contenders, and print a table."""
    rows: list[Contender] = []
    for each in dtype:
        rows += measure(frames, layers, ratio, repeats, device, each)
    certificate = birth_certificate(
        f"SigLIP so400m of {layers} layers, {frames} frames",
        f"benchmarks/benchmark_static_patches.py --frames {frames} --layers {layers} --repeats {repeats} "
        f"--device {device}",
        device=torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        threads=torch.get_num_threads(),
    )
    if json_file is not None:
        figures = {"birth_certificate": certificate, "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(figures, indent=1) + "\n")
    table = Table("dtype", "update ratio", "seconds", "times as fast", "by operations")
    for row in rows:
        times, lowest, highest = row.speedup
        name = "whole tower" if row.update_ratio is None else f"{row.update_ratio:g}"
        spread = f"{times:.2f} ({lowest:.2f}–{highest:.2f})"
        table.add_row(row.dtype, name, f"{row.seconds:.3g}", spread, f"{1 / row.operations:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
