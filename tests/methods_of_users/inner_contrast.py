"""Keep the tokens whose patches differ most among themselves or receive much attention, those inside the frame's border
first.

The method reads the vision tower's states and attention, and the grid."""

import math

import torch

from vidcom2 import (
    CompressionSettings,
    VideoCompression,
    VideoTokens,
    most_unique_tokens,
    register_compression_method,
)


@register_compression_method("inner_contrast", needs=("grid", "tower_states", "tower_attention"))
def inner_contrast(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    (rows, columns), (patch_rows, patch_columns) = video.grid, video.tower_grid
    states = video.tower_states.float().unflatten(1, (patch_rows, patch_columns))
    high, wide = patch_rows // rows, patch_columns // columns
    states = states[:, : rows * high, : columns * wide].unflatten(2, (columns, wide)).unflatten(1, (rows, high))
    contrast = states.transpose(2, 3).flatten(3, 4).std(dim=3).mean(dim=-1)  # (T, rows, columns)
    inside = torch.zeros(rows, columns, dtype=torch.bool, device=contrast.device)
    inside[1:-1, 1:-1] = True
    attention = video.per_token(video.tower_attention)
    contrast = (contrast + 1e3 * inside).flatten(1) + attention / attention.mean()
    per_frame = max(1, math.floor(settings.retention_ratio * rows * columns))
    budgets = torch.full((len(contrast),), per_frame, device=contrast.device)
    return VideoCompression(most_unique_tokens(contrast, budgets, per_frame * len(budgets)), budgets, None, contrast)
