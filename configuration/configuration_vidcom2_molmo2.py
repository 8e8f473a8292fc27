"""Molmo2's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from transformers import Molmo2Config

from .family_config import FamilyConfig


class VidCom2Molmo2Config(FamilyConfig, Molmo2Config):
    """Config of `VidCom2Molmo2ForConditionalGeneration`: `Molmo2Config` plus the fields of `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "molmo2"
    attribute_map = Molmo2Config.attribute_map | {  # the marks between which placeholders are a video's
        "video_start_token_id": "frame_start_token_id",
        "video_end_token_id": "frame_end_token_id",
    }
