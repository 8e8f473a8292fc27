"""`vision_method="skip_repeated"`: the tower leaves out groups of patches that repeat what it computed last at their
place. PixelPrune (arXiv 2604.00886) leaves out the patches of one image that repeat their neighbours; this is the same
along the time of a video.

A group takes the features of the group that it repeats. What is computed attends to its whole frame: in each layer,
what is left out contributes the keys and values that were computed last at its place. So features are the full tower's
where whole frames repeat. Where only parts of a frame do, they are approximate, because what is left out does not learn
of the changes around it.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from ...configuration.compression_settings import VISION_METHODS, CompressionSettings, VisionMethod

# (groups, computed, settings) -> changed.
#     groups: (G, values) pixels of the groups of patches of a frame, as the processor returns them.
#     computed: (G, values) those of the last group at each place that the tower computed.
#     settings: those of the call.
#     changed: (G,) bool: which groups the tower computes anew.
ChangedGroups: TypeAlias = Callable[[Tensor, Tensor, CompressionSettings], Tensor]

# The vision towers that can leave out groups of patches. They encode each frame by itself, and a patch's position is
# added to it or rotates it. So a patch can be encoded without its neighbours.
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
    "qwen4_exp_vision",
    "glm4v_vision",
    "glm4v_moe_vision",
)


def leaves_out_others(changed: ChangedGroups) -> Callable[..., Any]:
    """Make a vision method of a function that tells which groups of patches changed; the others are left out."""

    @functools.wraps(changed)
    def encoding(*arguments: Any, **described: Any) -> Any:
        from .left_out_patches import partial_encoding  # Imported late, since it imports Transformers.

        return partial_encoding(changed, *arguments, **described)

    return encoding


def changed_groups(groups: Tensor, computed: Tensor, settings: CompressionSettings) -> Tensor:
    """Tell which groups changed; reads `vision_tolerance`.

    The squares of the differences are averaged, so that a few pixels that change much count for more than the noise of
    a codec, which changes all pixels a little.
    """
    if settings.vision_tolerance == 0:
        return (groups != computed).any(dim=-1)
    return (groups.float() - computed.float()).square().mean(dim=-1).sqrt() > settings.vision_tolerance


VISION_METHODS["skip_repeated"] = VisionMethod(
    name="skip_repeated",
    settings=("vision_tolerance",),
    function=leaves_out_others(changed_groups),
    own=True,
    towers=GROUPED_TOWERS,
)
