"""`compression_method="coverage"`: leave no part of the video far from a kept token. This method is not in the paper.

Methods that keep what is unusual lose what is common: at a tenth of the tokens, events stay and the scene is gone. This
one asks for tokens that no kept token represents. It follows the greedy algorithm for the k-centre problem (Gonzalez
1985, "Clustering to minimize the maximum intercluster distance"), which picks again and again the point that is
farthest from all points picked so far. DivPrune (Alvar et al., CVPR 2025, arXiv 2503.02175) does this with an image's
tokens. Here, tokens of a video are far from each other in what they show and in time:

    d(i, j) = (1 - cos(x_i, x_j)) / v  +  2 · |t_i - t_j| / T

v is the mean of 1 - cos over all pairs of tokens of the video, so that it does not matter how alike all features of an
encoder are. The factor 2 was chosen on three levels of the needle benchmark with one of its toys (docs/needle.md tells
how); from 1 to 4 makes little difference there.

Picking one token at a time would take K steps, for each of which a GPU waits. So tokens are picked in rounds. The first
token is the one nearest to the video's mean. Each round then keeps half as many tokens as are kept already, at least
one and at most 256. The tokens farthest from what is kept are offered, four for each that the round keeps and at least
64, the farthest first. Those are kept that are farthest from what is kept and from all that were offered before them;
in a tie, the earlier. Nothing in it waits for the device: the sizes alone say how many rounds there are, 20 for 1,568
of 6,272 tokens.

The greedy rule's radius, the largest distance of a token to what is kept, is at most twice the best one. The rounds
have no such guarantee, since the tokens offered may be many of one thing. Their radius was measured beside the greedy
rule's in three videos of each kind, of 32 × 196 tokens. It is, times as large at 25, 10 and 5 % of the tokens: 1.00 to
1.01, 1.02 to 1.03 and 1.03 in noise; 1.00 to 1.01, 1.04 to 1.06 and 1.04 to 1.05 in six scenes with cuts; but 1.00 to
1.01, 1.86 to 1.94 and 2.85 to 2.89 where 24 things fill the video and four short events interrupt them.

Tokens are compared in float32, and wide ones by a sketch: their directions are projected to 256 random channels, always
the same, which keeps 1 - cos within about a tenth of its value (Johnson and Lindenstrauss 1984) and makes a comparison
fourteen times cheaper at 3,584 channels. A token of non-finite length is kept last.

K is ⌊R·T·M⌋, but at least one token for each frame's worth, as with `compression_rounding="exact"`; it depends on the
sizes alone. How K is shared among the frames depends on the content, and a frame may keep nothing. The cost is that of
K·T·M comparisons, which grows with the square of the video's length. Memory grows with the length alone: beside copies
of the tokens in float32, no more than `AT_ONCE` distances exist at a time, in 100,000 tokens as in 27,648.
"""

from functools import cache

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from .compression import VideoCompression, VideoTokens, exact_total, on_device, own_method

TIME_WEIGHT = 2.0  # of a whole video's length, in mean distances of two tokens
SKETCH = 256  # channels in which wide tokens are compared
EPSILON = 1e-12  # the least length by which a token is divided
LEAST_VARIETY = 1e-3  # a video whose tokens are more alike than this shows the same everywhere but for noise
MOST = 256  # tokens that a round keeps at most: those offered have 1,024² distances to each other, 4 MiB
OFFERED, LEAST_OFFERED = 4, 64  # tokens for each that a round keeps, and for a whole round
AT_ONCE = 2**23  # distances that are computed at once, 32 MiB: a longer video's round is taken in parts


