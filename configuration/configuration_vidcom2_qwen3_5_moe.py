"""Qwen3.5-MoE's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import Qwen3_5MoeConfig

from .family_config import FamilyConfig


class VidCom2Qwen3_5MoeConfig(FamilyConfig, Qwen3_5MoeConfig):
    """Config of `VidCom2Qwen3_5MoeForConditionalGeneration`: `Qwen3_5MoeConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "qwen3_5_moe"
