"""`"holitom"`: HoliTom before the language model (Shao et al., NeurIPS 2025, arXiv 2505.21334).

    segments   A token is static in a segment if at its place, from frame to frame, the tokens have a cosine similarity
               above τ = 0.8. A static token is needed once. The video is cut so that most tokens are saved, by dynamic
               programming over all segmentations.
    dynamic    In each frame, the other tokens that receive most of the vision tower's attention are kept.
    static     The means over the segment of its static tokens are clustered by density peaks. A cluster becomes
               β · its centre + (1 - β) · the mean of the others, β = 0.6, and stands in the segment's first frame.

The budget of R·T·M tokens is divided among what is left when static tokens count once: each frame's dynamic tokens and
each segment's static ones keep the same share. What HoliTom merges inside the language model is left out. Its authors
evaluate the rest alone too, as "HoliTom (w/o M)".

The file follows the released code (cokeshao/HoliTom) with its defaults. Its setting D = 0 keeps dynamic tokens by
attention alone. Its scripts lower τ to 0.65 for R = 10 %, which is not followed. It departs from the code so:

- There a frame's share is rounded up, and that of static tokens to the nearest, so a video keeps more than R by an
  amount that depends on the content; and less if it has fewer tokens left than its budget. Here it keeps
  max(T, ⌊R·T·M⌋), and shares are rounded so that those with one more are evenly spaced in time. If the budget is larger
  than what is left, those static tokens of later frames that receive most attention stay too, and leave their means.
- Static tokens there stand before all dynamic ones of their segment, or among those of its first frame if frames have
  newlines. Here they always stand in the first frame.
- Density has no random noise (`density_peaks.py`), and a segment may have more than 1024 frames. In ties, the earlier
  token is taken. A token with a non-finite value is never static, enters no mean, and is kept last.

Cost: segments take T²·M comparisons of bits, on the CPU, and a segment of S static tokens S²·D multiplications. The
device is read three times.
"""

import math
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from vidcom2 import CompressionSettings, VideoCompression, VideoTokens, most_unique_tokens
from vidcom2.modeling.methods.compression import exact_total, mask_of, most_unique_tokens_of_video
from vidcom2.modeling.methods.temporal_uniqueness import temporal_uniqueness

from .attended_tokens import attention_of
from .density_peaks import density_peaks
from .token_means import TokenMeans, compression_of_means

STATIC_ABOVE = 0.8  # τ of the paper
CENTRE_WEIGHT = 0.6  # β
NEIGHBOURS = 7  # over at most so many, density is taken; fewer for fewer clusters
LAST = torch.finfo(torch.float32).min  # the score of what is kept only when all else is


class Clusters(NamedTuple):
    """The static tokens of a segment, S of them at each of its frames, in C clusters.

    Attributes:
        places: (S,) int64, ascending: their places in a frame.
        centres: (C,) int64, ascending: which of the S are centres.
        members: (S,) int64: the number of each one's cluster.
        weights: (S,) float32: the weight of each in its cluster's mean.
    """

    places: Tensor
    centres: Tensor
    members: Tensor
    weights: Tensor


