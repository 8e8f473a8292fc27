"""`compression_method="random"`. It is the paper's baseline of random tokens (Table 1)."""

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from .compression import VideoCompression, VideoTokens, exact_total, most_unique_tokens, on_device, own_method
from .method_vidcom2 import frame_budgets


# It does not compile, since a graph cannot create a random generator.
@own_method("random", settings=("compression_rounding",), count=exact_total)
def random_tokens(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep random tokens, under the same budget for each frame. The choice is the same in every call."""
    u = random_scores(video.tokens)
    budgets, num_kept = frame_budgets(torch.zeros_like(u[:, 0]), u.shape[1], settings)
    return VideoCompression(most_unique_tokens(u, budgets, num_kept), budgets)


def random_scores(tokens: Tensor) -> Tensor:
    """Return random scores (T, M) float32 in [0, 1), the same ones for every video of that size."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    scores = torch.rand(tokens.shape[:2], generator=generator, dtype=torch.float32, device="cpu")
    return on_device(scores, tokens.device)
