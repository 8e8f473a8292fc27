"""Qwen2-VL with VidCom²: what differs from the parent classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2VLForConditionalGeneration, Qwen2VLModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from ..configuration.configuration_vidcom2_qwen2_vl import VidCom2Qwen2VLConfig
from .call_arguments import is_2d
from .compressed_generation import VidCom2GenerationMixin
from .prompt_compression import VidCom2ModelMixin, with_signature_of
from .video_compression import VideoTokens

GRIDS = {1: "image_grid_thw", 2: "video_grid_thw"}  # by the type of their tokens


@dataclass
class VidCom2Qwen2VLCausalLMOutputWithPast(CausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        rope_deltas: as in the parent's output of older Transformers versions.
        prompt_positions: int64, with an entry for each row of the logits: the position in `input_ids` of the token that
            it belongs to, -1 at padding; None if nothing was compressed.
    """

    rope_deltas: torch.LongTensor | None = None
    prompt_positions: torch.LongTensor | None = None


class VidCom2Qwen2VLModel(VidCom2ModelMixin, Qwen2VLModel):
    """Qwen2-VL without its head, with the language model on the compressed prompt.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves the dropped tokens out of the prompt.
        - M-RoPE positions are computed on the full prompt, and every survivor keeps its own (t, h, w).

    A "frame" is one of the t temporal patches of `video_grid_thw`, two frames of the file, with h·w/4 tokens; all of
    them are scored.
    """

    config_class = VidCom2Qwen2VLConfig
    uses_mrope = True

    forward = with_signature_of(Qwen2VLModel.forward)(VidCom2ModelMixin.forward)
    get_video_features = with_signature_of(Qwen2VLModel.get_video_features)(VidCom2ModelMixin.get_video_features)

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        with_tower_states: bool,
        video_grid_thw: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[ModelOutput, Sequence[VideoTokens]]:
        """As the mixin says, of the patches of all videos (Σ t·h·w, channels · 2 · patch²) and their grids (t, h, w)
        in patches, (num_videos, 3)."""
        if video_grid_thw is None or pixel_values_videos.numel() == 0:
            raise ValueError(
                f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)} and `video_grid_thw` is "
                f"{video_grid_thw}, but both must describe at least one frame. The processor returns them together."
            )
        grids = video_grid_thw.tolist()
        num_patches = sum(t * h * w for t, h, w in grids)
        if len(pixel_values_videos) != num_patches:
            raise ValueError(
                f"`pixel_values_videos` holds {len(pixel_values_videos)} patches, but `video_grid_thw` {grids} asks "
                f"for {num_patches}. Pass both as the processor returned them."
            )
        outputs = self.parent_video_features(
            pixel_values_videos=pixel_values_videos, video_grid_thw=video_grid_thw, **kwargs
        )
        merged = self.config.vision_config.spatial_merge_size
        videos = [
            VideoTokens(video.unflatten(0, (t, -1)), (h // merged, w // merged))
            for video, (t, h, w) in zip(outputs.pooler_output, grids, strict=True)
        ]
        return outputs, videos

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> tuple[Tensor, Tensor]:
        """The parent's positions of the full prompt, from `start` on.

        A text token is put behind the prompt, to see where the parent lets it stand. Its `rope_deltas` have the largest
        position + 1, which is another where a video has many frames of few tokens.
        """
        padded = {name: nn.functional.pad(new[name], (0, 1), value=1) for name in ("input_ids", "attention_mask")}
        token_types = nn.functional.pad(self.token_types(new["input_ids"]), (0, 1))
        positions, _ = self.get_rope_index(**padded, mm_token_type_ids=token_types, **self._grids_of(new, token_types))
        return positions[..., :-1] + start, positions[0, :, -1:] + start

    def full_rotary_positions(self, inputs: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """As the mixin says."""
        input_ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if input_ids is None or all(inputs.get(name) is None for name in GRIDS.values()):
            return None, None
        mask = mask[:, -input_ids.shape[1] :] if is_2d(mask) else None
        token_types = self.token_types(input_ids)
        grids = self._grids_of(inputs, token_types)
        return self.get_rope_index(input_ids, mm_token_type_ids=token_types, attention_mask=mask, **grids)

    def _grids_of(self, inputs: dict[str, Any], token_types: Tensor) -> dict[str, Tensor | None]:
        """The grids of the images and videos among some tokens: the last ones, where those of earlier turns are passed
        as well.

        Raises:
            ValueError: if there are fewer grids than images or videos.
        """
        begins = torch.cat([torch.ones_like(token_types[:, :1]), token_types.diff(dim=1)], dim=1) != 0
        grids = {}
        for kind, name in GRIDS.items():
            count = int((begins & (token_types == kind)).sum())
            grid = inputs.get(name)
            if count > (0 if grid is None else len(grid)):
                what, given = "images" if kind == 1 else "videos", None if grid is None else grid.tolist()
                raise ValueError(
                    f"The prompt has {count} {what}, but `{name}` is {given}. Pass it as the processor returned it, "
                    "also with features that were encoded beforehand."
                )
            grids[name] = None if grid is None else grid[len(grid) - count :]
        return grids

    def token_types(self, input_ids: Tensor) -> Tensor:
        """(B, L) int32: 0 for text, 1 for images, 2 for videos."""
        return (input_ids == self.config.image_token_id).int() + 2 * (input_ids == self.config.video_token_id).int()


class VidCom2Qwen2VLForConditionalGeneration(VidCom2GenerationMixin, Qwen2VLForConditionalGeneration):
    """Qwen2-VL that keeps only the distinctive tokens of each video. Same weights, same processor.

    Modifications:
        - the inner `model` is a `VidCom2Qwen2VLModel`.
        - `forward` and `generate` work on the compressed prompt, and take the settings of a call.

    Prompts without video, and `retention_ratio=1.0`, take the parent's path, with positions that are the
    conversation's own, also while other chats run on the same model.
    """

    config_class = VidCom2Qwen2VLConfig
    inner_class = VidCom2Qwen2VLModel
    output_class = VidCom2Qwen2VLCausalLMOutputWithPast

    forward = with_signature_of(Qwen2VLForConditionalGeneration.forward)(VidCom2GenerationMixin.forward)
