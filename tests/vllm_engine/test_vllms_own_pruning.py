"""vLLM's own pruning of videos beside ours."""

import pytest
import torch
from vllm.multimodal.video_prune import evs, vidcom2

from vidcom2 import compress

OURS = {
    "vidcom2": {"compression_scoring": "released", "compression_rounding": "exact"},
    "evs": {"compression_method": "evs"},
}
THEIRS = {"vidcom2": vidcom2, "evs": evs}


def features(size: tuple[int, int, int], seed: int) -> torch.Tensor:
    """Return (T, M, D) features whose frames differ from their mean by different amounts, as those of a video do."""
    generator = torch.Generator().manual_seed(seed)
    num_frames, _, dim = size
    frames = torch.randn(num_frames, 1, dim, generator=generator) * torch.rand(num_frames, 1, 1, generator=generator)
    return torch.randn(1, 1, dim, generator=generator) + frames + torch.randn(size, generator=generator)


def kept_by_vllm(method: str, tokens: torch.Tensor, ratio: float) -> set[int]:
    num_frames, tokens_per_frame, _ = tokens.shape
    grid = (num_frames, 1, tokens_per_frame)
    mask = THEIRS[method].compute_retention_mask(tokens.flatten(0, 1), grid, spatial_merge_size=1, q=1 - ratio)
    return set(mask.nonzero()[:, 0].tolist())


def kept_by_us(method: str, tokens: torch.Tensor, ratio: float) -> set[int]:
    return set(compress(tokens, ratio, **OURS[method]).indices.tolist())


@pytest.mark.parametrize("size", [(8, 49, 896), (32, 196, 256)], ids=str)
@pytest.mark.parametrize(("method", "shared"), [("vidcom2", 0.94), ("evs", 1.0)])
def test_vllms_functions_keep_as_many_tokens_and_almost_the_same(
    method: str, shared: float, size: tuple[int, int, int]
) -> None:
    """Theirs rounds each frame's budget, and makes up for the difference with single tokens, wherever they are. Ours
    scales the budgets of all frames by one factor before it rounds them. EVS has no budgets."""
    for seed in range(3):
        tokens = features(size, seed)
        for ratio in (0.1, 0.25, 0.5):
            theirs, ours = kept_by_vllm(method, tokens, ratio), kept_by_us(method, tokens, ratio)
            assert len(theirs) == len(ours)
            assert len(theirs & ours) >= shared * len(ours)
