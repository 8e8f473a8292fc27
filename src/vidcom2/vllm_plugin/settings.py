"""The settings of a repo as the engine can keep them: it counts placeholders before it sees features."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ..configuration.compression_methods import COMPRESSION_METHODS
from ..configuration.compression_settings import SETTING_NAMES, CompressionSettings
from ..modeling.compression import compress_with
from ..modeling.video_compression import VideoTokens

RATIO = "retention_ratio"


def engine_settings(hf_config: Any) -> CompressionSettings:
    """The settings in a repo's config, with what `--hf-overrides` changes.

    Raises:
        ValueError: on settings outside their accepted set, and on those that an engine cannot keep.
    """
    given = {name: getattr(hf_config, name) for name in SETTING_NAMES if hasattr(hf_config, name)}
    settings = CompressionSettings(**given)
    method = COMPRESSION_METHODS[settings.compression_method]
    # The others keep the same number whatever a video shows; of a user's own method that is checked where it runs.
    if method.reads("compression_rounding") and settings.compression_rounding != "exact":
        raise ValueError(
            f"`compression_rounding` is {settings.compression_rounding!r}, with which the number of kept tokens hangs "
            'on what a video shows, but vLLM counts them before it has seen it. Set it to "exact" in config.json, or '
            """pass `--hf-overrides '{"compression_rounding": "exact"}'`."""
        )
    if "tower_states" in method.needs:
        raise ValueError(
            f"`compression_method` is {method.name!r}, which looks at states of the vision tower, and vLLM does not "
            "hand these out. Choose another method."
        )
    if settings.vision_update_ratio != 1.0:
        raise ValueError(
            f"`vision_update_ratio` is {settings.vision_update_ratio!r}, but vLLM's vision tower computes every patch. "
            "Set it to 1.0."
        )
    if settings.compression_positions != "consecutive":
        raise ValueError(
            f"`compression_positions` is {settings.compression_positions!r}, but vLLM gives the tokens of a prompt "
            'consecutive positions. Set it to "consecutive".'
        )
    return settings


def ratio_of(settings: CompressionSettings, processor_kwargs: Mapping[str, object]) -> float:
    """The retention ratio of a request: of its `mm_processor_kwargs`, or the repo's.

    Raises:
        ValueError: outside (0, 1].
    """
    ratio = processor_kwargs.get(RATIO)
    if ratio is None:
        return settings.retention_ratio
    return CompressionSettings(retention_ratio=ratio).retention_ratio  # type: ignore[arg-type]


def with_ratio(settings: CompressionSettings, ratio: float) -> CompressionSettings:
    return dataclasses.replace(settings, retention_ratio=ratio)


def kept_tokens(settings: CompressionSettings, num_frames: int, grid: tuple[int, int]) -> int:
    """How many tokens of a video stay, whatever it shows: the method is asked about a video of nothing.

    Raises:
        ValueError: on a ratio that the method cannot have for a video of this size.
    """
    return _kept_tokens(tuple(settings.as_dict().items()), num_frames, grid)


@lru_cache(maxsize=1024)
def _kept_tokens(settings: tuple[tuple[str, Any], ...], num_frames: int, grid: tuple[int, int]) -> int:
    nothing = torch.zeros(num_frames, grid[0] * grid[1], 2)
    return len(compress_with(CompressionSettings(**dict(settings)), VideoTokens(nothing, grid)).indices)
