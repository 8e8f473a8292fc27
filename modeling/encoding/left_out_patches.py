"""Runs the vision tower on only some of the patches: decides which groups are computed, passes these to the tower, and
fills in the features of the others.

A group is the smallest unit that can be left out: a patch in LLaVA's towers, and the patches of a token in the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from ...configuration.compression_settings import CompressionSettings
from .packed_attention import vision_tower
from .video_features import ParentFeatures, Run
from .whole_frame_attention import KeysAndValues, WholeFrames

ChangedGroups = Callable[[Tensor, Tensor, CompressionSettings], Tensor]  # see `vision_skip_repeated.py`
WHOLE_TOWER_ARGUMENTS = ("output_hidden_states", "output_attentions", "interpolate_pos_encoding")
WHOLE_FROM = 0.9  # A frame in which this share of the groups changed is computed whole: the rest would save little.


def partial_encoding(
    changed: ChangedGroups, model: Any, settings: CompressionSettings, arguments: Mapping[str, Any]
) -> "PartialFrames | PartialBlocks | None":
    """Return an object that runs the tower on the groups of patches that changed; None if all of them did.

    Args:
        changed: the vision method.
        model: an inner model of this project.
        arguments: the parent's, which describe the videos.

    Raises:
        ValueError: if the arguments ask for what only a whole tower has, or describe all of its patches.
    """
    for name in (*(name for name in WHOLE_TOWER_ARGUMENTS if arguments.get(name)), *model.precomputed(arguments)):
        raise ValueError(
            f"`{name}` is {arguments[name]!r}, but with `vision_method={settings.vision_method!r}` the vision tower "
            "does not run as a whole, and cannot take it. Leave it out, or pass `vision_method='full'`."
        )
    kind = PartialFrames if arguments.get("video_grid_thw") is None else PartialBlocks
    computed = [
        groups_to_compute(groups, changed, settings, units) for groups, units in kind.groups(model, **arguments)
    ]
    return None if torch.cat([each.flatten() for each in computed]).all() else kind(model, computed)


@torch.no_grad()
def groups_to_compute(
    frames: Tensor, changed: ChangedGroups, settings: CompressionSettings, units: Tensor | None = None
) -> Tensor:
    """Decide which groups of a video's frames the tower computes.

    Each group is compared with the last computed group at its place. So no group takes its features from one that
    differs by more than the method allows, however slowly the video drifts.

    Args:
        frames: (T, G, values) pixels of the groups of each frame.
        changed: the vision method.
        units: (G,) int64: groups of the same number are computed together; None if each is computed by itself.

    Returns:
        (T, G) bool. All groups of the first frame are computed.

    Raises:
        ValueError: if the method does not return bools (G,).
    """
    last, computed = frames[0], [torch.ones_like(frames[0, :, 0], dtype=torch.bool)]
    for groups in frames[1:]:
        differ = changed(groups, last, settings)
        if not isinstance(differ, Tensor) or differ.dtype != torch.bool or differ.shape != groups.shape[:1]:
            got = f"{differ.dtype} {tuple(differ.shape)}" if isinstance(differ, Tensor) else type(differ).__name__
            raise ValueError(
                f"`vision_method={settings.vision_method!r}` returned {got}, but must return a bool for each of the "
                f"{len(groups)} groups of a frame, whether it changed."
            )
        if units is not None:
            differ = torch.zeros_like(units).index_add(0, units, differ.long())[units] > 0
        differ = differ | (differ.float().mean() >= WHOLE_FROM)
        last = torch.where(differ[:, None], groups, last)
        computed.append(differ)
    return torch.stack(computed)


class Completion:
    """Completes frames run after run: a group that was left out takes the features of the last computed group at its
    place.

    Args:
        computed: (T, G) bool for each video: which groups are computed.
        group_patches: how many patches a group has.
    """

    def __init__(self, computed: Sequence[Tensor], group_patches: int = 1):
        self.computed, self.group_patches = computed, group_patches
        self.last: dict[int, Tensor] = {}  # The features of the last frame, by layer.
        self.keys_and_values: Mapping[nn.Module, KeysAndValues] = {}  # Those of the last frame, by layer.

    def of_run(self, run: Run) -> Tensor:
        """Return which groups of the run's frames are computed, (n, G) bool."""
        return self.computed[run.video][list(run.frames)]

    def complete(self, run: Run, encoded: Tensor, layer: int = 0) -> Tensor:
        """Return the features (n, G, ...) of all groups of a run's frames.

        Args:
            run: the next one, in the order of the plan.
            encoded: (N, ...) features of the N computed groups.
            layer: which features these are, if the tower returns several.
        """
        before = self.last[layer] if run.frames[0] else encoded[:0]
        completed = torch.cat([encoded, before])[self._sources(run)]
        self.last[layer] = completed[-1]
        return completed

    def whole_frames(
        self, tower: nn.Module, runs: Sequence[Run], attentions: Mapping[nn.Module, bool], order: Tensor | None = None
    ) -> WholeFrames:
        """Return the object through which the computed patches of a chunk attend to all patches of their frames. It is
        passed to the tower's layers as the argument `whole_frames`, and afterwards to `carry_on`.

        Args:
            tower: the parent's vision tower.
            runs: the chunk's.
            attentions: see `WholeFrames`.
            order: (N,) int64: which of the N computed groups the tower has at each place; None for their own order.
        """
        of_runs, last = [self.of_run(run) for run in runs], runs[-1]
        starts = accumulate((int(computed.sum()) for computed in of_runs), initial=0)
        # Only the first run can begin in the middle of a video.
        sources = torch.cat([(self._sources(run) + start).flatten() for run, start in zip(runs, starts)])
        if order is not None:
            sources = torch.where(sources < 0, sources, order.argsort()[sources.clamp(min=0)])
        size = self.group_patches
        return WholeFrames(
            attentions,
            sources=(sources[:, None] * size + torch.arange(size, device=sources.device)).flatten(),
            num_computed=[size * count for computed in of_runs for count in computed.sum(dim=1).tolist()],
            num_patches=[size * computed.shape[1] for computed in of_runs for _ in computed],
            before=self.keys_and_values if runs[0].frames[0] else {},
            carry=last.shown[-1] < len(self.computed[last.video]) - 1,
            trained=any(weight.requires_grad for weight in tower.parameters()),
        )

    def carry_on(self, whole_frames: WholeFrames) -> None:
        """Keep what the next chunk needs, after the layers ran.

        Raises:
            ValueError: if the layers did not attend to whole frames.
        """
        whole_frames.check_ran()
        self.keys_and_values = whole_frames.last

    def _sources(self, run: Run) -> Tensor:
        """Return for each group of a run's frames, (n, G) int64, the number of the run's computed group whose features
        it takes. Negative numbers stand for the groups of the frame before the run, of which the last is -1."""
        computed = self.of_run(run)
        numbers = computed.flatten().cumsum(0).view_as(computed) - 1
        places = torch.arange(-computed.shape[1], 0, device=computed.device)
        return torch.where(computed, numbers, places).cummax(dim=0).values


