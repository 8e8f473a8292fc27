"""LLaVA-Video for users of the package: importing this file tells Transformers' Auto classes its `model_type`.

It is not part of the shipped code, because a Hub repo names its classes in `auto_map`.
"""

import transformers
from transformers import AutoConfig, AutoProcessor

from ..configuration.configuration_vidcom2_llava_video import VidCom2LlavaVideoConfig
from ..modeling.families.modeling_vidcom2_llava_video import VidCom2LlavaVideoForConditionalGeneration
from ..modeling.families.processing_llava_video import LlavaVideoProcessor
from ..repo_shape import AUTO_MODEL_CLASSES

__all__ = ["LlavaVideoProcessor", "VidCom2LlavaVideoConfig", "VidCom2LlavaVideoForConditionalGeneration"]

AutoConfig.register(VidCom2LlavaVideoConfig.model_type, VidCom2LlavaVideoConfig, exist_ok=True)
for name in AUTO_MODEL_CLASSES:
    auto_class = getattr(transformers, name)
    auto_class.register(VidCom2LlavaVideoConfig, VidCom2LlavaVideoForConditionalGeneration, exist_ok=True)
AutoProcessor.register(VidCom2LlavaVideoConfig, LlavaVideoProcessor, exist_ok=True)
