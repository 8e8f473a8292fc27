"""Compute the groups of patches of which the mean pixel changed."""

from torch import Tensor

from vidcom2 import CompressionSettings, register_vision_method


@register_vision_method("centre_changed", settings=("vision_tolerance",))
def centre_changed(groups: Tensor, computed: Tensor, settings: CompressionSettings) -> Tensor:
    changes = (groups.float().mean(dim=-1) - computed.float().mean(dim=-1)).abs()
    return changes > settings.vision_tolerance
