"""Packing kept tokens of many frames into few, so that the prompt need not write a time for each frame.

A model whose prompt says when each frame is shown would spend more on these marks than on tokens, if each frame keeps
one or two. So tokens of neighbouring frames share a virtual frame, as long as no two of them have the same place.
"""

import torch
from torch import Tensor


def virtual_frames(frames: Tensor, places: Tensor) -> Tensor:
    """Return the virtual frame of each token, (N,) int64, counted from 0. It is shown when its first token is.

    Args:
        frames, places: (N,) int64, the frame of each token, ascending, and its place in it, ascending in each frame.
    """
    numbers: list[int] = []
    taken: set[int] = set()
    number = 0
    for place in places.tolist():
        if place in taken:
            number, taken = number + 1, set()
        taken.add(place)
        numbers.append(number)
    return torch.tensor(numbers, dtype=torch.int64)
