"""How users add vision methods of their own. Such a method leaves out a part of what a vision tower computes."""

from collections.abc import Callable, Sequence

from ...configuration.compression_settings import OF_SOME_VISION_METHODS, VisionMethod
from ..methods.users_methods import check_registration, enter
from .vision_skip_repeated import GROUPED_TOWERS, ChangedGroups, leaves_out_others


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
        ValueError: if another function has the name, if a setting is not that one, or if the registered object is not
            a function.
    """
    check_registration("vision method", name, settings, OF_SOME_VISION_METHODS)

    def register(function: ChangedGroups) -> ChangedGroups:
        encoding = leaves_out_others(function)
        row = VisionMethod(name=name, settings=tuple(settings), function=encoding, towers=GROUPED_TOWERS)
        enter("vision_method", row)
        return function

    return register
