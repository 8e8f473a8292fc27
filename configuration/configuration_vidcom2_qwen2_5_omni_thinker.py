"""The config of Qwen2.5-Omni's thinker with the VidCom² settings.

What the configs of all families share is in `family_config.py`.
"""

from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniThinkerConfig

from .thinker_config import ThinkerConfig


class VidCom2Qwen2_5OmniThinkerConfig(ThinkerConfig, Qwen2_5OmniThinkerConfig):
    """Config of `VidCom2Qwen2_5OmniThinkerForConditionalGeneration`: `Qwen2_5OmniThinkerConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class. From the config of a whole Qwen2.5-Omni, the thinker's part is taken.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set, and on a Transformers before 5.23.
    """

    model_type = "qwen2_5_omni_thinker"
    full_name = "Qwen2.5-Omni"
