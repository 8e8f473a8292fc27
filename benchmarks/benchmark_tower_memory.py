"""Peak memory of encoding a video, over its number of frames: all at once, as the parent does, and in chunks.

    python benchmarks/benchmark_tower_memory.py --frames 32 --frames 128 --json tower_memory.json

The tower is LLaVA-OneVision's (SigLIP so400m, 729 patches a frame) with real widths and few layers: what a layer needs
while it runs is the peak, and the next one uses the same memory again. Every measurement is a process of its own: on
the CPU its highest resident memory less that of the loaded model and the video; on a GPU what PyTorch had allocated.
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import psutil
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig

from vidcom2 import VidCom2LlavaOnevisionForConditionalGeneration
from vidcom2.birth_certificate import birth_certificate, cpu_name

SIDE, DIM = 384, 896  # of a frame in pixels; of a token, as in the 0.5B model
MIB = 2**20


@dataclass
class Peak:
    """One measurement.

    Attributes:
        chunk_frames: None for all at once.
        seconds: of `get_video_features`.
        peak_mib: beyond the model and the pixels, with the result.
    """

    frames: int
    chunk_frames: int | None
    seconds: float
    peak_mib: float


def measure(frames: int, chunk_frames: int | None, layers: int, device: str, dtype: torch.dtype) -> Peak:
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=1152,
            intermediate_size=4304,
            num_attention_heads=16,
            num_hidden_layers=layers,
            patch_size=14,
            image_size=SIDE,
            vision_use_head=False,
        ).to_dict(),
        text_config=Qwen2Config(hidden_size=DIM, intermediate_size=64, num_hidden_layers=1, vocab_size=1000).to_dict(),
        image_token_id=998,
        video_token_id=999,
        vision_feature_layer=-1,
    )
    model = VidCom2LlavaOnevisionForConditionalGeneration(config).to(device, dtype).eval()
    pixels = torch.randn(1, frames, 3, SIDE, SIDE, dtype=dtype, device=device)
    with torch.no_grad():
        model.get_video_features(pixels[:, :1])  # what is made once
        before = torch.cuda.memory_allocated() if device == "cuda" else psutil.Process().memory_info().rss
        start = time.perf_counter()
        kept = model.get_video_features(pixels, vision_chunk_frames=chunk_frames).without_tower_states()
        if device == "cuda":
            torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    del kept
    return Peak(frames, chunk_frames, seconds, (highest(device) - before) / MIB)


def highest(device: str) -> int:
    """Bytes at the highest point so far."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(
    frames: Annotated[list[int], typer.Option(help="Of the video; repeatable.")] = [32, 64, 128, 256, 512, 1024],  # noqa: B006
    chunk_frames: Annotated[int, typer.Option(help="Beside all at once.", min=1)] = 32,
    layers: Annotated[int, typer.Option(help="Of the tower; the released one has 27.", min=1)] = 2,
    device: Annotated[Literal["cpu", "cuda"], typer.Option()] = "cpu",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option()] = "bfloat16",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures with their origin here.")] = None,
    one: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure, and print a table."""
    if one is not None:  # a process of its own: FRAMES:CHUNK
        number, chunk = one.split(":")
        found = measure(int(number), int(chunk) or None, layers, device, getattr(torch, dtype))
        print(json.dumps(asdict(found)))
        return
    options = ["--layers", layers, "--device", device, "--dtype", dtype]
    certificate = birth_certificate(
        f"SigLIP so400m of {layers} layers, projector, compression",
        " ".join(map(str, ["benchmarks/benchmark_tower_memory.py", *options])),
        device=torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        dtype=dtype,
    )
    rows: list[Peak] = []
    for number in frames:
        for chunk in (0, chunk_frames):
            command = [sys.executable, __file__, *map(str, options), "--one", f"{number}:{chunk}"]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(Peak(**json.loads(ran.stdout.splitlines()[-1])))
            if json_file is not None:  # what was measured stays when a larger one fails
                figures = {"birth_certificate": certificate, "rows": [asdict(row) for row in rows]}
                json_file.write_text(json.dumps(figures, indent=1) + "\n")
    table = Table("frames", "all at once, MiB", f"{chunk_frames} at a time, MiB", "seconds", "seconds")
    for whole, parts in zip(rows[::2], rows[1::2], strict=True):
        numbers = (whole.frames, whole.peak_mib, parts.peak_mib, whole.seconds, parts.seconds)
        table.add_row(*(f"{number:,.4g}" if number < 1000 else f"{number:,.0f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
