"""Cosmos 3 with VidCom²: only what differs from the parent classes, which are Qwen3-VL's under another name.

What the family shares with others is in `qwen_videos.py`.
"""

from transformers import Cosmos3OmniForConditionalGeneration
from transformers.models.cosmos3_omni.modeling_cosmos3_omni import Cosmos3OmniModel

from ...configuration.configuration_vidcom2_cosmos3_omni import VidCom2Cosmos3OmniConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin


class VidCom2Cosmos3OmniModel(QwenVideoModelMixin, Cosmos3OmniModel):
    """Cosmos 3's reasoner without its head. The language model runs on short prompts.

    Modifications: those of `VidCom2Qwen3VLModel`.
    """

    config: VidCom2Cosmos3OmniConfig
    frames_stand_apart = True


class VidCom2Cosmos3OmniForConditionalGeneration(VidCom2GenerationMixin, Cosmos3OmniForConditionalGeneration):
    """Cosmos 3's reasoner that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications: those of `VidCom2Qwen3VLForConditionalGeneration`; the inner `model` is a `VidCom2Cosmos3OmniModel`.
    """

    config: VidCom2Cosmos3OmniConfig
    inner_class = VidCom2Cosmos3OmniModel
