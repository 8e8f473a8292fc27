"""What Qwen's families share: patches of all videos in one tensor with a grid for each, and M-RoPE positions."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from ...configuration.compression_settings import CompressionSettings
from ..encoding.frame_encoding import FrameBuffers, FramePlan, frames_of_runs, plan_frames
from ..encoding.video_features import ParentFeatures, VidCom2VideoFeatures
from ..hosting.call_arguments import is_2d
from ..hosting.parent_classes import ParentQwenModel
from ..methods.video_compression import VideoTokens
from ..prompt.prompt_compression import VidCom2ModelMixin

IMAGE, VIDEO = 1, 2  # types of tokens; text is 0
GRIDS = {"image_grid_thw": IMAGE, "video_grid_thw": VIDEO}
# What positions follow from, with an entry for each image or video.
SIZES_AND_TIMES = GRIDS | {"second_per_grid_ts": VIDEO}


@dataclass
class VidCom2QwenCausalLMOutputWithPast(CausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        rope_deltas: as in the parent's output of older Transformers versions.
        prompt_positions: int64, with an entry for each row of the logits: the position in `input_ids` of the token that
            it belongs to, -1 at padding; None if nothing was compressed.
    """

    rope_deltas: torch.LongTensor | None = None
    prompt_positions: torch.LongTensor | None = None


