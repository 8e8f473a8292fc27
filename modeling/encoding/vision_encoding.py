"""How a vision tower encodes frames when it does not compute them all as its parent does: the functions that the rows
of `VISION_METHODS` name, and how users add their own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from ...configuration.compression_settings import CompressionSettings, check_gives
from ...configuration.vision_methods import VISION_METHODS, VisionMethod
from ..methods.compression import add_method, check_registration, require_function
from .vision_skip_repeated import changed_groups

# (groups, computed, settings) -> changed.
#     groups: (G, values) pixels of the groups of patches of a frame, as the processor returns them.
#     computed: (G, values) those of the last group at each place that the tower computed.
#     settings: those of the call.
#     changed: (G,) bool: which groups the tower computes anew.
ChangedGroups: TypeAlias = Callable[[Tensor, Tensor, CompressionSettings], Tensor]

WHOLE_TOWER_ARGUMENTS = ("output_hidden_states", "output_attentions", "interpolate_pos_encoding")

_OWN: dict[str, ChangedGroups] = {"vision_skip_repeated.changed_groups": changed_groups}


def changes_of_groups(settings: CompressionSettings) -> ChangedGroups | None:
    """Return the function that tells which groups changed; None for the parent's own computation."""
    function = VISION_METHODS[settings.vision_method].function
    return _OWN[function] if isinstance(function, str) else function


def check_encoding(settings: CompressionSettings, needs: Collection[str], arguments: Mapping[str, Any]) -> None:
    """Check what is asked of a tower that may not run as a whole.

    Args:
        needs: what a compression method needs of it.
        arguments: the parent's.

    Raises:
        ValueError: if the vision method does not give a need, or the arguments ask for what only a whole tower has, or
            describe all of its patches.
    """
    check_gives(VISION_METHODS[settings.vision_method], needs)
    if settings.vision_method == "full":
        return
    for name, value in arguments.items():
        if (name in WHOLE_TOWER_ARGUMENTS and value) or name.startswith("video_"):
            raise ValueError(
                f"`{name}` is {value!r}, but with `vision_method={settings.vision_method!r}` the vision tower does not "
                "run as a whole, and cannot take it. Leave it out, or pass `vision_method='full'`."
            )


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
        ValueError: if another function has the name, if a setting is not one of these, or if what is registered is not
            a function.
    """
    like = VISION_METHODS["skip_repeated"]
    check_registration("vision method", name, settings=(settings, like.settings))

    def register(function: ChangedGroups) -> ChangedGroups:
        require_function(name, function)
        add_method(VisionMethod(name, function, tuple(settings), like.lacks))
        return function

    return register