# ---------------------------------------------------------------------------------------------------------------------
# Towers that take frames: CLIP and SigLIP
# ---------------------------------------------------------------------------------------------------------------------


class PartialFrames:
    """Encodes frames of which only some patches are computed, run after run.

    Args:
        model: an inner model of LLaVA's families.
        computed: (T, patches) bool for each video.
    """

    def __init__(self, model: Any, computed: Sequence[Tensor]):
        self.model, self.tower, self.computed = model, model.vision_tower, computed
        # A class token, which stands before the patches, is computed in every frame.
        class_token = int(hasattr(self.tower.embeddings, "class_embedding"))
        self.completion = Completion([nn.functional.pad(each, (class_token, 0), value=True) for each in computed])

    @staticmethod
    def groups(model: Any, pixel_values_videos: Tensor, **others: Any) -> Iterator[tuple[Tensor, None]]:
        """Yield the patches (T, patches, channels · size²) of each video, row by row."""
        size = model.vision_tower.config.patch_size
        for frames in pixel_values_videos:
            patches = frames.unfold(2, size, size).unfold(3, size, size)  # (T, channels, rows, columns, size, size)
            yield patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2), None

    def features(
        self,
        runs: Sequence[Run],
        pixel_values_videos: Tensor,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        **others: Any,
    ) -> list[Sequence[Tensor]]:
        """Return the features of runs of frames, as `encode_in_chunks` takes them.

        Args:
            runs: consecutive frames of one video each, in the order of the plan.
            pixel_values_videos: (1, F, channels, height, width) of all of them.
        """
        config = self.model.config
        layers = config.vision_feature_layer if vision_feature_layer is None else vision_feature_layer
        states = self.states(runs, pixel_values_videos[0], [layers] if isinstance(layers, int) else layers)
        # As the parent does, `"default"` leaves out the first state, which is the class token's.
        leaves_out = (vision_feature_select_strategy or config.vision_feature_select_strategy) == "default"
        tokens = tokens_of_patches(self.model, states[:, 1:] if leaves_out else states)
        return [tokens.split([len(run.frames) for run in runs])]

    def states(self, runs: Sequence[Run], frames: Tensor, feature_layers: Sequence[int]) -> Tensor:
        """Return the tower's hidden states (F, patches, len(feature_layers) · dim).

        Args:
            runs: consecutive frames of one video each, in the order of the plan.
            frames: (F, channels, height, width) pixels of all of them.
            feature_layers: whose states to return, beside each other: 0 for the embeddings, n for the n-th layer's
                output, -1 for the last layer's.
        """
        embedded = self.tower.embeddings(frames)
        if hasattr(self.tower, "pre_layrnorm"):
            embedded = self.tower.pre_layrnorm(embedded)
        layers = self.tower.encoder.layers
        wanted = [range(len(layers) + 1)[layer] for layer in feature_layers]
        layers = layers[: max(wanted)]
        of_runs = [self.completion.of_run(run) for run in runs]
        whole_frames = self.completion.whole_frames(self.tower, runs, {layer.self_attn: True for layer in layers})
        states = embedded[torch.cat(of_runs)][None]
        found = {0: states}
        for number, layer in enumerate(layers, start=1):
            states = layer(states, None, whole_frames=whole_frames)
            if number in wanted:
                found[number] = states
        self.completion.carry_on(whole_frames)
        encoded = torch.cat([found[number][0] for number in wanted], dim=-1)
        parts = encoded.split([int(computed.sum()) for computed in of_runs])
        return torch.cat([self.completion.complete(run, part) for run, part in zip(runs, parts, strict=True)])


