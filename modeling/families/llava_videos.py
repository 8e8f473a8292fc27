"""What LLaVA's families share: videos as frames of pixels, and tokens that are pooled patches of a square frame. Pixels
are (num_videos, num_frames, channels, height, width), and the vision tower looks at one frame at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionCausalLMOutputWithPast

from ...configuration.compression_settings import CompressionSettings
from ..encoding.video_features import (
    FramePlan,
    ParentFeatures,
    Run,
    VidCom2VideoFeatures,
    encode_in_chunks,
    frames_of_runs,
    plan_frames,
    square_frames,
)
from ..hosting.in_transformers import check_frame_size
from ..methods.compression import VideoTokens
from ..prompt.prompt_compression import VidCom2ModelMixin


@dataclass
class VidCom2LlavaOnevisionCausalLMOutputWithPast(LlavaOnevisionCausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        prompt_positions: int64, for each row of the logits the position in `input_ids` of its token, -1 at padding;
            None if nothing was compressed.
    """

    prompt_positions: torch.LongTensor | None = None


class LlavaVideosMixin(VidCom2ModelMixin):
    """What the inner models of LLaVA's families add to the parent's. It comes before the parent's in a family's bases.
    A family says what is its own:

    - `side_of_frame` says how many tokens a frame has; `tokens_of_patches` makes them, if not as LLaVA-OneVision does;
    - `ends_with_newline` says whether a newline follows the last frame;
    - `frames_of` finds the scored tokens, if a frame has other tokens too.
    """

    ends_with_newline = False

    @property
    def side_of_frame(self) -> int:
        """The number of rows, and of columns, of a frame's scored tokens."""
        raise NotImplementedError

    def tokens_of_patches(self, states: Tensor) -> Tensor:
        """Turn the tower's states (F, patches, V) into tokens (F, placeholders of a frame, dim), as the parent does."""
        return self.apply_pooling(self.multi_modal_projector(states))

    def frames_of(self, video: Tensor, num_frames: int) -> Tensor:
        """Return the scored tokens (num_frames, tokens_per_frame, dim) among a video's features (placeholders, dim)."""
        return (video[:-1] if self.ends_with_newline else video).unflatten(0, (num_frames, -1))

    def features_for_parent(self, features: Sequence[Tensor]) -> Any:
        """Return the kept tokens of all videos as if they were one: the parent flattens its batch of videos anyway."""
        return torch.cat(tuple(features))[None]

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        settings: CompressionSettings,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """Encode the pixels (num_videos, num_frames, channels, height, width) as the settings say.

        Returns:
            The parent's features of all tokens, and the scored tokens of each video.
        """
        _check_shape(pixel_values_videos)
        if not kwargs.get("interpolate_pos_encoding"):
            check_frame_size(pixel_values_videos, self.config.vision_config)
        num_frames, of_videos = pixel_values_videos.shape[1], pixel_values_videos.unbind()
        partial = self.partial_encoding(pixel_values_videos, settings, kwargs)
        plan = plan_frames(of_videos, settings.vision_chunk_frames, kwargs, partial)
        if plan.is_one_call and partial is None:
            outputs = self.parent_video_features(pixel_values_videos=pixel_values_videos, **kwargs)
        else:
            outputs = self._encode_in_chunks(pixel_values_videos, plan, partial, **kwargs)
        return outputs, [square_frames(self.frames_of(video, num_frames)) for video in outputs.pooler_output]

    def video_sizes(self, pixel_values_videos: Tensor, **described: Any) -> list[int]:
        """Return how many scored tokens each video has, as in `VideoFeaturesMixin`."""
        _check_shape(pixel_values_videos)
        num_videos, num_frames = pixel_values_videos.shape[:2]
        return [num_frames * self.side_of_frame**2] * num_videos

    def _encode_in_chunks(
        self, pixel_values_videos: Tensor, plan: FramePlan, partial: Any, **kwargs: Any
    ) -> ParentFeatures:
        """Return the parent's features of videos, but for the tower's output. Encode one chunk of frames at a time, and
        of each frame only a part, unless `partial` is None."""
        layers, strategy = self._read_layers(**kwargs)
        end = -1 if self.ends_with_newline else None

        def of_chunk(runs: Sequence[Run]) -> list[Sequence[Tensor]]:
            frames = frames_of_runs(pixel_values_videos.unbind(), runs)
            if partial is None:
                (video,) = self.parent_video_features(pixel_values_videos=frames[None], **kwargs).pooler_output
                tokens = video[:end].unflatten(0, (len(frames), -1))
            else:
                states = partial.states(runs, frames, layers)
                # As the parent does, `"default"` leaves out the first state, which is the class token's.
                tokens = self.tokens_of_patches(states[:, 1:] if strategy == "default" else states)
            return [tokens.split([len(run.frames) for run in runs])]

        (videos,) = encode_in_chunks(plan, of_chunk, rows_after=int(self.ends_with_newline))
        if self.ends_with_newline:
            for video in videos:
                video[-1] = self.image_newline
        return VidCom2VideoFeatures(pooler_output=videos)

    def _read_layers(
        self,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        **kwargs: Any,
    ) -> tuple[Sequence[int], str]:
        """Return the layers of the tower whose states the parent reads, and its strategy for selecting among these."""
        layers = self.config.vision_feature_layer if vision_feature_layer is None else vision_feature_layer
        strategy = vision_feature_select_strategy or self.config.vision_feature_select_strategy
        return [layers] if isinstance(layers, int) else layers, strategy


def _check_shape(pixel_values_videos: Tensor) -> None:
    if pixel_values_videos.ndim != 5 or 0 in pixel_values_videos.shape:
        raise ValueError(
            f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)}, but must be (num_videos, "
            "num_frames, channels, height, width) with at least one frame, as the checkpoint's processor returns it."
        )
