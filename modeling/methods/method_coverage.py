"""`compression_method="coverage"`: leave no part of the video far from a kept token. This method is not in the paper.

Methods that keep what is unusual lose what is common: at a tenth of the tokens, events stay and the scene is gone. This
one asks for tokens that no kept token represents. It is the greedy algorithm for the k-centre problem (Gonzalez 1985,
"Clustering to minimize the maximum intercluster distance"), which picks again and again the point that is farthest from
all points picked so far. DivPrune (Alvar et al., CVPR 2025, arXiv 2503.02175) does this with an image's
tokens. Here, tokens of a video are far from each other in what they show and in time:

    d(i, j) = (1 - cos(x_i, x_j)) / v  +  2 · |t_i - t_j| / T

v is the mean of 1 - cos over all pairs of tokens of the video, so that it does not matter how alike all features of an
encoder are. The factor 2 was chosen on three levels of the needle benchmark with one of its toys (docs/needle.md tells
how); from 1 to 4 makes little difference there.

Picking one token at a time would take K steps. So each frame offers the token that is farthest from what is kept, and
⌊T/4⌋ of these, but at least one, are picked by the greedy rule before the frames offer again. The first token is the
one nearest to the video's mean. Tokens are compared in float32, and wide ones by a sketch: their directions are
projected to 256 random channels, always the same, which keeps 1 - cos within about a tenth of its value (Johnson and
Lindenstrauss 1984) and makes a comparison fourteen times cheaper at 3,584 channels. A token of non-finite length is
kept last.

K is ⌊R·T·M⌋, but at least one token for each frame's worth, as with `compression_rounding="exact"`; it depends on the
sizes alone. How K is shared among the frames depends on the content, and a frame may keep nothing. The cost is that of
K·T·M comparisons, which grows with the square of the video's length.
"""

from functools import cache

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from .compression import VideoCompression, VideoTokens, exact_total, most_unique_tokens_of_video, own_method

TIME_WEIGHT = 2.0  # of a whole video's length, in mean distances of two tokens
SKETCH = 256  # channels in which wide tokens are compared
EPSILON = 1e-12  # the least length by which a token is divided
LEAST_VARIETY = 1e-3  # a video whose tokens are more alike than this shows the same everywhere but for noise


@own_method("coverage", count=exact_total)  # As a graph, it would have thousands of steps.
def coverage(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep the tokens that cover the video best."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    num_kept = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    tokens = Points(video.tokens)
    return covering(tokens, tokens.nearness_to_mean.argmax()[None], num_kept)


def covering(tokens: "Points", picked: Tensor, num_kept: int) -> VideoCompression:
    """Keep `num_kept` tokens: those at the places `picked` (N,), and those that are farthest from what is kept."""
    num_frames, tokens_per_frame = tokens.shape
    distances = torch.full_like(tokens.nearness_to_mean, torch.inf)  # of each token to what is kept
    taken = torch.zeros_like(tokens.finite)
    first_of_frames = tokens_per_frame * torch.arange(num_frames, device=distances.device)
    picks = max(1, num_frames // 4)
    for left in range(num_kept - len(picked), 0, -picks):
        taken.index_fill_(0, picked, True)
        distances = torch.minimum(distances, tokens.distances(picked).amin(dim=0))
        free = distances.masked_fill(taken | ~tokens.finite, -torch.inf).unflatten(0, (num_frames, -1))
        farthest = free.max(dim=1)
        offered = first_of_frames + farthest.indices
        picked = offered[farthest_first(farthest.values, tokens.between(offered), min(left, picks))]
    taken.index_fill_(0, picked, True)

    # Where few frames have a free token, frames without one were picked too, and their tokens do not count:
    # fill up by the distances, with tokens that are not finite last.
    order = distances.masked_fill(distances.isinf(), 0.0)  # where no more than `picked` stay
    order = order.masked_fill(taken, torch.inf).masked_fill(~tokens.finite, -torch.inf)
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
        shape: T and M.
        finite: (T·M,) bool, which tokens have a finite length, and so only finite values.
        nearness_to_mean: (T·M,), the inner product of each token's direction and the mean one; -inf of a token that is
            not finite.
    """

    def __init__(self, tokens: Tensor, time_weight: float = TIME_WEIGHT):
        num_frames, tokens_per_frame, _ = tokens.shape
        self.shape = num_frames, tokens_per_frame
        directions = tokens.float().flatten(0, 1)
        lengths = torch.linalg.vector_norm(directions, dim=1)
        self.finite: Tensor = lengths.isfinite()
        if directions.shape[1] > SKETCH:
            directions = directions @ projection(directions.shape[1]).to(tokens.device)
        # They are scaled after the projection, which leaves fewer channels.
        directions = (directions / lengths.clamp(min=EPSILON)[:, None]).masked_fill(~self.finite[:, None], 0.0)
        number = self.finite.sum().clamp(min=1)
        mean = directions.sum(dim=0) / number
        self.nearness_to_mean: Tensor = (directions @ mean).masked_fill(~self.finite, -torch.inf)
        # 1 - cos is half the squared distance of two directions, which a sketch keeps, and its mean over all pairs is
        # the mean squared length less the squared length of the mean.
        variety = (directions.square().sum() / number - mean.dot(mean)).clamp(min=LEAST_VARIETY)
        directions = directions / variety.sqrt()
        self._half_squares = directions.square().sum(dim=1) / 2
        self._directions = directions
        self._transposed = directions.T.contiguous()  # A product of few rows with it is faster.
        frames = torch.arange(num_frames, device=tokens.device, dtype=torch.float32)
        self._times_of_frames = frames * (time_weight / num_frames)
        self._times = self._times_of_frames.repeat_interleave(tokens_per_frame)

    def distances(self, of: Tensor) -> Tensor:
        """Return the distances (N, T·M) of the tokens at the places `of` (N,) to all tokens."""
        lengths = self._half_squares[of, None] + self._half_squares
        unlike = torch.addmm(lengths, self._directions[of], self._transposed, alpha=-1)
        between = (self._times[of, None] - self._times_of_frames).abs()
        return unlike.unflatten(1, (between.shape[1], -1)).add_(between[:, :, None]).flatten(1)

    def between(self, these: Tensor) -> Tensor:
        """Return the distances (N, N) of the tokens at some places (N,) to each other."""
        directions, half_squares, times = (each[these] for each in (self._directions, self._half_squares, self._times))
        unlike = half_squares[:, None] + half_squares - directions @ directions.T
        return unlike + (times[:, None] - times).abs()


@cache
def projection(width: int) -> Tensor:
    """Return (width, 256), the random channels in which tokens of this width are compared."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    return torch.randn(width, SKETCH, generator=generator, dtype=torch.float32, device="cpu") / SKETCH**0.5
