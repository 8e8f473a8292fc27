"""`compression_method="uniform_frames"`: whole frames, evenly spaced in time; the baseline of sampling fewer frames.

Not in the paper. It tells what a method that chooses tokens adds to showing the model fewer frames.

The last of these frames is kept in part where R·T is no whole number. Whole frames alone would be up to half a frame
away from the ratio, and methods are compared at the same number of tokens: of 8 frames at R = 0.15 (1.2 frames) a
single one would be 17 % less than what the others keep. Of that frame the tokens are evenly spaced too, row by row, so
that it is seen in less detail rather than cut.

Evenly means as `read_video` samples frames: from the first to the last, the nearest one, ties to the earlier; of one
frame, the first. Content plays no part: neither in the number of kept tokens, which is that of
`compression_rounding="exact"`, nor in which ones they are, so that a token with a non-finite value is kept like others.
"""

import torch

from ...configuration.compression_settings import CompressionSettings
from .exact_totals import exact_total
from .video_compression import VideoCompression, VideoTokens


def uniform_frames(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """⌈K/M⌉ frames, evenly spaced, the last of them in part if K is no multiple of M."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    total = exact_total(num_frames, tokens_per_frame, settings.retention_ratio)
    num_whole, part = divmod(total, tokens_per_frame)
    frames = evenly_spaced(num_frames, num_whole + (part > 0))
    kept = torch.zeros(num_frames, tokens_per_frame, dtype=torch.bool)
    kept[frames[:num_whole]] = True
    if part:
        kept[frames[-1], evenly_spaced(tokens_per_frame, part)] = True
    whole = VideoCompression.of_mask(kept)
    device = video.tokens.device
    return VideoCompression(whole.indices.to(device), whole.frame_budgets.to(device))


def evenly_spaced(length: int, number: int) -> list[int]:
    """`number` of the places 0 to length - 1, ascending, from the first to the last: the nearest ones to equal steps,
    ties to the earlier; of one, the first."""
    if number == 1:
        return [0]
    steps = number - 1
    return [(2 * i * (length - 1) + steps - 1) // (2 * steps) for i in range(number)]
