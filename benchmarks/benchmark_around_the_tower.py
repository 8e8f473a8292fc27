"""Measure what would make the vision tower, and the stages before it, faster without computing less.

    PYTHONPATH=src python benchmarks/benchmark_around_the_tower.py --threads 1 --json around_the_tower.json

Each row compares a stage as it is with one alternative: its patch embedding as a matrix product or with the channels
last, the tower under `torch.compile`, the tower in bfloat16, frames that FFmpeg scales while it converts their pixels
(`read_video(size=...)`), and frames whose pixels are converted by a thread of their own. The sizes are those of
released models, the weights are random, and the tower has its real width but `--layers` layers, as all layers do the
same. The two take turns, so that other work on the machine affects both alike. Times are medians, and the gain is the
median of the rounds' ratios. Each row also says how far the results are apart: the mean and the greatest difference of
the values, each as a share of the greatest value.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import av
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import vidcom2.video.decoding as decoding
from vidcom2.answering.prompting import prepare_inputs
from vidcom2.families import FAMILIES
from vidcom2.measuring.clip import make_video
from vidcom2.measuring.models import config_and_processor
from vidcom2.measuring.sizes import size_named
from vidcom2.records.provenance import birth_certificate, cpu_name
from vidcom2.video.reading import Video, read_video

QUESTION = "What happens in the video?"
SIDES = (256, 448)  # height and width of the frames that a tower of Qwen's sees
READ_FRAMES = 32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Row:
    """A stage as it is, and with one alternative.

    Attributes:
        before, after: seconds, medians.
        times_as_fast: median, least and most of the rounds' ratios.
        apart: the mean and the greatest difference between the results, as shares of the greatest value.
        share: what the stage takes of the tower with all its layers, before; None where that was not measured.
    """

    stage: str
    of: str
    alternative: str
    before: float
    after: float
    times_as_fast: tuple[float, float, float]
    apart: tuple[float, float]
    share: float | None = None


def in_turns(
    before: Callable[[], Tensor], after: Callable[[], Tensor], rounds: int
) -> tuple[float, float, tuple[float, float, float], tuple[float, float]]:
    """Return the median seconds of both, the rounds' ratios, and how far the results are apart."""
    first, second = before().double(), after().double()  # these also warm up
    difference = (first - second).abs() / first.abs().max()
    apart = float(difference.mean()), float(difference.max())
    seconds: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            (before, after)[which]()
            seconds[which].append(time.perf_counter() - start)
    ratios = [old / new for old, new in zip(*seconds, strict=True)]
    medians = [statistics.median(each) for each in seconds]
    return medians[0], medians[1], (statistics.median(ratios), min(ratios), max(ratios)), apart


