"""Keep the tokens of largest norm within each frame, under budgets by Frame Compression Adjustment."""

from torch import Tensor

from vidcom2 import VideoTokens, register_score_method


@register_score_method("longest_in_frame")
def longest_in_frame(video: VideoTokens) -> Tensor:
    norms: Tensor = video.tokens.float().norm(dim=-1)
    return norms / norms.max()
