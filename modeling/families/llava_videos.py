"""What LLaVA's families share: videos as frames of pixels, and tokens that are pooled patches of a square frame. Pixels
are (num_videos, num_frames, channels, height, width), and the vision tower looks at one frame at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from ..encoding.video_features import (
    FramePlan,
    ParentFeatures,
    Run,
    VidCom2VideoFeatures,
    encode_in_chunks,
    frames_of_runs,
    plan_frames,
)
from ..hosting.in_transformers import check_frame_size
from ..methods.compression import VideoTokens
from ..prompt.prompt_compression import VidCom2ModelMixin


@dataclass(frozen=True)
class VideoLayout:
    """How the tokens of a video stand in the prompt: frames of scored tokens, and maybe a newline behind the last.

    Attributes:
        num_frames: T.
        side: the number of rows, and of columns, of a frame's scored tokens.
    """

    num_frames: int
    side: int
    ends_with_newline: bool = False

    @property
    def num_tokens(self) -> int:
        """T·M, the number of scored tokens."""
        return self.num_frames * self.side**2

    @property
    def num_placeholders(self) -> int:
        return self.num_tokens + self.ends_with_newline

    def placeholders_of(self, indices: Tensor) -> Tensor:
        """Return the placeholders of scored tokens."""
        return indices

    def frames_of(self, features: Tensor) -> Tensor:
        """Return the scored tokens (T, M, dim) among a video's features (placeholders, dim)."""
        return features[: self.num_tokens].unflatten(0, (self.num_frames, -1))

    def kept(self, indices: Tensor) -> Tensor:
        """Return the placeholders of kept tokens and of newlines that stay, in the order of their features."""
        return torch.cat([indices, indices.new_tensor([self.num_tokens] * self.ends_with_newline)])


class LlavaVideosMixin(VidCom2ModelMixin):
    """What the inner models of LLaVA's families add to the parent's. It comes before the parent's among their bases."""

    @staticmethod
    def layout_of(config: Any, num_frames: int, size: int) -> VideoLayout:
        """Return how a video's tokens stand in the prompt, if its frames are squares of `size` × `size` pixels."""
        raise NotImplementedError

    def tokens_of_patches(self, states: Tensor) -> Tensor:
        """Turn the tower's states (F, patches, V) into tokens (F, placeholders of a frame, dim), as the parent does."""
        return self.apply_pooling(self.multi_modal_projector(states))

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
        of_videos, layout = pixel_values_videos.unbind(), self._layout(pixel_values_videos)
        partial = self.partial_encoding(pixel_values_videos, settings, kwargs)
        plan = plan_frames(of_videos, settings.vision_chunk_frames, kwargs, partial)
        if plan.is_one_call and partial is None:
            outputs = self.parent_video_features(pixel_values_videos=pixel_values_videos, **kwargs)
        else:
            outputs = self._encode_in_chunks(pixel_values_videos, plan, partial, layout.ends_with_newline, **kwargs)
        grid = layout.side, layout.side
        return outputs, [VideoTokens(layout.frames_of(each), grid, layout=layout) for each in outputs.pooler_output]

    def video_sizes(self, pixel_values_videos: Tensor, **described: Any) -> list[int]:
        """Return how many scored tokens each video has, as in `VideoFeaturesMixin`."""
        _check_shape(pixel_values_videos)
        return [self._layout(pixel_values_videos).num_tokens] * len(pixel_values_videos)

    def _layout(self, pixel_values_videos: Tensor) -> VideoLayout:
        return self.layout_of(self.config, pixel_values_videos.shape[1], pixel_values_videos.shape[-1])

    def _encode_in_chunks(
        self, pixel_values_videos: Tensor, plan: FramePlan, partial: Any, ends_with_newline: bool, **kwargs: Any
    ) -> ParentFeatures:
        """Return the parent's features of videos, but for the tower's output. Encode one chunk of frames at a time, and
        of each frame only a part, unless `partial` is None."""
        layers, strategy = self._read_layers(**kwargs)
        end = -1 if ends_with_newline else None

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

        (videos,) = encode_in_chunks(plan, of_chunk, rows_after=int(ends_with_newline))
        if ends_with_newline:
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
