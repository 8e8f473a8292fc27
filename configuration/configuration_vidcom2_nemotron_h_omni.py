"""Nemotron 3 Omni's config with the VidCom² settings. What all configs share is in `family_config.py`."""

from transformers import NemotronH_Omni_Reasoning_V3_Config

from .family_config import FamilyConfig


class VidCom2NemotronHOmniConfig(FamilyConfig, NemotronH_Omni_Reasoning_V3_Config):
    """Config of `VidCom2NemotronHOmniForConditionalGeneration`: `NemotronH_Omni_Reasoning_V3_Config` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "nemotron_h_omni"
