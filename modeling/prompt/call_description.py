"""The description of one call of `forward` or `generate`, which decides once what the call asks for.

Both methods read the description and take its path. Nothing later in the call asks again whether to compress.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ...configuration.compression_settings import CompressionSettings
from ..encoding.video_features import VidCom2VideoFeatures
from .conversation_cache import CachedPrompt


class NewVideos(Enum):
    """The form in which a call passes the videos of its new tokens."""

    NONE = auto()
    PIXELS = auto()
    KEPT_FEATURES = auto()  # features of the kept tokens alone; the prompt still has a placeholder for every token
    ALL_FEATURES = auto()  # features of all tokens


class CallPath(Enum):
    """The way in which a call is answered."""

    PARENT = auto()  # The parent class answers: no token is dropped, now or in the cache.
    CONTINUE = auto()  # New tokens follow on a cache whose memory knows its layout.
    COMPRESS = auto()  # The prompt runs without its dropped tokens, or with positions that the parent does not compute.


@dataclass(frozen=True)
class CallDescription:
    """What a call asks for.

    Attributes:
        settings: the config's settings, overridden by those of the call.
        drops_tokens: whether tokens of its new videos are dropped.
        memory: what the KV cache remembers of its tokens; None if the parent class can continue the cache by itself.
        videos: the form in which the videos of the new tokens come.
        path: the way in which the call is answered.
    """

    settings: CompressionSettings
    drops_tokens: bool
    memory: CachedPrompt | None
    videos: NewVideos
    path: CallPath


def videos_of(inputs: dict[str, Any], settings: CompressionSettings, overrides: dict[str, Any]) -> NewVideos:
    """Return the form in which the arguments of `forward` or `generate` hold videos.

    Args:
        settings: all settings of the call.
        overrides: the settings that the caller passed to this call.

    Raises:
        ValueError: if videos are given twice, if features of all tokens are given although some are to be dropped, or
            if settings are passed beside features that were compressed before the call.
    """
    features = (inputs.get("mm_encoder_outputs") or {}).get("video")
    if inputs.get("pixel_values_videos") is not None:
        if features is not None:
            raise ValueError(
                "`pixel_values_videos` and `mm_encoder_outputs['video']` both hold the prompt's videos. Pass one."
            )
        return NewVideos.PIXELS
    if features is None:
        return NewVideos.NONE
    compressions = getattr(features, "video_compressions", None)
    if compressions is not None:
        for name in overrides:
            if name != "compression_positions":
                raise ValueError(
                    f"`{name}` is {overrides[name]!r} for this call, but `mm_encoder_outputs['video']` was encoded "
                    "before it. Pass the setting to `get_video_features`, or `pixel_values_videos` in place of the "
                    "features."
                )
        keeps_all = all(len(each.indices) == each.num_tokens for each in compressions)
        return NewVideos.ALL_FEATURES if keeps_all else NewVideos.KEPT_FEATURES
    if not isinstance(features, VidCom2VideoFeatures) and settings.may_drop:
        name = "retention_ratio" if settings.retention_ratio < 1.0 else "max_video_tokens"
        raise ValueError(
            f"`mm_encoder_outputs['video']` is a {type(features).__name__} of uncompressed features, but "
            f"`{name}` is {getattr(settings, name)}. Pass `pixel_values_videos`, the output of this model's "
            "`get_video_features`, or `retention_ratio=1.0` without a budget."
        )
    return NewVideos.ALL_FEATURES
