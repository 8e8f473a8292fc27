"""LLaVA-Video's config: LLaVA-OneVision's, the pooling of video frames, and the VidCom² settings.

What the configs of all families share is in `family_config.py`.
"""

from typing import Any

from transformers import LlavaOnevisionConfig

from .family_config import FamilyConfig, register_as_video_model

SPATIAL_POOL_MODES = ("average", "max", "bilinear")
COMPRESSION_NEWLINES = ("all", "occupied", "trailing")


# The model and its processor must agree on how many tokens a frame has, so both count by the next two functions.
def pooled_side(patches_per_side: int, spatial_pool_mode: str) -> int:
    """Return the number of rows, and of columns, of a pooled frame.

    27 patches become 14 with `"bilinear"`, which rounds up, and 13 with `"average"` and `"max"`, which leave out an odd
    last row and column.
    """
    return -(-patches_per_side // 2) if spatial_pool_mode == "bilinear" else patches_per_side // 2


def tokens_per_frame(patches_per_side: int, spatial_pool_mode: str) -> int:
    """Return the number of a frame's tokens, with a newline at the end of each row: 13 · 14 = 182 or 14 · 15 = 210."""
    side = pooled_side(patches_per_side, spatial_pool_mode)
    return side * (side + 1)


def checked_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value`, or raise a ValueError that says what is accepted. The first choice is the default."""
    if value not in choices:
        accepted = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` is {value!r}, but must be one of {accepted}. The default is {choices[0]!r}.")
    return value


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
