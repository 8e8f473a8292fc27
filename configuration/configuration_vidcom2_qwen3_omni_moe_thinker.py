"""The config of Qwen3-Omni's thinker with the VidCom² settings.

What the configs of all families share is in `family_config.py`.
"""

from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

from .thinker_config import ThinkerConfig


class VidCom2Qwen3OmniMoeThinkerConfig(ThinkerConfig, Qwen3OmniMoeThinkerConfig):
    """Config of `VidCom2Qwen3OmniMoeThinkerForConditionalGeneration`: `Qwen3OmniMoeThinkerConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class. From the config of a whole Qwen3-Omni, the thinker's part is taken.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set, and on a Transformers before 5.23.
    """

    model_type = "qwen3_omni_moe_thinker"
    full_name = "Qwen3-Omni"
