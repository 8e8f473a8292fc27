"""Video features in all families: the parent encodes a video, a few frames at a time, and VidCom² drops tokens of it.

The towers look at one frame at a time. So their memory need not grow with the video, and a frame that equals the one
before it, as in screen recordings and slides, reuses the features of that one.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from ...configuration.compression_settings import COUNTED_BY, NUM_KEPT, CompressionSettings, function_of
from ...configuration.saved_with_code import SavedWithCode
from ..hosting.in_transformers import (
    ParentModel,
    arguments_of_parent,
    check_not_exported,
    check_tensors,
    engine_of,
    pop_settings,
    take_parents_signatures,
)
from ..methods.compression import VideoCompression, VideoTokens, compress_with, keeping, num_kept_tokens

logger = logging.get_logger(__name__)

# ---------------------------------------------------------------------------------------------------------------------
# A few frames at a time, and repeated ones once
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Consecutive frames of one video that are encoded together.

    Attributes:
        video: the number of the video.
        frames: the numbers of the frames that are encoded, ascending.
        shown: the numbers of all frames that take their features from one of these.
        sources: for each of `shown`, the place in `frames` of the frame whose features it takes.
    """

    video: int
    frames: Sequence[int]
    shown: Sequence[int]
    sources: Sequence[int]


@dataclass(frozen=True)
class FramePlan:
    """How the frames of some videos are encoded.

    Attributes:
        lengths: how many frames each video has.
        chunks: the runs that each call of the tower encodes.
    """

    lengths: Sequence[int]
    chunks: Sequence[Sequence[Run]]

    @property
    def is_one_call(self) -> bool:
        """Whether the tower encodes every frame, all of them in one call."""
        return len(self.chunks) == 1 and sum(len(run.frames) for run in self.chunks[0]) == sum(self.lengths)


def plan_frames(
    videos: Sequence[Tensor],
    chunk_frames: int | None,
    arguments: dict[str, Any],
    partial: Any = None,
) -> FramePlan:
    """Plan how to encode videos of (T, ...) pixels each.

    Args:
        chunk_frames: how many frames the tower takes at a time; None for all.
        arguments: the encoder's other arguments. If they ask for the tower's own states, or hold something precomputed
            for all frames (`video_cu_seqlens`), the tower takes all frames in one call.
        partial: what the model's `partial_encoding` returned. If none of a frame's groups of patches is computed, the
            frame repeats the one before it.
    """
    whole = any(arguments.get(name) for name in ("output_hidden_states", "output_attentions"))
    whole = whole or any(name.startswith("video_") for name in arguments)
    chunks: list[list[Run]] = [[]]
    room = limit = sum(map(len, videos)) if whole or chunk_frames is None else chunk_frames
    for number, video in enumerate(videos):
        if partial is not None:
            repeats = (~partial.computed[number].any(dim=1)).tolist()
        else:
            repeats = [False] * len(video) if whole else repeats_the_one_before(video)
        distinct = [t for t, repeated in enumerate(repeats) if not repeated]
        ranks = list(accumulate(not repeated for repeated in repeats))
        while distinct:
            if not room:
                chunks.append([])
                room = limit
            frames, distinct = distinct[:room], distinct[room:]
            shown = range(frames[0], distinct[0] if distinct else len(video))
            sources = [ranks[t] - ranks[frames[0]] for t in shown]
            chunks[-1].append(Run(number, frames, shown, sources))
            room -= len(frames)
    return FramePlan([len(video) for video in videos], chunks)


def repeats_the_one_before(frames: Tensor) -> list[bool]:
    """Return for each of the frames (T, ...) whether it is bit-identical to the one before it. Waits for the device
    once."""
    # A compiled model keeps its shapes, and a model that is trained with dropout keeps its frames independent.
    if len(frames) == 1 or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return [False] * len(frames)
    return [False, *torch.stack([(frame == before).all() for before, frame in pairwise(frames)]).tolist()]


