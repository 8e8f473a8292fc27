"""`compression_method="vidcom2"`: VidCom² as in the paper, Section 3.2 and Algorithm 1.

    Stage 1, Frame Compression Adjustment: a frame whose tokens differ from the video's mean gets a larger budget.
    Stage 2, Adaptive Token Compression: each frame keeps the tokens that differ most from its own and the video's mean.

Shapes: T frames, M tokens per frame, D channels. Tokens are scored in float32. A token with a non-finite value enters
no mean and is kept last.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from .compression import register_compression_method
from .frame_budgets import EPSILON, frame_budgets
from .released_scoring import HIGHEST_SIMILARITY, gaussian_similarity, low_variance_channels
from .token_blocks import token_centre_products, token_norms_and_frame_sums
from .token_ranking import most_unique_tokens
from .video_compression import VideoCompression, VideoTokens


@register_compression_method("vidcom2")
def vidcom2(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep each frame's most unique tokens (Algorithm 1). The tokens are read twice, with `"released"` three times."""
    scoring = SCORINGS[settings.compression_scoring]
    norms, finite, frame_sums = token_norms_and_frame_sums(
        video.tokens, scoring.channels(video.tokens), scoring.unit_tokens
    )

    # Stage 1, step 1: the global representation g_v of the video (Eq. 3). Stage 2, step 1: g_f of each frame (Eq. 7).
    counts = finite.sum(dim=1, keepdim=True)
    g_f = frame_sums / counts.clamp(min=1)
    g_v = video_means(frame_sums, counts, settings.compression_window)

    # Stage 1, step 2, and stage 2, step 1: uniqueness is negated similarity (Eqs. 4 and 8).
    centres = torch.stack([g_f, g_v], dim=1)  # (T, 2, D)
    products = token_centre_products(video.tokens, centres)  # (T, M, 2)
    centre_norms = torch.linalg.vector_norm(centres, dim=-1)[:, None]
    u_frame, u_video = (-scoring.similarity(products, norms[..., None], centre_norms)).unbind(-1)

    # Stage 1, step 3: frame uniqueness u_t.
    u_t = frame_uniqueness(u_video, finite, settings.compression_frame_score, lowest=-scoring.highest_similarity)

    # Stage 1, step 4: retention ratios r_t (Eqs. 5 and 6), from which the budgets k_t = ⌈r_t · M⌉ of stage 2, step 3.
    budgets, num_kept = frame_budgets(u_t, norms.shape[1], settings, scoring.epsilon)

    # Stage 2, step 2: comprehensive uniqueness u, from both levels (Eq. 9, where both weights are 1).
    u = settings.compression_frame_weight * u_frame + settings.compression_video_weight * u_video
    u = u.masked_fill(~finite, -math.inf)

    # Stage 2, step 3: keep the k_t most unique tokens of each frame.
    indices = most_unique_tokens(u, budgets, num_kept)
    return VideoCompression(indices, budgets, u_t, u)


def video_means(frame_sums: Tensor, counts: Tensor, window: int | None) -> Tensor:
    """Return the mean g_v (T, D) that each frame is compared with: of the video (Eq. 3), or of a window of frames.

    Args:
        frame_sums: (T, D) sum over the finite tokens of each frame.
        counts: (T, 1) number of these tokens.
        window: number of frames in the window around each frame; None for the whole video.
    """
    num_frames = len(frame_sums)
    if window is None or window >= num_frames:
        return (frame_sums.sum(0, keepdim=True) / counts.sum(0, keepdim=True).clamp(min=1)).expand_as(frame_sums)
    frames = torch.arange(num_frames, device=frame_sums.device)
    first = (frames - window // 2).clamp(0, num_frames - window)[:, None]
    inside = ((frames >= first) & (frames < first + window)).float()  # (T, T)
    return inside @ frame_sums / (inside @ counts.float()).clamp(min=1)


def cosine_similarity(products: Tensor, token_norms: Tensor, centre_norms: Tensor) -> Tensor:
    """Return the cosine similarity of Eqs. 4 and 8. That of a zero vector is 0."""
    lengths = token_norms * centre_norms
    return torch.where(lengths > 0, products / lengths, 0.0).clamp(-1, 1)


def frame_uniqueness(u_video: Tensor, finite: Tensor, frame_score: str, lowest: float) -> Tensor:
    """Return u_t (T,): the mean or maximum of u_video (T, M) over a frame's finite tokens; `lowest` if it has none."""
    if frame_score == "max":
        u = u_video.masked_fill(~finite, -math.inf).amax(dim=1)
    else:
        u = u_video.masked_fill(~finite, 0.0).sum(dim=1) / finite.sum(dim=1).clamp(min=1)
    return torch.where(finite.any(dim=1), u, lowest)


class Scoring(NamedTuple):
    """What `compression_scoring` decides.

    Attributes:
        channels: returns, for tokens (T, M, D), ones (D,) at the channels that are compared and zeros at the others;
            None for all channels.
        unit_tokens: whether the means are taken over tokens scaled to length 1.
        similarity: takes inner products (T, M, 2), token norms (T, M, 1) and norms of the means (T, 1, 2).
        highest_similarity: the largest value of `similarity`.
        epsilon: ε of Eq. 5.
    """

    channels: Callable[[Tensor], Tensor | None]
    unit_tokens: bool
    similarity: Callable[[Tensor, Tensor, Tensor], Tensor]
    highest_similarity: float
    epsilon: float


SCORINGS = {
    "paper": Scoring(lambda tokens: None, False, cosine_similarity, 1.0, EPSILON),
    "released": Scoring(low_variance_channels, True, gaussian_similarity, HIGHEST_SIMILARITY, 0.0),
}
