"""LLaVA-Video's config: LLaVA-OneVision's, the pooling of video frames, and the VidCom² settings.

What the configs of all families share is in `family_config.py`.
"""

from typing import Any

from transformers import LlavaOnevisionConfig

from .family_config import FamilyConfig, register_as_video_model
from .vidcom2_llava_video_pooling import SPATIAL_POOL_MODES, checked_choice

COMPRESSION_NEWLINES = ("all", "occupied", "trailing")


class VidCom2LlavaVideoConfig(FamilyConfig, LlavaOnevisionConfig):
    """Config of `VidCom2LlavaVideoForConditionalGeneration`.

    `LlavaOnevisionConfig` plus the fields of `CompressionSettings` and the two below. It has a `model_type` of its own,
    since the stock LLaVA-OneVision class would load the weights and compute something else.

    Args:
        spatial_pool_mode: how 2 x 2 patches of a video frame become one token: `"average"` (the setting of the VidCom²
            paper and of LLaVA-Video's published figures), `"max"`, or `"bilinear"` (the default of the original code).
            The processor has a field of the same name, which must agree.
        compression_newlines: which newlines of a compressed video stay, and where. `"all"` keeps all at the end of
            their rows. `"occupied"` keeps only those of rows that kept a token. `"trailing"` keeps all, but after the
            frame's kept tokens, as in the authors' released code. Newlines do not count towards `retention_ratio`.

    Raises:
        ValueError: if a setting is outside its accepted set, whether it comes from the constructor, an assignment, a
            `from_pretrained` override or an edited `config.json`.
    """

    model_type = "vidcom2_llava_video"

    spatial_pool_mode: str = SPATIAL_POOL_MODES[0]
    compression_newlines: str = COMPRESSION_NEWLINES[0]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "spatial_pool_mode":
            value = checked_choice(name, value, SPATIAL_POOL_MODES)
        elif name == "compression_newlines":
            value = checked_choice(name, value, COMPRESSION_NEWLINES)
        super().__setattr__(name, value)

    @property
    def patches_per_side(self) -> int:
        return self.vision_config.image_size // self.vision_config.patch_size


# This is not done beside the model class, since `transformers serve` asks by `model_type` before it imports that code.
register_as_video_model(VidCom2LlavaVideoConfig.model_type, "VidCom2LlavaVideoForConditionalGeneration")
