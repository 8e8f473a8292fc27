"""Counts the tokens that LLaVA-Video makes of a frame. The model and its processor both count by this file, since they
must agree.
"""

from typing import Any

SPATIAL_POOL_MODES = ("average", "max", "bilinear")


def pooled_side(patches_per_side: int, spatial_pool_mode: str) -> int:
    """Return the number of rows, and of columns, of a pooled frame.

    27 patches become 14 with `"bilinear"`, which rounds up, and 13 with `"average"` and `"max"`, which leave out an odd
    last row and column.
    """
    return -(-patches_per_side // 2) if spatial_pool_mode == "bilinear" else patches_per_side // 2


def tokens_per_frame(patches_per_side: int, spatial_pool_mode: str) -> int:
    """Return the number of a frame's tokens, with a newline at the end of each row: 13 · 14 = 182 or 14 · 15 = 210."""
    side = pooled_side(patches_per_side, spatial_pool_mode)
    return side * (side + 1)


def checked_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value`, or raise a ValueError that says what is accepted. The first choice is the default."""
    if value not in choices:
        accepted = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` is {value!r}, but must be one of {accepted}. The default is {choices[0]!r}.")
    return value
