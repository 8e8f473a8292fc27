"""What Qwen's families share: the patches of all videos in one tensor, a grid for each video, and M-RoPE positions."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers.vision_utils import get_vision_window_index

from ...configuration.compression_settings import CompressionSettings
from ..encoding.frame_encoding import FramePlan, Run, encode_in_chunks, frames_of_runs, plan_frames
from ..encoding.left_out_patches import Completion, arguments_of_blocks, attentions_of_blocks, window_of_blocks
from ..encoding.tower_attention import received_in_parts, with_attention_received
from ..encoding.video_features import ParentFeatures, VidCom2VideoFeatures, features_of_chunks, video_tokens
from ..encoding.vision_encoding import check_encoding
from ..hosting.call_arguments import check_patches, is_2d
from ..hosting.parent_classes import ParentQwenModel
from ..hosting.transformers_names import CausalLMOutputWithPast
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

    A "frame" is one of the t temporal patches of `video_grid_thw`, each of which is two frames of the file, or one in
    Cosmos 3 Edge. It has a token for each block of 2 × 2 patches, and all its tokens are scored.
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
            pixel_values_videos: (Σ t·h·w, values) patches of all videos, each with all its values: channels · patch² of
                every frame of the file that it shows.
            settings, needs: see `VideoFeaturesMixin.encode_videos`.
            video_grid_thw: (num_videos, 3) grids (t, h, w) of the videos, in patches.

        Raises:
            ValueError: if a video is empty, or the grids do not fit the patches.
        """
        grids = _checked_grids(pixel_values_videos, video_grid_thw)
        check_patches(pixel_values_videos.flatten(1), self.config.vision_config)
        assert video_grid_thw is not None
        check_encoding(settings, needs, kwargs)
        frames = _frames_of_videos(pixel_values_videos, grids)
        computed = self.computed_groups(pixel_values_videos, settings, video_grid_thw=video_grid_thw)
        plan = plan_frames(frames, settings.vision_chunk_frames, kwargs, computed=computed)
        if plan.is_one_call and computed is None:
            outputs, of_tower = self._encode_frames(pixel_values_videos, video_grid_thw, needs, **kwargs)
        else:
            outputs, of_tower = self._encode_in_chunks(frames, video_grid_thw, plan, needs, computed, **kwargs)
        size = self.config.vision_config.spatial_merge_size
        tokens = [video.unflatten(0, (t, -1)) for video, (t, _, _) in zip(outputs.pooler_output, grids, strict=True)]
        sides = [(h, w) for _, h, w in grids]
        return outputs, video_tokens(tokens, of_tower, [(h // size, w // size) for h, w in sides], sides)

    def video_sizes(
        self, pixel_values_videos: Tensor, video_grid_thw: Tensor | None = None, **described: Any
    ) -> list[int]:
        """Return how many scored tokens each video has, as in `VideoFeaturesMixin`."""
        size = self.config.vision_config.spatial_merge_size
        return [t * h * w // size**2 for t, h, w in _checked_grids(pixel_values_videos, video_grid_thw)]

    def _encode_frames(
        self, patches: Tensor, grid_thw: Tensor, needs: Collection[str], **kwargs: Any
    ) -> tuple[ParentFeatures, dict[str, list[Tensor]]]:
        """Return the parent's features of videos, and what is needed of the tower, by name: a (t, h·w, ...) of each."""
        of_tower = {}
        encode = partial(self.parent_video_features, pixel_values_videos=patches, video_grid_thw=grid_thw, **kwargs)
        with_states = partial(self.with_tower_states, encode) if "tower_states" in needs else lambda: (encode(), None)
        if "tower_attention" in needs:
            (outputs, states), received = with_attention_received(with_states, self.last_attention(), received_in_parts)
            videos = self._row_by_row(received[:, None], grid_thw)
            of_tower["tower_attention"] = [video[..., 0] / video.shape[1] for video in videos]  # a mean over the frame
        else:
            outputs, states = with_states()
        if states is not None:
            of_tower["tower_states"] = self._row_by_row(states, grid_thw)
        return outputs, of_tower

    def last_attention(self) -> nn.Module:
        """Return the attention of the tower's last layer."""
        return self.visual.blocks[-1].attn

    def with_tower_states(self, encode: Callable[[], ParentFeatures]) -> tuple[ParentFeatures, Tensor]:
        """Return the features that `encode` returns, and the tower's states (Σ t·h·w, V), in its order, before they are
        merged to tokens."""
        outputs = encode()
        return outputs, outputs.last_hidden_state

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
        size = self.visual.spatial_merge_size**2
        completion = None if computed is None else Completion(computed, size)

        def of_chunk(runs: Sequence[Run]) -> dict[str, Sequence[Tensor]]:
            patches = torch.cat([frames_of_runs(videos, [run]).flatten(0, 1) for run in runs])
            grid = video_grid_thw.new_tensor([[len(run.frames), *grids[run.video][1:]] for run in runs])
            if completion is None:
                outputs, of_tower = self._encode_frames(patches, grid, needs, **kwargs)
            else:
                outputs, of_tower = self._encode_blocks(patches, grid, runs, completion, needs, **kwargs)
            layers = outputs.get("deepstack_features") or ()
            features = {"tokens": outputs.pooler_output, **{f"deepstack {i}": each for i, each in enumerate(layers)}}
            of_frames = {
                name: [each.unflatten(0, (len(run.frames), -1)) for run, each in zip(runs, of_runs, strict=True)]
                for name, of_runs in features.items()
            }
            return {**of_frames, **of_tower}

        found, layers = encode_in_chunks(plan, of_chunk), None
        if hasattr(self.visual, "deepstack_merger_list"):  # what each of the first decoder layers adds
            layers = [tuple(found.pop(name).videos) for name in list(found) if name.startswith("deepstack")]
        return features_of_chunks(found, layers)

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
        patches = patches.unflatten(0, (-1, size**2))[computed].flatten(0, 1)
        at_windows = described.get("window_index")
        whole_frames = completion.whole_frames(self.visual, runs, attentions_of_blocks(self.visual), at_windows)
        described |= {"whole_frames": whole_frames, **kwargs}
        encode = partial(self.features_of_blocks, patches, grid_thw, of_runs, **described)
        outputs, states = self.with_tower_states(encode) if "tower_states" in needs else (encode(), None)
        completion.carry_on(whole_frames)

        def complete(of_layer: Sequence[Tensor], name: str) -> tuple[Tensor, ...]:
            return tuple(completion.complete(run, encoded, name) for run, encoded in zip(runs, of_layer, strict=True))

        layers, of_tower = outputs.get("deepstack_features"), {}
        if states is not None:
            blocks = self._in_raster_order(states, at_windows).split([len(each) for each in outputs.pooler_output])
            states = [each.flatten(0, 1).flatten(0, 1) for each in complete(blocks, "states")]
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

    def features_of_blocks(
        self, patches: Tensor, grid_thw: Tensor, computed: Sequence[Tensor], **described: Any
    ) -> ParentFeatures:
        """Return the parent's features of some blocks of patches, with one entry of `pooler_output` per run of frames.

        Args:
            patches: (N, ...) of the blocks that are computed.
            grid_thw: (num_runs, 3) grids of the runs' frames.
            computed: (n, h·w / 4) bool of each run: which blocks are computed.
            described: tells the tower where each patch belongs.
        """
        # So the grids that it is given only say how many blocks a run has.
        size = self.visual.spatial_merge_size
        grids = grid_thw.new_tensor([[1, size, size * int(each.sum())] for each in computed])
        return self.parent_video_features(pixel_values_videos=patches, video_grid_thw=grids, **described)

    def _row_by_row(self, states: Tensor, video_grid_thw: Tensor) -> list[Tensor]:
        """Put the tower's states (Σ t·h·w, V) in order, row by row: (t, h·w, V) for each video."""
        blocks = self._in_raster_order(states, self._tower_order(video_grid_thw))
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

    def _tower_order(self, video_grid_thw: Tensor) -> Tensor | None:
        """Return which block, counted in raster order, the tower has at each place: (Σ t·h·w / 4,) int64.

        A tower with window attention has them window by window. None means that it keeps the raster order.
        """
        tower = self.visual
        if not hasattr(tower, "window_size"):
            return None
        return get_vision_window_index(video_grid_thw, tower.spatial_merge_size, tower.window_size, tower.patch_size)[0]

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parent's positions of the full prompt, counted from `start`, and that of a text token after it.

        A text token is appended to the prompt to see where the parent places it. The parent's `rope_deltas` would give
        the largest position + 1, which differs if a video has many frames of few tokens.
        """
        ids, mask = (nn.functional.pad(new[name], (0, 1), value=1) for name in ("input_ids", "attention_mask"))
        positions, _ = self.rope_index(ids, mask, new)
        return positions[..., :-1] + start, positions[0, :, -1:] + start

    def full_rotary_positions(self, inputs: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """Return the parent's positions (3, B, L) and `rope_deltas` (B, 1); both None for a prompt of text alone."""
        input_ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if input_ids is None or all(inputs.get(name) is None for name in GRIDS):
            return None, None
        return self.rope_index(input_ids, mask[:, -input_ids.shape[1] :] if is_2d(mask) else None, inputs)

    def rope_index(self, input_ids: Tensor, mask: Tensor | None, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the parent's positions (3, B, L) of tokens (B, L), and its `rope_deltas` (B, 1).

        Args:
            inputs: say how large the images and videos of the tokens are, and when their frames are shown.

        Raises:
            ValueError: if they do not fit the images or videos.
        """
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
        return IMAGE * self.is_image(input_ids).int() + VIDEO * self.is_video(input_ids).int()


def _checked_grids(patches: Tensor, video_grid_thw: Tensor | None) -> list[tuple[int, int, int]]:
    """Return the grids (t, h, w) of all videos, if they fit the patches (Σ t·h·w, ...). The device is read once."""
    if video_grid_thw is None or patches.numel() == 0:
        raise ValueError(
            f"`pixel_values_videos` has shape {tuple(patches.shape)} and `video_grid_thw` is {video_grid_thw}, but "
            "both must describe at least one frame. The processor returns them together."
        )
    grids = video_grid_thw.tolist()
    num_patches = sum(t * h * w for t, h, w in grids)
    if len(patches) != num_patches:
        raise ValueError(
            f"`pixel_values_videos` holds {len(patches)} patches, but `video_grid_thw` {grids} asks for {num_patches}. "
            "Pass both as the processor returned them."
        )
    return grids


def _frames_of_videos(patches: Tensor, grids: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    """Return the patches (Σ t·h·w, ...) of all videos as (t, h·w, ...) of each."""
    of_videos = patches.split([t * h * w for t, h, w in grids])
    return [video.unflatten(0, (t, h * w)) for video, (t, h, w) in zip(of_videos, grids, strict=True)]


def _length(entries: Any) -> int:
    """Return the length of a tensor or a list; 0 for a single number."""
    return len(entries) if getattr(entries, "ndim", 1) and hasattr(entries, "__len__") else 0
