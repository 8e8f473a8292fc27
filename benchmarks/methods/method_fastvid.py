"""`"fastvid"`: FastVID (Shen et al., NeurIPS 2025, arXiv 2503.11187).

    DySeg   cuts the video into segments of similar frames (`dynamic_segments.py`).
    ATS     keeps in each frame the tokens that receive most of the vision tower's attention: 60 % of what stays.
    DTM     gives the other 40 % of a segment's tokens to its anchor frames: its last frame, and every 4th before it.
            The density peaks among their tokens that are not salient become anchors. All other tokens of the segment
            are merged, in each of its anchor frames anew, into the anchor that they are most similar to.

An anchor that n tokens join becomes w · anchor + (1 - w) · their mean, with w = max(1/(n + 1), β). That is the plain
mean of all n + 1, unless the anchor's own weight would fall below β = 0.6.

The authors published three versions (LunarShen/FastVID), which differ. This file follows that for LLaVA-Video, with its
script's constants. It departs from it so:

- Their attention is that of SigLIP's pooling head, whose weights are not in checkpoints of the LLaVA families, and
  their frame features are what this head pools. The version for Qwen2.5-VL, which has no such head, takes the attention
  of the tower's last layer and the mean of a frame's tokens, and so does this file. There the mean query of a frame
  attends to means of 4 keys, while here the attention that all queries pay is averaged.
- In Qwen2.5-VL they cut below 0.84, and frames that are almost equal to the next one keep nothing. Here a cut is below
  0.9 in every family, and frames keep salient tokens alike, as in their versions for LLaVA.
- Every frame there is granted ⌊R·M⌋ tokens. Here the video is granted max(T, ⌊R·T·M⌋), in shares of frames that differ
  by at most 1, so that methods are compared at equally many tokens. The number depends on sizes and ratio alone.
- Above a ratio of about 45 %, the anchors of a long segment do not fit into every 4th frame, and their code for LLaVA
  fails. Here such a segment has anchors in more frames: in every 3rd, every 2nd, or every one.
- Density has no random noise (`density_peaks.py`), and a frame may have fewer than 4 tokens. In ties, the earlier token
  or anchor is taken. A token with a non-finite value enters no mean, is kept last, and is merged into nothing.

Cost: in a segment of N tokens that gets A anchors, comparing takes N·A·D multiplications. This is the largest term, and
quadratic in the segment. Density takes M²·D in each anchor frame. The memory beside the tokens is that of a segment's
similarities to the anchors of one frame. The device is read several times in each segment.
"""

import math

import torch
from torch import Tensor

from vidcom2 import CompressionSettings, VideoCompression, VideoTokens, most_unique_tokens
from vidcom2.modeling.methods.compression import exact_total, mask_of, most_unique_tokens_of_video
from vidcom2.modeling.methods.method_vidcom2 import clear_tokens, frame_means, token_centre_products

from .attended_tokens import attention_of
from .density_peaks import density_peaks
from .dynamic_segments import dynamic_segments
from .token_means import TokenMeans, compression_of_means, equal_shares

ANCHOR_SHARE = 0.4  # d in their scripts: the part of the kept tokens that are anchors
ANCHOR_INTERVAL = 4  # p: every how many frames of a segment there are anchors
LEAST_ANCHOR_WEIGHT = 0.6  # β
NEIGHBOURS = 4  # over which density is taken, the token itself among them


