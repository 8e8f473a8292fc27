"""Weighted means of tokens, each of which takes the place of a token: what FastVID, FlashVID and HoliTom keep.

Shapes: T frames, M tokens per frame, K kept tokens.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidcom2 import TokenMerge, VideoCompression
from vidcom2.modeling.methods.compression import mask_of


class TokenMeans(NamedTuple):
    """Weighted means of tokens. `compression_of_means` keeps them.

    There are N entries in any order. In entry n, token `inputs[n]` enters the mean at the place of token `places[n]`
    with weight `weights[n]`. The weights at each place add up to 1.

    Attributes:
        places, inputs: (N,) int64 in [0, T·M).
        weights: (N,) float32.
    """

    places: Tensor
    inputs: Tensor
    weights: Tensor


def compression_of_means(unchanged: Tensor, means: Iterable[TokenMeans], **scores: Any) -> VideoCompression:
    """Make a compression that keeps some tokens as they are, and means in the places of others.

    Args:
        unchanged: (T, M) bool: the tokens that stay as they are. No mean takes their place.
        **scores: other fields by name.
    """
    own = unchanged.flatten().nonzero().flatten()
    parts = [TokenMeans(own, own, torch.ones_like(own, dtype=torch.float32)), *means]
    places, inputs, weights = map(torch.cat, zip(*parts, strict=True))
    kept = mask_of(places, unchanged)
    number_of = kept.flatten().cumsum(0) - 1  # the number that a kept token has among all kept ones
    return VideoCompression.of_mask(kept, merge=TokenMerge(number_of[places], inputs, weights), **scores)


def equal_shares(total: int, num_frames: int) -> list[int]:
    """Divide K among frames alike. Where K is no multiple of T, the frames with one more are evenly spaced in time."""
    ends = [total * frame // num_frames for frame in range(num_frames + 1)]
    return [end - start for start, end in pairwise(ends)]
