"""LLaVA-OneVision's config with the VidCom² settings.

What the configs of all families share is in `family_config.py`.
"""

from transformers import LlavaOnevisionConfig

from .family_config import FamilyConfig


class VidCom2LlavaOnevisionConfig(FamilyConfig, LlavaOnevisionConfig):
    """Config of `VidCom2LlavaOnevisionForConditionalGeneration`: `LlavaOnevisionConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "llava_onevision"
