"""`compression_method="random"`: the paper's baseline (Table 1)."""

import torch

from ..configuration.compression_settings import CompressionSettings
from .frame_budgets import frame_budgets
from .token_ranking import most_unique_tokens
from .video_compression import VideoCompression, VideoTokens


def random_tokens(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """The same budget for each frame, tokens at random. The same choice at every call."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(num_frames, tokens_per_frame, generator=generator, dtype=torch.float32).to(video.tokens.device)
    budgets, num_kept = frame_budgets(torch.zeros_like(u[:, 0]), tokens_per_frame, settings)
    return VideoCompression(most_unique_tokens(u, budgets, num_kept), budgets)
