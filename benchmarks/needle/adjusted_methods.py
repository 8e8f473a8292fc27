"""Frame Compression Adjustment on the scores of other methods (the paper's Figure 5), as methods of users."""

import torch

from vidcom2 import (
    CompressionSettings,
    VideoCompression,
    VideoTokens,
    compress,
    frame_budgets,
    most_unique_tokens,
    register_compression_method,
)

SETTINGS = ("compression_rounding", "compression_temperature")


def _adjusted(video: VideoTokens, settings: CompressionSettings, scores: torch.Tensor) -> VideoCompression:
    """The best of each frame by these scores (T, M), under VidCom²'s budgets."""
    u_t = compress(video.tokens).frame_uniqueness
    budgets, num_kept = frame_budgets(u_t, video.tokens.shape[1], settings)
    return VideoCompression(most_unique_tokens(scores, budgets, num_kept), budgets, u_t, scores)


@register_compression_method("random_adjusted", settings=SETTINGS)
def random_adjusted(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """`random`'s scores."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(video.tokens.shape[:2], generator=generator).to(video.tokens.device)
    return _adjusted(video, settings, scores)


@register_compression_method("evs_adjusted", settings=SETTINGS)
def evs_adjusted(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """`evs`'s scores: how unlike the same place in the frame before."""
    tokens = video.tokens.float()
    unlike = 1 - torch.cosine_similarity(tokens[1:], tokens[:-1], dim=-1)
    first = torch.full_like(tokens[:1, :, 0], float("inf"))
    return _adjusted(video, settings, torch.cat([first, unlike]).clamp(max=3.0))
