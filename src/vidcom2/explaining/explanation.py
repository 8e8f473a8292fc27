"""Which tokens of a video are kept and why: the paper's Figure 2 for the user's own video, as numbers and pictures.
With a vision method that leaves out patches, also which of them the vision tower computed.

`drawing.py` lays them out as a picture, and `explanation_page.py` as a page. `explain.py` is the call that does it all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from transformers import PreTrainedConfig, ProcessorMixin

from ..asking.candidates import changed_settings, others_in_words, way_in_words
from ..asking.frame_device import device_of_frames
from ..asking.generation import keep_tokens, run_tower
from ..asking.prompting import prepare_inputs, scored_frames
from ..configuration.compression_settings import COMPRESSION_METHODS, CompressionSettings
from ..families.table import FAMILIES
from ..loading.checkpoints import Checkpoint
from ..modeling.methods.compression import VideoCompression
from ..video.reading import Video

PICTURE_PIXELS = 400  # the longer side of a picture
# A dropped token is drawn in a light grey, never dark: DIMMED of its own grey, and LIGHT for the rest. A kept token is
# not changed but outlined, because the video itself may be light or grey.
DIMMED, LIGHT = 0.4, 235
NOT_COVERED = 250  # the grey of a strip that no token covers
OUTLINE_COLOR, OUTLINE_PIXELS = (0, 225, 255), 3
COMPUTED_COLOR = (255, 140, 0)  # outlines what the tower computed, unlike the tokens that are kept
HEAT_COLORS = "magma"
FLOAT_NOISE = 1e-5  # a video whose u differ by no more than this share is even, and has one colour
NOT_FINITE_COLOR = (120, 120, 120)
LUMA = (0.299, 0.587, 0.114)
WHOLE_FRAME = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Explanation:
    """Which tokens of a video are kept, and why.

    Attributes:
        model: the name of the checkpoint.
        settings: `retention_ratio`, and the other settings that are not at their default.
        frames: (T, height, width, 3) uint8, a picture for each of the T scored frames, in the video's own proportions.
        seconds: (T,) the time in the video at which each frame is shown.
        video_frames: the number of frames that were sampled. Qwen's families make one scored frame of two.
        frame_budgets: (T,) k_t.
        kept: (T, h, w) bool, whether a token is kept; (h, w) is the grid of a frame's tokens.
        video_tokens: how many tokens of the video stay in the prompt, and how many there are. Among them are the
            model's own separators, which are not scored, and which no picture shows.
        merged: (T, h, w) bool, tokens that are not kept but enter the mean of one that is; None if the method merges
            none.
        frame_uniqueness: (T,) the method's scores u_t of frames, whatever it scores; None if it has none.
        token_uniqueness: (T, h, w) likewise u of tokens, -inf for a token that is not finite.
        scores: what the method says of these two; None if it says nothing.
        covered: the part of a frame that the token grid covers: top, left, height and width, as shares of the frame's
            height and width.
        video: the name of the clip; None if it has none.
        computed: (T, rows, columns) bool, which groups of patches the vision tower computed; a group is a patch in
            LLaVA's families, and in the others the patches of a token. None if it computed them all.
        tower_covered: the part of a frame that these groups cover, in the form of `covered`. It is larger than the
            tokens' where the last patches do not fill a token.
    """

    model: str
    settings: dict[str, object]
    frames: np.ndarray
    seconds: np.ndarray
    video_frames: int
    frame_budgets: np.ndarray
    kept: np.ndarray
    video_tokens: tuple[int, int]
    frame_uniqueness: np.ndarray | None = None
    token_uniqueness: np.ndarray | None = None
    scores: str | None = None
    covered: tuple[float, float, float, float] = WHOLE_FRAME
    merged: np.ndarray | None = None
    video: str | None = None
    computed: np.ndarray | None = None
    tower_covered: tuple[float, float, float, float] = WHOLE_FRAME

    @property
    def method(self) -> str:
        return str(self.settings.get("compression_method", "vidcom2"))

    @property
    def title(self) -> str:
        kept, total = self.video_tokens
        merged = "" if self.merged is None else f", and {int(self.merged.sum()):,} are merged into them"
        return f"{way_in_words(self.settings)}: {kept:,} of {total:,} video tokens stay ({kept / total:.1%}){merged}"

    @property
    def subtitle(self) -> str:
        """One line: the model, what a picture shows, and the other settings that are not at their default."""
        height, width = self.kept.shape[1:]
        names = [self.model] if self.video is None else [self.video, self.model]
        parts = [*names, f"{_counted(self.video_frames, 'frame')} of the video"]
        if self.frames_per_picture == 1:
            parts.append(f"{height} × {width} tokens a frame")
        else:
            parts.append(f"{height} × {width} tokens for {self.frames_per_picture} frames together")
            parts.append(f"a picture stands for {self.frames_per_picture} frames and shows the first of them")
        if self.separators[1]:
            scored = f"{int(self.kept.sum()):,} of {self.kept.size:,} scored tokens"
            parts.append(f"{scored} and {{:,}} of {{:,}} separators stay".format(*self.separators))
        if self.covered != WHOLE_FRAME:
            parts.append("no token covers the white edge")
        if self.computed is not None:
            parts.append(f"the vision tower computed {self.computed.mean():.1%} of the patches")
        if self.frame_uniqueness is None and self.token_uniqueness is None:
            parts.append("this method scores neither frames nor tokens, so only what it keeps is drawn")
        return " · ".join(parts + others_in_words(self.settings))

    @property
    def separators(self) -> tuple[int, int]:
        """How many of the model's own separators stay, and how many there are. None are counted where tokens that are
        scored are not in the prompt."""
        kept, total = self.video_tokens
        return (kept - int(self.kept.sum()), total - self.kept.size) if total > self.kept.size else (0, 0)

    @property
    def frames_per_picture(self) -> int:
        return -(-self.video_frames // len(self.frames))

    def label(self, index: int) -> str:
        """Return the numbers of the sampled frames that the picture stands for, in words."""
        first = index * self.frames_per_picture
        last = min(first + self.frames_per_picture, self.video_frames) - 1
        return f"frame {first}" if first == last else f"frames {first}–{last}"

    def chosen_frames(self, number: int) -> np.ndarray:
        """Return the indices, ascending, of the most telling pictures, at most `number`. Each is the one with the
        largest budget in its stretch of the video."""
        stretches = np.array_split(np.arange(len(self.frames)), min(number, len(self.frames)))
        return np.array([stretch[self.frame_budgets[stretch].argmax()] for stretch in stretches])

    def shares_of_uniqueness(self) -> np.ndarray:
        """Return (T,) in [0, 1], the lengths of the bars of u_t. Because u_t may be negative, as VidCom²'s is, bars
        start a little below the lowest. All bars are full if all frames are alike."""
        u = self.frame_uniqueness
        assert u is not None, "the method has no score of frames"
        finite = u[np.isfinite(u)]
        if not finite.size:
            return np.zeros(len(u))
        low = finite.min() - 0.08 * max(np.ptp(finite), 1e-3)
        return np.where(np.isfinite(u), (u - low) / (finite.max() - low), 0.0)

    def shares_of_budget(self) -> np.ndarray:
        """Return (T,) in [0, 1], the lengths of the bars of k_t."""
        return self.frame_budgets / max(self.frame_budgets.max(), 1)

    def shares_of_patches(self) -> np.ndarray:
        """Return (T,) in [0, 1], the share of each frame's patches that the vision tower computed."""
        assert self.computed is not None, "the tower computed all patches"
        return self.computed.mean(axis=(1, 2))

    def kept_picture(self, index: int) -> np.ndarray:
        """Return (height, width, 3) uint8, the frame with its kept tokens in colour and outlined, the merged ones in
        pale colour, and the dropped ones in light grey."""
        frame = self.frames[index]
        kept = self._on_pixels(self.kept[index], fill=False)
        covered = self._on_pixels(np.ones_like(self.kept[index]), fill=False)
        picture = np.where(kept[..., None], frame, _light_grey(frame))
        if self.merged is not None:
            pale = frame * DIMMED + LIGHT * (1 - DIMMED)
            picture = np.where(self._on_pixels(self.merged[index], fill=False)[..., None], pale, picture)
        picture[~covered] = NOT_COVERED
        return _outlined(picture.round().astype(np.uint8), kept)

    def computed_picture(self, index: int) -> np.ndarray:
        """Return (height, width, 3) uint8, the frame with the patches that the vision tower computed in colour and
        outlined, and those that it left out in light grey."""
        assert self.computed is not None, "the tower computed all patches"
        frame = self.frames[index]
        computed = self._on_pixels(self.computed[index], fill=False, covered=self.tower_covered)
        covered = self._on_pixels(np.ones_like(self.computed[index]), fill=False, covered=self.tower_covered)
        picture = np.where(computed[..., None], frame, _light_grey(frame))
        picture[~covered] = NOT_COVERED
        return _outlined(picture.round().astype(np.uint8), computed, COMPUTED_COLOR)

    def range_of_heat(self) -> tuple[float, float] | None:
        """Return the least and the highest u of the video, the ends of the scale of all its heat maps; None if no token
        has a finite u. One scale for all frames shows which frames are even, and makes frames comparable."""
        assert self.token_uniqueness is not None, "the method has no score of tokens"
        finite = self.token_uniqueness[np.isfinite(self.token_uniqueness)]
        return (float(finite.min()), float(finite.max())) if finite.size else None

    def ends_of_heat(self) -> tuple[str, str] | None:
        """Return the ends of that scale in words."""
        ends = self.range_of_heat()
        return None if ends is None else (with_minus(f"{ends[0]:.4g}"), with_minus(f"{ends[1]:.4g}"))

    def heat_map(self, index: int) -> np.ndarray:
        """Return (height, width, 3) uint8, the u of each token on the scale of `range_of_heat`. A token that is not
        finite is grey. Kept tokens are outlined."""
        from matplotlib import colormaps

        assert self.token_uniqueness is not None, "the method has no score of tokens"
        u = self.token_uniqueness[index]
        finite = np.isfinite(u)
        low, high = self.range_of_heat() or (0.0, 0.0)
        heat = np.full(u.shape, 0.5)
        if high - low > FLOAT_NOISE * max(abs(low), abs(high)):
            heat[finite] = (u[finite] - low) / (high - low)
        colors = (colormaps[HEAT_COLORS](heat)[..., :3] * 255).round().astype(np.uint8)
        colors[~finite] = NOT_FINITE_COLOR
        picture = self._on_pixels(colors, fill=NOT_COVERED)
        return _outlined(picture, self._on_pixels(self.kept[index], fill=False))

    def _on_pixels(
        self, values: np.ndarray, fill: int | bool, covered: tuple[float, float, float, float] | None = None
    ) -> np.ndarray:
        """Spread the values (h, w, ...) of tokens or of groups of patches over the pixels (height, width, ...) of the
        frame. Each covers a rectangle of the `covered` part, the tokens' if that is None. Other pixels get `fill`."""
        height, width = self.frames.shape[1:3]
        grid_height, grid_width = values.shape[:2]
        top, left, covered_height, covered_width = self.covered if covered is None else covered
        rows = np.floor(((np.arange(height) + 0.5) / height - top) / covered_height * grid_height).astype(int)
        columns = np.floor(((np.arange(width) + 0.5) / width - left) / covered_width * grid_width).astype(int)
        inside = ((rows >= 0) & (rows < grid_height))[:, None] & (columns >= 0) & (columns < grid_width)
        spread = values[rows.clip(0, grid_height - 1)][:, columns.clip(0, grid_width - 1)].copy()
        spread[~inside] = fill
        return spread


