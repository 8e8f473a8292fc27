"""EXAONE 4.5's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import Exaone4_5_Config

from .family_config import FamilyConfig


class VidCom2Exaone4_5_Config(FamilyConfig, Exaone4_5_Config):
    """Config of `VidCom2Exaone4_5_ForConditionalGeneration`: `Exaone4_5_Config` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "exaone4_5"
