"""The operator `compress`. It compresses the tokens of one video by any method, without a model."""

from torch import Tensor

from ..configuration.compression_settings import CompressionSettings
from .methods.compression import VideoCompression, VideoTokens, compress_with
from .registered_methods import METHODS

dict(METHODS["compression_method"])  # imports all methods here, since a graph of `torch.compile` cannot import one


def compress(
    video_tokens: Tensor | VideoTokens,
    retention_ratio: float = 0.25,
    *,
    compression_method: str = "vidcom2",
    compression_scoring: str = "paper",
    compression_rounding: str = "ceil",
    compression_temperature: float = 0.01,
    compression_frame_score: str = "mean",
    compression_window: int | None = None,
    compression_positions: str = "consecutive",
    compression_frame_weight: float = 1.0,
    compression_video_weight: float = 1.0,
    max_video_tokens: int | None = None,
    vision_method: str = "full",
    vision_chunk_frames: int | None = 32,
    vision_tolerance: float = 0.0,
) -> VideoCompression:
    """Compress one video: select the tokens that stay, or merge tokens.

    Args:
        video_tokens: (num_frames, tokens_per_frame, dim) of any float dtype, on any device; or `VideoTokens`, because
            some methods need more than the tokens.
        retention_ratio: fraction of the tokens to keep, in (0, 1].
        compression_method, compression_scoring, ...: see `CompressionSettings`. `compression_positions` and the
            settings of the vision tower, `vision_...`, are for models, and select nothing. The default of
            `compression_rounding` is that of Algorithm 1, `"ceil"`; that of configs is `"exact"`, with which a
            processor knows K.

    Returns:
        A `VideoCompression` on the device of `video_tokens`. The kept features are
        `compression.kept(video_tokens.flatten(0, 1))`. No gradient flows through the selection.

    Raises:
        ValueError: if a setting is outside its accepted set, if the method does not read a setting, if `video_tokens`
            is not a non-empty 3-D float tensor, or if the method cannot keep as few
            tokens as `max_video_tokens` says.
    """
    settings = CompressionSettings(
        retention_ratio=retention_ratio,
        compression_method=compression_method,
        compression_scoring=compression_scoring,
        compression_rounding=compression_rounding,
        compression_temperature=compression_temperature,
        compression_frame_score=compression_frame_score,
        compression_window=compression_window,
        compression_positions=compression_positions,
        compression_frame_weight=compression_frame_weight,
        compression_video_weight=compression_video_weight,
        max_video_tokens=max_video_tokens,
        vision_method=vision_method,
        vision_chunk_frames=vision_chunk_frames,
        vision_tolerance=vision_tolerance,
    )
    return compress_with(settings, video_tokens if isinstance(video_tokens, VideoTokens) else VideoTokens(video_tokens))
