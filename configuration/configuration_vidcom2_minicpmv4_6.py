"""MiniCPM-V 4.6's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import MiniCPMV4_6Config

from .family_config import FamilyConfig


class VidCom2MiniCPMV4_6Config(FamilyConfig, MiniCPMV4_6Config):
    """Config of `VidCom2MiniCPMV4_6ForConditionalGeneration`: `MiniCPMV4_6Config` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "minicpmv4_6"