def frames_of_runs(videos: Sequence[Tensor], runs: Sequence[Run]) -> Tensor:
    """Gather the frames to encode, (n, ...), from videos (T, ...) whose frames have one shape."""
    parts = [videos[run.video][_rows(run.frames)] for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class FrameBuffers:
    """Collect the features of chunks of frames in one tensor per video, so that no feature is in memory twice.

    Args:
        plan: how the frames are encoded.
        rows_after: how many empty rows to leave behind the features of each video.

    Attributes:
        videos: a tensor (T·M + rows_after, ...) for each video.
    """

    def __init__(self, plan: FramePlan, rows_after: int = 0):
        self.plan, self.rows_after = plan, rows_after
        self.videos: list[Tensor] = []

    def put(self, run: Run, encoded: Tensor) -> None:
        """Put the features (n, M, ...) of a run in their place. Runs must come in the order of the plan."""
        length, (num_rows, *rest) = self.plan.lengths[run.video], encoded.shape[1:]
        if run.video == len(self.videos):
            self.videos.append(encoded.new_empty(length * num_rows + self.rows_after, *rest))
        frames = self.videos[run.video][: length * num_rows].view(length, num_rows, *rest)
        repeated = len(run.shown) > len(run.frames)
        frames[_rows(run.shown)] = encoded[list(run.sources)] if repeated else encoded


def encode_in_chunks(
    plan: FramePlan, encode: Callable[[Sequence[Run]], Sequence[Sequence[Tensor]]], rows_after: int = 0
) -> list[list[Tensor]]:
    """Encode the frames of a plan, one chunk after the other.

    Args:
        encode: takes the runs of a chunk, and returns the features (n, M, ...) of each run that enter the language
            model. In families with deepstack it also returns, for each of the first decoder layers, those that the
            layer adds.
        rows_after: how many empty rows to append to the features of each video that enter the language model.

    Returns:
        What `encode` returns, with one tensor (T·M + rows_after, ...) for each video in place of one for each run.
    """
    found: list[FrameBuffers] = []
    for runs in plan.chunks:
        for number, of_runs in enumerate(encode(runs)):
            if number == len(found):
                found.append(FrameBuffers(plan, rows_after if number == 0 else 0))
            for run, encoded in zip(runs, of_runs, strict=True):
                found[number].put(run, encoded)
    return [buffers.videos for buffers in found]


def _rows(frames: Sequence[int]) -> slice | list[int]:
    """Return an index for ascending frames: a slice, which copies nothing, where they are consecutive."""
    if frames[-1] - frames[0] == len(frames) - 1:
        return slice(frames[0], frames[-1] + 1)
    return list(frames)


# ---------------------------------------------------------------------------------------------------------------------
# Features of videos, of which tokens are dropped
# ---------------------------------------------------------------------------------------------------------------------


# A `ModelOutput` with `pooler_output`. Transformers declares that as possibly None, and the whole as possibly a tuple.
ParentFeatures: TypeAlias = Any


@dataclass
class VidCom2VideoFeatures(BaseModelOutputWithPooling):
    """What `get_video_features` returns: the parent's fields in the parent's order, and then ours. So an index into the
    tuple means the same as in the parent's.

    Attributes:
        pooler_output: one (K_i, dim) tensor per video: the tokens that enter the language model.
        deepstack_features: in families that have them, for each of the first decoder layers, what the layer adds to
            these tokens: one (K_i, dim) tensor per video.
        video_compressions: one `VideoCompression` per video.
    """

    # It is None only in what this project's classes pass to each other, but `ModelOutput` asks for this default.
    pooler_output: Sequence[Tensor] = field(default=cast(Any, None))
    deepstack_features: list[tuple[Tensor, ...]] | None = None
    video_compressions: tuple[VideoCompression, ...] = field(default=cast(Any, None))

    def without_tower_states(self) -> "VidCom2VideoFeatures":
        """Keep only what the language model needs. The tower's states are larger, and `generate` would hold them until
        its end."""
        return VidCom2VideoFeatures(
            pooler_output=self.pooler_output,
            video_compressions=self.video_compressions,
            deepstack_features=self.deepstack_features,
        )


def _check_numbers(
    num_kept: Sequence[int],
    videos: Sequence[VideoTokens],
    settings: CompressionSettings,
    of_call: Mapping[str, Any],
    warns: bool = True,
) -> None:
    """Check how many tokens of each video a prompt has room for.

    Args:
        settings: those of the call. If they say another number, the prompt decides, and a warning says so.
        of_call: those that the caller passed to this call, which must say the same number.
        warns: whether to warn. Not in an engine, where each request may bring its own ratio.

    Raises:
        ValueError: if it is not one number for each video, within the video, or not that of the call.
    """
    sizes = [video.tokens.shape[:2] for video in videos]
    if len(num_kept) != len(sizes) or not all(0 < each <= size.numel() for each, size in zip(num_kept, sizes)):
        raise ValueError(
            f"`{NUM_KEPT}` is {list(num_kept)}, but there are {len(sizes)} videos of "
            f"{[size.numel() for size in sizes]} tokens. Pass it as the processor returned it, with these videos."
        )
    try:
        own = [num_kept_tokens(settings, *size) for size in sizes]
    except ValueError:  # it does not follow from sizes
        own = None
    rounding = of_call.get("compression_rounding")
    if rounding not in (None, "exact"):
        raise ValueError(
            f"`compression_rounding` is {rounding!r} for this call, but the prompt was written for {list(num_kept)} "
            "tokens of its videos, so the total is fixed. Write it with the stock processor, with a placeholder for "
            "every token."
        )
    of_call = {name: of_call[name] for name in COUNTED_BY if name in of_call}
    is_rounded = own is None and settings.compression_rounding != "exact"
    if own == list(num_kept) or (own is None and not of_call and not is_rounded):
        return
    if of_call:
        name, value = next(iter(of_call.items()))
        raise ValueError(
            f"`{name}` is {value!r} for this call, but the prompt was written for {list(num_kept)} tokens of its "
            f"videos. Pass the setting to the processor, which writes the prompt: `processor(..., {name}={value!r})`."
        )
    if not warns:
        return
    asked = f"`compression_rounding={settings.compression_rounding!r}`" if is_rounded else own
    logger.warning_once(
        f"The prompt has room for {list(num_kept)} tokens of its videos, and the model's config asks for {asked}. The "
        f"prompt decides: `processor.retention_ratio`, or `processor(..., retention_ratio=...)`, changes how many stay."
    )


def _zero_or_nan(values: Tensor) -> Tensor:
    """Return 0, or nan if one of the values is not finite, without asking the device."""
    least, most = values.detach().aminmax()
    return 0 * least + 0 * most


class VideoFeaturesMixin(SavedWithCode, ParentModel):
    """The part of `VidCom2ModelMixin` that encodes videos and compresses them."""

    of_parent: ClassVar[frozenset[str]]  # the arguments of the parent's methods
    # Arguments for videos that the parent's methods do not take. They are dropped once the videos are encoded.
    video_arguments: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, VideoFeaturesMixin, "get_video_features")
        # Both methods, because the parents pass arguments of `forward` on to this one.
        cls.of_parent = arguments_of_parent(cls, VideoFeaturesMixin, "get_video_features", "forward")

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        settings: CompressionSettings,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """Encode videos as the settings say, and drop nothing.

        Args:
            settings: of these, those for the vision tower are read.
            **kwargs: the parent's other arguments.

        Returns:
            The parent's features, with one (placeholders, dim) entry of `pooler_output` per video, and the tokens of
            each video that are scored, with their grid. If the tower runs in several calls, its own states are not
            among the features.

        Raises:
            ValueError: on an empty video, sizes that do not fit, or arguments that do not go with the settings.
        """
        raise NotImplementedError

    def video_sizes(self, pixel_values_videos: Tensor, **described: Any) -> list[int]:
        """Return how many scored tokens each video has, before any is dropped.

        Args:
            **described: the parent's other arguments that describe the videos.

        Raises:
            ValueError: on an empty video, or sizes that do not fit.
        """
        raise NotImplementedError

    def with_placeholders(self, features: Sequence[Tensor], inputs: dict[str, Any]) -> Sequence[Tensor]:
        """Return those of the videos' features (T·M, dim) that have a placeholder in the prompt: by default all."""
        return features

    def features_for_parent(self, features: Sequence[Tensor]) -> Any:
        """Return the kept tokens of all videos as the parent's `forward` takes them: in one tensor or in several."""
        return features

    # -----------------------------------------------------------------------------------------------------------------
    # What all families share
    # -----------------------------------------------------------------------------------------------------------------

    def partial_encoding(
        self,
        pixel_values_videos: Tensor,
        settings: CompressionSettings,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        **described: Any,
    ) -> Any:
        """Return an object that runs the tower on only those patches that the vision method chooses; None if the tower
        computes all of them. Its `computed`, (T, G) bool for each video, says which groups of patches these are.

        Args:
            arguments: the encoder's other arguments, which must not ask for what only a whole tower has.
            **described: the parent's other arguments that describe the videos.
        """
        encoding = function_of("vision_method", settings.vision_method)
        return None if encoding is None else encoding(self, pixel_values_videos, settings, arguments, **described)

    @can_return_tuple
    def get_video_features(self, **kwargs: Any) -> VidCom2VideoFeatures:
        """Encode videos and keep their distinctive tokens.

        Args:
            **kwargs: the parent's arguments, and settings of `CompressionSettings` for this call. And
                `num_kept_video_tokens`, (num_videos,), from the processor that wrote the prompt: as many scored tokens
                stay, whatever the config says.

        Returns:
            The parent's output, but `pooler_output` is a tuple of (K_i, dim) tensors, the kept tokens and the structure
            tokens of each video, and `video_compressions` says which tokens were kept.

        Raises:
            ValueError: on an empty video, sizes that do not fit, or a setting outside its accepted set; and if the
                settings of this call would keep another number than the prompt has room for.
        """
        check_tensors(kwargs)
        num_kept, overrides = kwargs.pop(NUM_KEPT, None), pop_settings(kwargs, self.of_parent)
        settings = self.config.compression_settings(**overrides)
        if settings.may_drop or num_kept is not None:
            check_not_exported()
        engine = engine_of(self.config)
        if num_kept is None and settings.may_drop and engine is not None:
            raise ValueError(
                f"{engine} passes no `{NUM_KEPT}`, so a stock processor wrote the prompt, with a placeholder for every "
                f"token, of which {engine} drops none. Serve the repo with its own processor, which "
                "`processor_config.json` names in `auto_map`, or with `retention_ratio` 1.0."
            )
        outputs, videos = self.encode_videos(settings=settings, **kwargs)
        if num_kept is None:
            return self.compressed_features(outputs, videos, settings)
        numbers = num_kept.flatten().tolist()
        _check_numbers(numbers, videos, settings, overrides, warns=engine is None)
        return self.compressed_features(outputs, videos, settings, numbers)

    def compressed_features(
        self,
        outputs: ParentFeatures,
        videos: Sequence[VideoTokens],
        settings: CompressionSettings,
        num_kept: Sequence[int] | None = None,
    ) -> VidCom2VideoFeatures:
        """Drop tokens of encoded videos.

        Args:
            outputs, videos: what `encode_videos` returned. They stay as they are, and can serve several settings.
            num_kept: how many tokens of each video stay; None if the settings say it.
        """
        of_videos = [settings] * len(videos)
        if num_kept is not None:
            of_videos = [
                keeping(number, video.tokens.shape[:2].numel(), settings) for number, video in zip(num_kept, videos)
            ]
        compressions = tuple(compress_with(of_video, video) for of_video, video in zip(of_videos, videos, strict=True))
        fields = {**outputs, "pooler_output": self._kept_features(outputs.pooler_output, compressions)}
        if outputs.get("deepstack_features") is not None:  # for each of the first decoder layers, those of each video
            fields["deepstack_features"] = [
                self._kept_features(layer, compressions) for layer in outputs["deepstack_features"]
            ]
        features = VidCom2VideoFeatures()
        for name, value in (fields | {"video_compressions": compressions}).items():
            features[name] = value  # one by one, to keep the parent's order
        return features

    def _kept_features(
        self, features: Sequence[Tensor], compressions: Sequence[VideoCompression]
    ) -> tuple[Tensor, ...]:
        """Keep the surviving ones of each video's features (placeholders, dim). A merged feature takes the place of the
        token that it was merged into.

        If a value of the video is not finite, all that is kept becomes nan. As in the parent, the answer shows it then,
        even if the token was dropped.
        """
        return tuple(
            compression.kept_among(video) + _zero_or_nan(video)
            for video, compression in zip(features, compressions, strict=True)
        )

    def parent_video_features(self, **kwargs: Any) -> ParentFeatures:
        """Call the parent's `get_video_features`, which keeps all tokens."""
        return self._parents_encoder()(**kwargs | {"return_dict": True})

    def _parents_encoder(self) -> Callable[..., Any]:
        """Return the parent's `get_video_features`, in a form that obeys its argument `return_dict`.

        Qwen3-VL's and Qwen3.5's pass the videos to `get_image_features`, which reads `return_dict` from the config
        alone. If the config asks for tuples, the encoder is a method of a view of the model with another config.
        """
        if self.config.return_dict:
            return super().get_video_features
        view = copy.copy(self)
        view.config = copy.copy(self.config)
        view.config.return_dict = True
        return super(VideoFeaturesMixin, view).get_video_features

    def _encode_whole(self, inputs: dict[str, Any], settings: CompressionSettings) -> ParentFeatures:
        """Encode the prompt's videos as the parent does, and keep all tokens that have a placeholder."""
        if settings.vision_method == "full":
            outputs = self._encode(self._parents_encoder(), inputs)
        else:
            names = inspect.signature(super().get_video_features).parameters
            described = {name: inputs[name] for name in names if name in inputs}
            outputs, _ = self.encode_videos(settings=settings, **described)
        outputs.pooler_output = self.with_placeholders(outputs.pooler_output, inputs)
        return outputs

    def _encode(self, encoder: Callable[..., Any], inputs: dict[str, Any], **settings: Any) -> ParentFeatures:
        """Encode the prompt's images or videos, with those of the inputs that the encoder has parameters for."""
        names = inspect.signature(encoder).parameters
        return encoder(**{name: inputs[name] for name in names if name in inputs} | settings, return_dict=True)

    def _for_parent(self, features: VidCom2VideoFeatures) -> VidCom2VideoFeatures:
        return VidCom2VideoFeatures(
            pooler_output=self.features_for_parent(features.pooler_output),
            deepstack_features=features.deepstack_features,
        )
