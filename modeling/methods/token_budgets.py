"""The setting `max_video_tokens`: at which ratio a video is compressed so that it keeps at most so many tokens.

A video keeps K = min(B, what its ratio keeps), where B is the budget. For that, all methods are asked for the ratio
B / (T·M), by the same few lines. What a method keeps at least, such as a token of each frame, may be more than B. That
is refused.

T is the number of frames, M that of the scored tokens of a frame.
"""

from collections.abc import Callable
from dataclasses import replace

from ...configuration.compression_settings import CompressionSettings
from ...configuration.method_tables import COMPRESSION_METHODS
from .exact_totals import exact_total
from .video_compression import VideoCompression


class TooFewTokensError(ValueError):
    """A ratio at which a video would keep fewer tokens than the method needs.

    Attributes:
        least: how many it needs.
    """

    def __init__(self, least: int, message: str):
        super().__init__(message)
        self.least = least


def lowered(settings: CompressionSettings, num_tokens: int) -> CompressionSettings:
    """Return the settings with which a video of `num_tokens` scored tokens keeps exactly as many as its budget."""
    assert settings.max_video_tokens is not None
    rounds = COMPRESSION_METHODS[settings.compression_method].reads("compression_rounding")
    return replace(
        settings,
        retention_ratio=settings.max_video_tokens / num_tokens,
        compression_rounding="exact" if rounds else settings.compression_rounding,
        max_video_tokens=None,
    )


def compress_within_budget(
    settings: CompressionSettings,
    num_frames: int,
    tokens_per_frame: int,
    compress: Callable[[CompressionSettings], VideoCompression],
) -> VideoCompression:
    """Compress a video by its ratio, or if that keeps more tokens than the budget, by the lower ratio.

    If the number follows from the sizes, the method runs once.

    Args:
        compress: compresses the video at the ratio of its argument.

    Raises:
        ValueError: if the method keeps more tokens than the budget at the lower ratio too.
    """
    budget, num_tokens = settings.max_video_tokens, num_frames * tokens_per_frame
    if budget is None or num_tokens <= budget:
        return compress(settings)
    method = COMPRESSION_METHODS[settings.compression_method]
    known = method.kept is not None and method.keeps_by_sizes(settings.compression_rounding)
    exceeds = known and exact_total(num_frames, tokens_per_frame, settings.retention_ratio) > budget
    if settings.retention_ratio < 1.0 and not exceeds:
        compression = compress(settings)
        if len(compression.indices) <= budget:
            return compression
    try:
        compression = compress(lowered(settings, num_tokens))
        kept = len(compression.indices)
    except TooFewTokensError as error:
        kept = error.least
    else:
        if kept <= budget:
            return compression
    raise ValueError(
        f"`max_video_tokens` is {budget}, but `compression_method={method.name!r}` needs {kept} of the {num_tokens} "
        f"tokens of this video ({num_frames} frames of {tokens_per_frame}), even at a lower ratio. Pass {kept} or "
        "more, fewer frames, or another method."
    )
