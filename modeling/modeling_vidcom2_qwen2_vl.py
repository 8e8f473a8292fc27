"""Qwen2-VL with VidCom²: what differs from the parent classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2VLForConditionalGeneration, Qwen2VLModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from .compressed_generation import VidCom2GenerationMixin
from .configuration_vidcom2_qwen2_vl import VidCom2Qwen2VLConfig
from .prompt_compression import VidCom2ModelMixin, with_signature_of


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
        self, pixel_values_videos: Tensor, video_grid_thw: Tensor | None = None, **kwargs: Any
    ) -> tuple[ModelOutput, Sequence[Tensor]]:
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
        frames = [video.unflatten(0, (t, -1)) for video, (t, _, _) in zip(outputs.pooler_output, grids, strict=True)]
        return outputs, frames

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> tuple[Tensor, Tensor]:
        """The parent's positions of the full prompt, from `start` on.

        A text token is put behind the prompt, to see where the parent lets it stand. Its `rope_deltas` have the largest
        position + 1, which is another where a video has many frames of few tokens.
        """
        input_ids, mask = new["input_ids"], new["attention_mask"]
        token_types = self.token_types(input_ids)
        if new.get("video_grid_thw") is None and (token_types == 2).any():
            raise ValueError(
                "`video_grid_thw` is missing, but the prompt has videos. Pass it as the processor returned it, also "
                "with features that were encoded beforehand."
            )
        positions, _ = self.get_rope_index(
            torch.nn.functional.pad(input_ids, (0, 1)),
            mm_token_type_ids=torch.nn.functional.pad(token_types, (0, 1)),
            image_grid_thw=new.get("image_grid_thw"),
            video_grid_thw=new.get("video_grid_thw"),
            attention_mask=torch.nn.functional.pad(mask, (0, 1), value=1),
        )
        return positions[..., :-1] + start, positions[0, :, -1:] + start

    def rope_deltas_of(self, inputs: dict[str, Any]) -> Tensor | None:
        """(B, 1) the parent's `rope_deltas` of an uncompressed prompt; None for one of text."""
        grids = {name: inputs.get(name) for name in ("image_grid_thw", "video_grid_thw")}
        if all(grid is None for grid in grids.values()):
            return None
        token_types = self.token_types(inputs["input_ids"])
        _, rope_deltas = self.get_rope_index(
            inputs["input_ids"], mm_token_type_ids=token_types, attention_mask=inputs.get("attention_mask"), **grids
        )
        return rope_deltas

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
