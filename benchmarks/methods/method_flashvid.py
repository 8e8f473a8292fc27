"""`"flashvid"`: FlashVID before the language model (Fan et al., ICLR 2026, arXiv 2602.08024).

    DySeg   cuts the video into segments of similar frames (`dynamic_segments.py`).
    ADTS    keeps in each frame, as α = 70 % of its tokens, those that are unlike one another, receive much of the
            vision tower's attention and fit the segment: a greedy max-min choice by distances that both scale.
    TSTM    merges the other tokens over time: a token joins the most similar one of the frame before if their cosine
            similarity is above 0.8, wherever in its frame that one is. Tokens that are linked in this way form a tree,
            which becomes its mean, at the place of its first token. The trees that begin in a frame are then clustered
            by density peaks, into as many means as the frame has tokens left.

What FlashVID prunes inside the language model is left out. For that part it keeps 1.25 · R of the tokens before the
model, of which 30 % pass its 20th of 28 layers, so that a layer sees 1.25 · R · (20 + 0.3 · 8) / 28 = R of them on
average. Without it, the ratio at which every layer sees R·T·M tokens is R itself.

The file follows the released code (Fanziyang-v/FlashVID), with its defaults (`attn_div_v2`, 8 segments, which its
scripts for LLaVA have; those for Qwen have `attn_div` and 4). It departs from it so:

- Every frame there is granted ⌈R·M⌉ tokens, and numbers of clusters are rounded up, so that a video keeps more than R
  by an amount that depends on the content. Here it keeps max(T, ⌊R·T·M⌋), shared among frames that differ by at most 1.
  Clusters are divided among the frames of a segment by largest remainders, with ties to the earlier frame, so the
  trees of a frame may get none. They are dropped then.
- A tree there is the sum of all its tokens, divided by 1 + the number of its root's children, which is too few where a
  child has children. Here it is the mean.
- In a segment of one frame, the tokens of ADTS there enter the clusters too, and may be kept twice. Here they do not.
- ADTS there may choose a token twice where its relevance is negative. Here it is never chosen again.
- If frames are few, their code may cut a segment of no frame. Here every segment has one.
- Density has no random noise (`density_peaks.py`). It is taken over as many neighbours as there are clusters. A token
  is its own first neighbour, so with a single cluster all trees are equally dense. The noise then decides where the
  mean of the cluster stands. Here it stands at the first tree.
- The similarity of a zero token is 0. In ties, the earlier token is taken. A token with a non-finite value enters no
  mean, is kept last, and is merged into nothing.

Cost: ADTS takes M²·D for each frame, links M²·D for each pair of frames, and clustering at most as much: quadratic in
the tokens of a frame, linear in the number of frames. ADTS takes α·R·M steps, one after the other. Memory beside the
tokens is that of the M × M distances of some frames. The device is read twice.
"""

import math

import torch
from torch import Tensor

from vidcom2 import CompressionSettings, VideoCompression, VideoTokens
from vidcom2.modeling.methods.compression import exact_total, most_unique_tokens_of_video
from vidcom2.modeling.methods.method_vidcom2 import (
    clear_tokens,
    cosine_similarity,
    float32_blocks,
    frame_means,
    token_centre_products,
)

from .attended_tokens import attention_of
from .density_peaks import density_peaks
from .dynamic_segments import dynamic_segments
from .token_means import TokenMeans, compression_of_means, equal_shares

SELECTED_SHARE = 0.7  # α of the paper: the part of a frame's kept tokens that ADTS selects
LINKED_ABOVE = 0.8  # the cosine similarity above which a token joins one of the frame before
NEIGHBOURS = 7  # over at most so many, density is taken; fewer for fewer clusters
NOT_LINKED = -1.0  # A cosine similarity is never smaller.
LAST = torch.finfo(torch.float32).min  # the score of what is taken only when all else is


