"""Qwen2.5-VL's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import Qwen2_5_VLConfig

from .family_config import FamilyConfig


class VidCom2Qwen2_5_VLConfig(FamilyConfig, Qwen2_5_VLConfig):
    """Config of `VidCom2Qwen2_5_VLForConditionalGeneration`: `Qwen2_5_VLConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "qwen2_5_vl"
