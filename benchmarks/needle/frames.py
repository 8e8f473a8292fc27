"""Single frames with labels for each token, from which the vision tower learns before it sees a video."""

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
from .videos import Event, free_place

GRID = SIZE // TOKEN_SIZE
IGNORED = -100
# Label of a token -> number of classes. The last class of each of the first three labels is "none".
LABELS = {"digit": 11, "colour": 7, "shape": 4, "ball": 2, "background": 4, "row": GRID, "column": GRID}
NONE = {"digit": 10, "colour": 6, "shape": 3, "ball": 0}
NUM_CANVASES = 200


class LabelledFrames(torch.utils.data.IterableDataset):
    """Batches of frames (N, 140, 140, 3) uint8, and labels (N, 25) int64 by name. Batch i is the same in every run."""

    def __init__(self, batch_size: int, first: int, last: int, split: str = "train"):
        self.batch_size, self.first, self.last, self.split = batch_size, first, last, split

    def __iter__(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        rng = np.random.default_rng((1, self.split == "test"))
        names = list(BACKGROUNDS)
        kinds = rng.integers(len(names), size=NUM_CANVASES)
        canvases = [texture(rng, BACKGROUNDS[names[kind]]) for kind in kinds]
        for step in range(self.first, self.last):
            rng = np.random.default_rng((2, self.split == "test", step))
            made = []
            for which in rng.integers(NUM_CANVASES, size=self.batch_size):
                made.append(labelled_frame(rng, canvases[which], int(kinds[which]), self.split))
            frames, labels = zip(*made)
            yield (
                torch.from_numpy(np.stack(frames)),
                {name: torch.from_numpy(np.stack([label[name] for label in labels])) for name in LABELS},
            )


def labelled_frame(
    rng: np.random.Generator, canvas: NDArray[np.float32], background: int, split: str
) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    frame = window(canvas, *rng.integers(CANVAS, size=2))
    labels = {name: np.full((GRID, GRID), NONE.get(name, 0), np.int64) for name in LABELS}
    labels["background"][:] = background
    labels["row"][:], labels["column"][:] = np.mgrid[:GRID, :GRID]
    for _ in range(rng.integers(0, 8) if rng.random() < 0.6 else 0):
        paint_scribble(rng, frame, split)
    if rng.random() < 0.4:
        shape = int(rng.integers(len(SHAPES)))
        top, left = rng.integers(0, SIZE - SHAPE_SIZE, size=2)
        paint(frame, shape_ink(SHAPES[shape]), top, left, INKS["black"])
        _label(labels, (top, left, SHAPE_SIZE), shape=shape)
    if rng.random() < 0.3:
        row, column = rng.uniform(12, SIZE - 12, size=2)
        paint_ball(frame, row, column)
        _label(labels, (row - BALL_RADIUS, column - BALL_RADIUS, 2 * BALL_RADIUS), ball=1)
    taken: list[Event] = []
    # Frames full of digits teach the model to read them many times faster than normal frames.
    full = rng.random() < 0.6
    for _ in range(rng.integers(10, 18) if full else rng.integers(0, 4)):
        size = int(rng.integers(*(LARGE_DIGIT_SIZE if rng.random() < 0.05 + 0.15 * (not full) else DIGIT_SIZE)))
        place = free_place(rng, size, taken)
        if place is None:
            continue
        digit, colour = int(rng.integers(10)), int(rng.integers(len(COLOURS)))
        paint(frame, draw_digit(rng, digit, size, split), *place, list(COLOURS.values())[colour])
        taken.append(Event(digit, "", size, *place, 0, 1))
        _label(labels, (*place, size), digit=digit, colour=colour)
    frame += np.roll(_noise(), int(rng.integers(SIZE * SIZE)) * 3) * rng.choice([-NOISE, NOISE])
    return np.clip(frame, 0, 255).astype(np.uint8), {name: label.ravel() for name, label in labels.items()}


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
