"""LLaVA-Video with VidCom²: only what differs from LLaVA-OneVision.

What the family shares with others is in `llava_videos.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration, LlavaOnevisionModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from ...configuration.configuration_vidcom2_llava_video import VidCom2LlavaVideoConfig, pooled_side
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .llava_videos import LlavaVideosMixin, VideoLayout


def pooled_rows(
    image_features: Tensor, config: VidCom2LlavaVideoConfig, bilinear: Callable[[Tensor], Tensor], newline: Tensor
) -> Tensor:
    """Pool frames by `config.spatial_pool_mode`, and end each of their rows with the newline.

    Args:
        image_features: (frames, patches, dim) projected patches.
        bilinear: LLaVA-OneVision's pooling, for the mode of that name.
        newline: (dim,).

    Returns:
        (frames, side · (side + 1), dim) tokens.
    """
    if config.spatial_pool_mode == "bilinear":
        pooled = bilinear(image_features)
    else:
        pool = nn.functional.avg_pool2d if config.spatial_pool_mode == "average" else nn.functional.max_pool2d
        grid = image_features.unflatten(1, (config.patches_per_side, -1)).permute(0, 3, 1, 2)
        pooled = pool(grid, kernel_size=2).permute(0, 2, 3, 1).flatten(1, 2)
    side = pooled_side(config.patches_per_side, config.spatial_pool_mode)
    rows = pooled.unflatten(1, (side, side))
    newlines = newline.to(rows).expand(*rows.shape[:2], 1, -1)
    return torch.cat([rows, newlines], dim=2).flatten(1, 2)


@dataclass(frozen=True)
class RowsLayout(VideoLayout):
    """A `VideoLayout` in which a newline ends each row. `config.compression_newlines` says which of these stay."""

    kept_newlines: str = "all"

    @property
    def placeholders_per_frame(self) -> int:
        return self.side * (self.side + 1)

    def placeholders_of(self, indices: Tensor) -> Tensor:
        return indices + indices // self.side

    def frames_of(self, features: Tensor) -> Tensor:
        return features.unflatten(0, (self.num_frames, self.side, -1))[:, :, :-1].flatten(1, 2)

    def kept(self, indices: Tensor) -> Tensor:
        rows = torch.arange(self.num_frames * self.side, device=indices.device)  # Rows are counted through all frames.
        if self.kept_newlines == "occupied":
            rows = (indices // self.side).unique_consecutive()
        placeholders = torch.cat([self.placeholders_of(indices), rows * (self.side + 1) + self.side])
        if self.kept_newlines == "trailing" and len(indices) < self.num_tokens:  # A video that is whole stays as it is.
            return placeholders[(placeholders // (self.side * (self.side + 1))).argsort(stable=True)]
        return placeholders.sort().values


class LlavaVideoModel(LlavaOnevisionModel):
    """The uncompressed LLaVA-Video, without a language model head.

    Modifications:
        - `apply_pooling` pools a frame by `config.spatial_pool_mode` and ends each of its rows with the newline.
        - `get_video_features` puts no newline at the end of the video.

    As in the original, a frame passes the projector before it is pooled. Images are encoded as in LLaVA-OneVision.
    """

    config: VidCom2LlavaVideoConfig

    def apply_pooling(self, image_features: Tensor) -> Tensor:
        """Turn the projected patches of frames (frames, patches, dim) into tokens (frames, side · (side + 1), dim)."""
        return pooled_rows(image_features, self.config, super().apply_pooling, self.image_newline)

    @can_return_tuple
    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling:
        """Encode videos (num_videos, num_frames, channels, height, width) as the original does.

        Returns:
            The parent's output, with `pooler_output` (num_videos, num_frames · side · (side + 1), dim).
        """
        outputs = cast(Any, super()).get_video_features(
            pixel_values_videos,
            vision_feature_layer=vision_feature_layer,
            vision_feature_select_strategy=vision_feature_select_strategy,
            **kwargs | {"return_dict": True},
        )
        outputs.pooler_output = outputs.pooler_output[:, :-1]  # The parent has put its newline at the end.
        return outputs


class LlavaVideoForConditionalGeneration(LlavaOnevisionForConditionalGeneration):
    """The uncompressed LLaVA-Video: LLaVA-OneVision around a `LlavaVideoModel`."""

    config: VidCom2LlavaVideoConfig

    def __init__(self, config: VidCom2LlavaVideoConfig):
        # The `__init__` of LLaVA-OneVision's class is skipped, since it would build the stock inner model.
        super(LlavaOnevisionForConditionalGeneration, self).__init__(config)
        self.model = LlavaVideoModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()


class VidCom2LlavaVideoModel(LlavaVideosMixin, LlavaVideoModel):
    """LLaVA-Video without its head. The language model runs on short prompts.

    Modifications of LLaVA-OneVision with VidCom²:
        - the parent is the uncompressed LLaVA-Video.
        - the scored tokens are those of a frame's grid (13 × 13 in the released checkpoints). Its newlines are
          structure, and do not count towards `retention_ratio`. `config.compression_newlines` says which stay, and
          where.

    With `"trailing"`, the features enter the language model in another order than in the stock prompt: a frame's
    kept tokens, then its newlines. Their placeholders are those of `"all"`, in ascending order. They tell which
    places of the prompt a frame still fills, not which feature came from which place.
    """

    config: VidCom2LlavaVideoConfig

    @staticmethod
    def layout_of(config: Any, num_frames: int, size: int) -> VideoLayout:
        """Return the layout of frames whose rows, as `config.spatial_pool_mode` pools them, end with newlines."""
        side = pooled_side(size // config.vision_config.patch_size, config.spatial_pool_mode)
        return RowsLayout(num_frames, side, kept_newlines=config.compression_newlines)


class VidCom2LlavaVideoForConditionalGeneration(VidCom2GenerationMixin, LlavaVideoForConditionalGeneration):
    """LLaVA-Video that keeps only the distinctive tokens of each video.

    It loads checkpoints written by `vidcom2 convert-llava-video`, and needs `LlavaVideoProcessor`.

    Modifications of LLaVA-OneVision with VidCom²:
        - the parent is the uncompressed LLaVA-Video, and the inner `model` is a `VidCom2LlavaVideoModel`.
    """

    config: VidCom2LlavaVideoConfig
    inner_class = VidCom2LlavaVideoModel
