"""Gemma 4 with VidCom²: only what differs from the parent classes.

What the family shares with others is in `gemma_videos.py`.
"""

from transformers import Gemma4ForConditionalGeneration, Gemma4Model

from ...configuration.configuration_vidcom2_gemma4 import VidCom2Gemma4Config
from .gemma_videos import GemmaGenerationMixin, GemmaVideosMixin


class VidCom2Gemma4Model(GemmaVideosMixin, Gemma4Model):
    """Gemma 4 without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt. A frame's time and the marks around it are structure,
          and stay even if the frame keeps nothing. So do images and sound.
        - types of tokens may be those of the new tokens alone, after a filled KV cache.

    All tokens of a frame are scored. Each stands for a square of patches (3 × 3 in the released checkpoints).
    """

    config: VidCom2Gemma4Config


class VidCom2Gemma4ForConditionalGeneration(GemmaGenerationMixin, Gemma4ForConditionalGeneration):
    """Gemma 4 that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Gemma4Model`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.
        - it has a `get_video_features`, as the other families have.
        - drafts in the first step of `generate` are text.
        - masks for static caches know which of the new tokens are a frame's, also after cached ones.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2Gemma4Config
    inner_class = VidCom2Gemma4Model