class Tower:
    """A vision tower of a released size with random weights, and the pixels of a few frames for it."""

    def __init__(self, name: str, layers: int, frames: int, side: tuple[int, int], dtype: torch.dtype) -> None:
        config, _ = config_and_processor(size_named(name), {})
        with torch.device("meta"):
            model: Any = FAMILIES[size_named(name).model_type].model_class(config).model
        self.is_qwen = hasattr(model, "visual")
        stock = model.visual if self.is_qwen else model.vision_tower
        fields = config.vision_config
        self.all_layers = fields.depth if self.is_qwen else fields.num_hidden_layers
        setattr(fields, "depth" if self.is_qwen else "num_hidden_layers", layers)
        if hasattr(fields, "deepstack_visual_indexes"):
            fields.deepstack_visual_indexes = []
        torch.manual_seed(0)
        self.module = type(stock)._from_config(fields, dtype=dtype).eval()
        self.layers, self.name = layers, name
        if self.is_qwen:
            patch, time_patch = fields.patch_size, fields.temporal_patch_size
            rows, columns = side[0] // patch, side[1] // patch
            self.grid = torch.tensor([[frames // time_patch, rows, columns]])
            self.pixels = torch.randn(int(self.grid.prod()), 3 * time_patch * patch**2).to(dtype)
        else:
            self.pixels = torch.randn(frames, 3, fields.image_size, fields.image_size).to(dtype)

    @property
    def embedding(self) -> nn.Module:
        """The convolution that turns patches into vectors."""
        return self.module.patch_embed.proj if self.is_qwen else self.module.embeddings.patch_embedding

    def patches(self) -> Tensor:
        """Return the pixels in the shape that the convolution takes."""
        if not self.is_qwen:
            return self.pixels
        proj: Any = self.embedding
        return self.pixels.view(-1, proj.in_channels, *proj.kernel_size)

    def run(self, pixels: Tensor | None = None, module: Callable[..., Any] | None = None) -> Tensor:
        pixels = self.pixels if pixels is None else pixels
        module = self.module if module is None else module
        found = module(pixels, grid_thw=self.grid) if self.is_qwen else module(pixels)
        return found.last_hidden_state

    def seconds_of_all_layers(self) -> float:
        """Return what all layers would take, from the time of these and of the embedding alone."""
        start = time.perf_counter()
        self.run()
        whole = time.perf_counter() - start
        start = time.perf_counter()
        self.embedding(self.patches())
        embedding = time.perf_counter() - start
        return embedding + (whole - embedding) * self.all_layers / self.layers


@torch.no_grad()
def embedding_rows(tower: Tower, dtype: str, rounds: int) -> Iterator[Row]:
    """Compare the convolution with a matrix product, and for SigLIP with channels that lie last in memory."""
    proj: Any = tower.embedding
    kernel, patches = proj.kernel_size, tower.patches()
    weight = proj.weight.flatten(1)
    share = statistics.median(timed(lambda: proj(patches)) for _ in range(3)) / tower.seconds_of_all_layers()

    def product() -> Tensor:
        found = patches
        if not tower.is_qwen:  # cut the frames into patches, as `Unfold` does but in one copy
            rows, columns = (side // each for side, each in zip(found.shape[2:], kernel, strict=True))
            found = found[:, :, : rows * kernel[0], : columns * kernel[1]]
            found = found.unflatten(2, (rows, kernel[0])).unflatten(4, (columns, kernel[1])).permute(0, 2, 4, 1, 3, 5)
        return nn.functional.linear(found.reshape(-1, weight.shape[1]), weight, proj.bias)

    def convolution() -> Tensor:
        return proj(patches).flatten(2).transpose(1, 2).reshape(-1, weight.shape[0])

    of = f"{tower.name}, {dtype}"
    yield Row("patch embedding", of, "a matrix product", *in_turns(convolution, product, rounds), share)
    if tower.is_qwen:
        return
    last = nn.Conv2d(3, weight.shape[0], kernel, kernel).to(proj.weight.dtype)
    last.load_state_dict(proj.state_dict())
    last = last.to(memory_format=torch.channels_last)

    def channels_last() -> Tensor:
        found = last(patches.to(memory_format=torch.channels_last))
        return found.flatten(2).transpose(1, 2).reshape(-1, weight.shape[0])

    yield Row("patch embedding", of, "channels last", *in_turns(convolution, channels_last, rounds), share)


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@torch.no_grad()
def compiled_row(tower: Tower, dtype: str, rounds: int) -> Row:
    """Compare the tower with itself under `torch.compile`."""
    compiled: Any = torch.compile(tower.module)
    took = timed(lambda: tower.run(module=compiled))
    found = in_turns(tower.run, lambda: tower.run(module=compiled), rounds)
    of = f"{tower.name}, {dtype}, {tower.layers} layers"
    return Row("vision tower", of, f"torch.compile (the first call took {took:.0f} s)", *found)


@torch.no_grad()
def bfloat16_row(tower: Tower, rounds: int) -> Row:
    """Compare the tower in float32 with the same in bfloat16."""
    half = type(tower.module)._from_config(tower.module.config, dtype=torch.bfloat16).eval()
    half.load_state_dict(tower.module.state_dict())
    pixels = tower.pixels.bfloat16()
    found = in_turns(tower.run, lambda: tower.run(pixels, half), rounds)
    return Row("vision tower", f"{tower.name}, float32, {tower.layers} layers", "bfloat16", *found)


def reading_rows(name: str, width: int, height: int, num_frames: int, rounds: int) -> Iterator[Row]:
    """Compare a clip that the processor scales with one that is read in the size that the processor wants."""
    _, processor = config_and_processor(size_named(name), {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video.mp4")
        make_video(path, width, height, 10 * 25)
        size = size_for(processor, read_video(path, num_frames))

        def pixels(video: Video) -> Tensor:
            return prepare_inputs(processor, QUESTION, video)["pixel_values_videos"]

        of = f"{name}, {num_frames} frames of {width} × {height} → {size[1]} × {size[0]}"
        yield Row(
            "read and preprocess",
            of,
            "read_video(size=…)",
            *in_turns(
                lambda: pixels(read_video(path, num_frames)),
                lambda: pixels(read_video(path, num_frames, size=size)),
                rounds,
            ),
        )
        yield Row(
            "read",
            of,
            "pixels converted by another thread",
            *in_turns(
                lambda: torch.from_numpy(read_video(path, num_frames).frames),
                lambda: torch.from_numpy(converted_by_a_thread(path, num_frames).frames),
                rounds,
            ),
        )


def size_for(processor: Any, video: Video) -> tuple[int, int]:
    """Return the height and width to which the processor scales the frames."""
    inputs = prepare_inputs(processor, QUESTION, video)
    if "video_grid_thw" in inputs:
        _, rows, columns = inputs["video_grid_thw"][0].tolist()
        patch = processor.video_processor.patch_size
        return rows * patch, columns * patch
    return tuple(inputs["pixel_values_videos"].shape[-2:])


def converted_by_a_thread(path: Path, num_frames: int) -> Video:
    """Read as `read_video` does, while another thread turns decoded frames into RGB."""
    convert: Any = decoding._pixels
    with ThreadPoolExecutor(1) as pool:

        class Later:
            """A frame that will be an array."""

            def __init__(self, frame: av.VideoFrame, first: av.VideoFrame, size: Any) -> None:
                self.found = pool.submit(convert, frame, first, size)

            def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
                return self.found.result()

        with mock.patch.object(decoding, "_pixels", Later):
            return read_video(path, num_frames)


def embedding(name: str, layers: int, frames: int, rounds: int, *_: int) -> Iterator[Row]:
    for dtype in DTYPES:
        yield from embedding_rows(Tower(name, layers, frames, SIDES, DTYPES[dtype]), dtype, rounds)


def compiled(name: str, layers: int, frames: int, rounds: int, *_: int) -> Iterator[Row]:
    for dtype in DTYPES:
        yield compiled_row(Tower(name, layers, frames, SIDES, DTYPES[dtype]), dtype, rounds)


def bfloat16(name: str, layers: int, frames: int, rounds: int, *_: int) -> Iterator[Row]:
    yield bfloat16_row(Tower(name, layers, frames, SIDES, torch.float32), rounds)


def reading(name: str, layers: int, frames: int, rounds: int, width: int, height: int) -> Iterator[Row]:
    yield from reading_rows(name, width, height, READ_FRAMES, rounds)


PARTS: dict[str, Callable[..., Iterator[Row]]] = {
    "embedding": embedding,
    "compiled": compiled,
    "bfloat16": bfloat16,
    "reading": reading,
}


def main(
    part: Annotated[
        list[str] | None, typer.Option(help="embedding, compiled, bfloat16 or reading. Repeatable; by default all.")
    ] = None,
    size: Annotated[list[str] | None, typer.Option(help="A size of `vidcom2 bench`. Repeatable.")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the tower.")] = 2,
    frames: Annotated[int, typer.Option(min=2, help="Frames that the tower encodes.")] = 2,
    video: Annotated[str, typer.Option(help="Width and height of the file that is read.")] = "1920x1080",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default as many as torch uses.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows and their origin.")] = None,
) -> None:
    """Measure the parts, and print a table."""
    if threads is not None:
        torch.set_num_threads(threads)
    parts, sizes = part or list(PARTS), size or ["llava-onevision-0.5b", "qwen3-vl-2b"]
    for each in parts:
        if each not in PARTS:
            raise typer.BadParameter(f"{each!r} is unknown; choose from {', '.join(PARTS)}.", param_hint="--part")
    certificate = birth_certificate(
        f"random weights, {layers} layers",
        "benchmarks/benchmark_around_the_tower.py",
        device=cpu_name(),
        torch_threads=torch.get_num_threads(),
        cpu_cores=os.cpu_count(),
        load_average=os.getloadavg()[0],
        pyav=av.__version__,
        frames=frames,
        rounds=rounds,
        statistic="median",
    )
    rows: list[Row] = []
    width, height = (int(side) for side in video.split("x"))
    for each in parts:
        for name in sizes:
            for row in PARTS[each](name, layers, frames, rounds, width, height):
                rows.append(row)
                print(row, flush=True)
                if json_file is not None:  # after each row, so that nothing is lost if a later one fails
                    found = {"birth_certificate": certificate, "rows": [asdict(one) for one in rows]}
                    json_file.write_text(json.dumps(found, indent=1) + "\n")
    table = Table(
        "stage", "of", "alternative", "before, s", "after, s", "times as fast", "apart (mean / most)", "of the tower"
    )
    for row in rows:
        middle, least, most = row.times_as_fast
        spread = f"{middle:.2f} ({least:.2f}–{most:.2f})"
        share = "" if row.share is None else f"{row.share:.1%}"
        figures = (
            f"{row.before:.3g}",
            f"{row.after:.3g}",
            spread,
            " / ".join(f"{each:.1g}" for each in row.apart),
            share,
        )
        table.add_row(row.stage, row.of, row.alternative, *figures)
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