def holitom(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep each frame's most attended dynamic tokens, and each segment's static tokens in clusters."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    u = temporal_uniqueness(video.tokens, [None, *range(num_frames - 1)])
    attention = attention_of(video).nan_to_num(nan=-1.0).masked_fill(u == -math.inf, LAST)
    alike = (u[1:] < -STATIC_ABOVE) & (u[1:] > -math.inf)  # each token with that of the frame before
    segments, is_static = static_segments(alike.cpu())
    num_static = [int(is_static[segment.start].sum()) for segment in segments]

    total = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    of_static, of_dynamic = shares(segments, num_static, tokens_per_frame, total)
    static = is_static.to(u.device)
    budgets = torch.tensor(of_dynamic, device=u.device)
    selected = mask_of(most_unique_tokens(attention.masked_fill(static, -math.inf), budgets, sum(of_dynamic)), static)
    surplus = total - sum(of_static) - sum(of_dynamic)
    if surplus:
        later = static.clone()
        later[[segment.start for segment in segments]] = False
        indices, _ = most_unique_tokens_of_video(attention.masked_fill(~later, -math.inf), surplus)
        selected |= mask_of(indices, static)

    means = []
    for segment, number in zip(segments, of_static, strict=True):
        if number:
            places = is_static[segment.start].nonzero().flatten().to(u.device)
            clusters = clustered(video.tokens[segment], places, number)
            means.append(cluster_means(clusters, segment, selected))
    scores = attention.masked_fill(u == -math.inf, -math.inf)
    return compression_of_means(selected, means, token_uniqueness=scores)


def static_segments(alike: Tensor) -> tuple[list[slice], Tensor]:
    """Cut the video into segments so that most tokens are saved if a segment's static tokens are kept once.

    Where several segmentations save as many, the last segment is as short as possible, and so on backwards.

    Args:
        alike: (T - 1, M) bool, on the CPU: whether each token is like that of the frame before; not of the first frame.

    Returns:
        The segments, and which tokens are static, (T, M) bool. A segment of one frame has no static tokens.
    """
    num_frames, tokens_per_frame = len(alike) + 1, alike.shape[1]
    saved = torch.zeros(num_frames, num_frames, dtype=torch.int64)  # by a segment from one frame to another
    for start in range(num_frames - 1):
        num_static = alike[start:].to(torch.uint8).cumprod(dim=0).sum(dim=1)
        saved[start, start + 1 :] = num_static * torch.arange(1, num_frames - start)
    most = torch.zeros(num_frames + 1, dtype=torch.int64)  # that can be saved in the frames before
    length = [0] * num_frames  # of the last segment, if the video ended with this frame
    for end in range(num_frames):
        of_lengths = (most[: end + 1] + saved[: end + 1, end]).flip(0)
        most[end + 1], best = of_lengths.max(), int(of_lengths.argmax())  # of equal ones the first
        length[end] = best + 1

    segments: list[slice] = []
    static = torch.zeros(num_frames, tokens_per_frame, dtype=torch.bool)
    end = num_frames
    while end:
        segments.insert(0, slice(end - length[end - 1], end))
        end = segments[0].start
    for segment in segments:
        if segment.stop - segment.start > 1:
            static[segment] = alike[segment.start : segment.stop - 1].all(dim=0)
    return segments, static


def shares(
    segments: list[slice], num_static: list[int], tokens_per_frame: int, total: int
) -> tuple[list[int], list[int]]:
    """Divide K among each segment's static tokens, which count once, and each frame's dynamic ones, in proportion.

    Args:
        num_static: for each segment, how many tokens of a frame are static.

    Returns:
        How many static tokens each segment keeps, and how many dynamic ones each frame. Their sum is K, or the number
        of all these tokens if that is less.
    """
    sizes: list[int] = []
    for segment, number in zip(segments, num_static, strict=True):
        sizes += [number, *[tokens_per_frame - number] * (segment.stop - segment.start)]
    granted = min(total, sum(sizes))
    ends = [granted * size // sum(sizes) for size in accumulate(sizes, initial=0)]
    every = iter([end - start for start, end in pairwise(ends)])
    of_static, of_dynamic = [], []
    for segment in segments:
        of_static.append(next(every))
        of_dynamic += [next(every) for _ in range(segment.start, segment.stop)]
    return of_static, of_dynamic


def clustered(frames: Tensor, places: Tensor, number: int) -> Clusters:
    """Cluster the static tokens of a segment, by their means over its frames.

    Args:
        frames: (n, M, D), any float dtype.
        places: (S,) int64: where the static tokens are.
        number: how many clusters to make, at most S.
    """
    every = torch.arange(len(places), device=places.device)
    if number == len(places):
        return Clusters(places, every, every, torch.ones_like(every, dtype=torch.float32))
    means = torch.zeros(len(places), frames.shape[2], dtype=torch.float32, device=places.device)
    for frame in frames:  # a long segment is never copied as a whole
        means += frame[places].float() / len(frames)
    scores, distances = density_peaks(means, torch.ones_like(places, dtype=torch.bool), min(number, NEIGHBOURS))
    centres, _ = most_unique_tokens_of_video(scores[None], number)
    members = distances[:, centres].argmin(dim=1)  # of equal ones the first
    members[centres] = every[:number]  # also where two centres are equal
    others = torch.zeros(number, device=places.device).index_add_(0, members, torch.ones_like(means[:, 0])) - 1
    weights = (1 - CENTRE_WEIGHT) / others[members]
    weights[centres] = torch.where(others > 0, CENTRE_WEIGHT, 1.0)
    return Clusters(places, centres, members, weights)


def cluster_means(clusters: Clusters, segment: slice, selected: Tensor) -> TokenMeans:
    """Return the means of a segment's clusters, in its first frame. Tokens that are selected (T, M) do not enter."""
    frames = torch.arange(segment.start, segment.stop, device=selected.device)
    indices = frames[:, None] * selected.shape[1] + clusters.places  # (frames, S)
    enters = ~selected[segment, clusters.places]
    places = indices[0, clusters.centres[clusters.members]].expand_as(indices)
    weights = clusters.weights * enters / enters.sum(dim=0)
    return TokenMeans(places.flatten(), indices.flatten(), weights.flatten())
