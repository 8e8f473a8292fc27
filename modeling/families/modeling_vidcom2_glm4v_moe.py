"""GLM-4V-MoE with VidCom²: only what differs from the parent classes.

What the family shares with others is in `glm_videos.py`.
"""

from transformers import Glm4vMoeForConditionalGeneration, Glm4vMoeModel

from ...configuration.configuration_vidcom2_glm4v_moe import VidCom2Glm4vMoeConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .glm_videos import GlmVideoModelMixin


class VidCom2Glm4vMoeModel(GlmVideoModelMixin, Glm4vMoeModel):
    """GLM-4V-MoE without its head. The language model runs on short prompts.

    Modifications: those of `VidCom2Glm4vModel`.
    """

    config: VidCom2Glm4vMoeConfig


class VidCom2Glm4vMoeForConditionalGeneration(VidCom2GenerationMixin, Glm4vMoeForConditionalGeneration):
    """GLM-4V-MoE that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications: those of `VidCom2Glm4vForConditionalGeneration`, and
        - the inner `model` is a `VidCom2Glm4vMoeModel`.
        - `aux_loss` and `router_logits` are over the short prompt.
    """

    config: VidCom2Glm4vMoeConfig
    inner_class = VidCom2Glm4vMoeModel
