"""The settings of a repo as the engine can keep them: it counts placeholders before it sees features."""

from collections.abc import Mapping
from typing import Any

from ..configuration.compression_settings import SETTING_NAMES, CompressionSettings
from ..modeling.exact_totals import exact_total

RATIO = "retention_ratio"


def engine_settings(hf_config: Any) -> CompressionSettings:
    """The settings in a repo's config, with what `--hf-overrides` changes.

    Raises:
        ValueError: on settings outside their accepted set, and on those that an engine cannot keep.
    """
    given = {name: getattr(hf_config, name) for name in SETTING_NAMES if hasattr(hf_config, name)}
    settings = CompressionSettings(**given)
    if settings.compression_rounding != "exact":
        raise ValueError(
            f"`compression_rounding` is {settings.compression_rounding!r}, with which the number of kept tokens depends "
            'on what a video shows, but vLLM counts them before it has seen it. Set it to "exact" in config.json, or '
            """pass `--hf-overrides '{"compression_rounding": "exact"}'`."""
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


def kept_tokens(num_frames: int, tokens_per_frame: int, ratio: float) -> int:
    """How many tokens of a video stay, whatever it shows."""
    return num_frames * tokens_per_frame if ratio == 1.0 else exact_total(num_frames, tokens_per_frame, ratio)
