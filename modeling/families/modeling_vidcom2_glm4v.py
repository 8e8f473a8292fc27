"""GLM-4V with VidCom²: only what differs from the parent classes.

What the family shares with others is in `glm_videos.py`.
"""

from transformers import Glm4vForConditionalGeneration, Glm4vModel

from ...configuration.configuration_vidcom2_glm4v import VidCom2Glm4vConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .glm_videos import GlmVideoModelMixin


class VidCom2Glm4vModel(GlmVideoModelMixin, Glm4vModel):
    """GLM-4V without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt. A frame's time and the marks around it are structure,
          and stay even if the frame keeps nothing.
        - M-RoPE positions are computed on the full prompt, and every kept token keeps its own (t, h, w).
        - a prompt may have images and videos together, which the parent refuses.
    """

    config: VidCom2Glm4vConfig


class VidCom2Glm4vForConditionalGeneration(VidCom2GenerationMixin, Glm4vForConditionalGeneration):
    """GLM-4V that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Glm4vModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path. Their positions are the
    conversation's own, even while other chats run on the same model.
    """

    config: VidCom2Glm4vConfig
    inner_class = VidCom2Glm4vModel
