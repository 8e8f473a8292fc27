"""Generated clips of four kinds, in which more or less of the picture repeats. They are encoded with H.264, since a
codec's noise decides how much of a still picture repeats.

    python -m benchmarks.clips lecture lecture.mp4 --frames 32
"""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import av
import numpy as np
import typer
from numpy.typing import NDArray

FRAMES_PER_SECOND = 4


def texture(height: int, width: int, seed: int) -> NDArray[np.float64]:
    """Return a picture (height, width, 3) of random squares of many sizes, in [0, 255]."""
    rng, picture = np.random.default_rng(seed), np.zeros((height, width, 3))
    for squares in (4, 8, 16, 64):
        colours = rng.normal(scale=60 / (1 + np.log2(squares)), size=(squares, squares, 3))
        picture += np.kron(colours, np.ones((height // squares + 1, width // squares + 1, 1)))[:height, :width]
    return np.clip(128 + picture, 0, 255)


def lecture(num_frames: int, side: int) -> Iterator[NDArray[np.float64]]:
    """A slide, and another one from the middle on, with a pointer that moves a little in each frame."""
    for t in range(num_frames):
        picture = texture(side, side, seed=2 * t // num_frames)
        across = side // 10 + t * side // (2 * num_frames)
        picture[side // 2 : side // 2 + side // 20, across : across + side // 20] = 255
        yield picture


def fixed_camera(num_frames: int, side: int) -> Iterator[NDArray[np.float64]]:
    """A still scene in which three things move, with the noise of a sensor."""
    rng, scene = np.random.default_rng(0), texture(side, side, seed=0)
    for t in range(num_frames):
        picture = scene.copy()
        for thing in range(3):
            left, top = (thing + 1) * side // 8 + t * side // 50, (1 + 3 * thing) * side // 10
            picture[top : top + side // 6, left : left + side // 8] = [200, 60 * thing, 30]
        yield picture + rng.normal(scale=3, size=picture.shape)


def handheld(num_frames: int, side: int) -> Iterator[NDArray[np.float64]]:
    """A scene that the camera never shows from the same place twice."""
    scene = texture(2 * side, 2 * side, seed=0)
    for t in range(num_frames):
        left = int(side / 3 + side / 10 * np.sin(0.7 * t)) + 3 * t % (side // 2)
        top = int(side / 3 + side / 15 * np.cos(0.9 * t))
        yield scene[top : top + side, left : left + side]


def cuts(num_frames: int, side: int) -> Iterator[NDArray[np.float64]]:
    """Another scene in every third frame, and nothing that moves."""
    for t in range(num_frames):
        yield texture(side, side, seed=100 + t // 3)


CLIPS: dict[str, Callable[[int, int], Iterator[NDArray[np.float64]]]] = {
    "lecture": lecture,
    "fixed camera": fixed_camera,
    "handheld": handheld,
    "cuts": cuts,
}


def encoded_clip(kind: str, num_frames: int, side: int, quality: int) -> bytes:
    """Return an MP4 file of a clip.

    Args:
        kind: of `CLIPS`.
        side: height and width in pixels, an even number.
        quality: x264's crf: 18 looks like the original, 23 is x264's default, and 30 is a small file.
    """
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"crf": str(quality)})
        stream.height = stream.width = side
        stream.pix_fmt = "yuv420p"
        for picture in CLIPS[kind](num_frames, side):
            frame = np.clip(picture, 0, 255).round().astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def main(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(CLIPS)}.")],
    file: Annotated[Path, typer.Argument(help="The MP4 file to write.")],
    frames: Annotated[int, typer.Option(min=2)] = 32,
    side: Annotated[int, typer.Option(help="Pixels per side of a frame, an even number.", min=64)] = 448,
    quality: Annotated[int, typer.Option(help="x264's crf.", min=0, max=51)] = 23,
) -> None:
    """Write a clip."""
    if kind not in CLIPS:
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(CLIPS)}.", param_hint="KIND")
    file.write_bytes(encoded_clip(kind, frames, side, quality))


if __name__ == "__main__":
    typer.run(main)
