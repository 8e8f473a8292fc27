"""Groups of frames with labels for each token, from which the vision tower learns before it sees a video. A group is a
frame, or in Qwen's families two, which share their tokens."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .digits import draw_digit
from .drawing import (
    BACKGROUNDS,
    BALL_RADIUS,
    CANVAS,
    COLOURS,
    DIGIT_SIZE,
    INKS,
    LARGE_DIGIT_SIZE,
    NOISE,
    NUMBER_DIGIT_SIZE,
    SHAPE_SIZE,
    SHAPES,
    SIZE,
    TOKEN_SIZE,
    paint,
    paint_ball,
    paint_scribble,
    shape_ink,
    texture,
    window,
)
from .videos import DRIFT, Event, free_place, free_row

GRID = SIZE // TOKEN_SIZE
IGNORED = -100
# Label of a token -> number of classes. The last class of each of the first three labels is "none".
LABELS = {"digit": 11, "colour": 7, "shape": 4, "ball": 2, "background": 4, "row": GRID, "column": GRID}
NONE = {"digit": 10, "colour": 6, "shape": 3, "ball": 0}
NUM_CANVASES = 200


class LabelledFrames(torch.utils.data.IterableDataset):
    """Batches of groups of frames (N, F, 140, 140, 3) uint8, and labels (N, 25) int64 by name. Batch i is the same in
    every run.

    Args:
        frames_per_group: F.
        first, last: the numbers of the first batch, and of the batch after the last.
    """

    def __init__(self, batch_size: int, frames_per_group: int, first: int, last: int, split: str = "train"):
        self.batch_size, self.frames_per_group, self.split = batch_size, frames_per_group, split
        self.first, self.last = first, last

    def __iter__(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        rng = np.random.default_rng((1, self.split == "test"))
        names = list(BACKGROUNDS)
        kinds = rng.integers(len(names), size=NUM_CANVASES)
        canvases = [texture(rng, BACKGROUNDS[names[kind]]) for kind in kinds]
        for step in range(self.first, self.last):
            rng = np.random.default_rng((2, self.split == "test", step))
            made = []
            for which in rng.integers(NUM_CANVASES, size=self.batch_size):
                scene = canvases[which], int(kinds[which])
                made.append(labelled_group(rng, *scene, self.frames_per_group, self.split))
            frames, labels = zip(*made)
            yield (
                torch.from_numpy(np.stack(frames)),
                {name: torch.from_numpy(np.stack([label[name] for label in labels])) for name in LABELS},
            )


def labelled_group(
    rng: np.random.Generator, canvas: NDArray[np.float32], background: int, num_frames: int, split: str
) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    """Make a group of frames (F, 140, 140, 3) of one scene, and the labels of its tokens. Each thing is seen in all
    frames of the group or in one of them."""
    place, drift = rng.integers(CANVAS, size=2), rng.uniform(-2 * DRIFT, 2 * DRIFT, size=2)
    frames = [window(canvas, *(place + t * drift)) for t in range(num_frames)]

    def some() -> list[NDArray[np.float32]]:
        """Choose the frames that show a thing."""
        return frames if num_frames == 1 or rng.random() < 0.5 else [frames[rng.integers(num_frames)]]

    labels = {name: np.full((GRID, GRID), NONE.get(name, 0), np.int64) for name in LABELS}
    labels["background"][:] = background
    labels["row"][:], labels["column"][:] = np.mgrid[:GRID, :GRID]
    for _ in range(rng.integers(0, 8) if rng.random() < 0.6 else 0):
        paint_scribble(rng, frames[rng.integers(num_frames)], split)
    if rng.random() < 0.4:
        shape = int(rng.integers(len(SHAPES)))
        top, left = rng.integers(0, SIZE - SHAPE_SIZE, size=2)
        for frame in frames:
            paint(frame, shape_ink(SHAPES[shape]), top, left, INKS["black"])
        _label(labels, (top, left, SHAPE_SIZE), shape=shape)
    if rng.random() < 0.3:
        row, column = rng.uniform(12, SIZE - 12, size=2)
        for frame in frames:
            paint_ball(frame, row, column)
        _label(labels, (row - BALL_RADIUS, column - BALL_RADIUS, 2 * BALL_RADIUS), ball=1)
    taken: list[Event] = []

    def show(digits: int, size: int, place: tuple[int, int] | None) -> None:
        if place is None:
            return
        top, left = place
        colour, shown = int(rng.integers(len(COLOURS))), some()
        taken.append(Event("0" * digits, "", size, top, left, 0, 1))
        for _ in range(digits):
            digit = int(rng.integers(10))
            ink = draw_digit(rng, digit, size, split)
            for frame in shown:
                paint(frame, ink, top, left, list(COLOURS.values())[colour])
            _label(labels, (top, left, size), digit=digit, colour=colour)
            left += TOKEN_SIZE

    # Frames full of digits teach the model to read them many times faster than normal frames.
    full = rng.random() < 0.6
    for _ in range(rng.integers(0, 4) if rng.random() < 0.4 else 0):
        size = int(rng.integers(*NUMBER_DIGIT_SIZE))
        show(3, size, free_row(rng, size, 3, taken))
    for _ in range(rng.integers(10, 18) if full else rng.integers(0, 4)):
        size = int(rng.integers(*(LARGE_DIGIT_SIZE if rng.random() < 0.05 + 0.15 * (not full) else DIGIT_SIZE)))
        show(1, size, free_place(rng, size, taken))
    for frame in frames:
        frame += np.roll(_noise(), int(rng.integers(SIZE * SIZE)) * 3) * rng.choice([-NOISE, NOISE])
    shown = np.clip(np.stack(frames), 0, 255).astype(np.uint8)
    return shown, {name: label.ravel() for name, label in labels.items()}


@cache
def _noise() -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((SIZE, SIZE, 3), dtype=np.float32)


def _label(labels: dict[str, NDArray[np.int64]], box: tuple[float, float, float], **values: int) -> None:
    """Label the tokens that show much of the box or contain its middle. Other tokens that touch it are ignored."""
    top, left, size = box
    edges = np.arange(GRID) * TOKEN_SIZE
    down = np.clip(np.minimum(edges + TOKEN_SIZE, top + size) - np.maximum(edges, top), 0, None)
    across = np.clip(np.minimum(edges + TOKEN_SIZE, left + size) - np.maximum(edges, left), 0, None)
    share = np.outer(down, across) / min(size, TOKEN_SIZE) ** 2
    middle = int((top + size / 2) // TOKEN_SIZE), int((left + size / 2) // TOKEN_SIZE)
    for name, value in values.items():
        free = labels[name] == NONE[name]
        labels[name][(share > 0.04) & free] = IGNORED
        labels[name][share > 0.3] = value
        labels[name][middle] = value
