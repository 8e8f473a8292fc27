"""Ranks over the whole video, budgets following: tokens far from the video's mean. A frame may keep nothing."""

import torch

from vidcom2 import CompressionSettings, VideoCompression, VideoTokens, register_compression_method


@register_compression_method("best_of_video")
def best_of_video(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    tokens = video.tokens.float()
    distances = (tokens - tokens.mean(dim=(0, 1))).norm(dim=-1)
    # Frames count by their square, so that dull ones keep nothing.
    distances = distances * distances.mean(dim=1, keepdim=True).square()
    num_kept = max(1, int(settings.retention_ratio * distances.numel()))
    kept = torch.zeros_like(distances, dtype=torch.bool).flatten()
    kept[distances.flatten().topk(num_kept).indices] = True
    return VideoCompression.of_mask(kept.view_as(distances), token_uniqueness=distances)
