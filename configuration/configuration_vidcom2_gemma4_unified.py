"""Gemma 4 Unified's config with the VidCom² settings."""

from typing import Any

from transformers import Gemma4UnifiedConfig

from .method_tables import COMPRESSION_METHODS
from .compression_settings import CompressionSettings
from .family_config import FamilyConfig


class VidCom2Gemma4UnifiedConfig(FamilyConfig, Gemma4UnifiedConfig):
    """Config of `VidCom2Gemma4UnifiedForConditionalGeneration`: `Gemma4UnifiedConfig` plus the fields of
    `CompressionSettings`.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set, or a method needs a vision tower.
    """

    model_type = "gemma4_unified"

    def compression_settings(self, **overrides: Any) -> CompressionSettings:
        """Return the settings alone; see `CompressionSettings.compression_settings`.

        Raises:
            ValueError: also on a method that needs a vision tower.
        """
        settings = super().compression_settings(**overrides)
        method = COMPRESSION_METHODS[settings.compression_method]
        if method.needs_of_tower:
            fitting = [repr(name) for name, other in COMPRESSION_METHODS.items() if not other.needs_of_tower]
            needs = " and ".join(f"`{need}`" for need in method.needs_of_tower)
            raise ValueError(
                f"`compression_method` is {method.name!r}, which needs {needs}, but Gemma 4 Unified has no vision "
                f"tower. Set it to one of {', '.join(fitting)}."
            )
        return settings
