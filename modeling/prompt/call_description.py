"""What one call of `forward` or `generate` asks for, decided once.

Both read the description and take its path. Nothing later in a call asks again whether there is something to compress.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ...configuration.compression_settings import CompressionSettings
from ..encoding.video_features import VidCom2VideoFeatures
from .conversation_cache import CachedPrompt


class NewVideos(Enum):
    """In which form the videos of a call's new tokens come."""

    NONE = auto()
    PIXELS = auto()
    KEPT_FEATURES = auto()  # of the tokens that stay, while the prompt has a placeholder for every token
    ALL_FEATURES = auto()  # of all tokens


class CallPath(Enum):
    """How a call is answered."""

    PARENT = auto()  # as the parent class does it: nothing is dropped, now or in the cache
    CONTINUE = auto()  # new tokens on a cache whose layout its memory knows
    COMPRESS = auto()  # the prompt is run without the dropped tokens, or with positions that the parent does not make


@dataclass(frozen=True)
class CallDescription:
    """What a call asks for.

    Attributes:
        settings: the config's, with those of the call in their place.
        memory: what is to be known of the tokens in the KV cache; None if the parent class continues it by itself.
        videos: how the videos of the new tokens come.
        path: which way the call takes.
    """

    settings: CompressionSettings
    memory: CachedPrompt | None
    videos: NewVideos
    path: CallPath

    @property
    def drops_tokens(self) -> bool:
        """Whether new videos lose tokens in this call."""
        return self.videos is NewVideos.KEPT_FEATURES or (
            self.videos is NewVideos.PIXELS and self.settings.retention_ratio < 1.0
        )


def videos_of(inputs: dict[str, Any], settings: CompressionSettings, overrides: dict[str, Any]) -> NewVideos:
    """In which form the arguments of `forward` or `generate` hold videos.

    Args:
        settings: of the call.
        overrides: those of them that were passed to it.

    Raises:
        ValueError: on videos that are given twice, features of all tokens where some are to be dropped, and settings
            for this call beside features that were compressed before it.
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
    if not isinstance(features, VidCom2VideoFeatures) and settings.retention_ratio < 1.0:
        raise ValueError(
            f"`mm_encoder_outputs['video']` is a {type(features).__name__} of uncompressed features, but "
            f"`retention_ratio` is {settings.retention_ratio}. Pass `pixel_values_videos`, the output of this model's "
            "`get_video_features`, or `retention_ratio=1.0`."
        )
    return NewVideos.ALL_FEATURES
