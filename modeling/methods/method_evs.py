"""`compression_method="evs"`: Efficient Video Sampling (Bagrov et al., NVIDIA, arXiv 2510.14624), as vLLM computes it.

What does not change is pruned: a token stays if it is unlike the token at the same place of the frame before.

- The paper, as a published review (themoonlight.io) tells its method, compares the pixels of patches (L1 distance),
  keeps the first frame whole, and of all others the patches above the q-quantile of these distances over the whole
  video, q being the pruning rate, 1 - R.
- vLLM (`vllm/multimodal/video_prune/evs.py`, before `vllm/multimodal/evs.py`) compares the tokens after the projector,
  those that enter the language model, by 1 - cosine similarity. It ranks them over the whole video, the first frame
  before all others, ties to the earlier token, and keeps the first K = max(M, ⌊(1 - q)·T·M⌋): the first frame counts
  towards K, while the paper keeps it beside the others' share.

This is vLLM's. Departures: scores are in float32 (vLLM: in the tokens' dtype); R·T·M that is a whole number but for
float noise is that number (int(100 · (1 - 0.9)) is 9); and a token with a non-finite value is kept last, also in the
first frame (where vLLM's sort puts nan is first).

K depends on the sizes and the ratio alone, not on the content: `evs_total`. How K is shared among the frames depends on
the content, and a frame may keep nothing.
"""

import math

from ...configuration.compression_settings import CompressionSettings
from .exact_totals import REMAINDER_NOISE
from .temporal_uniqueness import temporal_uniqueness
from .token_ranking import most_unique_tokens_of_video
from .video_compression import VideoCompression, VideoTokens


def evs(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """The tokens of the whole video that are most unlike the one before them, the first frame's before all others."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    num_kept = evs_total(num_frames, tokens_per_frame, settings.retention_ratio)
    u = temporal_uniqueness(video.tokens, [None, *range(num_frames - 1)])
    # A later token that is as unique as the first frame's loses the tie.
    return VideoCompression(*most_unique_tokens_of_video(u, num_kept), token_uniqueness=u)


def evs_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """K: ⌊R·T·M⌋, but at least the first frame's tokens."""
    return max(tokens_per_frame, math.floor(retention_ratio * num_frames * tokens_per_frame + REMAINDER_NOISE))
