"""Gemma 4 Unified with VidCom²: only what differs from the parent classes.

What the family shares with others is in `gemma_videos.py`.
"""

from transformers import Gemma4UnifiedForConditionalGeneration, Gemma4UnifiedModel

from ...configuration.configuration_vidcom2_gemma4_unified import VidCom2Gemma4UnifiedConfig
from .gemma_videos import GemmaGenerationMixin, GemmaVideosMixin


class VidCom2Gemma4UnifiedModel(GemmaVideosMixin, Gemma4UnifiedModel):
    """Gemma 4 Unified without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt. A frame's time and the marks around it are structure,
          and stay even if the frame keeps nothing. So do images and sound.
        - types of tokens may be those of the new tokens alone, after a filled KV cache.

    There is no vision tower: a token is a projection of its square of pixels (48 × 48 in the released checkpoint). All
    tokens of a frame are scored, by these projections.
    """

    config: VidCom2Gemma4UnifiedConfig


class VidCom2Gemma4UnifiedForConditionalGeneration(GemmaGenerationMixin, Gemma4UnifiedForConditionalGeneration):
    """Gemma 4 Unified that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Gemma4UnifiedModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.
        - it has a `get_video_features`, as the other families have.
        - drafts in the first step of `generate` are text.
        - masks for static caches know which of the new tokens are a frame's, also after cached ones.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2Gemma4UnifiedConfig
    inner_class = VidCom2Gemma4UnifiedModel
