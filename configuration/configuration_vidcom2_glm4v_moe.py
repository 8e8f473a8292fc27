"""GLM-4V-MoE's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import Glm4vMoeConfig

from .family_config import FamilyConfig


class VidCom2Glm4vMoeConfig(FamilyConfig, Glm4vMoeConfig):
    """Config of `VidCom2Glm4vMoeForConditionalGeneration`: `Glm4vMoeConfig` plus the fields of `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "glm4v_moe"
