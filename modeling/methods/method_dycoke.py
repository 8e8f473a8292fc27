"""`compression_method="dycoke"`: DyCoke's temporal merging (Tao et al., CVPR 2025, arXiv 2411.15024).

This is the first stage of DyCoke (Section 3.2, Eqs. 3 and 4). The second stage, which prunes the KV cache while
decoding, is left out, as in VidCom²'s comparison (Section 4.1).

The video is cut into windows of 4 consecutive frames. Tokens at the same place in two frames are compared by cosine
similarity (Eq. 3). A pruned frame loses its most similar tokens, at one rate K for all pruned frames:

    frame of the window   1st     2nd     3rd     4th
    is compared with      -       1st     1st     3rd
    keeps                 all     1 - K   1 - K   1 - K

In the paper, the 2nd and 4th frames are the even group, which is pruned by the odd group. In the odd group, the
window's first frame stays whole. The frames with which the 3rd and 4th are compared are those of the released code.
Despite the name nothing is merged: pruned tokens are dropped.

The released code (`dycole_ttm` in llava/model/llava_arch.py of KD-TAO/DyCoke) departs from the paper in four ways,
which are not followed here:

- If the number of frames is a multiple of 4, the 3rd frame of the last window stays whole, and a video of 4 frames
  fails.
- If the number of frames is odd, the last one is lost.
- Kept tokens stand in the order of their similarity.
- Before its commit 35cc532, even frames were pruned by the similarities of another pair.

Here, a last window of fewer than 4 frames is treated like the beginning of a whole one.

From ratio to rate: windows of 4 retain R = 1 - 3K/4, so K = 4/3 · (1 - R), and the paper's K = 0.7 is R = 0.475. For
any T, ⌈T/4⌉ frames stay whole. The others share equally what these leave of ⌊R·T·M⌋ tokens, and the earlier ones take
the remainder. So the number of kept tokens, in the video and in each frame, depends on the sizes and the ratio alone,
not on the content. An R below ⌈T/4⌉/T, a quarter for whole windows, cannot be reached, as VidCom²'s paper notes
(caption of its main results).
"""

import math

import torch

from ...configuration.compression_settings import CompressionSettings
from .compression import (
    REMAINDER_NOISE,
    TooFewTokensError,
    VideoCompression,
    VideoTokens,
    most_unique_tokens,
    on_device,
    own_method,
)
from .temporal_uniqueness import temporal_uniqueness

WINDOW = 4
COMPARED_WITH = (None, 0, 0, 2)  # For each frame of a window, the earlier frame with which it is compared.


def dycoke_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K: ⌊R·T·M⌋.

    Raises:
        TooFewTokensError: if the first frames of the windows, which stay whole, have more tokens.
    """
    total = math.floor(retention_ratio * num_frames * tokens_per_frame + REMAINDER_NOISE)
    num_whole = math.ceil(num_frames / WINDOW)
    if total < num_whole * tokens_per_frame:
        least = math.ceil(num_whole / num_frames * 10**4) / 10**4
        raise TooFewTokensError(
            num_whole * tokens_per_frame,
            f"`retention_ratio` is {retention_ratio}, but must be in [{least:g}, 1] for "
            f"`compression_method='dycoke'` and this video: the method keeps the first of every {WINDOW} frames whole, "
            f"here {num_whole} of {num_frames}. Choose a ratio in this range, another number of frames, or another "
            "method.",
        )
    return total


@own_method(
    "dycoke",
    count=dycoke_total,
    compiles=True,
    scores="u says how unlike a token is to the one at its place in the frame that its own is compared with.",
)
def dycoke(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep the first frame of each window, and in the others the tokens least similar to the frame compared with.

    Raises:
        TooFewTokensError: if the ratio is below what the whole frames alone take.
    """
    num_frames, tokens_per_frame, _ = video.tokens.shape
    budgets = dycoke_budgets(num_frames, tokens_per_frame, settings.retention_ratio)
    compared_with: list[int | None] = []
    for t in range(num_frames):
        other = COMPARED_WITH[t % WINDOW]
        compared_with.append(None if other is None else t - t % WINDOW + other)
    u = temporal_uniqueness(video.tokens, compared_with)
    k = on_device(torch.tensor(budgets), u.device)
    return VideoCompression(most_unique_tokens(u, k, sum(budgets)), k, token_uniqueness=u)


def dycoke_budgets(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> list[int]:
    """Return how many tokens each frame keeps: M in a window's first, an equal share of the rest in the others.

    Raises:
        TooFewTokensError: as `dycoke_total`.
    """
    num_whole = math.ceil(num_frames / WINDOW)
    share = dycoke_total(num_frames, tokens_per_frame, retention_ratio) - num_whole * tokens_per_frame
    num_pruned = num_frames - num_whole
    budgets, pruned_before = [], 0
    for t in range(num_frames):
        if t % WINDOW == 0:
            budgets.append(tokens_per_frame)
            continue
        budgets.append(share // num_pruned + (pruned_before < share % num_pruned))
        pruned_before += 1
    return budgets
