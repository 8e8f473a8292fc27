"""Merge each token with those at the same place in the frames after it; later frames weigh less."""

import torch

from vidcom2 import CompressionSettings, TokenMerge, VideoCompression, VideoTokens, register_compression_method


@register_compression_method("merged_in_time")
def merged_in_time(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    num_frames, tokens_per_frame, _ = video.tokens.shape
    device = video.tokens.device
    together = max(1, round(1 / settings.retention_ratio))  # how many frames become one
    frames = torch.arange(num_frames, device=device)
    first = frames // together * together
    weights = 0.5 ** (frames - first).float()
    weights = weights / torch.zeros_like(weights).index_add(0, first, weights)[first]
    places = torch.arange(tokens_per_frame, device=device)
    kept = (frames == first)[:, None].expand(num_frames, tokens_per_frame)
    merge = TokenMerge(
        outputs=(frames // together * tokens_per_frame)[:, None].add(places).flatten(),
        inputs=torch.arange(num_frames * tokens_per_frame, device=device),
        weights=weights[:, None].expand(num_frames, tokens_per_frame).flatten(),
    )
    return VideoCompression.of_mask(kept, merge=merge)
