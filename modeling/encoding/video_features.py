"""Video features in all families: the parent encodes a video, a few frames at a time, and VidCom² drops tokens of it.

The towers look at one frame at a time. So their memory need not grow with the video, and a frame that equals the one
before it, as in screen recordings and slides, reuses the features of that one.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from ...configuration.compression_settings import COUNTED_BY, NUM_KEPT, VISION_METHODS, CompressionSettings
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
    videos: Sequence[Tensor], chunk_frames: int | None, partial: Any = None, whole: bool = False
) -> FramePlan:
    """Plan how to encode videos of (T, ...) pixels each.

    Args:
        chunk_frames: how many frames the tower takes at a time; None for all.
        partial: what the model's `partial_encoding` returned. If none of a frame's groups of patches is computed, the
            frame repeats the one before it.
        whole: whether the tower must take all frames in one call.
    """
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


def repeats_the_one_before(frames: Tensor | Sequence[Tensor]) -> list[bool]:
    """Return for each of T frames of one shape whether it is bit-identical to the one before it. Waits for the device
    once."""
    # A compiled model keeps its shapes, and a model that is trained with dropout keeps its frames independent.
    if len(frames) == 1 or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return [False] * len(frames)
    return [False, *torch.stack([(frame == before).all() for before, frame in pairwise(frames)]).tolist()]


def encode_in_chunks(
    plan: FramePlan, encode: Callable[[Sequence[Run]], Sequence[Sequence[Tensor]]], rows_after: int = 0
) -> list[list[Tensor]]:
    """Encode the frames of a plan, one chunk after the other. No feature is in memory twice.

    Args:
        encode: takes the runs of a chunk, and returns the features (n, M, ...) of each run that enter the language
            model. In families with deepstack it also returns, for each of the first decoder layers, those that the
            layer adds.
        rows_after: how many empty rows to append to the features of each video that enter the language model.

    Returns:
        What `encode` returns, with one tensor (T·M + rows_after, ...) for each video in place of one for each run.
    """
    found: list[list[Tensor]] = []
    for runs in plan.chunks:
        for number, of_runs in enumerate(encode(runs)):
            if number == len(found):
                found.append([])
            for run, encoded in zip(runs, of_runs, strict=True):
                length, (num_rows, *rest) = plan.lengths[run.video], encoded.shape[1:]
                if run.video == len(found[number]):
                    size = length * num_rows + (rows_after if number == 0 else 0)
                    found[number].append(encoded.new_empty(size, *rest))
                frames = found[number][run.video][: length * num_rows].view(length, num_rows, *rest)
                repeated = len(run.shown) > len(run.frames)
                frames[_rows(run.shown)] = encoded[list(run.sources)] if repeated else encoded
    return found


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


@dataclass(frozen=True, kw_only=True)
class VideoFrames:
    """The frames of a video that is not encoded yet.

    Attributes:
        pixels: (T, ...) what the tower takes of each frame.
        tokens_per_frame: M, the scored tokens that become of a frame.
        grid, in_prompt, layout: as in `VideoTokens`.
        described: what else the family must tell the parent of a frame.
        end: (dim,) what the parent appends to the tokens of a video; None for nothing.
    """

    pixels: Tensor
    tokens_per_frame: int
    grid: tuple[int, int] | None = None
    in_prompt: Tensor | None = None
    layout: Any = None
    described: Any = None
    end: Tensor | None = None

    @property
    def features_per_frame(self) -> int:
        """How many features the parent has of a frame, with structure among the tokens."""
        return self.tokens_per_frame if self.layout is None else self.layout.placeholders_per_frame

    def tokens(self, features: Tensor) -> VideoTokens:
        """Return the scored tokens among the parent's features (placeholders, dim) of the video."""
        if self.layout is None:
            expected = (len(self.pixels), self.tokens_per_frame)
            # A tower that merges frames returns fewer. Cut evenly, they would pass for other frames' tokens.
            assert len(features) == expected[0] * expected[1], (len(features), expected)
            tokens = features.unflatten(0, expected)
        else:
            tokens = self.layout.frames_of(features)
        in_prompt = None if self.in_prompt is None else self.in_prompt.to(tokens.device)
        return VideoTokens(tokens, self.grid, in_prompt, self.layout)


