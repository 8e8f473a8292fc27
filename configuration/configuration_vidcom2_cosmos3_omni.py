"""Cosmos 3's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import Cosmos3OmniConfig

from .family_config import FamilyConfig


class VidCom2Cosmos3OmniConfig(FamilyConfig, Cosmos3OmniConfig):
    """Config of `VidCom2Cosmos3OmniForConditionalGeneration`: `Cosmos3OmniConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "cosmos3_omni"
