"""What Qwen's families share: videos as patches with a grid for each, and M-RoPE positions. The patches of all videos
are in one tensor. EXAONE 4.5 has such videos, and plain positions.
"""

import inspect
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ..encoding.video_features import VideoFrames
from ..hosting.in_transformers import check_patches
from ..methods.compression import on_device
from ..prompt.calls import IMAGE, USE_OURS, VIDEO, Turn, has_media, name_of_tokens
from ..prompt.conversation_cache import positions_by_order
from ..prompt.prompt_compression import VidCom2ModelMixin

GRIDS = {"image_grid_thw": IMAGE, "video_grid_thw": VIDEO}
# Positions follow from these arguments, which have an entry for each image or video.
SIZES_AND_TIMES = GRIDS | {"second_per_grid_ts": VIDEO}


class GridVideosMixin(VidCom2ModelMixin):
    """Takes videos as patches with a grid for each. It comes before the parent's inner model among the bases.

    A "frame" is one of the t temporal patches of `video_grid_thw`, each of which is two frames of the file, or one in
    Cosmos 3 Edge. It has a token for each block of 2 × 2 patches, and all its tokens are scored.
    """

    def frames_of_videos(
        self, pixel_values_videos: Tensor, video_grid_thw: Tensor | None = None, **arguments: Any
    ) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`.

        Args:
            pixel_values_videos: (Σ t·h·w, values) patches of all videos, each with all its values: channels · patch² of
                every frame of the file that it shows.
            video_grid_thw: (num_videos, 3) grids (t, h, w) of the videos, in patches.

        Raises:
            ValueError: if a video is empty, or the grids do not fit the patches.
        """
        grids = checked_grids(pixel_values_videos, video_grid_thw)
        check_patches(pixel_values_videos.flatten(1), self.config.vision_config)
        size = self.config.vision_config.spatial_merge_size
        return [
            VideoFrames(
                pixels=patches.unflatten(0, (t, h * w)),
                tokens_per_frame=h * w // size**2,
                grid=(h // size, w // size),
                described=(h, w),
            )
            for patches, (t, h, w) in zip(pixel_values_videos.split([t * h * w for t, h, w in grids]), grids)
        ]

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames' patches, and the grids of these."""
        patches = torch.cat([frames.flatten(0, 1) for _, frames in chunk])
        grids = [[len(frames), *video.described] for video, frames in chunk]
        return {"pixel_values_videos": patches, "video_grid_thw": torch.tensor(grids, device=patches.device)}


class QwenVideoModelMixin(GridVideosMixin):
    """Makes a Qwen inner model run on short prompts, with M-RoPE positions. It comes before the parent's inner model
    among the bases."""

    uses_mrope = True

    def has_positions_of_its_own(self, inputs: dict[str, Any]) -> bool:
        """Whether new tokens have other positions (t, h, w) than their order, since images or videos are among them."""
        return has_media(inputs)

    def positions_of(self, turn: Turn) -> tuple[Tensor | None, Tensor]:
        """Return positions (4, B, n'): the order of the tokens, which masks use, and the (t, h, w) that each kept token
        has in the full prompt, into which dropped tokens are put back. And the position of a text token after them.

        A text token is appended to the prompt to see where the parent places it. The parent's `rope_deltas` would give
        the largest position + 1, which differs if a video has many frames of few tokens.
        """
        layout, run = turn.layout, turn.run
        if layout is None and not self.has_positions_of_its_own(turn.inputs):
            if turn.begins:  # The parent counts the padding of a prompt of text alone.
                return None, torch.full_like(turn.start, turn.num_new)
            rotary = (turn.start + positions_by_order(run)).expand(3, -1, -1)
            following = turn.start + run.sum(dim=1, keepdim=True)
            self.warn_of_length(int(rotary.max()))
        else:
            prompt = turn.prompt or self.prompt_of(turn.tokens, turn.inputs)
            ids, mask = prompt.ids, prompt.attended.long()
            if layout is not None:
                ids = layout.in_full(self.distinct_ids(ids, prompt.kinds), self.config.video_token_id)
                mask = layout.in_full(mask, 1)
            ids, mask = (nn.functional.pad(each, (0, 1), value=1) for each in (ids, mask))
            positions, _ = self.rope_index(ids, mask, turn.inputs | prompt.described)
            self.warn_of_length(prompt.start + int(positions[..., :-1].max()))
            positions = on_device(positions, turn.start.device) + turn.start
            rotary, following = positions[..., :-1], positions[0, :, -1:]
            if layout is not None:
                rotary = rotary.gather(2, layout.places.to(rotary.device).expand(3, -1, -1))
        return torch.stack([positions_by_order(turn.mask)[:, -turn.num_new :], *rotary]), following

    @torch.no_grad()
    def get_position_ids(self, **inputs: Any) -> Tensor:
        """Return the positions (4, B, n) of a prompt's new tokens: their order, and (t, h, w), as `forward` takes them.

        Videos are encoded for it, since the positions are those of the tokens that stay.

        Args:
            **inputs: the arguments of `forward`.

        Raises:
            ValueError: if the prompt is a stock processor's that the model shortens, so that some tokens have none.
        """
        call = self.prepared(inputs)
        positions, layout = call.inputs.get("position_ids"), call.layout
        if positions is None:  # text alone, of which the parent counts the padding, too
            tokens = inputs[name_of_tokens(inputs)]
            return torch.arange(tokens.shape[1], device=tokens.device).expand(4, len(tokens), -1)
        if layout is None:
            return positions
        if layout.shortens:
            raise ValueError(
                "The prompt has a placeholder for every token of its videos, and those of dropped tokens have no "
                f"positions. {USE_OURS}, or pass `retention_ratio=1.0` without a budget."
            )
        order, rotary = positions[:1], positions[1:]
        return torch.cat([order, torch.empty_like(rotary).scatter(2, layout.order.expand_as(rotary), rotary)])

    def rope_index(self, input_ids: Tensor, mask: Tensor, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the parent's positions (3, B, L) of tokens (B, L), and its `rope_deltas` (B, 1).

        Args:
            inputs: say how large the images and videos of the tokens are, and when their frames are shown.

        Raises:
            ValueError: if they do not fit the images or videos.
        """
        kinds = self.kinds(input_ids)
        token_types = kinds.clamp(min=0) * (kinds <= VIDEO)  # Those of images and videos are as in Transformers.
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


def checked_grids(patches: Tensor, video_grid_thw: Tensor | None) -> list[tuple[int, int, int]]:
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


def _length(entries: Any) -> int:
    """Return the length of a tensor or a list; 0 for a single number."""
    return len(entries) if getattr(entries, "ndim", 1) and hasattr(entries, "__len__") else 0
