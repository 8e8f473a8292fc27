"""Ranks within frames, under budgets by Frame Compression Adjustment: the tokens of largest norm."""

from torch import Tensor

from vidcom2 import (
    CompressionSettings,
    VideoCompression,
    VideoTokens,
    frame_budgets,
    most_unique_tokens,
    register_compression_method,
)


@register_compression_method("longest_in_frame", settings=("compression_rounding", "compression_temperature"))
def longest_in_frame(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    norms: Tensor = video.tokens.float().norm(dim=-1)
    u = norms.mean(dim=1) / norms.max()
    budgets, num_kept = frame_budgets(u, norms.shape[1], settings)
    return VideoCompression(most_unique_tokens(norms, budgets, num_kept), budgets, u, norms)