def compare(
    checkpoint: Checkpoint, video: Video, candidates: Sequence[Mapping[str, Any]] = ({},), name: str | None = None
) -> tuple[Explanation, ...]:
    """Encode the video once and report which tokens each candidate keeps. The language model does not run.

    Args:
        candidates: settings that replace the checkpoint's.
        name: the name of the clip, for the drawing.

    Raises:
        ValueError: on settings that a method refuses for this video.
    """
    model = checkpoint.model
    every = [model.config.compression_settings(**candidate) for candidate in candidates]
    inputs = prepare_inputs(checkpoint.processor, "", video, model, device=device_of_frames(checkpoint))
    encoded = run_tower(model, inputs, every[0])
    compressions = [keep_tokens(model, encoded, each).video_compressions[0] for each in every]
    partial = model.model.partial_encoding(settings=every[0], **encoded.inputs)  # alike for all, as is the encoding
    computed = None if partial is None else partial.computed[0]
    return tuple(
        explanation_of(checkpoint, video, each, compression, name=name, computed=computed)
        for each, compression in zip(every, compressions)
    )


def explanation_of(
    checkpoint: Checkpoint,
    video: Video,
    settings: CompressionSettings,
    compression: VideoCompression,
    frames: np.ndarray | None = None,
    pixels: int = PICTURE_PIXELS,
    name: str | None = None,
    computed: Tensor | None = None,
) -> Explanation:
    """Report which tokens are kept of a video that is already encoded and compressed.

    Args:
        settings: the settings that it was compressed with.
        frames: `Explanation.frames`, if an earlier explanation of the same video made them.
        pixels: the longer side of a picture.
        name: the name of the clip, for the drawing.
        computed: (T, G) bool, which groups of patches the tower computed; None for all.
    """
    model = checkpoint.model
    num_frames = len(compression.frame_budgets)
    assert compression.grid is not None, "frames without slices, as `prepare_inputs` makes them, have a grid"
    height, width = compression.grid
    kept = np.zeros(num_frames * height * width, dtype=bool)
    kept[compression.indices.cpu().numpy()] = True
    merged = None
    if compression.merge is not None:
        merged = np.zeros_like(kept)
        merged[compression.merge.inputs.cpu().numpy()] = True
        merged = (merged & ~kept).reshape(num_frames, height, width)
    seen = _shown(checkpoint.processor, *video.frames.shape[1:3])
    tower_computed, tower_covered = None, WHOLE_FRAME
    if computed is not None:
        # Qwen's groups are the tokens' blocks of patches. LLaVA's are the patches of a square frame, row by row.
        is_blocks, side = computed.shape[1] == height * width, math.isqrt(computed.shape[1])
        tower_computed = computed.cpu().numpy().reshape(num_frames, *((height, width) if is_blocks else (side, side)))
        tower_covered = _covered(model.config, side, seen)
    u, u_tokens = compression.frame_uniqueness, compression.token_uniqueness
    shown = scored_frames(len(video.frames), compression)
    return Explanation(
        model=checkpoint.name,
        settings=changed_settings(model.config, settings),
        frames=np.stack([_picture(frame, pixels) for frame in video.frames[shown]]) if frames is None else frames,
        seconds=video.seconds[shown],
        video_frames=len(video.frames),
        frame_budgets=compression.frame_budgets.cpu().numpy(),
        kept=kept.reshape(num_frames, height, width),
        frame_uniqueness=None if u is None else u.cpu().numpy(),
        token_uniqueness=None if u_tokens is None else u_tokens.cpu().numpy().reshape(num_frames, height, width),
        scores=None if u is u_tokens is None else COMPRESSION_METHODS[settings.compression_method].scores,
        covered=_covered(model.config, 2 * height, seen),
        merged=merged,
        video=name,
        computed=tower_computed,
        tower_covered=tower_covered,
        video_tokens=(len(compression.placeholders), compression.num_placeholders),
    )


