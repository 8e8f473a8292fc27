"""Frame Compression Adjustment with the scores of other methods (the paper's Figure 5), as methods that users add."""

import torch

from vidcom2 import (
    CompressionSettings,
    VideoCompression,
    VideoTokens,
    compress,
    exact_total,
    frame_budgets,
    most_unique_tokens,
    register_compression_method,
)
from vidcom2.modeling.methods.method_random import random_scores

SETTINGS = ("compression_rounding", "compression_temperature")


def _adjusted(video: VideoTokens, settings: CompressionSettings, scores: torch.Tensor) -> VideoCompression:
    """Keep the best tokens of each frame by these scores (T, M), within VidCom²'s budgets."""
    u_t = compress(video.tokens).frame_uniqueness
    budgets, num_kept = frame_budgets(u_t, video.tokens.shape[1], settings)
    return VideoCompression(most_unique_tokens(scores, budgets, num_kept), budgets, u_t, scores)


@register_compression_method("random_adjusted", settings=SETTINGS, count=exact_total)
def random_adjusted(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep tokens by the scores of `random`."""
    return _adjusted(video, settings, random_scores(video.tokens))


@register_compression_method("evs_adjusted", settings=SETTINGS, count=exact_total)
def evs_adjusted(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep tokens by the scores of `evs`, which say how much a token differs from the same place one frame earlier."""
    scores = compress(video.tokens, compression_method="evs").token_uniqueness
    assert scores is not None  # `evs` always gives them
    return _adjusted(video, settings, scores)
