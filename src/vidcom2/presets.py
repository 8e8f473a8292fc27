"""Settings that go by one name, such as `vidcom2.load(name, **vidcom2.PAPER)`, to which the caller adds the ratio; and
how many frames are read of a video, so that a picture of what is kept shows what answered."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

NUM_FRAMES = 32  # sampled of a video where the caller names no number, in every command and function

# The VidCom² paper to the letter, with the positions of the authors' code. How many tokens stay depends on what a video
# shows, so the prompt comes from a stock processor.
PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "compression_method": "vidcom2",
        "compression_scoring": "paper",
        "compression_rounding": "ceil",
        "compression_temperature": 0.01,
        "compression_frame_score": "mean",
        "compression_window": None,
        "compression_positions": "consecutive",
        "compression_frame_weight": 1.0,
        "compression_video_weight": 1.0,
    }
)

# What this project recommends on its own evidence. On the needle benchmark's first two toys, "coverage" is right more
# often than every other method at every ratio from 25 to 5 % on videos of 16 frames; on the other two at a tenth and a
# twentieth. LLaVA-OneVision's first toy also gains from original positions there, though not on videos of 64 frames
# (docs/leaderboard.md).
RECOMMENDED: Mapping[str, Any] = MappingProxyType(
    {"compression_method": "coverage", "compression_positions": "original"}
)
