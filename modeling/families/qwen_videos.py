"""What Qwen's families share: the patches of all videos in one tensor, a grid for each video, and M-RoPE positions."""

import inspect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from ...configuration.compression_methods import TOWER_NEEDS
from ...configuration.compression_settings import CompressionSettings
from ..encoding.frame_encoding import FrameBuffers, FramePlan, Run, frames_of_runs, plan_frames
from ..encoding.left_out_patches import Completion, arguments_of_blocks, window_of_blocks
from ..encoding.tower_attention import received_in_parts, with_attention_received
from ..encoding.video_features import ParentFeatures, VidCom2VideoFeatures
from ..encoding.vision_encoding import check_encoding
from ..hosting.call_arguments import is_2d
from ..hosting.parent_classes import ParentQwenModel
from ..methods.video_compression import VideoTokens
from ..prompt.prompt_compression import VidCom2ModelMixin

IMAGE, VIDEO = 1, 2  # Types of tokens; that of text is 0.
GRIDS = {"image_grid_thw": IMAGE, "video_grid_thw": VIDEO}
# Positions follow from these arguments, which have an entry for each image or video.
SIZES_AND_TIMES = GRIDS | {"second_per_grid_ts": VIDEO}


@dataclass
class VidCom2QwenCausalLMOutputWithPast(CausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        rope_deltas: a field of the parent's output in older Transformers versions.
        prompt_positions: int64, for each row of the logits the position in `input_ids` of its token, -1 at padding;
            None if nothing was compressed.
    """

    rope_deltas: torch.LongTensor | None = None
    prompt_positions: torch.LongTensor | None = None


class QwenVideoModelMixin(VidCom2ModelMixin, ParentQwenModel):
    """Makes a Qwen inner model run on compressed prompts. It comes before the parent's inner model among the bases.

    A "frame" is one of the t temporal patches of `video_grid_thw`, each of which is two frames of the file. It has a
    token for each block of 2 × 2 patches, and all its tokens are scored.
    """

    uses_mrope = True
    frames_stand_apart = False  # Whether each frame has its own group of placeholders in the prompt, behind its time.

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        settings: CompressionSettings,
        needs: Collection[str],
        video_grid_thw: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """Encode the patches of all videos, as in `VideoFeaturesMixin`.

        Args:
            pixel_values_videos: (Σ t·h·w, channels · 2 · patch²) patches of all videos.
            settings, needs: see `VideoFeaturesMixin.encode_videos`.
            video_grid_thw: (num_videos, 3) grids (t, h, w) of the videos, in patches.

        Raises:
            ValueError: if a video is empty, or the grids do not fit the patches.
        """
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
        check_encoding(settings, needs, kwargs)
        frames = _frames_of_videos(pixel_values_videos, grids)
        computed = self.computed_groups(pixel_values_videos, settings, video_grid_thw=video_grid_thw)
        plan = plan_frames(frames, settings.vision_chunk_frames, kwargs, computed=computed)
        if plan.is_one_call and computed is None:
            outputs, of_tower = self._encode_frames(pixel_values_videos, video_grid_thw, needs, **kwargs)
        else:
            outputs, of_tower = self._encode_in_chunks(frames, video_grid_thw, plan, needs, computed, **kwargs)
        size = self.config.vision_config.spatial_merge_size
        videos = [
            VideoTokens(video.unflatten(0, (t, -1)), (h // size, w // size))
            for video, (t, h, w) in zip(outputs.pooler_output, grids, strict=True)
        ]
        for name, of_videos in of_tower.items():
            videos = [
                replace(video, **{name: of_video}, tower_grid=(h, w))
                for video, of_video, (_, h, w) in zip(videos, of_videos, grids, strict=True)
            ]
        return outputs, videos

    def _encode_frames(
        self, patches: Tensor, grid_thw: Tensor, needs: Collection[str], **kwargs: Any
    ) -> tuple[ParentFeatures, dict[str, list[Tensor]]]:
        """Return the parent's features of videos, and what is needed of the tower, by name: a (t, h·w, ...) of each."""
        of_tower = {}
        encode = partial(self.parent_video_features, pixel_values_videos=patches, video_grid_thw=grid_thw, **kwargs)
        if "tower_attention" in needs:
            attention = self.visual.blocks[-1].attn
            outputs, received = with_attention_received(encode, attention, received_in_parts)
            videos = self._row_by_row(received[:, None], grid_thw)
            of_tower["tower_attention"] = [video[..., 0] / video.shape[1] for video in videos]  # a mean over the frame
        else:
            outputs = encode()
        if "tower_states" in needs:
            of_tower["tower_states"] = self._row_by_row(outputs.last_hidden_state, grid_thw)
        return outputs, of_tower

    def _encode_in_chunks(
        self,
        videos: Sequence[Tensor],
        video_grid_thw: Tensor,
        plan: FramePlan,
        needs: Collection[str],
        computed: Sequence[Tensor] | None,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, dict[str, list[Tensor]]]:
        """Return what `_encode_frames` does, but encode the patches (t, h·w, ...) of each video a few frames at a time,
        and of these only the computed blocks, (t, h·w / 4) bool for each video, unless this is None.

        The tower's own output is left out.
        """
        grids = video_grid_thw.tolist()
        completion = None if computed is None else Completion(computed)
        tokens, of_tower = FrameBuffers(plan), {name: FrameBuffers(plan) for name in TOWER_NEEDS if name in needs}
        deepstack: list[FrameBuffers] | None = None  # One for each of the first decoder layers, if these get features.
        for runs in plan.chunks:
            patches = torch.cat([frames_of_runs(videos, [run]).flatten(0, 1) for run in runs])
            grid = video_grid_thw.new_tensor([[len(run.frames), *grids[run.video][1:]] for run in runs])
            if completion is None:
                outputs, of_runs = self._encode_frames(patches, grid, needs, **kwargs)
            else:
                outputs, of_runs = self._encode_blocks(patches, grid, runs, completion, needs, **kwargs)
            layers = outputs.get("deepstack_features")
            if deepstack is None and layers is not None:
                deepstack = [FrameBuffers(plan) for _ in layers]
            features = [outputs.pooler_output, *(layers or [])]
            every = [tokens, *(deepstack or [])]
            for buffers, of_layer in zip(every, features, strict=True):
                for run, encoded in zip(runs, of_layer, strict=True):
                    buffers.put(run, encoded.unflatten(0, (len(run.frames), -1)))
            for name, buffers in of_tower.items():
                for run, encoded in zip(runs, of_runs[name], strict=True):
                    buffers.put(run, encoded)
            del outputs, layers, features, of_runs  # This frees the tower's own states before the next chunk.
        of_layers = None if deepstack is None else [tuple(buffers.videos) for buffers in deepstack]
        outputs = VidCom2VideoFeatures(pooler_output=tokens.videos, deepstack_features=of_layers)
        return outputs, {name: buffers.by_frame() for name, buffers in of_tower.items()}

    def patch_groups(
        self, pixel_values_videos: Tensor, *, video_grid_thw: Tensor, **described: Any
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the blocks of 2 × 2 patches (t, h·w / 4, values) of each video, in raster order, and their windows, as
        in `VideoFeaturesMixin`."""
        size = self.visual.spatial_merge_size**2
        for video, grid in zip(_frames_of_videos(pixel_values_videos, video_grid_thw.tolist()), video_grid_thw):
            yield video.unflatten(1, (-1, size)).flatten(2), window_of_blocks(self.visual, grid)

    def _encode_blocks(
        self,
        patches: Tensor,
        grid_thw: Tensor,
        runs: Sequence[Run],
        completion: Completion,
        needs: Collection[str],
        **kwargs: Any,
    ) -> tuple[ParentFeatures, dict[str, list[Tensor]]]:
        """Return what `_encode_frames` does, but let the tower compute only some of the blocks of patches.

        Args:
            patches: (Σ n·h·w, ...) of the frames of all runs.
            grid_thw: (num_runs, 3) their grids.
            completion: knows which blocks are computed.
        """
        size = self.visual.spatial_merge_size
        of_runs = [completion.of_run(run) for run in runs]
        computed = torch.cat([each.flatten() for each in of_runs])
        described = arguments_of_blocks(self.visual, grid_thw, computed)
        # The tower is told where each patch belongs. So the grids that it is given only say how many blocks a run has.
        counts = [int(each.sum()) for each in of_runs]
        grids = grid_thw.new_tensor([[1, size, size * count] for count in counts])
        patches = patches.unflatten(0, (-1, size**2))[computed].flatten(0, 1)
        outputs = self.parent_video_features(pixel_values_videos=patches, video_grid_thw=grids, **described, **kwargs)

        def complete(of_layer: Sequence[Tensor], name: str) -> tuple[Tensor, ...]:
            return tuple(completion.complete(run, encoded, name) for run, encoded in zip(runs, of_layer, strict=True))

        layers, of_tower = outputs.get("deepstack_features"), {}
        if "tower_states" in needs:
            blocks = self._in_raster_order(outputs.last_hidden_state, described.get("window_index"))
            states = [each.flatten(0, 1).flatten(0, 1) for each in complete(blocks.split(counts), "states")]
            of_tower["tower_states"] = self._rows_of_blocks(torch.cat(states).unflatten(0, (-1, size**2)), grid_thw)
        features = VidCom2VideoFeatures(
            pooler_output=tuple(each.flatten(0, 1) for each in complete(outputs.pooler_output, "tokens")),
            deepstack_features=None
            if layers is None
            else [
                tuple(each.flatten(0, 1) for each in complete(layer, f"deepstack {number}"))
                for number, layer in enumerate(layers)
            ],
        )
        return features, of_tower

    def _row_by_row(self, states: Tensor, video_grid_thw: Tensor) -> list[Tensor]:
        """Put the tower's states (Σ t·h·w, V) in order, row by row: (t, h·w, V) for each video."""
        blocks = self._in_raster_order(states, self.tower_order(video_grid_thw))
        return self._rows_of_blocks(blocks, video_grid_thw)

    def _in_raster_order(self, states: Tensor, order: Tensor | None) -> Tensor:
        """Return the tower's states (N, V) as blocks (N / 4, 4, V) in raster order.

        In the tower's own order, the patches of a block follow each other.

        Args:
            order: which block, counted in raster order, the tower has at each place; None for the raster order.
        """
        blocks = states.unflatten(0, (-1, self.config.vision_config.spatial_merge_size**2))
        return blocks if order is None else blocks[order.to(blocks.device).argsort()]

    def _rows_of_blocks(self, blocks: Tensor, video_grid_thw: Tensor) -> list[Tensor]:
        """Put blocks (Σ t·h·w / 4, 4, V) of patches in order, row by row: (t, h·w, V) for each video."""
        size = self.config.vision_config.spatial_merge_size
        grids = video_grid_thw.tolist()
        of_videos = blocks.split([t * h * w // size**2 for t, h, w in grids])
        return [
            of_video.reshape(t, h // size, w // size, size, size, -1).transpose(2, 3).reshape(t, h * w, -1)
            for of_video, (t, h, w) in zip(of_videos, grids, strict=True)
        ]

    def tower_order(self, video_grid_thw: Tensor) -> Tensor | None:
        """Return which block, counted in raster order, the tower has at each place: (Σ t·h·w / 4,) int64.

        None means that the tower keeps the raster order.
        """
        return None

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parent's positions of the full prompt, counted from `start`, and that of a text token after it.

        A text token is appended to the prompt to see where the parent places it. The parent's `rope_deltas` would give
        the largest position + 1, which differs if a video has many frames of few tokens.
        """
        padded = {name: nn.functional.pad(new[name], (0, 1), value=1) for name in ("input_ids", "attention_mask")}
        token_types = nn.functional.pad(self.token_types(new["input_ids"]), (0, 1))
        described = self._sizes_and_times(new, token_types)
        positions, _ = self.get_rope_index(**padded, mm_token_type_ids=token_types, **described)
        return positions[..., :-1] + start, positions[0, :, -1:] + start

    def full_rotary_positions(self, inputs: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """Return the parent's positions (3, B, L) and `rope_deltas` (B, 1); both None for a prompt of text alone."""
        input_ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if input_ids is None or all(inputs.get(name) is None for name in GRIDS):
            return None, None
        mask = mask[:, -input_ids.shape[1] :] if is_2d(mask) else None
        token_types = self.token_types(input_ids)
        described = self._sizes_and_times(inputs, token_types)
        return self.get_rope_index(input_ids, mm_token_type_ids=token_types, attention_mask=mask, **described)

    def _sizes_and_times(self, inputs: dict[str, Any], token_types: Tensor) -> dict[str, Any]:
        """Return the arguments among `SIZES_AND_TIMES` that the parent's `get_rope_index` takes, for these tokens.

        If the entries of earlier turns are passed as well, the last ones belong to the images and videos of the tokens.

        Raises:
            ValueError: if the entries do not fit the images or videos.
        """
        begins = torch.cat([torch.ones_like(token_types[:, :1]), token_types.diff(dim=1)], dim=1) != 0
        accepted = inspect.signature(self.get_rope_index).parameters
        described = {}
        for name, kind in SIZES_AND_TIMES.items():
            given = inputs.get(name)
            if name not in accepted or (given is None and name not in GRIDS):  # Without times, the parent has its own.
                continue
            num_groups = int((begins & (token_types == kind)).sum())
            groups = [1] * (0 if given is None else _length(given))  # Groups of placeholders, for each entry.
            what = "images" if kind == IMAGE else "videos"
            if kind == VIDEO and self.frames_stand_apart:
                groups, what = [] if given is None else given[:, 0].tolist(), "frames of videos"
            sums = list(accumulate(reversed(groups), initial=0))
            if num_groups not in sums:
                raise ValueError(
                    f"The prompt has {num_groups} {what}, but `{name}` is "
                    f"{given.tolist() if isinstance(given, Tensor) else given}. Pass it as the processor returned it, "
                    "with an entry for each image or video, also beside features that were encoded beforehand."
                )
            described[name] = None if given is None else given[len(groups) - sums.index(num_groups) :]
        return described

    def token_types(self, input_ids: Tensor) -> Tensor:
        """Return the type of each token, (B, L) int32: 0 for text, 1 for images, 2 for videos."""
        is_image = input_ids == self.config.image_token_id
        return IMAGE * is_image.int() + VIDEO * self.is_video(input_ids).int()


def _frames_of_videos(patches: Tensor, grids: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    """Return the patches (Σ t·h·w, ...) of all videos as (t, h·w, ...) of each."""
    of_videos = patches.split([t * h * w for t, h, w in grids])
    return [video.unflatten(0, (t, h * w)) for video, (t, h, w) in zip(of_videos, grids, strict=True)]


def _length(entries: Any) -> int:
    """Return the length of a tensor or a list; 0 for a single number."""
    return len(entries) if getattr(entries, "ndim", 1) and hasattr(entries, "__len__") else 0
