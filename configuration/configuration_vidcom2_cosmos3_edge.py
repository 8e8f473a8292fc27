"""Cosmos 3 Edge's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from types import MappingProxyType
from typing import Any

import transformers
from transformers import Cosmos3EdgeConfig

from .family_config import FamilyConfig


class VidCom2Cosmos3EdgeConfig(FamilyConfig, Cosmos3EdgeConfig):
    """Config of `VidCom2Cosmos3EdgeForConditionalGeneration`: `Cosmos3EdgeConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set, and on a Transformers before 5.23.
    """

    model_type = "cosmos3_edge"
    # The processor of Transformers 5.19 to 5.24 returns these only if it is asked to: without the frames' metadata it
    # finds no times to write, and without the tokens' types the stock class finds no positions.
    video_processor_fields = MappingProxyType({"return_metadata": True})
    tokenizer_fields = MappingProxyType({"return_mm_token_type_ids": True})

    def __post_init__(self, **kwargs: Any) -> None:
        if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23):
            raise ValueError(
                f"Transformers is {transformers.__version__}, whose Cosmos 3 Edge takes the tokens' positions in time "
                "for their order in the prompt. VidCom² passes both, which Transformers 5.23 takes. Upgrade "
                "Transformers, or run the stock class without compression."
            )
        super().__post_init__(**kwargs)
