"""`compression_method="evs"`: Efficient Video Sampling (Bagrov et al., NVIDIA, arXiv 2510.14624), as vLLM computes it.

Unchanged content is pruned: a token stays if it is unlike the token at the same place in the frame before.

- The paper, as a published review (themoonlight.io) describes it, compares the pixels of patches by their L1 distance.
  It keeps the first frame whole, and in all others the patches above the q-quantile of these distances over the whole
  video, where q is the pruning rate 1 - R.
- vLLM (`vllm/multimodal/video_prune/evs.py`, formerly `vllm/multimodal/evs.py`) compares the tokens that enter the
  language model, after the projector, by 1 - cosine similarity. It ranks them over the whole video, with the first
  frame before all others and ties to the earlier token, and keeps the first K = max(M, ⌊(1 - q)·T·M⌋). The first frame
  counts towards K, while the paper keeps it beside the others' share.

This file follows vLLM, with three departures. Scores are in float32, where vLLM's are in the tokens' dtype. An R·T·M
that is a whole number up to float noise counts as that number, where int(100 · (1 - 0.9)) is 9. A token with a
non-finite value is kept last, even in the first frame, where vLLM's sort puts nan first.

K, which `evs_total` returns, depends on the sizes and the ratio alone, not on the content. How K is shared among the
frames depends on the content, and a frame may keep nothing.
"""

import math

from ...configuration.compression_settings import CompressionSettings
from .compression import REMAINDER_NOISE, VideoCompression, VideoTokens, most_unique_tokens_of_video, own_method
from .temporal_uniqueness import temporal_uniqueness


def evs_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K: ⌊R·T·M⌋, but at least the M tokens of the first frame."""
    return max(tokens_per_frame, math.floor(retention_ratio * num_frames * tokens_per_frame + REMAINDER_NOISE))


@own_method(
    "evs",
    count=evs_total,
    compiles=True,
    scores="u says how unlike a token is to the one at its place in the frame before.",
)
def evs(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep the first frame's tokens, then those of the whole video that are most unlike the one before them."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    num_kept = evs_total(num_frames, tokens_per_frame, settings.retention_ratio)
    u = temporal_uniqueness(video.tokens, [None, *range(num_frames - 1)])
    # The first frame's tokens have the highest possible score, and win ties because they come first.
    return VideoCompression(*most_unique_tokens_of_video(u, num_kept), token_uniqueness=u)
