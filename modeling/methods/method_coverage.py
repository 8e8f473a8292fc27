"""`compression_method="coverage"`: leave no part of the video far from a kept token. This method is not in the paper.

Methods that keep what is unusual lose what is common: at a tenth of the tokens, events stay and the scene is gone. This
one asks for the opposite of a rare token, a token that nothing kept stands for. It is the greedy algorithm for the
k-centre problem (Gonzalez 1985, "Clustering to minimize the maximum intercluster distance"), which picks again and
again the point that is farthest from all points picked so far. DivPrune (Alvar et al., CVPR 2025, arXiv 2503.02175)
does this with the tokens of an image. Here, tokens of a video are far from each other in what they show and in time:

    d(i, j) = (1 - cos(x_i, x_j)) / v  +  2 · |t_i - t_j| / T

v is the mean of 1 - cos over all pairs of tokens of the video, so that it does not matter how alike all features of an
encoder are. The factor 2 was chosen on three levels of the needle benchmark with one of its toys (docs/needle.md tells
how); from 1 to 4 makes little difference there.

Picking one token at a time would take K steps. So each frame offers the token that is farthest from what is kept, and
⌊T/4⌋ of these, but at least one, are picked by the greedy rule before the frames offer again. The first token is the
one nearest to the video's mean. Tokens are compared in float32, and wide ones by a sketch: their directions are
projected to 256 random channels, always the same, which keeps 1 - cos within about a tenth of its value (Johnson and
Lindenstrauss 1984) and makes a comparison fourteen times cheaper at 3,584 channels. A token with a non-finite value is
kept last.

K is ⌊R·T·M⌋, but at least one token for each frame's worth, as with `compression_rounding="exact"`; it depends on the
sizes alone. How K is shared among the frames depends on the content, and a frame may keep nothing. The cost is that of
K·T·M comparisons, which grows with the square of the video's length.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...configuration.compression_settings import CompressionSettings
from .exact_totals import exact_total
from .token_ranking import most_unique_tokens_of_video
from .video_compression import VideoCompression, VideoTokens

TIME_WEIGHT = 2.0  # of a whole video's length, in mean distances of two tokens
SKETCH = 256  # channels in which wide tokens are compared
LEAST_VARIETY = 1e-3  # a video whose tokens are more alike than this shows the same everywhere but for noise


def coverage(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep the tokens that cover the video best."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    num_kept = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    tokens = Points(video.tokens)

    nearness = tokens.nearness_to_mean()
    picked = nearness.argmax()[None]
    distances = torch.full_like(nearness, torch.inf)  # of each token to what is kept
    taken = torch.zeros_like(tokens.finite)
    first_of_frames = tokens_per_frame * torch.arange(num_frames, device=distances.device)
    picks = max(1, num_frames // 4)
    for left in range(num_kept - 1, 0, -picks):
        taken.index_fill_(0, picked, True)
        distances = torch.minimum(distances, tokens.distances(picked).amin(dim=1))
        free = distances.masked_fill(taken | ~tokens.finite, -torch.inf).unflatten(0, (num_frames, -1))
        farthest = free.max(dim=1)
        offered = first_of_frames + farthest.indices
        picked = offered[farthest_first(farthest.values, tokens.distances(offered, offered), min(left, picks))]
    taken.index_fill_(0, picked, True)

    # Near R = 1 a frame without a free token may have been picked, and non-finite tokens never are: fill up.
    order = distances.masked_fill(~tokens.finite, -torch.inf).masked_fill(taken, torch.inf)
    return VideoCompression(*most_unique_tokens_of_video(order.unflatten(0, (num_frames, -1)), num_kept))


def farthest_first(distances: Tensor, between: Tensor, number: int) -> Tensor:
    """Return the places of `number` of the offered tokens: each is farthest from what is kept and from those before it.

    Args:
        distances: (T,) of the offered tokens to what is kept; -inf where a frame offers nothing.
        between: (T, T) distances of the offered tokens to each other.
    """
    picked = []
    for _ in range(number):
        best = distances.argmax()
        picked.append(best)
        distances = torch.minimum(distances, between[best]).index_fill(0, best[None], -torch.inf)
    return torch.stack(picked)


class Points:
    """The tokens of a video as points of a space with the distance d.

    Attributes:
        finite: (T·M,) bool, which tokens have only finite values.
    """

    def __init__(self, tokens: Tensor):
        num_frames, tokens_per_frame, _ = tokens.shape
        directions = tokens.float().flatten(0, 1)
        self.finite = directions.isfinite().all(dim=1)
        self._directions = normalize(directions.masked_fill(~self.finite[:, None], 0.0), dim=1)
        if self._directions.shape[1] > SKETCH:
            self._directions = self._directions @ projection(self._directions.shape[1]).to(tokens.device)
        self._mean = self._directions.sum(dim=0) / self.finite.sum().clamp(min=1)
        # 1 - cos is half the squared distance of two directions, which a sketch keeps, and its mean over all pairs is
        # the mean squared length less the squared length of the mean.
        self._squares = self._directions.square().sum(dim=1)
        mean_square = self._squares.sum() / self.finite.sum().clamp(min=1)
        self._variety = (mean_square - self._mean.dot(self._mean)).clamp(min=LEAST_VARIETY)
        frames = torch.arange(num_frames, device=tokens.device).repeat_interleave(tokens_per_frame)
        self._times = frames * (TIME_WEIGHT / num_frames)

    def distances(self, to: Tensor, of: Tensor | slice = slice(None)) -> Tensor:
        """Return the distances of tokens (all, or those at some places) to the tokens at the places `to` (N,)."""
        squares = self._squares[of, None] + self._squares[to]
        unlike = squares / 2 - self._directions[of] @ self._directions[to].T
        return unlike / self._variety + (self._times[of, None] - self._times[to]).abs()

    def nearness_to_mean(self) -> Tensor:
        """Return (T·M,), the inner product of each token's direction and the mean one; -inf of a non-finite token."""
        return (self._directions @ self._mean).masked_fill(~self.finite, -torch.inf)


@cache
def projection(width: int) -> Tensor:
    """Return (width, 256), the random channels in which tokens of this width are compared."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(width, SKETCH, generator=generator) / SKETCH**0.5
