"""Cosmos 3 Edge's config with the VidCom² settings."""

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

    def __post_init__(self, **kwargs: Any) -> None:
        if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23):
            raise ValueError(
                f"Transformers is {transformers.__version__}, whose Cosmos 3 Edge takes the tokens' positions in time "
                "for their order in the prompt. VidCom² passes both, which Transformers 5.23 takes. Upgrade "
                "Transformers, or run the stock class without compression."
            )
        super().__post_init__(**kwargs)

    @staticmethod
    def complete_processor(processor: Any) -> None:
        """Let a processor return in every call what the stock class cannot do without.

        Those of Transformers 5.19 to 5.24 do so only if the call asks for it: without the frames' metadata the
        processor finds no times to write, and without the tokens' types the stock class finds no positions.
        """
        processor.video_processor.return_metadata = True
        processor.tokenizer.init_kwargs["return_mm_token_type_ids"] = True