def _features_of_frames(features: Sequence[Tensor], chunk: Sequence[tuple[VideoFrames, Tensor]]) -> list[Tensor]:
    """Return the features (n, M, ...) of the frames of each video of a chunk.

    Args:
        features: the parent's, an entry for each video; or one for all, if the parent took the frames for one video's.
            What it appends to a video goes.
    """
    lengths = [len(pixels) for _, pixels in chunk]
    sizes = [len(pixels) * video.features_per_frame for video, pixels in chunk]
    of_videos: Sequence[Tensor] = list(features)
    if len(of_videos) < len(chunk):
        of_videos = of_videos[0][: sum(sizes)].split(sizes)
    return [video[:size].unflatten(0, (n, -1)) for video, size, n in zip(of_videos, sizes, lengths, strict=True)]


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

    of_parent: ClassVar[frozenset[str]]  # the arguments of the parent's methods, and `video_arguments`
    # Arguments for videos that the parent's methods do not take. They are dropped once the videos are encoded.
    video_arguments: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, VideoFeaturesMixin, "get_video_features")
        # Both methods, because the parents pass arguments of `forward` on to this one.
        of_parent = arguments_of_parent(cls, VideoFeaturesMixin, "get_video_features", "forward")
        cls.of_parent = of_parent.union(cls.video_arguments)

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def frames_of_videos(self, pixel_values_videos: Tensor, **arguments: Any) -> Sequence[VideoFrames]:
        """Check the videos of a call and return the frames of each. Nothing is encoded.

        Args:
            **arguments: all arguments of the call. A family names those that describe its videos.

        Raises:
            ValueError: on an empty video, or sizes that do not fit.
        """
        raise NotImplementedError

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the arguments by which the parent takes some frames of each of some videos.

        Args:
            chunk: the videos, each with the (n, ...) pixels of the frames to encode.
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

    def encode_videos(
        self, settings: CompressionSettings, **arguments: Any
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """Encode videos as the settings say, and drop nothing.

        Args:
            settings: of these, those for the vision tower are read.
            **arguments: the parent's arguments.

        Returns:
            The parent's features, with one (placeholders, dim) entry of `pooler_output` per video, and the tokens of
            each video that are scored, with their grid. If the tower runs in several calls, its own states are not
            among the features.

        Raises:
            ValueError: on an empty video, sizes that do not fit, or arguments that do not go with the settings.
        """
        videos = self.frames_of_videos(**arguments)
        partial = self.partial_encoding(settings, **arguments)
        asks_for_states = any(arguments.get(name) for name in ("output_hidden_states", "output_attentions"))
        whole = asks_for_states or bool(self.precomputed(arguments))
        plan = plan_frames([video.pixels for video in videos], settings.vision_chunk_frames, partial, whole)
        if plan.is_one_call and partial is None:
            outputs = self.parent_video_features(**arguments)
        else:
            outputs = self._encode_in_chunks(videos, plan, partial, arguments)
        return outputs, [video.tokens(each) for video, each in zip(videos, outputs.pooler_output, strict=True)]

    def _encode_in_chunks(
        self, videos: Sequence[VideoFrames], plan: FramePlan, partial: Any, arguments: dict[str, Any]
    ) -> VidCom2VideoFeatures:
        """Return the parent's features of videos, without the tower's own output. Encode one chunk of frames at a time,
        and of each frame only a part, unless `partial` is None."""

        def of_chunk(runs: Sequence[Run]) -> Sequence[Sequence[Tensor]]:
            chunk = [(videos[run.video], videos[run.video].pixels[_rows(run.frames)]) for run in runs]
            of_frames = arguments | self.arguments_of_frames(chunk)
            if partial is not None:
                return partial.features(runs, **of_frames)
            outputs = self.parent_video_features(**of_frames)
            layers = (outputs.pooler_output, *(outputs.get("deepstack_features") or ()))
            return [_features_of_frames(layer, chunk) for layer in layers]

        end = videos[0].end
        tokens, *layers = encode_in_chunks(plan, of_chunk, rows_after=int(end is not None))
        if end is not None:
            for video in tokens:
                video[-1] = end
        has_layers = hasattr(getattr(self, "visual", None), "deepstack_merger_list")
        return VidCom2VideoFeatures(
            pooler_output=tokens, deepstack_features=list(map(tuple, layers)) if has_layers else None
        )

    def video_sizes(self, **arguments: Any) -> list[int]:
        """Return how many scored tokens each video of a call has, before any is dropped. Raise as
        `frames_of_videos`."""
        return [len(video.pixels) * video.tokens_per_frame for video in self.frames_of_videos(**arguments)]

    def precomputed(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the names of arguments that were computed for all frames of a call, such as `video_cu_seqlens`."""
        return [name for name in arguments if name.startswith("video_") and name not in self.of_parent]

    def partial_encoding(self, settings: CompressionSettings, **arguments: Any) -> Any:
        """Return an object that runs the tower on only those patches that the vision method chooses; None if the tower
        computes all of them. Its `computed`, (T, G) bool for each video, says which groups of patches these are.

        Args:
            **arguments: the encoder's, which must not ask for what only a whole tower has.
        """
        encoding = VISION_METHODS[settings.vision_method].function
        return None if encoding is None else encoding(self, settings, arguments)

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
        numbers = None if num_kept is None else num_kept.flatten().tolist()
        outputs, videos = self.encode_videos(settings=settings, **kwargs)
        if numbers is None:
            return self.compressed_features(outputs, videos, settings)
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
        """Keep the features of each video (placeholders, dim) that survive. A merged feature takes the place of the
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