def _shown(processor: ProcessorMixin, height: int, width: int) -> tuple[float, float, float, float]:
    """Return which part of a frame of this size the processor gives to the model, in the form of
    `Explanation.covered`."""
    video_processor: Any = getattr(processor, "video_processor", None)
    if not getattr(video_processor, "do_center_crop", False):
        return WHOLE_FRAME
    size, cut = dict(video_processor.size), dict(video_processor.crop_size)
    if size.get("shortest_edge"):
        scale = size["shortest_edge"] / min(height, width)
        height, width = round(scale * height), round(scale * width)
    else:
        height, width = size["height"], size["width"]
    shown = min(1.0, cut["height"] / height), min(1.0, cut["width"] / width)
    return (1 - shown[0]) / 2, (1 - shown[1]) / 2, *shown


def _covered(
    config: PreTrainedConfig, patches: int, shown: tuple[float, float, float, float]
) -> tuple[float, float, float, float]:
    """Return which part of a frame is covered by this many rows of patches, given the part `shown` to the model.

    In families with square frames, 2 × 2 patches are pooled to a token. Pixels at the right and lower edge are not
    covered if they do not fill a patch, and not by a token if their patch does not fill one.
    """
    family = FAMILIES.get(config.model_type)
    if family is None or not family.square:  # None for a user's own class
        return shown
    vision, (top, left, height, width) = config.vision_config, shown
    # Some configs give them as (height, width).
    image, patch = (each if isinstance(each, int) else each[0] for each in (vision.image_size, vision.patch_size))
    share = min(patches, image // patch) * patch / image
    return top, left, share * height, share * width


def _picture(frame: np.ndarray, pixels: int) -> np.ndarray:
    """Return the frame in its own proportions, with `pixels` pixels along its longer side."""
    height, width = frame.shape[:2]
    scale = pixels / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS))


def _light_grey(frame: np.ndarray) -> np.ndarray:
    """Return the frame (height, width, 3) in light grey, (height, width, 1)."""
    return (frame @ LUMA * DIMMED + LIGHT * (1 - DIMMED))[..., None]


def _outlined(picture: np.ndarray, kept: np.ndarray, color: tuple[int, int, int] = OUTLINE_COLOR) -> np.ndarray:
    """Draw a line into `picture` along the inner edge of what is kept, but not along the frame's own border."""
    height, width = kept.shape
    padded = np.pad(kept, OUTLINE_PIXELS, mode="edge")
    inner = kept.copy()
    for down in range(2 * OUTLINE_PIXELS + 1):
        for right in range(2 * OUTLINE_PIXELS + 1):
            inner &= padded[down : down + height, right : right + width]
    picture[kept & ~inner] = color
    return picture


def with_minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
