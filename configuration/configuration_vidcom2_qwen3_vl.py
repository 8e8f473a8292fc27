"""Qwen3-VL's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import Qwen3VLConfig

from .family_config import FamilyConfig


class VidCom2Qwen3VLConfig(FamilyConfig, Qwen3VLConfig):
    """Config of `VidCom2Qwen3VLForConditionalGeneration`: `Qwen3VLConfig` plus the fields of `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "qwen3_vl"
