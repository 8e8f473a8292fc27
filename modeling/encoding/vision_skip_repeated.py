"""`vision_method="skip_repeated"`: the tower leaves out groups of patches that repeat what it computed last at their
place. PixelPrune (arXiv 2604.00886) leaves out the patches of one image that repeat their neighbours; this is the same
along the time of a video.

A group takes the features of the group that it repeats. What is computed attends to its whole frame: in each layer,
what is left out contributes the keys and values that were computed last at its place. So features are the full tower's
where whole frames repeat. Where only parts of a frame do, they are approximate, because what is left out does not learn
of the changes around it.
"""

from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from .vision_encoding import register_vision_method


@register_vision_method("skip_repeated")
def changed_groups(groups: Tensor, computed: Tensor, settings: CompressionSettings) -> Tensor:
    """Tell which groups changed, as a `ChangedGroups` does; reads `vision_tolerance`.

    The squares of the differences are averaged, so that a few pixels that change much count for more than the noise of
    a codec, which changes all pixels a little.
    """
    if settings.vision_tolerance == 0:
        return (groups != computed).any(dim=-1)
    return (groups.float() - computed.float()).square().mean(dim=-1).sqrt() > settings.vision_tolerance
