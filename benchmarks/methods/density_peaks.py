"""Density peaks: the tokens of a frame that stand for many others. FastVID and FlashVID merge tokens into such.

This is the clustering of Rodriguez and Laio (Science 344, 2014) with the density of Du et al. (DPC-KNN, 2016): a token
is a good centre if its neighbourhood is dense, and if it is far from every denser token.

The released codes of both methods add random noise of 1e-6 to the densities, so that no two are equal. Here, of two
equally dense tokens the earlier counts as the denser one, so that the choice is the same in every call. Both codes
divide distances by √D. Here only those in the density are divided, because the rest depends on their order alone.
"""

import math

import torch
from torch import Tensor

NOT_A_CANDIDATE = -1.0  # The scores of candidates are not negative.


def density_peaks(tokens: Tensor, candidates: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Score how good a centre each token would be. The cost is quadratic in M.

    Args:
        tokens: (M, D) float32, finite.
        candidates: (M,) bool: the tokens that exist. The others are nobody's neighbours.
        neighbours: over how many of the nearest candidates the density is taken. A token is its own nearest.

    Returns:
        Scores (M,), `NOT_A_CANDIDATE` where there is none. And the Euclidean distances of each token to each candidate
        (M, M), infinite to the others.
    """
    squares = squared_distances(tokens).masked_fill(~candidates, math.inf)
    nearest = squares.topk(min(neighbours, len(tokens)), largest=False).values
    exists = nearest.isfinite()
    per_channel = nearest.masked_fill(~exists, 0.0).sum(dim=1) / (exists.sum(dim=1).clamp(min=1) * tokens.shape[1])
    density = (-per_channel).exp()

    place = torch.arange(len(tokens), device=tokens.device)
    is_denser = (density > density[:, None]) | ((density == density[:, None]) & (place < place[:, None]))
    distances = squares.sqrt()
    farthest = distances.masked_fill(~(candidates & candidates[:, None]), 0.0).max()
    separation = torch.where(is_denser & candidates, distances, farthest).amin(dim=1)
    return (density * separation).masked_fill(~candidates, NOT_A_CANDIDATE), distances


def squared_distances(tokens: Tensor) -> Tensor:
    """Return the squared Euclidean distances between tokens (M, D): (M, M) float32, exactly symmetric.

    Two tokens that are each other's nearest are equally dense among two neighbours. Noise must not decide between them.
    """
    products = tokens @ tokens.mT
    lengths = products.diagonal()
    return (lengths[:, None] + lengths - (products + products.mT)).clamp_(min=0).fill_diagonal_(0)
