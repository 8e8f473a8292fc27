"""How a vision tower encodes frames when it does not compute them all as its parent does: the functions that the rows
of `VISION_METHODS` name, and how users add their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from ...configuration.method_tables import GROUPED_TOWERS, VISION_METHODS, VisionMethod
from ..methods.compression import add_method, check_registration, require_function
from .vision_changed_patches import changed_patches
from .vision_skip_repeated import changed_groups

# (tower, frames, run_lengths, settings, feature_layers) -> states.
#     tower: the parent's vision tower.
#     frames: (F, channels, height, width) pixels.
#     run_lengths: the frames are runs of consecutive frames of one video each; these add up to F.
#     settings: those of the call.
#     feature_layers: whose hidden states are wanted: 0 for the embeddings, n for the n-th layer's output, -1 for the
#         last layer's.
#     states: (F, patches, len(feature_layers) · dim), the layers beside each other.
EncodeFrames: TypeAlias = Callable[[Any, Tensor, Sequence[int], CompressionSettings, Sequence[int]], Tensor]

# (groups, computed, settings) -> changed.
#     groups: (G, values) pixels of the groups of patches of a frame, as the processor returns them.
#     computed: (G, values) those of the last group at each place that the tower computed.
#     settings: those of the call.
#     changed: (G,) bool: which groups the tower computes anew.
ChangedGroups: TypeAlias = Callable[[Tensor, Tensor, CompressionSettings], Tensor]

WHOLE_TOWER_ARGUMENTS = ("output_hidden_states", "output_attentions", "interpolate_pos_encoding")

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "vision_changed_patches.changed_patches": changed_patches,
    "vision_skip_repeated.changed_groups": changed_groups,
}


def frames_encoder(settings: CompressionSettings) -> EncodeFrames | None:
    """Return the function that encodes frames with these settings; None for the parent's own computation."""
    return None if VISION_METHODS[settings.vision_method].leaves_out else _function(settings)


def changes_of_groups(settings: CompressionSettings) -> ChangedGroups | None:
    """Return the function that tells which groups changed; None for methods that leave out none."""
    return _function(settings) if VISION_METHODS[settings.vision_method].leaves_out else None


def check_encoding(settings: CompressionSettings, arguments: Mapping[str, Any]) -> None:
    """Check what is asked of a tower that may not run as a whole.

    Raises:
        ValueError: if the parent's arguments ask for what only a whole tower has, or describe all of its patches.
    """
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
        settings: names of the settings of vision methods that it reads, of `vision_tolerance` and
            `vision_update_ratio`. Others must be at their default.

    Raises:
        ValueError: if another function has the name, if a setting is not one of these, or if what is registered is not
            a function.
    """
    known = sorted({setting for method in VISION_METHODS.values() for setting in method.settings})
    check_registration("vision method", name, settings=(settings, known))

    def register(function: ChangedGroups) -> ChangedGroups:
        require_function(name, function)
        add_method(VisionMethod(name, function, True, tuple(settings), GROUPED_TOWERS))
        return function

    return register


def _function(settings: CompressionSettings) -> Callable[..., Tensor] | None:
    function = VISION_METHODS[settings.vision_method].function
    return _FUNCTIONS[function] if isinstance(function, str) else function
