"""The settings that the page lets users change, and what a call makes of them."""

from dataclasses import dataclass
from typing import Any

from ..checkpoints import Checkpoint
from ..configuration.compression_methods import COMPRESSION_METHODS


@dataclass(frozen=True)
class Control:
    """A choice among a setting's values.

    Attributes:
        info: what it decides, in a few words for users of the page.
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
        "How many whole tokens a frame's share is.",
        ("ceil", "round", "exact"),
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
        "The mean or the largest of its tokens' scores, or the same for all frames.",
        ("mean", "max", "uniform"),
    ),
)


def controls_of(checkpoint: Checkpoint) -> tuple[Control, ...]:
    """Those that mean something for this model: M-RoPE keeps the positions of tokens whatever the setting says."""
    uses_mrope = checkpoint.model.model.uses_mrope
    return tuple(control for control in CONTROLS if control is not POSITIONS or not uses_mrope)


def overrides_of(
    retention_ratio: float, method: str, controls: tuple[Control, ...], chosen: tuple[str, ...]
) -> dict[str, Any]:
    """The settings of a call. Choices that the method does not read are hidden on the page, and are left out."""
    overrides: dict[str, Any] = {"retention_ratio": retention_ratio, "compression_method": method}
    for control, value in zip(controls, chosen, strict=True):
        if is_read(method, control):
            overrides[control.setting] = value
    return overrides


def is_read(method: str, control: Control) -> bool:
    return COMPRESSION_METHODS[method].reads(control.setting)
