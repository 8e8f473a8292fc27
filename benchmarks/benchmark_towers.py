"""Measure how long a vision tower takes for a video, in each way in which it can run here, with random weights.

    python -m benchmarks.benchmark_towers --size qwen2.5-vl-7b --num-frames 96 --video-size 448x252

The ways take turns. `plain` is the tower of Transformers' class, `ours` that of this project's with its defaults. Both
have the same weights, and the line of `ours` says how far the features are from those of `plain`. The language model
has one layer and few words, since it does not run.
"""

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import PreTrainedModel

from benchmarks.benchmark_compress import time_in_turns
from benchmarks.pages import certificate, write_result
from vidcom2.asking.prompting import prepare_inputs, video_arguments
from vidcom2.checks import video_pixels
from vidcom2.measuring.models import random_checkpoint
from vidcom2.measuring.sizes import ModelSize, size_named
from vidcom2.records.provenance import cpu_name
from vidcom2.video.reading import Video

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYERS = ("num_hidden_layers", "depth")  # what configs call the number of layers
WORDS = 2048  # as many as the tokenizer of bytes needs


def ways_of(model: Any, stock: Any, inputs: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return what runs the tower, for each way. A further way of this project's towers is a further entry."""
    settings = model.config.compression_settings(retention_ratio=1.0)
    return {
        "plain": lambda: stock.get_video_features(**inputs),
        "ours": lambda: model.model.encode_videos(settings=settings, **inputs)[0],
    }


def with_layers(size: ModelSize, layers: int | None) -> ModelSize:
    """Return a size whose language model is small, and whose tower has so many layers, if that is given."""
    text: dict[str, Any] = {name: 1 if name in LAYERS else value for name, value in size.text.items()} | {
        "vocab_size": WORDS
    }
    text |= {"layer_types": text["layer_types"][:1]} if "layer_types" in text else {}
    vision = dict(size.vision)
    for name in vision.keys() & set(LAYERS) if layers is not None else ():
        vision[name] = layers
    return dataclasses.replace(size, text=text, vision=vision)


def stock_like(model: Any) -> PreTrainedModel:
    """Return Transformers' class with the weights of a model of ours."""
    stock = next(base for base in type(model).__mro__ if base.__module__.startswith("transformers.models."))
    with torch.device(model.device):
        made: Any = stock(model.config)  # pyright: ignore[reportCallIssue]  (any class of Transformers)
    made.to(model.dtype).load_state_dict(model.state_dict())
    return made.eval()


@torch.no_grad()
def measure(
    name: str, frames: Video, device: str, dtype: str, repeats: int, layers: int | None = None
) -> list[dict[str, Any]]:
    """Return a row for each way in which the tower of a size can run."""
    of = random_checkpoint(name, with_layers(size_named(name), layers), torch.device(device), DTYPES[dtype])
    inputs = video_arguments(of.model, prepare_inputs(of.processor, "?", frames, of.model))
    ways = ways_of(of.model, stock_like(of.model), inputs)
    plain, *others = (torch.cat([each.flatten(0, -2) for each in way().pooler_output]).float() for way in ways.values())
    errors = [0.0, *(float((other - plain).norm() / plain.norm()) for other in others)]
    times = time_in_turns(ways, repeats, device)
    rows = []
    for way, error in zip(ways, errors, strict=True):
        runs = sorted(times[way])
        row = {"size": name, "frames": len(frames.frames), "tokens": len(plain), "dtype": dtype, "way": way}
        row |= {"ms": statistics.median(runs), "fastest_ms": runs[0], "slowest_ms": runs[-1]}
        rows.append(row | {"difference_from_plain": error})
    return rows


def main(
    size: Annotated[list[str], typer.Option(help="Size of the model, as in `vidcom2 bench`. Repeatable.")],
    num_frames: int = 96,
    video_size: Annotated[str, typer.Option(metavar="WxH")] = "448x252",
    device: str = "cuda",
    dtype: str = "bfloat16",
    repeats: int = 5,
    layers: Annotated[int | None, typer.Option(help="Layers of the tower, instead of all.")] = None,
    json: Path | None = None,
) -> None:
    """Print a line for each way, and write the JSON if it is asked for."""
    width, height = video_pixels(video_size)
    noise = torch.randint(0, 256, (num_frames, height, width, 3), generator=torch.Generator().manual_seed(0))
    frames = Video.from_frames(noise.to(torch.uint8).numpy(), fps=2)
    where = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    certified = certificate(", ".join(size), "benchmarks/benchmark_towers.py", device=where, layers=layers)
    rows = []
    for name in size:
        for row in measure(name, frames, device, dtype, repeats, layers):
            rows.append(row)
            print(
                f"{name}, {row['frames']} frames, {row['tokens']} tokens, {row['way']}: {row['ms']:.1f} ms "
                f"({row['fastest_ms']:.1f} to {row['slowest_ms']:.1f}), {row['difference_from_plain']:.1e} from plain",
                flush=True,
            )
    write_result(json, certified, rows)


if __name__ == "__main__":
    typer.run(main)
