"""LLaVA-Video for users of the package: its classes, known to Transformers' Auto classes by their own `model_type`.

Not part of the shipped code: a Hub repo names its classes in `auto_map`.
"""

from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoProcessor

from .configuration.configuration_vidcom2_llava_video import VidCom2LlavaVideoConfig
from .modeling.modeling_vidcom2_llava_video import VidCom2LlavaVideoForConditionalGeneration
from .modeling.processing_llava_video import LlavaVideoProcessor

__all__ = ["LlavaVideoProcessor", "VidCom2LlavaVideoConfig", "VidCom2LlavaVideoForConditionalGeneration"]

AutoConfig.register(VidCom2LlavaVideoConfig.model_type, VidCom2LlavaVideoConfig, exist_ok=True)
for auto_class in (AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM):
    auto_class.register(VidCom2LlavaVideoConfig, VidCom2LlavaVideoForConditionalGeneration, exist_ok=True)
AutoProcessor.register(VidCom2LlavaVideoConfig, LlavaVideoProcessor, exist_ok=True)