@own_method("coverage", count=exact_total)  # As a graph, it would have hundreds of steps.
def coverage(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep the tokens that cover the video best."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    num_kept = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    tokens = Points(video.tokens)
    return covering(tokens, tokens.nearness_to_mean.argmax()[None], num_kept)


def covering(tokens: "Points", picked: Tensor, num_kept: int) -> VideoCompression:
    """Keep `num_kept` tokens: those at the places `picked` (N,), and those that are farthest from what is kept."""
    num_frames, tokens_per_frame = tokens.shape
    # Distances to what is kept. A token that is not finite is behind all that are, and a kept one behind these.
    distances = torch.full_like(tokens.nearness_to_mean, torch.inf).masked_fill_(~tokens.finite, -1.0)
    rounds, kept = [picked], len(picked)
    while kept < num_kept:
        distances = torch.minimum(distances, tokens.nearest(picked)).index_fill_(0, picked, -torch.inf)
        number = min(max(1, kept // 2), MOST, num_kept - kept)
        if number == 1:
            picked = distances.argmax()[None]
        else:
            farthest, offered = distances.sort(descending=True, stable=True)  # The earlier token first in a tie.
            offered = offered[: min(max(OFFERED * number, LEAST_OFFERED), len(distances) - kept)]
            gains = torch.minimum(farthest[: len(offered)], tokens.nearest_before(offered))
            picked = offered[gains.argsort(descending=True, stable=True)[:number]]
        rounds.append(picked)
        kept += number
    indices = torch.cat(rounds).sort().values
    budgets = torch.zeros(num_frames, dtype=torch.int64, device=indices.device)
    return VideoCompression(indices, budgets.index_add_(0, indices // tokens_per_frame, torch.ones_like(indices)))


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
            directions = directions @ on_device(projection(directions.shape[1]), tokens.device)
        # They are scaled after the projection, which leaves fewer channels.
        directions = (directions / lengths.clamp(min=EPSILON)[:, None]).masked_fill(~self.finite[:, None], 0.0)
        number = self.finite.sum().clamp(min=1)
        mean = directions.sum(dim=0) / number
        self.nearness_to_mean: Tensor = (directions @ mean).masked_fill(~self.finite, -torch.inf)
        # 1 - cos is half the squared distance of two directions, which a sketch keeps, and its mean over all pairs is
        # the mean squared length less the squared length of the mean.
        variety = (directions.square().sum() / number - mean.dot(mean)).clamp(min=LEAST_VARIETY)
        directions = directions / variety.sqrt()
        self._half_squares = directions.square().sum(dim=1)[:, None] / 2
        self._transposed = directions.T.contiguous()  # A product of few rows with it is faster.
        frames = torch.arange(num_frames, device=tokens.device, dtype=torch.float32)
        self._times_of_frames = frames * (time_weight / num_frames)
        times = self._times_of_frames[:, None].expand(-1, tokens_per_frame).reshape(-1, 1)
        # What tokens at some places are compared by is one row, so that one step reads it.
        self._rows = torch.cat([directions, self._half_squares, times], dim=1)
        # Made when it is asked for. A `cached_property` would hold a lock on Python 3.10 and 3.11, and vLLM pickles the
        # code of a repo by value.
        self._not_before: Tensor | None = None

    def distances(self, of: Tensor) -> Tensor:
        """Return the distances (N, T·M) of the tokens at the places `of` (N,) to all tokens."""
        return self._to_all(self._rows[of]).add_(self._half_squares.T)

    def nearest(self, of: Tensor) -> Tensor:
        """Return the distance (T·M,) of each token to the nearest of those at the places `of` (N,)."""
        part = max(1, AT_ONCE // len(self._rows))
        nearest = [self._to_all(rows).amin(dim=0) for rows in self._rows[of].split(part)]
        of_all = nearest[0] if len(nearest) == 1 else torch.stack(nearest).amin(dim=0)
        return of_all.add_(self._half_squares[:, 0])

    def nearest_before(self, these: Tensor) -> Tensor:
        """Return the distance (N,) of each token at some places (N,) to the nearest of those before it in the list; inf
        for the first."""
        if self._not_before is None:
            most = min(max(OFFERED * MOST, LEAST_OFFERED), len(self._rows))
            self._not_before = torch.ones(most, most, dtype=torch.bool, device=self._rows.device).triu_()
        directions, half_squares, times = self._rows[these].split([self._transposed.shape[0], 1, 1], dim=1)
        unlike = torch.addmm(half_squares.T, directions, directions.T, alpha=-1)
        unlike += (times - times.T).abs_()
        unlike.masked_fill_(self._not_before[: len(these), : len(these)], torch.inf)
        return unlike.amin(dim=1).add_(half_squares[:, 0])

    def _to_all(self, rows: Tensor) -> Tensor:
        """Return the distances (N, T·M) of rows of tokens to all tokens, less the latter's half squares."""
        directions, half_squares, times = rows.split([self._transposed.shape[0], 1, 1], dim=1)
        unlike = torch.addmm(half_squares, directions, self._transposed, alpha=-1)
        between = (times - self._times_of_frames).abs_()
        return unlike.unflatten(1, (between.shape[1], -1)).add_(between[:, :, None]).flatten(1)


@cache
def projection(width: int) -> Tensor:
    """Return (width, 256), the random channels in which tokens of this width are compared."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    return torch.randn(width, SKETCH, generator=generator, dtype=torch.float32, device="cpu") / SKETCH**0.5
