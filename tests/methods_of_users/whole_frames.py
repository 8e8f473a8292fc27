"""Drop whole frames, and keep every n-th."""

import torch

from vidcom2 import CompressionSettings, VideoCompression, VideoTokens, register_compression_method


@register_compression_method("whole_frames")
def whole_frames(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    num_frames, tokens_per_frame, _ = video.tokens.shape
    num_kept = max(1, round(settings.retention_ratio * num_frames))
    chosen = torch.linspace(0, num_frames - 1, num_kept, device=video.tokens.device).round().long()
    kept = torch.zeros(num_frames, tokens_per_frame, dtype=torch.bool, device=video.tokens.device)
    kept[chosen] = True
    return VideoCompression.of_mask(kept)
