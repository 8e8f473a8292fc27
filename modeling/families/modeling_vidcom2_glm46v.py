"""GLM-4.6V with VidCom²: only what differs from the parent classes.

What the family shares with others is in `glm_videos.py`.
"""

from transformers import Glm46VForConditionalGeneration, Glm46VModel

from ...configuration.configuration_vidcom2_glm46v import VidCom2Glm46VConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .glm_videos import GlmVideoModelMixin


class VidCom2Glm46VModel(GlmVideoModelMixin, Glm46VModel):
    """GLM-4.6V without its head. The language model runs on short prompts.

    Modifications: those of `VidCom2Glm4vModel`.
    """

    config: VidCom2Glm46VConfig


class VidCom2Glm46VForConditionalGeneration(VidCom2GenerationMixin, Glm46VForConditionalGeneration):
    """GLM-4.6V that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications: those of `VidCom2Glm4vForConditionalGeneration`; the inner `model` is a `VidCom2Glm46VModel`.
    """

    config: VidCom2Glm46VConfig
    inner_class = VidCom2Glm46VModel
