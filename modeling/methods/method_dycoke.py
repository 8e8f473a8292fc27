"""`compression_method="dycoke"`: the token compression of DyCoke (Tao et al., CVPR 2025, arXiv 2411.15024), its first
stage, temporal merging (Section 3.2, Eqs. 3 and 4). As in VidCom²'s comparison (Section 4.1), its second stage, which
prunes the KV cache while decoding, is left out.

The video is cut into windows of 4 consecutive frames. Tokens at the same place of two frames are compared by cosine
similarity (Eq. 3), and of a pruned frame the most similar ones go, at one rate K for all frames:

    frame of the window   1st     2nd     3rd     4th
    is compared with      -       1st     1st     3rd
    keeps                 all     1 - K   1 - K   1 - K

In the paper the 2nd and the 4th are the even group, pruned by the odd one; and of the odd group the window's first
frame stays whole. With which frame the 3rd and 4th are compared is as in the released code. Despite the name nothing is
merged: pruned tokens are dropped.

The released code (`dycole_ttm` in llava/model/llava_arch.py of KD-TAO/DyCoke) departs from the paper, and is not
followed, in this: where the number of frames is a multiple of 4, the 3rd frame of the last window stays whole, and a
video of 4 frames fails; the last of an odd number of frames is lost; kept tokens stand in the order of their
similarity; before its commit 35cc532, even frames were pruned by the similarities of another pair. A last window of
fewer than 4 frames is treated here as far as it goes.

From ratio to rate: windows of 4 retain R = 1 - 3K/4, so K = 4/3 · (1 - R); the paper's K = 0.7 is R = 0.475. For any T,
⌈T/4⌉ frames stay whole, and the others share what that leaves of ⌊R·T·M⌋ equally, to a token; the earlier ones take the
remainder. So how many tokens are kept, of the video and of each frame, depends on the sizes and the ratio alone, not on
the content. R below ⌈T/4⌉/T, a quarter for whole windows, cannot be reached, as VidCom²'s paper notes (caption of its
main results).
"""

import math

import torch

from ...configuration.compression_settings import CompressionSettings
from .exact_totals import REMAINDER_NOISE
from .temporal_uniqueness import temporal_uniqueness
from .token_ranking import most_unique_tokens
from .video_compression import VideoCompression, VideoTokens

WINDOW = 4
COMPARED_WITH = (None, 0, 0, 2)  # frames of a window, each with an earlier one of it


class UnreachableRatioError(ValueError):
    """A retention ratio that the method cannot reach with so many frames."""


def dycoke(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """The first frame of each window, and of the others the tokens least similar to the frame that they repeat.

    Raises:
        UnreachableRatioError: if the ratio is below what the whole frames alone take.
    """
    num_frames, tokens_per_frame, _ = video.tokens.shape
    budgets = dycoke_budgets(num_frames, tokens_per_frame, settings.retention_ratio)
    compared_with: list[int | None] = []
    for t in range(num_frames):
        other = COMPARED_WITH[t % WINDOW]
        compared_with.append(None if other is None else t - t % WINDOW + other)
    u = temporal_uniqueness(video.tokens, compared_with)
    k = torch.tensor(budgets, device=u.device)
    return VideoCompression(most_unique_tokens(u, k, sum(budgets)), k, token_uniqueness=u)


def dycoke_budgets(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> list[int]:
    """Tokens that each frame keeps: M of a window's first, an equal share of the rest of ⌊R·T·M⌋ of the others.

    Raises:
        UnreachableRatioError: if the first frames of the windows are more than that.
    """
    total = math.floor(retention_ratio * num_frames * tokens_per_frame + REMAINDER_NOISE)
    num_whole = math.ceil(num_frames / WINDOW)
    share = total - num_whole * tokens_per_frame
    if share < 0:
        least = math.ceil(num_whole / num_frames * 10**4) / 10**4
        raise UnreachableRatioError(
            f"`retention_ratio` is {retention_ratio}, but must be in [{least:g}, 1] for "
            f"`compression_method='dycoke'` and this video: the method keeps the first of every {WINDOW} frames whole, "
            f"here {num_whole} of {num_frames}. Choose a ratio in this range, another number of frames or another "
            "method."
        )
    num_pruned = num_frames - num_whole
    budgets, pruned_before = [], 0
    for t in range(num_frames):
        if t % WINDOW == 0:
            budgets.append(tokens_per_frame)
            continue
        budgets.append(share // num_pruned + (pruned_before < share % num_pruned))
        pruned_before += 1
    return budgets
