"""`compression_method="uniform_frames"`: the baseline of sampling fewer frames, evenly spaced in time.

This method is not in the paper. It shows what a method that chooses tokens gains over showing the model fewer frames.

If R·T is no whole number, the last of these frames is kept in part. Methods are compared at the same number of tokens,
and whole frames alone would miss the ratio by up to half a frame: R = 0.15 of 8 frames is 1.2 frames, and a single
frame would be 17 % less than what other methods keep. The kept tokens of the partial frame are evenly spaced too, row
by row, so that the frame is seen in less detail rather than cut.

Evenly spaced means what it means in `read_video`: from the first to the last, always the nearest frame, and the earlier
one in a tie; a single frame is the first. Content plays no part, neither in the number of kept tokens, which is that of
`compression_rounding="exact"`, nor in their choice, so a token with a non-finite value is kept like any other.
"""

import torch

from ...configuration.compression_settings import CompressionSettings
from .compression import VideoCompression, VideoTokens, exact_total, on_device, own_method


@own_method("uniform_frames", count=exact_total, compiles=True)
def uniform_frames(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep ⌈K/M⌉ evenly spaced frames, the last of them in part if K is no multiple of M."""
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
    return VideoCompression(on_device(whole.indices, device), on_device(whole.frame_budgets, device))


def evenly_spaced(length: int, number: int) -> list[int]:
    """Return `number` of the places 0 to length - 1, ascending, evenly spaced from the first to the last.

    Each is the place nearest to an equal step, and the earlier one in a tie. A single place is the first.
    """
    if number == 1:
        return [0]
    steps = number - 1
    return [(2 * i * (length - 1) + steps - 1) // (2 * steps) for i in range(number)]