def tokens_of_patches(model: Any, states: Tensor) -> Tensor:
    """Turn the tower's states (F, patches, V) into tokens (F, placeholders of a frame, dim), as the parent does."""
    if hasattr(model, "vision_resampler"):  # LLaVA-NeXT-Video pools the states, then projects them.
        return model.multi_modal_projector(model.vision_resampler(states))
    return model.apply_pooling(model.multi_modal_projector(states))


# ---------------------------------------------------------------------------------------------------------------------
# Towers that take patches: Qwen's and GLM's
# ---------------------------------------------------------------------------------------------------------------------


class PartialBlocks:
    """Encodes frames of which only some blocks of 2 × 2 patches are computed, run after run.

    Args:
        model: an inner model of Qwen's or GLM's families.
        computed: (t, h·w / 4) bool for each video.
    """

    def __init__(self, model: Any, computed: Sequence[Tensor]):
        self.model, self.tower, self.computed = model, vision_tower(model), computed
        self.completion = Completion(computed, self.tower.spatial_merge_size**2)

    @staticmethod
    def groups(
        model: Any, pixel_values_videos: Tensor, *, video_grid_thw: Tensor, **others: Any
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the blocks (t, h·w / 4, values) of each video, in raster order, and their windows: int64 (h·w / 4,), or
        None if the tower has none."""
        tower = vision_tower(model)
        size = tower.spatial_merge_size**2
        for patches, grid in zip(pixel_values_videos.split(video_grid_thw.prod(dim=1).tolist()), video_grid_thw):
            yield patches.unflatten(0, (int(grid[0]), -1, size)).flatten(2), window_of_blocks(tower, grid)

    def features(
        self, runs: Sequence[Run], pixel_values_videos: Tensor, video_grid_thw: Tensor, **kwargs: Any
    ) -> list[list[Tensor]]:
        """Return the features of runs of frames, as `encode_in_chunks` takes them.

        Args:
            pixel_values_videos: (Σ n·h·w, ...) patches of the frames of all runs.
            video_grid_thw: (num_runs, 3) their grids.
        """
        tower, size = self.tower, self.tower.spatial_merge_size
        of_runs = [self.completion.of_run(run) for run in runs]
        computed = torch.cat([each.flatten() for each in of_runs])
        described = arguments_of_blocks(tower, video_grid_thw, computed)
        patches = pixel_values_videos.unflatten(0, (-1, size**2))[computed].flatten(0, 1)
        at_frames = getattr(tower, "fullatt_block_indexes", range(len(tower.blocks)))  # The others look within windows.
        attentions = {block.attn: number in at_frames for number, block in enumerate(tower.blocks)}
        whole_frames = self.completion.whole_frames(tower, runs, attentions, described.get("window_index"))
        outputs = self._encode(patches, video_grid_thw, of_runs, whole_frames=whole_frames, **described, **kwargs)
        self.completion.carry_on(whole_frames)
        return [
            [self.completion.complete(run, encoded, number) for run, encoded in zip(runs, of_layer, strict=True)]
            for number, of_layer in enumerate((outputs.pooler_output, *(outputs.get("deepstack_features") or ())))
        ]

    def _encode(
        self, patches: Tensor, grid_thw: Tensor, computed: Sequence[Tensor], **described: Any
    ) -> ParentFeatures:
        """Return the parent's features of some blocks of patches, with one entry of `pooler_output` per run of frames.

        Args:
            patches: (N, ...) of the blocks that are computed.
            computed: (n, h·w / 4) bool of each run: which blocks are computed.
            described: tells the tower where each patch belongs.
        """
        tower, size = self.tower, self.tower.spatial_merge_size
        if hasattr(tower, "downsample"):
            # The learned place of a patch in GLM's towers depends on the size of its whole frame, so the tower is given
            # the true grid of each frame that has a block to compute.
            frames = torch.stack([each.any(dim=1).sum() for each in computed])  # of each run
            grids = nn.functional.pad(grid_thw[:, 1:], (1, 0), value=1).repeat_interleave(frames, dim=0)
            outputs = tower(patches.type(tower.dtype), grid_thw=grids, return_dict=True, **described)
            outputs.pooler_output = outputs.pooler_output.split([int(each.sum()) for each in computed])
            return outputs
        # Otherwise the grids only say how many blocks a run has.
        grids = grid_thw.new_tensor([[1, size, size * int(each.sum())] for each in computed])
        return self.model.parent_video_features(pixel_values_videos=patches, video_grid_thw=grids, **described)


def window_of_blocks(tower: Any, grid: Tensor) -> Tensor | None:
    """Return the window of each block of patches of one frame, int64 in raster order; None if the tower has none.

    Args:
        grid: (3,): how many frames, and the height and the width of each in patches.
    """
    if not hasattr(tower, "window_size"):
        return None
    one_frame = torch.stack([torch.ones_like(grid[0]), *grid[1:]])[None]
    order, ends = get_vision_window_index(one_frame, tower.spatial_merge_size, tower.window_size, tower.patch_size)
    sizes = ends.diff().to(grid.device) // tower.spatial_merge_size**2
    windows = torch.arange(len(sizes), device=grid.device).repeat_interleave(sizes)
    return torch.empty_like(windows).index_copy(0, order.to(grid.device), windows)


def arguments_of_blocks(tower: Any, grid_thw: Tensor, computed: Tensor) -> dict[str, Tensor]:
    """Describe the computed blocks of patches to a tower that would otherwise expect all of them.

    Transformers' towers take these tensors ready-made: where frames and windows end, which place each patch has, and in
    which order the windows come.

    Args:
        grid_thw: (num_videos, 3) grids in patches.
        computed: (Σ t·h·w / 4,) bool: which blocks are computed, in raster order.
    """
    size = tower.spatial_merge_size**2
    patches = computed.repeat_interleave(size)
    frames = (grid_thw[:, 1] * grid_thw[:, 2]).repeat_interleave(grid_thw[:, 0])
    arguments = {
        "position_ids": get_vision_position_ids(grid_thw, tower.spatial_merge_size)[patches],
        "cu_seqlens": _ends_of_parts(patches, frames),
    }
    if hasattr(tower, "num_grid_per_side"):  # places are learned, too
        indices, weights = get_vision_interpolation_indices_and_weights(
            grid_thw,
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=tower.spatial_merge_size,
        )
        arguments |= {"interp_indices": indices[patches], "interp_weights": weights[patches]}
    if hasattr(tower, "window_size"):
        order, ends = get_vision_window_index(grid_thw, tower.spatial_merge_size, tower.window_size, tower.patch_size)
        order = order.to(computed.device)
        in_windows = computed[order]
        arguments["window_index"] = (computed.cumsum(0) - 1)[order[in_windows]]
        arguments["cu_window_seqlens"] = _ends_of_parts(in_windows.repeat_interleave(size), ends.diff())
    return arguments


def _ends_of_parts(computed: Tensor, lengths: Tensor) -> Tensor:
    """Return where parts of patches end if only the computed patches are left: int32, from 0, without empty parts.

    Args:
        computed: (N,) bool.
        lengths: how many of the N patches each part has.
    """
    ends = nn.functional.pad(computed.cumsum(0), (1, 0))[lengths.to(computed.device).cumsum(0)]
    return nn.functional.pad(ends, (1, 0)).unique_consecutive().int()
