"""Drawing the parts of a frame of the needle benchmark: textures, ink in colours, shapes and a ball."""

import numpy as np
from numpy.typing import NDArray

from .digits import draw_scribble

SIZE = 140  # pixels per side of a frame: 5 × 5 tokens of 28 × 28
COLOURS = {
    "red": (225, 40, 40),
    "green": (40, 200, 60),
    "blue": (50, 80, 235),
    "yellow": (235, 220, 40),
    "cyan": (50, 215, 225),
    "pink": (235, 80, 215),
}
BACKGROUNDS = {"sand": (158, 142, 112), "slate": (96, 108, 128), "moss": (98, 122, 88), "plum": (126, 96, 118)}
SHAPES = ("square", "ring", "cross")
INKS = {"white": (240, 240, 240), "black": (15, 15, 15)}  # for clutter, the ball and the shape
TOKEN_SIZE = 28  # pixels per side of the square that one token shows
PATCH_SIZE = 14  # pixels per side of a patch of the vision tower; four patches make a token
DIGIT_SIZE = (13, 17)
LARGE_DIGIT_SIZE = (26, 32)
NUMBER_DIGIT_SIZE = (20, 26)
SHAPE_SIZE = 26
BALL_RADIUS = 9
NOISE = 5.0  # standard deviation of a pixel's sensor noise, on a scale to 255
CANVAS = 320  # pixels per side of a scene's texture, which repeats


def texture(rng: np.random.Generator, colour: tuple[int, int, int]) -> NDArray[np.float32]:
    """Return (320, 320, 3), smooth light and dark patches of one hue, which continue at the opposite side."""
    height = np.zeros((CANVAS, CANVAS), np.float32)
    for cells, amplitude in ((8, 16.0), (20, 10.0), (64, 5.0)):
        coarse = rng.standard_normal((cells, cells)).astype(np.float32)
        height += amplitude * stretched(coarse, CANVAS)
    hue = np.asarray(colour, np.float32) + rng.uniform(-8, 8, size=3).astype(np.float32)
    return hue + height[..., None] * (0.6 + 0.8 * hue / hue.sum())


def stretched(coarse: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Enlarge a small periodic field, with smooth steps in between."""
    places = np.arange(size) * len(coarse) / size
    before = places.astype(int)
    part = (places - before).astype(np.float32)
    part = part * part * (3 - 2 * part)
    after = (before + 1) % len(coarse)
    rows = coarse[before] * (1 - part)[:, None] + coarse[after] * part[:, None]
    return rows[:, before] * (1 - part) + rows[:, after] * part


def window(canvas: NDArray[np.float32], top: float, left: float) -> NDArray[np.float32]:
    """Return a copy of a (140, 140, 3) part of a texture, which continues at its opposite side."""
    rows, columns = ((start + np.arange(SIZE)).astype(int) % CANVAS for start in (top, left))
    return canvas[np.ix_(rows, columns)]


def shape_ink(shape: str) -> NDArray[np.float32]:
    rows, columns = np.abs(np.mgrid[:SHAPE_SIZE, :SHAPE_SIZE] - (SHAPE_SIZE - 1) / 2)
    reach = SHAPE_SIZE / 2
    if shape == "square":
        ink = np.maximum(rows, columns) < reach - 3
    elif shape == "ring":
        radius = np.hypot(rows, columns)
        ink = (radius < reach) & (radius > reach - 6)
    else:
        ink = (np.minimum(rows, columns) < 3.5) & (np.maximum(rows, columns) < reach)
    return ink.astype(np.float32)


def paint(
    frame: NDArray[np.float32], ink: NDArray[np.float32], top: int, left: int, colour: tuple[int, int, int]
) -> None:
    part = frame[top : top + len(ink), left : left + ink.shape[1]]
    part += ink[..., None] * (np.asarray(colour, np.float32) - part)


def paint_ball(frame: NDArray[np.float32], row: float, column: float) -> None:
    rows, columns = np.mgrid[:SIZE, :SIZE]
    ink = np.clip(BALL_RADIUS + 0.5 - np.hypot(rows - row, columns - column), 0, 1)
    paint(frame, ink.astype(np.float32), 0, 0, INKS["white"])


def paint_scribble(rng: np.random.Generator, frame: NDArray[np.float32], split: str) -> None:
    """Paint clutter: a black or white scribble as large as a digit, anywhere."""
    size = int(rng.integers(*DIGIT_SIZE))
    ink = INKS[str(rng.choice(list(INKS)))]
    paint(frame, draw_scribble(rng, size, split), *rng.integers(0, SIZE - size, size=2), ink)
