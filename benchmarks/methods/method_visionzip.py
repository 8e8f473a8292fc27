"""`"visionzip"`: VisionZip (Yang et al., CVPR 2025, arXiv 2412.04467), in each frame on its own.

    dominant     27 of 32 tokens that a frame keeps are those that receive most of the vision tower's attention.
    contextual   The other 5 of 32 are targets, evenly spaced among the frame's remaining tokens. Every token that is
                 left is merged into the target that it is most similar to, by their cosine.

The shares are those of the paper's settings: 54 dominant and 10 contextual tokens of an image, 108 and 20, 162 and 30.
The paper treats the frames of a video as images. HoliTom's authors run it for comparison on the pooled tokens that
enter a video LLM (cokeshao/HoliTom, visionzip/llava_arch.py), with the attention that all patches pay in the tower's
last layer, pooled alike. This file follows them. In a tower with a class token it is what that token pays, as in the
paper.

It departs from the released codes (dvlab-research/VisionZip, and HoliTom's) so:

- Similarity there is that of the keys in the tower's last layer, a mean over the heads. Here it is that of the tokens
  themselves, so that the tower need not give its keys too.
- A contextual token there is its target plus the mean of what is merged into it, about twice as long as a token. Here
  it is the mean of these two.
- Every frame there keeps as many tokens as a setting says. Here the video keeps max(T, ⌊R·T·M⌋), and its frames differ
  by at most 1. The number depends on the sizes and the ratio alone.
- Contextual tokens there follow the dominant ones of their frame. Here each stands where its target is.
- In ties, the earlier token is taken. The similarity of a zero token is 0. A token with a non-finite value enters no
  mean, and is kept last.

Cost: M·C·D in each frame, where C is the number of its contextual tokens.
"""

import math

import torch
from torch import Tensor, nn

from vidcom2 import CompressionSettings, TokenMerge, VideoCompression, VideoTokens, most_unique_tokens
from vidcom2.modeling.methods.compression import exact_total, mask_of
from vidcom2.modeling.methods.method_vidcom2 import float32_blocks

from .attended_tokens import attention_of
from .token_means import equal_shares

DOMINANT_SHARE = 54 / 64


def visionzip(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep each frame's most attended tokens, and evenly spaced others with what is merged into them."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    total = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    budgets = equal_shares(total, num_frames)
    num_dominant = [math.floor(budget * DOMINANT_SHARE) for budget in budgets]
    num_targets = [budget - dominant for budget, dominant in zip(budgets, num_dominant, strict=True)]
    finite = torch.cat([block.isfinite().all(dim=-1) for _, block in float32_blocks(video.tokens)])
    attention = attention_of(video).nan_to_num(nan=-1.0).masked_fill(~finite, -math.inf)

    k, k_dominant, k_targets = (
        torch.tensor(each, device=finite.device) for each in (budgets, num_dominant, num_targets)
    )
    dominant = mask_of(most_unique_tokens(attention, k_dominant, sum(num_dominant)), finite)
    targets, is_target = spaced_targets(dominant, finite, k_targets, max(num_targets))
    # An entry that does not count may name the place of one that does.
    kept = torch.zeros_like(finite, dtype=torch.int64).scatter_add_(1, targets, is_target.long()).bool() | dominant
    joined = most_similar(video.tokens, targets, is_target & finite.gather(1, targets))
    indices = most_unique_tokens(kept.float(), k, total)
    return VideoCompression(indices, k, token_uniqueness=attention, merge=merged(kept, finite, joined))


def spaced_targets(dominant: Tensor, finite: Tensor, k_targets: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Choose evenly spaced tokens among those of each frame that are not dominant.

    Args:
        dominant, finite: (T, M) bool.
        k_targets: (T,) int64: how many each frame has, at least 1 and at most `most`.

    Returns:
        Their places in their frames (T, most) int64, and a mask (T, most) of the entries that count.
    """
    others = ~dominant & finite
    # A frame's places in order: those of its other tokens, then of those that are not finite, then of dominant ones.
    order = (2 * dominant.int() + (~finite).int()).argsort(dim=1, stable=True)
    step = (others.sum(dim=1) // k_targets).clamp(min=1)
    number = torch.arange(most, device=order.device)
    places = (number * step[:, None]).clamp(max=order.shape[1] - 1)
    return order.gather(1, places), number < k_targets[:, None]


def most_similar(video_tokens: Tensor, targets: Tensor, usable: Tensor) -> Tensor:
    """Return for each token (T, M) the target of its frame that it is most similar to: int64 into the T·M tokens.

    Args:
        video_tokens: (T, M, D), any float dtype.
        targets, usable: (T, C) places of targets in their frames, and which of them are finite targets. In a frame
            without any, and for a token that is not finite, it is the first.
    """
    nearest = torch.empty(video_tokens.shape[:2], dtype=torch.int64, device=targets.device)
    for frames, block in float32_blocks(video_tokens):
        units = nn.functional.normalize(block, dim=-1)
        of_targets = units.take_along_dim(targets[frames, :, None], dim=1)
        similarity = (units @ of_targets.mT).nan_to_num(nan=-math.inf)
        nearest[frames] = similarity.masked_fill(~usable[frames, None], -math.inf).argmax(dim=-1)
    starts = torch.arange(len(targets), device=targets.device)[:, None] * video_tokens.shape[1]
    return starts + targets.gather(1, nearest)


def merged(kept: Tensor, finite: Tensor, joined: Tensor) -> TokenMerge:
    """Describe the means of targets and of what joins them.

    Args:
        kept, finite: (T, M) bool.
        joined: (T, M) int64 into the T·M tokens: the target of each token.
    """
    kept, finite, joined = kept.flatten(), finite.flatten(), joined.flatten()
    own = torch.arange(len(kept), device=kept.device)
    joins = ~kept & finite & finite.index_select(0, joined)
    counts = torch.zeros(len(kept), dtype=torch.float32, device=kept.device).index_add_(0, joined, joins.float())
    of_kept = torch.where(counts > 0, 0.5, 1.0)
    # There is an entry for every token, so that the device need not be asked how many there are. For a token that joins
    # nothing, a finite one has weight 0.
    weights = torch.where(kept, of_kept, torch.where(joins, 0.5 / counts.index_select(0, joined), 0.0))
    outputs = (kept.cumsum(0) - 1).index_select(0, torch.where(kept, own, joined))
    return TokenMerge(outputs, torch.where(kept | joins, own, finite.int().argmax()), weights)
