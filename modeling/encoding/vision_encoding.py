"""Registering vision methods, which leave out a part of what a vision tower computes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from ...configuration.compression_settings import OF_SOME_VISION_METHODS, CompressionSettings, VisionMethod
from ..methods.compression import check_registration, enter

# (groups, computed, settings) -> changed.
#     groups: (G, values) pixels of the groups of patches of a frame, as the processor returns them.
#     computed: (G, values) those of the last group at each place that the tower computed.
#     settings: those of the call.
#     changed: (G,) bool: which groups the tower computes anew.
ChangedGroups: TypeAlias = Callable[[Tensor, Tensor, CompressionSettings], Tensor]


def register_vision_method(name: str, *, settings: Sequence[str] = ()) -> Callable[[ChangedGroups], ChangedGroups]:
    """Make a function selectable as `vision_method=name`, in every model.

    The function tells which groups of patches of a frame changed. It is called for one frame of a video after the
    other, with the pixels (G, values) of the frame's groups, those of the last computed group at each place, and the
    `CompressionSettings` of the call, and returns a bool for each group, (G,). It runs without gradients. The tower
    computes the groups that changed; the others take the features of the last computed group at their place. A group is
    a patch in LLaVA's families, and in the others the 2 × 2 patches of a token, each of two frames.

    Args:
        settings: `("vision_tolerance",)` if it reads that setting, which otherwise must be at its default.

    Raises:
        ValueError: if another function has the name, if a setting is not that one, or if what is registered is not a
            function.
    """
    check_registration("vision method", name, settings, OF_SOME_VISION_METHODS)

    def register(function: ChangedGroups) -> ChangedGroups:
        @functools.wraps(function)
        def encoding(*arguments: Any, **described: Any) -> Any:
            from .left_out_patches import partial_encoding  # Imported late, since it imports Transformers.

            return partial_encoding(function, *arguments, **described)

        enter("vision_method", VisionMethod(name=name, settings=tuple(settings), function=encoding))
        return function

    return register