def flashvid(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep each frame's diverse, attended tokens, and the means of clusters of trees of all others."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    total = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    attention = attention_of(video)
    norms, finite, means = frame_means(video.tokens)
    segments = dynamic_segments(means)
    shares = equal_shares(total, num_frames)
    of_adts = [math.ceil(share * SELECTED_SHARE) for share in shares]

    relevance = event_relevance(video.tokens, finite, means, segments)
    selected = diverse_tokens(video.tokens, norms, finite, attention.nan_to_num(0.0) * relevance, of_adts)
    if of_adts == shares:
        return VideoCompression.of_mask(selected)

    similarity, parents = links(video.tokens, norms, finite & ~selected, segments)
    merged = linked(similarity, segments, shares)
    roots = tree_roots(merged, parents)
    num_trees = (~merged & ~selected).sum(dim=1).tolist()
    clusters = []
    for segment in segments:
        clusters += cluster_budgets(num_trees[segment], sum(shares[segment]) - sum(of_adts[segment]))
    centres = cluster_centres(video.tokens, finite, selected, merged, parents, roots, segments, clusters)
    return merged_compression(selected, finite, roots, centres)


def event_relevance(tokens: Tensor, finite: Tensor, means: Tensor, segments: list[slice]) -> Tensor:
    """Return the inner product (T, M) of each token with the mean of its segment's frames; 0 for non-finite tokens."""
    of_segments = torch.cat([means[each].mean(dim=0).expand(each.stop - each.start, -1) for each in segments])
    return token_centre_products(tokens, of_segments[:, None])[..., 0].masked_fill(~finite, 0.0)


def diverse_tokens(tokens: Tensor, norms: Tensor, finite: Tensor, calibration: Tensor, budgets: list[int]) -> Tensor:
    """Choose tokens of each frame that are far from one another (ADTS), by a greedy max-min choice.

    The first is the one farthest from its nearest neighbour. Each further one is farthest from the nearest of those
    before. A distance is 1 - cosine similarity, times the calibration of the token that would be chosen.

    Args:
        calibration: (T, M) float32, finite.
        budgets: (T) how many tokens each frame keeps.

    Returns:
        A mask (T, M) of the chosen tokens.
    """
    chosen = torch.zeros_like(finite)
    granted = torch.tensor(budgets, device=tokens.device)
    for frames, block in float32_blocks(tokens):
        block, is_finite, chosen_here = clear_tokens(block, ~finite[frames]), finite[frames], chosen[frames]
        lengths = torch.where(is_finite, norms[frames], 0.0)
        distances = 1 - cosine_similarity(block @ block.mT, lengths[..., None], lengths[:, None])
        # In row i and column j, how far token j would be from a chosen token i.
        distances = distances * calibration[frames, None]
        distances = distances.masked_fill(~is_finite[..., None], math.inf).masked_fill(~is_finite[:, None], LAST)
        # The nearest token of a column is itself, and the next one its neighbour.
        nearest = distances.topk(min(2, distances.shape[1]), dim=1, largest=False).values[:, -1]
        for step in range(max(budgets[frames])):
            best = nearest.masked_fill(chosen_here, -math.inf).argmax(dim=1, keepdim=True)  # of equal ones the first
            chosen_here.scatter_(1, best, (step < granted[frames])[:, None])
            to_best = distances.take_along_dim(best[..., None], dim=1)[:, 0]
            nearest = torch.minimum(nearest, to_best) if step else to_best
    return chosen


def links(tokens: Tensor, norms: Tensor, candidates: Tensor, segments: list[slice]) -> tuple[Tensor, Tensor]:
    """Find for each token the most similar one of the frame before, in its segment.

    Args:
        candidates: (T, M) bool: the tokens that may be linked.

    Returns:
        Their cosine similarity (T, M) float32, `NOT_LINKED` in the first frame of a segment. And the place that the
        other has in its frame (T, M) int64.
    """
    similarity = torch.full_like(norms, NOT_LINKED)
    parents = torch.zeros_like(candidates, dtype=torch.int64)
    for segment in segments:
        for frame in range(segment.start + 1, segment.stop):
            pair = slice(frame - 1, frame + 1)
            before, here = clear_tokens(tokens[pair].float(), ~candidates[pair])
            lengths_before, lengths_here = norms[pair]
            # With a token that is not a candidate it is 0, which links nothing.
            cosines = cosine_similarity(here @ before.mT, lengths_here[:, None], lengths_before)
            similarity[frame], parents[frame] = cosines.amax(dim=1), cosines.argmax(dim=1)  # of equal ones the first
    return similarity, parents


def linked(similarity: Tensor, segments: list[slice], shares: list[int]) -> Tensor:
    """Return a mask (T, M) of the tokens that join one of the frame before.

    So many join that a segment keeps at least what it is granted. Where more are above `LINKED_ABOVE`, it is raised to
    the similarity of the last that may join, which then stays too, as in the released code.
    """
    merged = torch.zeros_like(similarity, dtype=torch.bool)
    for segment in segments:
        of_segment = similarity[segment]
        most = of_segment.numel() - sum(shares[segment])
        ranked = of_segment.flatten().sort(descending=True).values
        raised = ranked[most - 1] if most else ranked.new_tensor(math.inf)
        merged[segment] = of_segment > torch.where(ranked[most] > LINKED_ABOVE, raised, LINKED_ABOVE)
    return merged


def tree_roots(merged: Tensor, parents: Tensor) -> Tensor:
    """Return for each token (T, M) the first token of its tree: int64 into the T·M tokens."""
    own = torch.arange(merged.numel(), device=merged.device).view_as(merged)
    roots = own.clone()
    for frame in range(1, len(roots)):
        roots[frame] = torch.where(merged[frame], roots[frame - 1, parents[frame]], own[frame])
    return roots


def cluster_budgets(num_trees: list[int], total: int) -> list[int]:
    """Divide the clusters of a segment among its frames, in proportion to how many trees begin in each.

    Largest remainders decide what is rounded up, and the earlier frame in a tie. There are at least as many trees.
    """
    if total == 0:
        return [0] * len(num_trees)
    whole, remainders = zip(*(divmod(number * total, sum(num_trees)) for number in num_trees))
    budgets = list(whole)
    for frame in sorted(range(len(budgets)), key=lambda frame: -remainders[frame])[: total - sum(whole)]:
        budgets[frame] += 1
    return budgets


def cluster_centres(
    tokens: Tensor,
    finite: Tensor,
    selected: Tensor,
    merged: Tensor,
    parents: Tensor,
    roots: Tensor,
    segments: list[slice],
    clusters: list[int],
) -> Tensor:
    """Cluster the trees that begin in each frame, by their means.

    Args:
        tokens: (T, M, D), any float dtype.
        clusters: (T) how many clusters each frame makes.

    Returns:
        For each token (T, M) that is the root of a tree, the token at which its cluster's mean stands: int64 into the
        T·M tokens. -1 for any other token, and for trees that are dropped.
    """
    num_frames, tokens_per_frame, dim = tokens.shape
    sizes = roots.flatten().bincount(minlength=roots.numel()).view_as(roots)
    centres = torch.full_like(roots, -1)
    for segment in segments:
        from_next = torch.zeros(tokens_per_frame, dim, dtype=torch.float32, device=tokens.device)
        for frame in range(segment.stop - 1, segment.start - 1, -1):  # a tree's sum arrives at its first token
            sums = clear_tokens(tokens[frame].float(), ~finite[frame]) + from_next
            to_parents = clear_tokens(sums, ~merged[frame])
            from_next = torch.zeros_like(sums).index_add_(0, parents[frame], to_parents)
            if clusters[frame]:
                trees = ~merged[frame] & ~selected[frame]
                means = sums / sizes[frame, :, None]
                centres[frame] = nearest_centres(means, trees, finite[frame], clusters[frame])
    starts = torch.arange(num_frames, device=tokens.device)[:, None] * tokens_per_frame
    return torch.where(centres >= 0, centres + starts, -1)


def nearest_centres(means: Tensor, trees: Tensor, finite: Tensor, number: int) -> Tensor:
    """Return for each tree of a frame (M,) the tree that is the centre of its cluster; -1 for what is in none.

    Args:
        means: (M, D) float32, finite.
        trees: (M,) bool: which tokens are trees. Those that are not `finite` are centres only where there is no other.
    """
    scores, distances = density_peaks(means, trees & finite, min(number, NEIGHBOURS))
    places, _ = most_unique_tokens_of_video(scores.masked_fill(~trees, -math.inf)[None], number)
    nearest = places[distances[:, places].argmin(dim=1)]
    nearest[places] = places  # also where two centres are equal
    is_in_one = (trees & finite).index_fill(0, places, True)
    return torch.where(is_in_one, nearest, -1)


def merged_compression(selected: Tensor, finite: Tensor, roots: Tensor, centres: Tensor) -> VideoCompression:
    """Make the compression that keeps selected tokens as they are, and the clusters' means at their centres.

    A cluster's mean is that of its trees, and a tree's mean that of its tokens, as in the released code: a token's
    weight is 1 / (trees in its cluster · tokens in its tree).
    """
    own = torch.arange(roots.numel(), device=roots.device).view_as(roots)
    unchanged = selected | ((centres == own) & ~finite)
    roots, centres = roots.flatten(), centres.flatten()
    trees_of = centres[centres >= 0].bincount(minlength=len(centres))
    tokens_of = roots.bincount(minlength=len(roots))
    centre_of = centres[roots]  # of each token's tree
    members = ((centre_of >= 0) & finite.flatten()).nonzero().flatten()
    places = centre_of[members]
    weights = 1 / (trees_of[places] * tokens_of[roots[members]]).float()
    return compression_of_means(unchanged, [TokenMeans(places, members, weights)])
