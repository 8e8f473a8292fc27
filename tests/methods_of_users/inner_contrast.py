"""Keep the tokens whose channels differ most among themselves, those inside the frame's border first.

The method reads the grid."""

import math

import torch

from vidcom2 import (
    CompressionSettings,
    VideoCompression,
    VideoTokens,
    most_unique_tokens,
    register_compression_method,
)


@register_compression_method("inner_contrast")
def inner_contrast(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    if video.grid is None:
        raise ValueError("`inner_contrast` reads `grid`, which is None. Pass `VideoTokens` with a grid; models do.")
    inside = torch.zeros(video.grid, dtype=torch.bool, device=video.tokens.device)
    inside[1:-1, 1:-1] = True
    contrast = video.tokens.float().std(dim=-1) + 1e3 * inside.flatten()
    per_frame = max(1, math.floor(settings.retention_ratio * contrast.shape[1]))
    budgets = torch.full((len(contrast),), per_frame, device=contrast.device)
    return VideoCompression(most_unique_tokens(contrast, budgets, per_frame * len(budgets)), budgets, None, contrast)
