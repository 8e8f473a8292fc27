"""The config of Qwen2.5-Omni's thinker with the VidCom² settings."""

from typing import Any

from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniThinkerConfig

from .family_config import FamilyConfig


class VidCom2Qwen2_5OmniThinkerConfig(FamilyConfig, Qwen2_5OmniThinkerConfig):
    """Config of `VidCom2Qwen2_5OmniThinkerForConditionalGeneration`: `Qwen2_5OmniThinkerConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class. From the config of a whole Qwen2.5-Omni, the thinker's part is taken.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set, and on a Transformers that has no class for the
            thinker without its head.
    """

    model_type = "qwen2_5_omni_thinker"

    def __post_init__(self, **kwargs: Any) -> None:
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as stock

        if not hasattr(stock, "Qwen2_5OmniThinkerModel"):
            import transformers

            raise ValueError(
                f"Transformers is {transformers.__version__}, whose Qwen2.5-Omni encodes videos in the class with the "
                "head, but VidCom² extends the inner model that Transformers 5.21 put there. Upgrade Transformers, or "
                "run the stock class without compression."
            )
        super().__post_init__(**kwargs)
