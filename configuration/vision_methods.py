"""The table of vision methods: how the vision tower encodes the frames of a video. What they compute is in
`modeling/encoding/`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class VisionMethod:
    """A row of the table. It says all that the rest of the code asks about a way of encoding.

    Attributes:
        name: value of the setting `vision_method`.
        function: how it tells which groups of patches changed, a `ChangedGroups`. The tower computes these, and the
            others take the features of the last computed group at their place. For this project's own method it is the
            name "file.function" in `modeling/encoding/`. None for the parent's own computation.
        settings: the settings that it reads. Methods that do not read them refuse any value but their default.
        lacks: what methods may need of the tower, of `TOWER_NEEDS`, and it cannot give.
    """

    name: str
    function: str | Callable[..., Any] | None
    settings: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def reads(self, setting: str) -> bool:
        """Whether a value of this setting makes a difference, as far as it is for vision methods to say."""
        return setting in self.settings or all(setting not in row.settings for row in VISION_METHODS.values())

    def fits(self, tower: str | None) -> bool:
        """Whether it can run a vision tower of this `model_type`. None: there is no tower."""
        return self.function is None or tower in GROUPED_TOWERS


# The towers of which groups of patches can be left out. They look at one frame at a time, and tell places by what is
# added to each patch or rotates it. So a patch needs no neighbours to be encoded.
GROUPED_TOWERS = (
    "siglip_vision_model",
    "clip_vision_model",
    "qwen2_vl_vision",
    "qwen2_5_vl_vision",  # by whole windows of its window attention
    "qwen2_5_omni_vision_encoder",  # as Qwen2.5-VL's
    "qwen3_vl_vision",
    "qwen3_vl_moe_vision",
    "qwen3_omni_moe_vision_encoder",
    "qwen3_5_vision",
    "qwen3_5_moe_vision",
    "glm4v_vision",
    "glm4v_moe_vision",
)

VISION_METHODS: dict[str, VisionMethod] = {
    method.name: method
    for method in (
        VisionMethod("full", None),
        VisionMethod(
            "skip_repeated",
            "vision_skip_repeated.changed_groups",
            settings=("vision_tolerance",),
            lacks=("tower_attention",),  # patches that are left out neither pay nor receive any
        ),
    )
}
