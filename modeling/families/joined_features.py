"""Features of images and videos in one, for parents that find both by the same placeholders. They are brought into the
order of the prompt.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def joined(is_video: Tensor, images: Sequence[Tensor], videos: Sequence[Tensor]) -> Tensor:
    """Return the features of images and videos (n, dim) in the order of their placeholders.

    Args:
        is_video: (n,) bool: which placeholders are those of videos. The others are those of images.
        images, videos: (..., dim) features, in any number of parts.

    Raises:
        ValueError: if there are more or fewer features than placeholders.
    """
    rows = [torch.cat([each.flatten(0, -2) for each in parts]) if parts else None for parts in (images, videos)]
    numbers = [0 if each is None else len(each) for each in rows]
    num_videos = int(is_video.sum())
    if [len(is_video) - num_videos, num_videos] != numbers:
        raise ValueError(
            f"The prompts hold {num_videos} placeholders of videos and {len(is_video) - num_videos} of images, but "
            f"there are {numbers[1]} and {numbers[0]} features. Build both with the checkpoint's processor, and don't "
            "truncate the prompt."
        )
    last: Tensor = next(each for each in reversed(rows) if each is not None)
    order = torch.where(is_video, numbers[0] + is_video.cumsum(0), (~is_video).cumsum(0)) - 1
    return torch.cat([each.to(last) for each in rows if each is not None])[order.to(last.device)]
