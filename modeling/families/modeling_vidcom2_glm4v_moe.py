"""GLM-4V-MoE with VidCom²: only what differs from the parent classes.

What the family shares with others is in `glm_videos.py`.
"""

from transformers import Glm4vMoeForConditionalGeneration, Glm4vMoeModel
from transformers.models.glm4v_moe.modeling_glm4v_moe import load_balancing_loss_func

from ...configuration.configuration_vidcom2_glm4v_moe import VidCom2Glm4vMoeConfig
from ..prompt.mixture_of_experts import MixtureOfExpertsMixin
from .glm_videos import GlmGenerationMixin, GlmVideoModelMixin


class VidCom2Glm4vMoeModel(GlmVideoModelMixin, Glm4vMoeModel):
    """GLM-4V-MoE without its head. The language model runs on the compressed prompt.

    Modifications: those of `VidCom2Glm4vModel`.
    """

    config: VidCom2Glm4vMoeConfig


class VidCom2Glm4vMoeForConditionalGeneration(
    MixtureOfExpertsMixin, GlmGenerationMixin, Glm4vMoeForConditionalGeneration
):
    """GLM-4V-MoE that keeps only the distinctive tokens of each video. Weights and processor stay the same.

    Modifications: those of `VidCom2Glm4vForConditionalGeneration`, and
        - the inner `model` is a `VidCom2Glm4vMoeModel`.
        - `aux_loss` and `router_logits` are over the compressed prompt.
    """

    config: VidCom2Glm4vMoeConfig
    inner_class = VidCom2Glm4vMoeModel
    load_balancing_loss = staticmethod(load_balancing_loss_func)