class QwenVideoModelMixin(VidCom2ModelMixin, ParentQwenModel):
    """Comes before the parent's inner model in the bases of a Qwen family's. A "frame" is one of the t temporal patches
    of `video_grid_thw`, two frames of the file, with a token for each block of 2 × 2 patches; all of them are scored.
    """

    uses_mrope = True
    frames_stand_apart = False  # in the prompt, each behind its time, so that a video has a group of placeholders each

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        settings: CompressionSettings,
        with_tower_states: bool,
        video_grid_thw: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
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
        of_videos = pixel_values_videos.split([t * h * w for t, h, w in grids])
        frames = [video.unflatten(0, (t, h * w)) for video, (t, h, w) in zip(of_videos, grids, strict=True)]
        plan = plan_frames(frames, settings.vision_chunk_frames, kwargs)
        if plan.is_one_call:
            outputs, states = self._encode_frames(pixel_values_videos, video_grid_thw, with_tower_states, **kwargs)
        else:
            outputs, states = self._encode_in_chunks(frames, video_grid_thw, plan, with_tower_states, **kwargs)
        size = self.config.vision_config.spatial_merge_size
        videos = [
            VideoTokens(video.unflatten(0, (t, -1)), (h // size, w // size))
            for video, (t, h, w) in zip(outputs.pooler_output, grids, strict=True)
        ]
        if with_tower_states:
            videos = [
                replace(video, tower_states=of_video, tower_grid=(h, w))
                for video, of_video, (_, h, w) in zip(videos, states, grids, strict=True)
            ]
        return outputs, videos

    def _encode_frames(
        self, patches: Tensor, grid_thw: Tensor, with_tower_states: bool, **kwargs: Any
    ) -> tuple[ParentFeatures, list[Tensor]]:
        """The parent's features of videos, and if wanted (t, h·w, V) states of the tower for each of them."""
        outputs = self.parent_video_features(pixel_values_videos=patches, video_grid_thw=grid_thw, **kwargs)
        # From the output, not by a hook: a hook on a module that threads share would see all of their videos.
        return outputs, self._row_by_row(outputs.last_hidden_state, grid_thw) if with_tower_states else []

    def _encode_in_chunks(
        self,
        videos: Sequence[Tensor],
        video_grid_thw: Tensor,
        plan: FramePlan,
        with_tower_states: bool,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, list[Tensor]]:
        """As `_encode_frames`, of patches (t, h·w, ...) of each video, a few frames at a time, and without the tower's
        output."""
        grids = video_grid_thw.tolist()
        tokens, states = FrameBuffers(plan), FrameBuffers(plan)
        deepstack: list[FrameBuffers] | None = None  # for each of the first decoder layers, where these get features
        for runs in plan.chunks:
            patches = torch.cat([frames_of_runs(videos, [run]).flatten(0, 1) for run in runs])
            grid = video_grid_thw.new_tensor([[len(run.frames), *grids[run.video][1:]] for run in runs])
            outputs, of_runs = self._encode_frames(patches, grid, with_tower_states, **kwargs)
            layers = outputs.get("deepstack_features")
            if deepstack is None and layers is not None:
                deepstack = [FrameBuffers(plan) for _ in layers]
            features = [outputs.pooler_output, *(layers or [])]
            every = [tokens, *(deepstack or [])]
            for buffers, of_layer in zip(every, features, strict=True):
                for run, encoded in zip(runs, of_layer, strict=True):
                    buffers.put(run, encoded.unflatten(0, (len(run.frames), -1)))
            for run, encoded in zip(runs, of_runs):
                states.put(run, encoded)
            del outputs, layers, features, of_runs  # the tower's own states, before the next chunk
        whole = [video.unflatten(0, (length, -1)) for video, length in zip(states.videos, plan.lengths)]
        of_layers = None if deepstack is None else [tuple(buffers.videos) for buffers in deepstack]
        return VidCom2VideoFeatures(pooler_output=tokens.videos, deepstack_features=of_layers), whole

    def _row_by_row(self, states: Tensor, video_grid_thw: Tensor) -> list[Tensor]:
        """States of the tower (Σ t·h·w, V) in its own order, in which the patches of a block follow each other ->
        (t, h·w, V) of each video."""
        size = self.config.vision_config.spatial_merge_size
        blocks = states.unflatten(0, (-1, size**2))
        order = self.tower_order(video_grid_thw)
        if order is not None:
            blocks = blocks[order.to(blocks.device).argsort()]
        grids = video_grid_thw.tolist()
        of_videos = blocks.split([t * h * w // size**2 for t, h, w in grids])
        return [
            of_video.reshape(t, h // size, w // size, size, size, -1).transpose(2, 3).reshape(t, h * w, -1)
            for of_video, (t, h, w) in zip(of_videos, grids, strict=True)
        ]

    def tower_order(self, video_grid_thw: Tensor) -> Tensor | None:
        """(Σ t·h·w / 4,) int64: which block, of those in raster order, the tower has in each place; None if it has them
        in raster order."""
        return None

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> tuple[Tensor, Tensor]:
        """The parent's positions of the full prompt, from `start` on.

        A text token is put behind the prompt, to see where the parent lets it stand. Its `rope_deltas` have the largest
        position + 1, which is another where a video has many frames of few tokens.
        """
        padded = {name: nn.functional.pad(new[name], (0, 1), value=1) for name in ("input_ids", "attention_mask")}
        token_types = nn.functional.pad(self.token_types(new["input_ids"]), (0, 1))
        described = self._sizes_and_times(new, token_types)
        positions, _ = self.get_rope_index(**padded, mm_token_type_ids=token_types, **described)
        return positions[..., :-1] + start, positions[0, :, -1:] + start

    def full_rotary_positions(self, inputs: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """As the mixin says."""
        input_ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if input_ids is None or all(inputs.get(name) is None for name in GRIDS):
            return None, None
        mask = mask[:, -input_ids.shape[1] :] if is_2d(mask) else None
        token_types = self.token_types(input_ids)
        described = self._sizes_and_times(inputs, token_types)
        return self.get_rope_index(input_ids, mm_token_type_ids=token_types, attention_mask=mask, **described)

    def _sizes_and_times(self, inputs: dict[str, Any], token_types: Tensor) -> dict[str, Any]:
        """What the parent's `get_rope_index` takes of SIZES_AND_TIMES, for the images and videos among some tokens: the
        last entries, where those of earlier turns are passed as well.

        Raises:
            ValueError: if there are fewer entries than images or videos.
        """
        begins = torch.cat([torch.ones_like(token_types[:, :1]), token_types.diff(dim=1)], dim=1) != 0
        accepted = inspect.signature(self.get_rope_index).parameters
        described = {}
        for name, kind in SIZES_AND_TIMES.items():
            given = inputs.get(name)
            if name not in accepted or (given is None and name not in GRIDS):  # without times the parent has its own
                continue
            num_groups = int((begins & (token_types == kind)).sum())
            groups = [1] * (0 if given is None else _length(given))  # of placeholders, for each entry
            what = "images" if kind == IMAGE else "videos"
            if kind == VIDEO and self.frames_stand_apart:
                groups, what = [] if given is None else given[:, 0].tolist(), "frames of videos"
            sums = list(accumulate(reversed(groups), initial=0))
            if num_groups not in sums:
                raise ValueError(
                    f"The prompt has {num_groups} {what}, but `{name}` is "
                    f"{given.tolist() if isinstance(given, Tensor) else given}. Pass it as the processor returned it, "
                    "an entry for each image or video, also with features that were encoded beforehand."
                )
            described[name] = None if given is None else given[len(groups) - sums.index(num_groups) :]
        return described

    def token_types(self, input_ids: Tensor) -> Tensor:
        """(B, L) int32: 0 for text, 1 for images, 2 for videos."""
        is_image = input_ids == self.config.image_token_id
        return IMAGE * is_image.int() + VIDEO * self.is_video(input_ids).int()


def _length(entries: Any) -> int:
    """Of a tensor or a list; 0 of a single number."""
    return len(entries) if getattr(entries, "ndim", 1) and hasattr(entries, "__len__") else 0
