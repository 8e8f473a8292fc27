"""Rank tokens over the whole video by their distance from its mean. A frame may keep nothing."""

from torch import Tensor

from vidcom2 import VideoTokens, register_score_method


@register_score_method("best_of_video", ranking="video")
def best_of_video(video: VideoTokens) -> Tensor:
    tokens = video.tokens.float()
    distances = (tokens - tokens.mean(dim=(0, 1))).norm(dim=-1)
    # A frame's weight is squared, so that dull frames keep nothing.
    return distances * distances.mean(dim=1, keepdim=True).square()
