"""LLaVA-OneVision's config with the VidCom² settings."""

from transformers import LlavaOnevisionConfig

from .compression_settings import IGNORED_AT_INFERENCE, CompressionSettings
from .saved_with_code import SavedWithCode


class VidCom2LlavaOnevisionConfig(CompressionSettings, SavedWithCode, LlavaOnevisionConfig):
    """Config of `VidCom2LlavaOnevisionForConditionalGeneration`.

    `LlavaOnevisionConfig` plus the fields of `CompressionSettings`. The `model_type` stays the native one: a stock
    `config.json` loads here with the default settings, and a `config.json` saved here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set, whether it comes from the constructor, an
            assignment, a `from_pretrained` override or an edited `config.json`.
    """

    model_type = "llava_onevision"
    keys_to_ignore_at_inference = IGNORED_AT_INFERENCE
