"""Qwen3-Omni's thinker with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_sound.py`.
"""

from typing import TYPE_CHECKING

from transformers import Qwen3OmniMoeThinkerForConditionalGeneration, Qwen3VLMoeModel
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as stock

from ...configuration.configuration_vidcom2_qwen3_omni_moe_thinker import VidCom2Qwen3OmniMoeThinkerConfig
from .qwen_sound import QwenSoundGenerationMixin, QwenSoundModelMixin

if TYPE_CHECKING:
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerModel
else:  # Transformers 5.19 and 5.20 have no such class. There the config refuses to be made, so nothing runs the other.
    Qwen3OmniMoeThinkerModel = getattr(stock, "Qwen3OmniMoeThinkerModel", Qwen3VLMoeModel)


class VidCom2Qwen3OmniMoeThinkerModel(QwenSoundModelMixin, Qwen3OmniMoeThinkerModel):
    """Qwen3-Omni's thinker without its head. The language model runs on short prompts.

    Modifications: those of `VidCom2Qwen2_5OmniThinkerModel`, and
        - `get_video_features` also returns the deepstack features of the kept tokens, as in `VidCom2Qwen3VLModel`.
    """

    config: VidCom2Qwen3OmniMoeThinkerConfig


class VidCom2Qwen3OmniMoeThinkerForConditionalGeneration(
    QwenSoundGenerationMixin, Qwen3OmniMoeThinkerForConditionalGeneration
):
    """Qwen3-Omni's thinker that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications: those of `VidCom2Qwen2_5OmniThinkerForConditionalGeneration`, and
        - the inner `model` is a `VidCom2Qwen3OmniMoeThinkerModel`.
        - `aux_loss` and `router_logits` are over the short prompt.
    """

    config: VidCom2Qwen3OmniMoeThinkerConfig
    inner_class = VidCom2Qwen3OmniMoeThinkerModel
