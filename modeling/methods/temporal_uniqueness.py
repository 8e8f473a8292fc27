"""How much each token differs from the one at the same place in another frame: the score of methods that prune in time.

Shapes: T frames, M tokens per frame, D channels.
"""

import math

import torch
from torch import Tensor

from .compression import on_device
from .method_vidcom2 import cosine_similarity

# Tokens are read in float32, a block of frames at a time, so a half-precision video is never copied as a whole. On the
# CPU, blocks that fit into the cache are the fastest. On an accelerator, few large steps are.
CPU_BLOCK_BYTES, BLOCK_BYTES = 2 * 2**20, 64 * 2**20
MOST_UNIQUE = 1.0  # A negated cosine similarity is never larger.


def temporal_uniqueness(video_tokens: Tensor, compared_with: list[int | None]) -> Tensor:
    """Return each token's negated cosine similarity, in float32, to the token at the same place in another frame.

    A zero token has similarity 0, and so has a token that is compared with a non-finite one.

    Args:
        video_tokens: (T, M, D), any float dtype.
        compared_with: for each frame, the frame it is compared with; None if there is none, which gives `MOST_UNIQUE`.

    Returns:
        (T, M) float32 in [-1, 1], where larger is more unique; -inf for a token with a non-finite value.
    """
    num_frames, tokens_per_frame, dim = video_tokens.shape
    device = video_tokens.device
    places = torch.tensor([t if other is None else other for t, other in enumerate(compared_with)])
    others = on_device(places, device)
    norms = torch.empty(num_frames, tokens_per_frame, dtype=torch.float32, device=device)
    products = torch.empty_like(norms)
    block_bytes = CPU_BLOCK_BYTES if device.type == "cpu" else BLOCK_BYTES
    step = max(1, block_bytes // (4 * tokens_per_frame * dim))
    for start in range(0, num_frames, step):
        frames = slice(start, start + step)
        block = video_tokens[frames].float()
        torch.linalg.vector_norm(block, dim=-1, out=norms[frames])
        products[frames] = (block * video_tokens.index_select(0, others[frames]).float()).sum(dim=-1)
    finite, others_norms = norms.isfinite(), norms.index_select(0, others)
    similarity = cosine_similarity(products, norms, others_norms).masked_fill(~others_norms.isfinite(), 0.0)
    alone = on_device(torch.tensor([other is None for other in compared_with]), device)
    return (-similarity).masked_fill(alone[:, None], MOST_UNIQUE).masked_fill(~finite, -math.inf)
