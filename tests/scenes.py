"""Videos of a few scenes, for tests of methods that cut a video into segments."""

import torch
from torch import Tensor


def scenes(
    num_frames: int, tokens_per_frame: int, dim: int, *, seed: int, num_scenes: int, common: float, change: float
) -> tuple[Tensor, Tensor]:
    """Make the tokens (T, M, D) of a video of equally long scenes, and an attention (T, M), from a seed.

    Args:
        common: how much the tokens of a scene have in common, beside a deviation of 1.
        change: by how much each token changes from frame to frame.
    """
    generator = torch.Generator().manual_seed(seed)
    of_scenes = torch.randn(num_scenes, tokens_per_frame, dim, generator=generator)
    of_scenes += common * torch.randn(num_scenes, 1, dim, generator=generator)
    tokens = of_scenes[torch.arange(num_frames) * num_scenes // num_frames]
    tokens = tokens + change * torch.randn(num_frames, tokens_per_frame, dim, generator=generator)
    return tokens, torch.rand(num_frames, tokens_per_frame, generator=generator) / tokens_per_frame
