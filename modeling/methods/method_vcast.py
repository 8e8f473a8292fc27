"""`compression_method="vcast"`: V-CAST, Video Curvature-Aware Spatio-Temporal pruning (Lin et al., arXiv 2603.27650).

Curvature-guided temporal allocation: the means of the frames' tokens, scaled to length 1, are points on a path. A frame
at which the path turns gets a larger budget.

    κ_t = 1 - cos(x̂_t - x̂_{t-1}, x̂_{t+1} - x̂_t), and 1 at both ends
    K = round(R·T·M), but at least T. A frame keeps 1 token, and its share of the other K - T by softmax(κ / 0.7)

Dual-anchor spatial selection: each frame keeps the tokens with the largest sum of two scores.

    contextual diversity: 1 - cos(token, mean of the frame)
    feature activation: the token's length, scaled so that those of its frame lie in [0, 1]

The formulas of the first part stand in the figure on the project page (xinyouu.github.io/V-CAST). All else is read from
the released code (`compressor/v_cast/modeling_qwen3_vl_v_cast.py` of xinyouu/V-CAST at c235ef3). `compression_scoring`
decides who gets the tokens that are left when the shares are rounded down:

- `"paper"`: one each for the frames with the largest fractions. If a share exceeds a frame's M tokens, what it cannot
  take goes to the other frames in proportion to their weights.
- `"released"`: all for the one frame with the largest fraction until it is full, then for the next, and so on, since
  the code gives a token to the largest fraction without lowering it. These are fewer than T tokens, and all that full
  frames could not take.

There are four departures from the released code:

- A video of a single frame is compressed like any other. The code's `_v_cast_compress_frames` would do so too, but is
  not called for it.
- Scores are in float32, where the code's are in the tokens' dtype, and shares are in float64. In a still video all
  shares are equal. If they are whole numbers, float32 noise can make all of them fall short of these, and the code then
  gives one frame a token for each frame: 150 instead of 98, of 53 frames of 196 tokens at R = 0.5.
- In a tie the earlier token is kept, where the code leaves this to `topk`.
- A token with a non-finite value enters no mean and is kept last.

K, which `vcast_total` returns, depends on the sizes and the ratio alone, not on the content. How K is shared among the
frames depends on the content, and each frame keeps a token.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...configuration.compression_settings import CompressionSettings
from .compression import (
    VideoCompression,
    VideoTokens,
    in_float64,
    most_unique_tokens,
    own_method,
    shares_of_total,
    whole_and_remainders,
)
from .method_vidcom2 import cosine_similarity, frame_means, token_centre_products

EPSILON = 1e-6  # A step between frames that is shorter than this is noise, and has next to no direction.
TEMPERATURE = 0.7  # of the softmax over curvatures


def vcast_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K: R·T·M, rounded half to even as in the released code, but at least one token per frame."""
    return max(num_frames, round(retention_ratio * num_frames * tokens_per_frame))


@own_method(
    "vcast",
    settings=("compression_scoring",),
    count=vcast_total,
    compiles=True,
    scores="u_t says how sharply the path of the frames' means turns at a frame, and u adds how unlike a token is to "
    "its frame's mean and how long it is among that frame's tokens.",
)
def vcast(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep more tokens of the frames at which the video turns, and in each frame its most unusual and longest ones."""
    norms, finite, means = frame_means(video.tokens)
    num_frames, tokens_per_frame = norms.shape
    kappa = curvature(means)
    num_kept = vcast_total(num_frames, tokens_per_frame, settings.retention_ratio)
    weights = torch.softmax(in_float64(kappa) / TEMPERATURE, dim=0)
    share = shares_of_total if settings.compression_scoring == "paper" else released_shares
    budgets = 1 + share(weights, num_kept - num_frames, tokens_per_frame - 1).to(norms.device)

    products = token_centre_products(video.tokens, means[:, None])[..., 0]
    lengths = torch.linalg.vector_norm(means, dim=-1, keepdim=True)
    diversity = 1 - cosine_similarity(products, norms, lengths)
    u = (diversity + activation(norms, finite)).masked_fill(~finite, -math.inf)
    return VideoCompression(most_unique_tokens(u, budgets, num_kept), budgets, kappa, u)


def curvature(means: Tensor) -> Tensor:
    """Return κ (T,) in [0, 2]: how sharply the path of the frames' means (T, D) turns at each; 1 at both ends.

    It is also 1 where the path stands still before the frame or after it.
    """
    steps = normalize(normalize(means, dim=-1, eps=EPSILON).diff(dim=0), dim=-1, eps=EPSILON)
    kappa = torch.ones_like(means[:, 0])
    kappa[1:-1] = 1 - (steps[:-1] * steps[1:]).sum(dim=-1)
    return kappa


def activation(norms: Tensor, finite: Tensor) -> Tensor:
    """Return the tokens' lengths (T, M), scaled in each frame so that those of its finite tokens lie in [0, 1]."""
    shortest = norms.masked_fill(~finite, math.inf).amin(dim=1, keepdim=True)
    longest = norms.masked_fill(~finite, -math.inf).amax(dim=1, keepdim=True)
    return (norms - shortest) / (longest - shortest + EPSILON)


def released_shares(weights: Tensor, total: int, most: int) -> Tensor:
    """Divide a total among frames as the released code does: (T,) int64 in [0, most], which add up to it.

    Args:
        weights: (T,) float64, whose sum is 1.
        total: at most T · most.
    """
    whole, remainders = whole_and_remainders(weights * total)
    whole = whole.clamp(max=most)
    order = remainders.argsort(descending=True, stable=True)
    room = (most - whole).gather(0, order)
    filled_before = room.cumsum(0) - room
    granted = (total - whole.sum() - filled_before).clamp(min=0).minimum(room)
    return whole.scatter_add(0, order, granted).long()
