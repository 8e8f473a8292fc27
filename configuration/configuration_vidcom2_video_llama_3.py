"""VideoLLaMA3's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import VideoLlama3Config

from .family_config import FamilyConfig


class VidCom2VideoLlama3Config(FamilyConfig, VideoLlama3Config):
    """Config of `VidCom2VideoLlama3ForConditionalGeneration`: `VideoLlama3Config` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "video_llama_3"
