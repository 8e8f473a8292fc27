"""How a vision tower encodes frames when it does not compute them all as its parent does: the functions that the rows
of `VISION_METHODS` name."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from ...configuration.vision_methods import VISION_METHODS
from .vision_changed_patches import changed_patches

# (tower, frames, run_lengths, settings, feature_layers) -> states.
#     tower: the parent's vision tower.
#     frames: (F, channels, height, width) pixels.
#     run_lengths: the frames are runs of consecutive frames of one video each; these add up to F.
#     settings: those of the call.
#     feature_layers: whose hidden states are wanted: 0 for the embeddings, n for the n-th layer's output, -1 for the
#         last layer's.
#     states: (F, patches, len(feature_layers) · dim), the layers beside each other.
EncodeFrames: TypeAlias = Callable[[Any, Tensor, Sequence[int], CompressionSettings, Sequence[int]], Tensor]

_FUNCTIONS: dict[str, EncodeFrames] = {"vision_changed_patches.changed_patches": changed_patches}


def frames_encoder(settings: CompressionSettings) -> EncodeFrames | None:
    """Return the function that encodes frames with these settings; None for the parent's own computation."""
    function = VISION_METHODS[settings.vision_method].function
    return _FUNCTIONS[function] if isinstance(function, str) else function
