"""What LLaVA's families share: videos as (num_videos, num_frames, channels, height, width) pixels, of which the vision
tower looks at one frame at a time, and tokens that are pooled patches of a square frame."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..encoding.frame_encoding import FrameBuffers, FramePlan, frames_of_runs, plan_frames
from ..encoding.static_patches import REFERENCE_INTERVAL, groups_of, patch_states
from ..encoding.video_features import ParentFeatures, VidCom2VideoFeatures
from ..hosting.parent_classes import ParentLlavaModel
from ..methods.video_compression import VideoTokens
from ..prompt.prompt_compression import VidCom2ModelMixin


class LlavaVideosMixin(VidCom2ModelMixin, ParentLlavaModel):
    """Comes before the parent's inner model in the bases of a LLaVA family's. A family adds what is its own:

    - `tokens_of_patches`, what the parent makes of the tower's states;
    - `ends_with_newline`, whether it puts its newline behind the last frame;
    - `frames_of`, if a frame has other tokens than those that are scored.
    """

    ends_with_newline = False

    def tokens_of_patches(self, states: Tensor) -> Tensor:
        """As the parent makes tokens of the tower's states (F, patches, V) -> (F, placeholders of a frame, dim)."""
        raise NotImplementedError

    def frames_of(self, video: Tensor, num_frames: int) -> Tensor:
        """The parent's (placeholders, dim) of a video -> the scored tokens, (num_frames, tokens_per_frame, dim)."""
        return (video[:-1] if self.ends_with_newline else video).unflatten(0, (num_frames, -1))

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
        num_frames = pixel_values_videos.shape[1]
        group_frames = 1 if update_ratio == 1.0 else REFERENCE_INTERVAL
        plan = plan_frames(pixel_values_videos.unbind(), chunk_frames, kwargs, group_frames)
        if plan.is_one_call and update_ratio == 1.0:
            outputs, states = self._encode_frames(pixel_values_videos, with_tower_states, **kwargs)
        else:
            outputs, states = self._encode_in_chunks(
                pixel_values_videos, plan, with_tower_states, update_ratio, **kwargs
            )
        side = math.isqrt(self.frames_of(outputs.pooler_output[0], num_frames).shape[1])
        videos = [VideoTokens(self.frames_of(video, num_frames), (side, side)) for video in outputs.pooler_output]
        if with_tower_states:
            patches = (math.isqrt(states[0].shape[1]),) * 2
            videos = [
                replace(video, tower_states=of_video, tower_grid=patches)
                for video, of_video in zip(videos, states, strict=True)
            ]
        return outputs, videos

    def _encode_frames(
        self, pixel_values_videos: Tensor, with_tower_states: bool, **kwargs: Any
    ) -> tuple[ParentFeatures, Sequence[Tensor]]:
        """The parent's features of videos, and if wanted (T, patches, V) states of the tower for each of them."""
        outputs = self.parent_video_features(pixel_values_videos=pixel_values_videos, **kwargs)
        if not with_tower_states:
            return outputs, []
        # From the output, not by a hook: a hook on a module that threads share would see all of their videos.
        layers, strategy = self._read_layers(**kwargs)
        states = _of_patches(torch.cat([outputs.hidden_states[layer] for layer in layers], dim=-1), strategy)
        return outputs, states.unflatten(0, pixel_values_videos.shape[:2]).unbind()

    def _encode_in_chunks(
        self,
        pixel_values_videos: Tensor,
        plan: FramePlan,
        with_tower_states: bool,
        update_ratio: float,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, list[Tensor]]:
        """As `_encode_frames`, a few frames at a time, and without the tower's output."""
        end = -1 if self.ends_with_newline else None
        tokens, states = FrameBuffers(plan, rows_after=int(self.ends_with_newline)), FrameBuffers(plan)
        for runs in plan.chunks:
            frames = frames_of_runs(pixel_values_videos.unbind(), runs)
            lengths = [len(run.frames) for run in runs]
            if update_ratio == 1.0:
                outputs, of_frames = self._encode_frames(frames[None], with_tower_states, **kwargs)
                encoded_frames = outputs.pooler_output[0, :end].unflatten(0, (len(frames), -1))
                del outputs  # with the tower's own states, before the next chunk
            else:
                of_frames = [self._partly_updated(frames, groups_of(lengths), update_ratio, **kwargs)]
                encoded_frames = self.tokens_of_patches(of_frames[0])
            for run, encoded in zip(runs, encoded_frames.split(lengths), strict=True):
                tokens.put(run, encoded)
            if with_tower_states:
                for run, encoded in zip(runs, of_frames[0].split(lengths), strict=True):
                    states.put(run, encoded)
            del of_frames
        if self.ends_with_newline:
            for video in tokens.videos:
                video[-1] = self.image_newline
        num_frames = pixel_values_videos.shape[1]
        return VidCom2VideoFeatures(pooler_output=tokens.videos), [
            video.unflatten(0, (num_frames, -1)) for video in states.videos
        ]

    def _partly_updated(
        self,
        frames: Tensor,
        group_lengths: Sequence[int],
        update_ratio: float,
        **kwargs: Any,
    ) -> Tensor:
        """The tower's states that the parent reads, of frames (F, channels, height, width) -> (F, patches, V). Between
        the first frames of the groups the tower computes only a share of the patches."""
        for name in ("output_hidden_states", "output_attentions", "interpolate_pos_encoding"):
            if kwargs.get(name):
                raise ValueError(
                    f"`{name}` is {kwargs[name]!r}, but with `vision_update_ratio={update_ratio!r}` the vision tower "
                    "does not run as a whole, and cannot take it. Leave it out, or pass `vision_update_ratio=1.0`."
                )
        layers, strategy = self._read_layers(**kwargs)
        return _of_patches(patch_states(self.vision_tower, frames, group_lengths, update_ratio, layers), strategy)

    def _read_layers(
        self,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        **kwargs: Any,
    ) -> tuple[Sequence[int], str]:
        """The layers of the tower that the parent reads, beside each other, and which of their states it selects."""
        layers = self.config.vision_feature_layer if vision_feature_layer is None else vision_feature_layer
        strategy = vision_feature_select_strategy or self.config.vision_feature_select_strategy
        return [layers] if isinstance(layers, int) else layers, strategy


def _of_patches(states: Tensor, strategy: str) -> Tensor:
    """As the parent selects of the tower's states (F, patches, V): `"default"` leaves out a first one, of a class
    token."""
    return states[:, 1:] if strategy == "default" else states