def fastvid(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep each frame's most attended tokens, and each segment's anchors with what is merged into them."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    total = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    if total == num_frames * tokens_per_frame:  # An anchor would still take in the other anchors of its segment.
        return VideoCompression.of_mask(torch.ones_like(video.tokens[..., 0], dtype=torch.bool))
    attention = attention_of(video)
    _, finite, means = frame_means(video.tokens)
    segments = dynamic_segments(means)
    salient_budgets, anchor_budgets = segment_budgets(segments, equal_shares(total, num_frames), tokens_per_frame)

    salient = salient_tokens(attention, finite, salient_budgets)
    mergeable = finite & ~salient
    anchors = [
        anchors_of_frame(video.tokens, segment, frame, anchor_budgets[frame], salient, mergeable)
        for segment in segments
        for frame in range(segment.start, segment.stop)
        if anchor_budgets[frame]
    ]
    return compression_of_means(salient, anchors)


def segment_budgets(segments: list[slice], shares: list[int], tokens_per_frame: int) -> tuple[list[int], list[int]]:
    """Return how many salient tokens, and how many anchors, each frame keeps.

    Args:
        shares: (T) how many tokens each frame would keep of its own.
        tokens_per_frame: M, the most that a frame can keep.
    """
    salient: list[int] = []
    anchors: list[int] = []
    for segment in segments:
        granted, length = sum(shares[segment]), segment.stop - segment.start
        num_anchors = math.floor(granted * ANCHOR_SHARE)
        others = earlier_first(granted - num_anchors, length)
        spaced = (anchors_every(interval, num_anchors, length) for interval in range(ANCHOR_INTERVAL, 0, -1))
        # In every frame they always fit, because a segment is granted at most all its tokens.
        fitting = (each for each in spaced if max(map(sum, zip(each, others))) <= tokens_per_frame)
        anchors += next(fitting)
        salient += others
    return salient, anchors


def anchors_every(interval: int, number: int, length: int) -> list[int]:
    """Divide anchors among a segment's last frame and every so many before it; the later ones get the remainder."""
    places = range(length - 1, -1, -interval)
    at = dict(zip(places, earlier_first(number, len(places))))
    return [at.get(frame, 0) for frame in range(length)]


def earlier_first(total: int, number: int) -> list[int]:
    """Divide a total into `number` whole parts that differ by at most 1, the larger ones first."""
    return [total // number + (place < total % number) for place in range(number)]


def salient_tokens(attention: Tensor, finite: Tensor, budgets: list[int]) -> Tensor:
    """Return a mask (T, M) of the tokens of each frame that receive most attention (ATS)."""
    scores = attention.nan_to_num(nan=-1.0).masked_fill(~finite, -math.inf)
    indices = most_unique_tokens(scores, torch.tensor(budgets, device=scores.device), sum(budgets))
    return mask_of(indices, finite)


def anchors_of_frame(
    tokens: Tensor, segment: slice, frame: int, number: int, salient: Tensor, mergeable: Tensor
) -> TokenMeans:
    """Choose the anchors of one frame, and merge the tokens of its segment into them (DTM).

    Args:
        tokens: (T, M, D), any float dtype.
        salient: (T, M) bool: the tokens that are kept in any case.
        mergeable: (T, M) bool: the tokens that may be merged.
    """
    tokens_per_frame = tokens.shape[1]
    of_frame = clear_tokens(tokens[frame].float(), ~mergeable[frame])
    scores, _ = density_peaks(of_frame, mergeable[frame], NEIGHBOURS)
    scores = scores.masked_fill(salient[frame], -math.inf)  # below the tokens that are not finite
    places, _ = most_unique_tokens_of_video(scores[None], number)

    rest = mergeable[segment].clone()
    rest[frame - segment.start, places] = False
    centres = of_frame[places]
    products = token_centre_products(tokens[segment], centres.expand(len(rest), -1, -1))
    lengths = torch.linalg.vector_norm(centres, dim=-1)
    similarity = torch.where(lengths > 0, products / lengths, 0.0)  # the token's own length does not change the order
    is_finite = mergeable[frame, places]
    nearest = similarity.masked_fill(~is_finite, -math.inf).argmax(dim=-1)  # of equal ones the first
    members = (rest & is_finite.any()).flatten().nonzero().flatten()
    of_members = nearest.flatten()[members]  # the number of the anchor that each one joins

    counts = torch.zeros_like(lengths).index_add_(0, of_members, torch.ones_like(of_members, dtype=torch.float32))
    weights = (1 / (counts + 1)).clamp(min=LEAST_ANCHOR_WEIGHT)
    anchors = places + frame * tokens_per_frame
    return TokenMeans(
        torch.cat([anchors, anchors[of_members]]),
        torch.cat([anchors, members + segment.start * tokens_per_frame]),
        torch.cat([weights, ((1 - weights) / counts)[of_members]]),
    )
