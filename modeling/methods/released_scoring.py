"""`compression_scoring="released"`: what the authors' published code computes in place of cosine similarity.

It compares only the channels that vary least, takes means over unit-length tokens, uses a sum of Gaussians of the
distance as similarity, and has no ε in Eq. 5.
"""

from typing import cast

import torch
from torch import Tensor

from .token_blocks import clear_tokens, float32_blocks

LOW_VARIANCE_SHARE = 0.5  # The share of channels that are compared, those with the lowest variance.
GAUSSIAN_WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)  # The values of a in exp(-d² / 2a).
HIGHEST_SIMILARITY = float(len(GAUSSIAN_WIDTHS))
# For these dtypes `torch.batch_norm_update_stats` computes in float32 on the CPU.
BATCH_NORM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def gaussian_similarity(products: Tensor, token_norms: Tensor, centre_norms: Tensor) -> Tensor:
    """Return the released code's similarity: five Gaussians of the distance between unit-length token and centre.

    This departs from the paper's cosine similarity. A zero token stays at the origin, as in the released code.
    """
    nonzero = token_norms > 0
    cosine_part = torch.where(nonzero, products / token_norms, 0.0)
    squared_distance = (nonzero.float() - 2 * cosine_part + centre_norms.square()).clamp(min=0)
    exponents = torch.stack([squared_distance / (-2 * width) for width in GAUSSIAN_WIDTHS])
    return cast(Tensor, sum(exponents.exp_()))  # Summed term by term, so that equal tokens get equal sums anywhere.


def low_variance_channels(video_tokens: Tensor) -> Tensor:
    """Return (D,) float32 with 1 at the half of the channels that vary least over the video's tokens, else 0."""
    dim = video_tokens.shape[-1]
    lowest = channel_variance(video_tokens).argsort(stable=True)[: int(dim * LOW_VARIANCE_SHARE)]
    return torch.zeros(dim, dtype=torch.float32, device=video_tokens.device).index_fill_(0, lowest, 1.0)


def channel_variance(video_tokens: Tensor) -> Tensor:
    """Return the population variance (D,) float32 of each channel over the finite tokens of the video."""
    can_ask = video_tokens.device.type == "cpu" and not torch.compiler.is_compiling()
    if can_ask and video_tokens.dtype in BATCH_NORM_DTYPES:
        # This is one operation on the video as it is. It returns float32 because the statistics passed to it are.
        unused = torch.zeros(2, video_tokens.shape[-1], dtype=torch.float32)
        _, variance = torch.batch_norm_update_stats(video_tokens.flatten(0, 1), *unused, momentum=0.0)
        if variance.isfinite().all():  # Then every token is finite too.
            return variance

    counts, means, deviations = [], [], []  # Per block: finite tokens, channel means, summed squared deviations.
    for _, block in float32_blocks(video_tokens):
        block = block.flatten(0, 1)
        finite = torch.linalg.vector_norm(block, dim=-1).isfinite()
        block = clear_tokens(block, ~finite)
        weights = finite.float()
        count = weights.sum()
        mean = (weights @ block) / count.clamp(min=1)
        counts.append(count)
        means.append(mean)
        deviations.append(weights @ (block - mean).square_())
    counts, means, deviations = torch.stack(counts)[:, None], torch.stack(means), torch.stack(deviations)
    total = counts.sum().clamp(min=1)
    video_mean = (counts * means).sum(0) / total
    return (deviations + counts * (means - video_mean).square()).sum(0) / total
