"""Variants of `"coverage"` that are no methods of ours. They were tried, and the leaderboard says what they give."""

import torch

from vidcom2 import (
    CompressionSettings,
    TokenMerge,
    VideoCompression,
    VideoTokens,
    compress,
    exact_total,
    register_compression_method,
)
from vidcom2.modeling.methods.compression import most_unique_tokens_of_video
from vidcom2.modeling.methods.method_coverage import TIME_WEIGHT, Points, covering


def _merged(tokens: Points, kept: VideoCompression) -> VideoCompression:
    """Merge each dropped token into the kept one that is nearest in content and time."""
    outputs = tokens.distances(kept.indices).argmin(dim=0)
    outputs[kept.indices] = torch.arange(len(kept.indices))
    merge = TokenMerge(outputs, torch.arange(len(outputs)), (1 / outputs.bincount())[outputs])
    return VideoCompression(kept.indices, kept.frame_budgets, merge=merge)


def _num_kept(video: VideoTokens, settings: CompressionSettings) -> int:
    return exact_total(*video.tokens.shape[:2], settings.retention_ratio)


@register_compression_method("coverage_merged", count=exact_total)
def coverage_merged(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Merge what `"coverage"` drops into what it keeps, across the whole video."""
    tokens = Points(video.tokens)
    start = tokens.nearness_to_mean.argmax()[None]
    return _merged(tokens, covering(tokens, start, _num_kept(video, settings)))


@register_compression_method("coverage_less_time", count=exact_total)
def coverage_less_time(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Give time half of its weight in the distance."""
    tokens = Points(video.tokens, TIME_WEIGHT / 2)
    return covering(tokens, tokens.nearness_to_mean.argmax()[None], _num_kept(video, settings))


@register_compression_method("coverage_with_uniqueness", count=exact_total)
def coverage_with_uniqueness(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep a quarter of the tokens by VidCom²'s uniqueness over the whole video, and cover the rest."""
    num_kept = _num_kept(video, settings)
    scores = compress(video.tokens).token_uniqueness
    assert scores is not None  # `vidcom2` always gives them
    start, _ = most_unique_tokens_of_video(scores, max(1, num_kept // 4))
    return covering(Points(video.tokens), start, num_kept)


@register_compression_method("coverage_with_typical", count=exact_total)
def coverage_with_typical(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep the token of each frame that is most like the frame's mean, and cover the rest."""
    num_kept, (num_frames, tokens_per_frame) = _num_kept(video, settings), video.tokens.shape[:2]
    frames = video.tokens.float()
    typical = torch.cosine_similarity(frames, frames.mean(dim=1, keepdim=True), dim=2).argmax(dim=1)
    start = (tokens_per_frame * torch.arange(num_frames) + typical)[:num_kept]
    return covering(Points(video.tokens), start, num_kept)


@register_compression_method("rarest", count=exact_total)
def rarest(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep the tokens of the least density under a kernel over the whole video, and merge the others into them."""
    tokens = Points(video.tokens)
    every = torch.arange(len(tokens.finite))
    density = torch.exp(-tokens.distances(every).square()).mean(dim=0)
    kept = most_unique_tokens_of_video(-density.unflatten(0, tokens.shape), _num_kept(video, settings))
    return _merged(tokens, VideoCompression(*kept))
