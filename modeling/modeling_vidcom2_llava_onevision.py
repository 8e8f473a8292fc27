"""LLaVA-OneVision with VidCom²: what differs from the parent classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import LlavaOnevisionForConditionalGeneration, LlavaOnevisionModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionCausalLMOutputWithPast

from ..configuration.configuration_vidcom2_llava_onevision import VidCom2LlavaOnevisionConfig
from .compressed_generation import VidCom2GenerationMixin
from .frame_encoding import FramePlan, plan_frames, rows_of
from .prompt_compression import VidCom2ModelMixin
from .static_patches import REFERENCE_INTERVAL, patch_states
from .video_compression import VideoCompression, VideoTokens
from .video_features import ParentFeatures, inputs_of


@dataclass
class VidCom2LlavaOnevisionCausalLMOutputWithPast(LlavaOnevisionCausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        prompt_positions: int64, with an entry for each row of the logits: the position in `input_ids` of the token that
            it belongs to, -1 at padding; None if nothing was compressed.
    """

    prompt_positions: torch.LongTensor | None = None


class VidCom2LlavaOnevisionModel(VidCom2ModelMixin, LlavaOnevisionModel):
    """LLaVA-OneVision without its head, with the language model on the compressed prompt.

    Modifications:
        - `get_video_features` returns the kept tokens of each video, as a tuple.
        - `forward` leaves the dropped tokens out of the prompt.
        - with a `vision_update_ratio` below 1 the tower's layers are run by `static_patches.py`.

    A frame's tokens (14 × 14 in the released checkpoints) are scored; the newline at the end of the video is structure
    and stays, outside `retention_ratio`.
    """

    config: VidCom2LlavaOnevisionConfig
    ends_with_newline = True

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        with_tower_states: bool,
        chunk_frames: int | None = None,
        update_ratio: float = 1.0,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """As the mixin says, of videos (num_videos, num_frames, channels, height, width)."""
        if pixel_values_videos.ndim != 5 or 0 in pixel_values_videos.shape:
            raise ValueError(
                f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)}, but must be (num_videos, "
                "num_frames, channels, height, width) without an empty axis. Pass at least one frame."
            )
        num_videos, num_frames = pixel_values_videos.shape[:2]
        plan = plan_frames(pixel_values_videos.unbind(), chunk_frames, kwargs)
        with inputs_of(self.multi_modal_projector if with_tower_states else None) as projected:
            if plan.is_one_call and update_ratio == 1.0:
                outputs = self.parent_video_features(pixel_values_videos=pixel_values_videos, **kwargs)
            else:
                outputs = self._encode_in_chunks(pixel_values_videos, plan, update_ratio, **kwargs)
        side = math.isqrt(self.frames_of(outputs.pooler_output[0], num_frames).shape[1])
        videos = [VideoTokens(self.frames_of(video, num_frames), (side, side)) for video in outputs.pooler_output]
        if with_tower_states:
            states = plan.of_all_frames(projected).unflatten(0, (num_videos, num_frames))
            patches = (math.isqrt(states.shape[2]),) * 2
            videos = [
                replace(video, tower_states=of_video, tower_grid=patches)
                for video, of_video in zip(videos, states, strict=True)
            ]
        return outputs, videos

    def _encode_in_chunks(
        self, pixel_values_videos: Tensor, plan: FramePlan, update_ratio: float, **kwargs: Any
    ) -> ParentFeatures:
        """The parent's features of videos, a few frames at a time, without the tower's own states."""
        frames = pixel_values_videos.flatten(0, 1)
        end = -1 if self.ends_with_newline else None

        def tokens(pixels: Tensor) -> Tensor:  # a function, so that the tower's states are gone before the next chunk
            of_frames = self.parent_video_features(pixel_values_videos=pixels[None], **kwargs).pooler_output[0, :end]
            return of_frames.unflatten(0, (len(pixels), -1))

        if update_ratio == 1.0:
            encoded = [tokens(frames[rows_of(chunk)]) for chunk in plan.chunks()]
        else:
            num_videos, num_frames = pixel_values_videos.shape[:2]
            encoded = []
            for groups in plan.chunks_of_groups([num_frames] * num_videos, REFERENCE_INTERVAL):
                pixels = frames[rows_of([frame for group in groups for frame in group])]
                encoded.append(self._partly_updated(pixels, [len(group) for group in groups], update_ratio, **kwargs))
        videos = plan.of_all_frames(encoded).flatten(0, 1).unflatten(0, (len(pixel_values_videos), -1))
        if self.ends_with_newline:
            newlines = self.image_newline.to(videos).expand(len(videos), 1, -1)
            videos = torch.cat([videos, newlines], dim=1)
        return BaseModelOutputWithPooling(pooler_output=videos)

    def _partly_updated(
        self,
        frames: Tensor,
        group_lengths: Sequence[int],
        update_ratio: float,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """As the parent encodes frames (F, channels, height, width), but the tower computes only a share of the patches
        between the first frames of the groups -> (F, placeholders of a frame, dim)."""
        for name in ("output_hidden_states", "output_attentions", "interpolate_pos_encoding"):
            if kwargs.get(name):
                raise ValueError(
                    f"`{name}` is {kwargs[name]!r}, but with `vision_update_ratio={update_ratio!r}` the vision tower "
                    "does not run as a whole, and cannot take it. Leave it out, or pass `vision_update_ratio=1.0`."
                )
        layers = self.config.vision_feature_layer if vision_feature_layer is None else vision_feature_layer
        strategy = vision_feature_select_strategy or self.config.vision_feature_select_strategy
        layers = [layers] if isinstance(layers, int) else layers
        states = patch_states(self.vision_tower, frames, group_lengths, update_ratio, layers)
        if strategy == "default":
            states = states[:, 1:]
        return self.apply_pooling(self.multi_modal_projector(states))

    def frames_of(self, video: Tensor, num_frames: int) -> Tensor:
        """The parent's (placeholders, dim) of a video -> the scored tokens, (num_frames, tokens_per_frame, dim)."""
        return video[:-1].unflatten(0, (num_frames, -1))

    def placeholders(self, compression: VideoCompression) -> tuple[Tensor, int]:
        """The kept tokens, and the newline after the last frame."""
        newline = compression.indices.new_tensor([compression.num_tokens])
        return torch.cat([compression.indices, newline]), compression.num_tokens + 1

    def features_for_parent(self, features: Sequence[Tensor]) -> Tensor:
        """The parent flattens a batch of equally long videos; one video of all tokens is the same to it."""
        return torch.cat(tuple(features))[None]


class VidCom2LlavaOnevisionForConditionalGeneration(VidCom2GenerationMixin, LlavaOnevisionForConditionalGeneration):
    """LLaVA-OneVision that keeps only the distinctive tokens of each video. Same weights, same processor.

    Modifications:
        - the inner `model` is a `VidCom2LlavaOnevisionModel`.
        - `forward` and `generate` work on the compressed prompt, and take the settings of a call.

    Prompts without video, and `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2LlavaOnevisionConfig
    inner_class = VidCom2LlavaOnevisionModel
    output_class = VidCom2LlavaOnevisionCausalLMOutputWithPast
