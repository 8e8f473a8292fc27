"""The settings that users can change on the page, and the settings of a call that result from them."""

from dataclasses import dataclass
from typing import Any

from ..configuration.compression_settings import COMPRESSION_METHODS
from ..loading.checkpoints import Checkpoint


@dataclass(frozen=True)
class Control:
    """A drop-down list of a setting's values.

    Attributes:
        info: what the setting decides, in a few words for users of the page.
    """

    setting: str
    label: str
    info: str
    choices: tuple[str, ...]


POSITIONS = Control(
    "compression_positions",
    "Positions of kept tokens",
    "Renumbered without gaps, or as in the full prompt.",
    ("consecutive", "original"),
)
CONTROLS = (
    POSITIONS,
    Control(
        "compression_rounding",
        "Rounding of budgets",
        "How a frame's share of the tokens becomes a whole number.",
        ("exact", "ceil", "round"),
    ),
    Control(
        "compression_scoring",
        "Scoring",
        "The paper's algorithm, or the authors' released code.",
        ("paper", "released"),
    ),
    Control(
        "compression_frame_score",
        "Score of a frame",
        "The mean or the largest score of its tokens, or the same score for all frames.",
        ("mean", "max", "uniform"),
    ),
)


def controls_for(checkpoint: Checkpoint) -> tuple[Control, ...]:
    """Return the controls that have an effect on this model. With M-RoPE, tokens always keep their positions."""
    uses_mrope = checkpoint.model.model.uses_mrope
    return tuple(control for control in CONTROLS if control is not POSITIONS or not uses_mrope)


def chosen_settings(
    retention_ratio: float, method: str, controls: tuple[Control, ...], chosen: tuple[str, ...]
) -> dict[str, Any]:
    """Return the settings of a call. The page hides choices that the method does not read, so they are left out."""
    overrides: dict[str, Any] = {"retention_ratio": retention_ratio, "compression_method": method}
    for control, value in zip(controls, chosen, strict=True):
        if is_read(method, control):
            overrides[control.setting] = value
    return overrides


def is_read(method: str, control: Control) -> bool:
    return COMPRESSION_METHODS[method].reads(control.setting)
