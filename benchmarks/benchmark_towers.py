"""Time the vision towers of released models with each vision method, on clips in which more or less repeats.

    python -m benchmarks.benchmark_towers --json benchmarks/results/towers_cpu.json
    python -m benchmarks.benchmark_towers --video clip.mp4 --video walk.mp4

The towers have their real widths but few layers, as all layers do the same, and random weights. The contenders take
turns, so that other work on the machine affects all of them alike. A time is that of `get_video_features` with all
tokens, which includes finding out what repeats. A speed-up is the median of the rounds' ratios.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeAlias

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vidcom2 import CompressionSettings
from vidcom2.measuring.bench import order
from vidcom2.measuring.models import random_checkpoint
from vidcom2.measuring.sizes import ModelSize, size_named
from vidcom2.records.provenance import birth_certificate, cpu_name
from vidcom2.video.reading import read_video

from .clips import CLIPS, decoded, encoded_clip

# Qwen3.5's tower is that of Qwen3-VL.
MODELS = (
    "llava-onevision-0.5b",
    "llava-next-video-7b",
    "qwen2-vl-2b",
    "qwen2.5-vl-3b",
    "qwen3-vl-2b",
    "glm-4.1v-9b",
)
TOLERANCES = (0.0, 0.02, 0.05)
Clip: TypeAlias = tuple[str, int] | Path  # one of `CLIPS` and its crf, or a file


@dataclass
class Row:
    """A vision method on a clip.

    Attributes:
        clip: one of `CLIPS`, or the name of a file.
        quality: x264's crf of a generated clip; None for a file.
        settings: those of the vision tower.
        computed: share of the groups of patches that the tower computes; None if the method has none.
        seconds: the median time.
        speedup: how many times as fast as the full tower it is: median, lowest and highest of the rounds.
        error: how far its features are from those of the full tower: the norm of the difference, as a share.
    """

    model: str
    clip: str
    quality: int | None
    settings: dict[str, Any]
    computed: float | None
    seconds: float
    speedup: tuple[float, float, float]
    error: float


def with_few_layers(size: ModelSize, layers: int) -> ModelSize:
    """Return a model's size with few layers in the tower, of which the last attends to whole frames, and hardly any
    language model."""
    vision = dict(size.vision)
    vision["depth" if "depth" in vision else "num_hidden_layers"] = layers
    vision |= {name: [layers - 1] for name in ("fullatt_block_indexes", "deepstack_visual_indexes") if name in vision}
    text = dict(size.text) | {"num_hidden_layers": 1, "vocab_size": 2000}
    return dataclasses.replace(size, text=text, vision=vision)


# The settings to compare: the full tower first.
CONTENDERS: list[dict[str, Any]] = [
    {"vision_method": "full"},
    *({"vision_method": "skip_repeated", "vision_tolerance": tolerance} for tolerance in TOLERANCES),
]


def features_and_seconds(
    model: Any, described: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> tuple[Tensor, float]:
    start = time.perf_counter()
    outputs = model.get_video_features(**described, retention_ratio=1.0, **settings)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return torch.cat(tuple(outputs.pooler_output)), time.perf_counter() - start


def computed_share(model: Any, described: Mapping[str, Tensor], settings: Mapping[str, Any]) -> float | None:
    """Return the share of the groups of patches that the tower computes."""
    if settings["vision_method"] == "full":
        return None
    partial = model.partial_encoding(settings=CompressionSettings(**settings), **described)
    return 1.0 if partial is None else float(partial.computed[0].float().mean())


def frames_of_file(file: Path, num_frames: int, side: int) -> Any:
    """Return frames of a file, evenly spaced in time and scaled to about side × side pixels in their own shape."""

    def size(_: int, height: int, width: int) -> tuple[int, int]:
        scale = side / (height * width) ** 0.5
        return round(scale * height), round(scale * width)

    return read_video(str(file), num_frames, size=size).frames


@torch.no_grad()
def measure(
    name: str, clips: Sequence[Clip], num_frames: int, side: int, layers: int, repeats: int, device: str
) -> list[Row]:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    size = with_few_layers(size_named(name), layers)
    checkpoint = random_checkpoint(name, size, torch.device(device), dtype)
    model, processor = checkpoint.model.model, checkpoint.processor
    rows = []
    for clip in clips:
        if isinstance(clip, Path):
            label, quality, frames = clip.stem, None, frames_of_file(clip, num_frames, side)
        else:
            label, quality = clip
            frames = decoded(encoded_clip(label, num_frames, side, quality))
        inputs = processor.video_processor(videos=[frames], return_tensors="pt", do_sample_frames=False)
        described = {key: inputs[key].to(device) for key in ("pixel_values_videos", "video_grid_thw") if key in inputs}
        described["pixel_values_videos"] = described["pixel_values_videos"].to(dtype)
        features = [features_and_seconds(model, described, each)[0] for each in CONTENDERS]
        whole = features[0]
        errors = [float((each - whole).norm() / whole.norm()) for each in features]
        rounds: list[list[float]] = []
        for places in order(len(CONTENDERS), repeats):
            taken = {place: features_and_seconds(model, described, CONTENDERS[place])[1] for place in places}
            rounds.append([taken[place] for place in range(len(CONTENDERS))])
        for place, settings in enumerate(CONTENDERS):
            ratios = [each[0] / each[place] for each in rounds]
            seconds = median(each[place] for each in rounds)
            speedup = (median(ratios), min(ratios), max(ratios))
            share = computed_share(model, described, settings)
            rows.append(Row(name, label, quality, settings, share, seconds, speedup, errors[place]))
    return rows


def main(
    model: Annotated[list[str], typer.Option(help="A size of `vidcom2 bench`. May be repeated.")] = list(MODELS),  # noqa: B006
    clip: Annotated[list[str], typer.Option(help=f"Of {', '.join(CLIPS)}. May be repeated.")] = list(CLIPS),  # noqa: B006
    video: Annotated[list[Path], typer.Option(help="A file instead of the clips. May be repeated.")] = [],  # noqa: B006
    quality: Annotated[int, typer.Option(help="x264's crf.", min=0, max=51)] = 23,
    frames: Annotated[int, typer.Option(help="Frames of a clip.", min=2)] = 16,
    side: Annotated[int, typer.Option(help="Pixels per side of a frame.", min=64)] = 448,
    layers: Annotated[int, typer.Option(help="Layers of the towers. The released ones have 24 to 32.", min=1)] = 2,
    repeats: Annotated[int, typer.Option(help="Number of rounds.", min=1)] = 3,
    device: Annotated[str, typer.Option()] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures and their origin.")] = None,
) -> None:
    """Measure the vision methods, and print a table."""
    clips = [*video] or [(kind, quality) for kind in clip]
    rows = [row for name in model for row in measure(name, clips, frames, side, layers, repeats, device)]
    source = "".join(f"--video {file.name} " for file in video) or f"--quality {quality} "
    certificate = birth_certificate(
        f"towers of {layers} layers, {frames} frames of {side} pixels" + ("" if video else f", crf {quality}"),
        f"python -m benchmarks.benchmark_towers {source}--frames {frames} --side {side} --layers {layers} "
        f"--repeats {repeats} --device {device}",
        device=torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        threads=torch.get_num_threads(),
    )
    if json_file is not None:
        figures = {"birth_certificate": certificate, "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(figures, indent=1) + "\n")
    table = Table("model", "clip", "vision method", "computed", "seconds", "speed-up", "error")
    for row in rows:
        method = " ".join(str(value) for value in row.settings.values())
        computed = "" if row.computed is None else f"{row.computed:.0%}"
        speedup = "{:.2f} ({:.2f}-{:.2f})".format(*row.speedup)
        table.add_row(row.model, row.clip, method, computed, f"{row.seconds:.2f}", speedup, f"{row.error:.3f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
