"""Handwritten digits from scikit-learn's set (UCI, 8 × 8 pixels), drawn at any size. No image is in both splits."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

NUM_TEST = 500  # of 1,797
SOURCE_SIZE = 8


@cache
def digit_images(split: str) -> dict[int, NDArray[np.float32]]:
    """Return digit -> its images in one split, (N, 8, 8) in [0, 1].

    Args:
        split: `"train"` or `"test"`.
    """
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    chosen = order[NUM_TEST:] if split == "train" else order[:NUM_TEST]
    pixels = (images[chosen].reshape(-1, SOURCE_SIZE, SOURCE_SIZE) / 16).astype(np.float32)
    return {digit: pixels[labels[chosen] == digit] for digit in range(10)}


def draw_digit(rng: np.random.Generator, digit: int, size: int, split: str) -> NDArray[np.float32]:
    """Draw one of a digit's images, slightly turned, sheared and scaled. Return the ink per pixel, (size, size) in
    [0, 1]."""
    images = digit_images(split)[digit]
    image = np.pad(images[rng.integers(len(images))], 2)
    angle, shear, scale = rng.uniform(-0.2, 0.2), rng.uniform(-0.15, 0.15), rng.uniform(0.9, 1.15)
    turn = np.array([[np.cos(angle), -np.sin(angle) + shear], [np.sin(angle), np.cos(angle)]], np.float32)
    grid = (np.mgrid[:size, :size].reshape(2, -1).astype(np.float32) + 0.5) / size - 0.5
    rows, columns = turn @ grid * (SOURCE_SIZE / scale) + SOURCE_SIZE / 2 - 0.5 + 2
    return np.clip(1.3 * bilinear(image, rows, columns), 0, 1).reshape(size, size)


def draw_scribble(rng: np.random.Generator, size: int, split: str) -> NDArray[np.float32]:
    """Draw ink like a digit's that is not a digit: quarters of two digits in another order, upside down."""
    quarters = []
    for digit in rng.integers(10, size=2):
        drawn = draw_digit(rng, int(digit), size, split)
        half = size // 2
        quarters += [drawn[:half, :half], drawn[half : 2 * half, half : 2 * half]]
    a, b, c, d = (np.flip(quarters[i], axis=0) for i in rng.permutation(4))
    return np.pad(np.block([[a, b], [c, d]]), ((0, size % 2), (0, size % 2)))


def bilinear(image: NDArray, rows: NDArray, columns: NDArray) -> NDArray:
    """Return the image at fractional places. Places beyond its border take the border's values."""
    height, width = image.shape[:2]
    rows, columns = np.clip(rows, 0, height - 1.001), np.clip(columns, 0, width - 1.001)
    top, left = rows.astype(np.int32), columns.astype(np.int32)
    down, right = rows - top, columns - left
    return (
        image[top, left] * (1 - down) * (1 - right)
        + image[top, left + 1] * (1 - down) * right
        + image[top + 1, left] * down * (1 - right)
        + image[top + 1, left + 1] * down * right
    )
