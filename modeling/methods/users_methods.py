"""How users add compression methods of their own, which may also merge tokens.

The short way is a function that only scores tokens. The scores decide how many tokens each frame keeps, and which ones,
either as in the paper's Algorithm 1 or by one ranking over the whole video. The result of a user's method is checked.

Shapes: T frames, M tokens per frame, D channels, K kept tokens.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from ...configuration.compression_settings import (
    SETTING_NAMES,
    TABLES,
    CompressionMethod,
    CompressionSettings,
    Count,
    Method,
)
from .compression import (
    REMAINDER_NOISE,
    Compress,
    VideoCompression,
    VideoTokens,
    all_of,
    counted,
    exact_total,
    most_unique_tokens,
    most_unique_tokens_of_video,
)
from .method_vidcom2 import FRAME_BUDGET_SETTINGS, frame_budgets, frame_uniqueness

AnyCompress = TypeVar("AnyCompress", bound=Compress)
Scores: TypeAlias = Callable[..., Tensor]
UsersScores = TypeVar("UsersScores", bound=Scores)

MERGE_BYTES = 16 * 2**20  # of features in float32 that are weighted at a time
WEIGHT_TOLERANCE = 1e-3  # how far the sum of a merged token's weights may be from 1


class TokenMerge(NamedTuple):
    """Describes how tokens are merged: each kept token becomes a weighted mean of the video's tokens.

    There are N entries in any order. In entry n, token `inputs[n]` enters kept token number `outputs[n]` with weight
    `weights[n]`. The weights of each kept token add up to 1.

    Attributes:
        outputs: (N,) int64 in [0, K).
        inputs: (N,) int64 in [0, T·M).
        weights: (N,) float32.
    """

    outputs: Tensor
    inputs: Tensor
    weights: Tensor

    def into(self, stays: Tensor) -> "TokenMerge":
        """Return the merge into those of the kept tokens that stay, (K,) bool."""
        left, numbers = stays[self.outputs], stays.cumsum(0) - 1
        return TokenMerge(numbers[self.outputs[left]], self.inputs[left], self.weights[left])

    def merged(self, features: Tensor, num_kept: int) -> Tensor:
        """Return the means (K, ...) of features (T·M, ...) of the tokens, which are summed in float32."""
        sums = torch.zeros(num_kept, *features.shape[1:], dtype=torch.float32, device=features.device)
        # A token may enter many means, so all entries at once could be many times as large as the video.
        step = max(1, MERGE_BYTES // (4 * features[0].numel()))
        for outputs, inputs, weights in zip(*(part.split(step) for part in self)):
            weighted = features[inputs].float() * weights.float().view(-1, *[1] * (features.ndim - 1))
            sums.index_add_(0, outputs, weighted)
        return sums.to(features.dtype)


def register_compression_method(
    name: str, *, settings: Sequence[str] = (), count: Count | None = None, scores: str | None = None
) -> Callable[[AnyCompress], AnyCompress]:
    """Make a function selectable as `compression_method=name`, in every model and in `compress`.

    The function receives the `VideoTokens` of one video and the `CompressionSettings` of the call. It runs without
    gradients and outside autocast, and returns a `VideoCompression` with `indices`, `frame_budgets`, and the scores and
    the merge if it has them. The result is checked. At `retention_ratio=1.0` all tokens stay, and the function is not
    called. If it only scores tokens, `register_score_method` is shorter.

    Args:
        settings: names of the settings that it reads, besides `retention_ratio`. Others must be at their default.
        count: returns how many tokens the function keeps, from T, M and R alone; for most methods it is `exact_total`.
            Without it, this project's processors cannot write prompts for the method, and the stock ones must.
        scores: what its scores u_t of frames and u of tokens say. `vidcom2 run` and `explain` show this text beside
            them.

    Raises:
        ValueError: if another function has the name, if a setting is not known, if what is registered, or its count,
            is not a function, or if `scores` is not a text.
    """
    check_registration("compression method", name, settings, SETTING_NAMES, scores)
    if count is not None and not callable(count):
        raise ValueError(f"`count` of method {name!r} is {count!r:.100}, but must be a function of T, M and R.")

    def register(function: AnyCompress) -> AnyCompress:
        row = CompressionMethod(name=name, settings=tuple(settings), count=count, scores=scores)
        enter("compression_method", checked(row, function))
        return function

    return register


def register_score_method(
    name: str, *, ranking: str = "frame", settings: Sequence[str] = (), scores: str | None = None
) -> Callable[[UsersScores], UsersScores]:
    """Make a function that scores tokens selectable as `compression_method=name`, in every model and in `compress`.

    The function gets the `VideoTokens` of one video, and its settings as keyword arguments. It runs without gradients
    and outside autocast. It returns a score for each token, (T, M), of any float dtype, on the device of the tokens.
    The tokens with the highest scores stay. Scores are compared in float32, and in a tie the earlier token stays. A
    token whose score is nan or -inf is kept last and enters no mean.

    Args:
        ranking: the tokens among which a token is ranked. With `"frame"`, those of its frame: the budget of a frame
            follows from its mean score, as in the paper (Eqs. 5 and 6), so the method also reads
            `compression_temperature`, `compression_rounding` and `compression_frame_score`. With `"video"`, those of
            the whole video: the best ⌊R·T·M⌋ tokens stay, at least one, and a frame may keep nothing.
        settings: names of the settings that the function takes.
        scores: what the scores say, as in `register_compression_method`.

    Raises:
        ValueError: as in `register_compression_method`, and if the ranking is unknown or the function does not take the
            settings.
    """
    check_registration("compression method", name, settings, SETTING_NAMES, scores)
    if ranking not in RANKINGS:
        raise ValueError(
            f"`ranking` of method {name!r} is {ranking!r}, but must be one of {', '.join(map(repr, RANKINGS))}."
        )
    rank, read, count = RANKINGS[ranking]

    def register(function: UsersScores) -> UsersScores:
        try:
            inspect.signature(function).bind(None, **dict.fromkeys(settings))
        except TypeError as error:
            raise ValueError(
                f"method {name!r} cannot be called with a `VideoTokens` and the settings {tuple(settings)} that it is "
                f"registered with: {error}. Give it one argument for the video, and one for each setting, by its name."
            ) from None

        @functools.wraps(function)
        def compress(video: VideoTokens, call_settings: CompressionSettings) -> VideoCompression:
            given = function(video, **{each: getattr(call_settings, each) for each in settings})
            return rank(checked_scores(name, given, video), call_settings)

        read_settings = tuple(dict.fromkeys((*read, *settings)))
        row = CompressionMethod(name=name, settings=read_settings, count=count, scores=scores)
        enter("compression_method", checked(row, compress))
        return function

    return register


def ranked_in_frames(scores: Tensor, settings: CompressionSettings) -> VideoCompression:
    """Keep the tokens with the highest scores in each frame, under budgets that follow from the frames' scores."""
    finite = scores.isfinite()
    lowest = float(scores[finite].min()) if finite.any() else 0.0  # A frame without finite scores gets this score.
    u = frame_uniqueness(scores, finite, settings.compression_frame_score, lowest)
    budgets, num_kept = frame_budgets(u, scores.shape[1], settings)
    return VideoCompression(most_unique_tokens(scores, budgets, num_kept), budgets, u, scores)


def ranked_over_video(scores: Tensor, settings: CompressionSettings) -> VideoCompression:
    """Keep the tokens with the highest scores in the whole video."""
    num_kept = video_total(len(scores), scores.shape[1], settings.retention_ratio)
    return VideoCompression(*most_unique_tokens_of_video(scores, num_kept), token_uniqueness=scores)


def video_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K of a ranking over the whole video: ⌊R·T·M⌋, but at least one token."""
    return max(1, math.floor(retention_ratio * num_frames * tokens_per_frame + REMAINDER_NOISE))


# For each ranking: the function that turns scores into a selection, the settings that it reads, and its K.
RANKINGS: dict[str, tuple[Callable[[Tensor, CompressionSettings], VideoCompression], tuple[str, ...], Count]] = {
    "frame": (ranked_in_frames, (*FRAME_BUDGET_SETTINGS, "compression_frame_score"), exact_total),
    "video": (ranked_over_video, (), video_total),
}


def checked_scores(name: str, scores: object, video: VideoTokens) -> Tensor:
    """Return a method's scores as (T, M) float32, with -inf for tokens that are kept last.

    Raises:
        ValueError: if the method did not return a float score for each token, or returned +inf for one.
    """
    shape, device = tuple(video.tokens.shape[:2]), video.tokens.device
    if not isinstance(scores, Tensor):
        got = f"a {type(scores).__name__}"
    else:
        got = f"{scores.dtype} of shape {tuple(scores.shape)} on {scores.device}"
    if (
        not isinstance(scores, Tensor)
        or not scores.is_floating_point()
        or scores.shape != shape
        or scores.device != device
    ):
        raise ValueError(
            f"`compression_method={name!r}` returned {got}, but must return scores: a float tensor of shape {shape} on "
            f"{device}, one score for each token of each frame."
        )
    scores = scores.float().masked_fill(scores.isnan(), -math.inf)
    if bool(torch.isposinf(scores).any()):
        raise ValueError(
            f"`compression_method={name!r}` returned a score of +inf, with which its frame has no mean. Return a large "
            "finite score, within the range of float32, for a token that should stay."
        )
    return scores


def check_registration(
    kind: str, name: str, settings: Sequence[str], known: Sequence[str], scores: object = None
) -> None:
    """Check the name of a method, the settings that it declares, and what it says of its scores.

    Args:
        kind: what the method is, for the message.
        known: the settings that there are.

    Raises:
        ValueError: if a method cannot have them.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a {kind} is {name!r}, but must be a string that is not empty.")
    if isinstance(settings, str) or not set(settings) <= set(known):
        raise ValueError(f"`settings` of method {name!r} is {settings!r}, but must be some of {', '.join(known)}.")
    if scores is not None and not isinstance(scores, str):
        raise ValueError(f"`scores` of method {name!r} is a {type(scores).__name__}, but must be a text about them.")


def enter(setting: str, method: Method) -> None:
    """Enter a user's method into the table of its kind.

    Args:
        setting: the one that chooses methods of this kind.

    Raises:
        ValueError: if it is no function, since only a function has a file that a Hub repo can hold; or if another
            function has its name.
    """
    table, defined = TABLES[setting], inspect.unwrap(cast(Any, method.function))
    if not inspect.isfunction(defined):
        raise ValueError(
            f"method {method.name!r} is a {type(defined).__name__}, but must be a function. Wrap it in one."
        )
    taken = table.get(method.name)
    if taken is not None and (taken.own or _place(taken.function) != _place(defined)):
        owner = "this project" if taken.own else ".".join(_place(taken.function))
        raise ValueError(f"`{setting}` {method.name!r} is taken by {owner}; choose another name.")
    table[method.name] = method


def _place(function: Any) -> tuple[str, str]:
    """Return where a function is defined. A function that is defined there again, by a reload or in a notebook, is a
    new version of the first."""
    return function.__module__, function.__qualname__


def checked(method: CompressionMethod, compress: Compress) -> CompressionMethod:
    """Give a method its function. It keeps all tokens at the ratio 1 without being called, and is checked otherwise."""

    @functools.wraps(compress)
    def compress_and_check(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        if settings.retention_ratio == 1.0:
            return all_of(video)
        version = None if video.tokens.is_inference() else video.tokens._version
        compression = _checked(method, compress(video, settings), video, settings)
        if version is not None and video.tokens._version != version:
            raise ValueError(
                f"`compression_method={method.name!r}` wrote into the video's tokens, which enter the model. Compute "
                "on a copy: `.float()` makes none of a float32 tensor."
            )
        return compression

    return replace(method, function=compress_and_check)


def _checked(
    method: CompressionMethod, compression: VideoCompression, video: VideoTokens, settings: CompressionSettings
) -> VideoCompression:
    """Return what a registered method returned, if it is right.

    Raises:
        ValueError: otherwise, with what is wrong.
    """

    def require(holds: bool, otherwise: str) -> None:
        if not holds:
            raise ValueError(f"`compression_method={method.name!r}` returned {otherwise}.")

    require(isinstance(compression, VideoCompression), f"a {type(compression).__name__}, not a `VideoCompression`")
    num_frames, per_frame, _ = video.tokens.shape
    num_tokens, device = num_frames * per_frame, video.tokens.device
    for field, length in (("indices", None), ("frame_budgets", num_frames)):
        value = getattr(compression, field)
        shape = "(K,)" if length is None else f"({length},)"
        fits = isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim == 1 and value.device == device
        require(fits and length in (None, len(value)), f"`{field}` that are not int64 {shape} on {device}")
    indices = compression.indices
    require(len(indices) > 0, "no token at all: keep at least one of a video")
    if method.count is not None and method.keeps_by_sizes(settings.compression_rounding):
        number = counted(method, num_frames, per_frame, settings.retention_ratio)
        require(len(indices) == number, f"{len(indices)} tokens, but its `count` says {number}")
    in_order = bool((indices.diff() > 0).all()) and int(indices[0]) >= 0 and int(indices[-1]) < num_tokens
    require(in_order, f"`indices` that do not ascend within the {num_tokens} tokens")
    kept_of_frames = (indices // per_frame).bincount(minlength=num_frames)
    agree = torch.equal(kept_of_frames, compression.frame_budgets)
    require(agree, "`frame_budgets` that are not what `indices` keep of each frame")
    for field, size in (("frame_uniqueness", (num_frames,)), ("token_uniqueness", (num_frames, per_frame))):
        value = getattr(compression, field)
        fits = value is None or (isinstance(value, Tensor) and value.is_floating_point() and value.shape == size)
        require(fits, f"`{field}` that is no float tensor of shape {size}")
    if compression.merge is not None:
        is_mean = _is_mean(compression.merge, len(indices), num_tokens)
        require(is_mean, "a `merge` that is no weighted mean of tokens, its weights adding up to 1, for each kept one")
    return compression


def _is_mean(merge: TokenMerge, num_kept: int, num_tokens: int) -> bool:
    if not isinstance(merge, TokenMerge) or any(not isinstance(each, Tensor) or each.ndim != 1 for each in merge):
        return False
    outputs, inputs, weights = merge
    if not len(outputs) == len(inputs) == len(weights) or not weights.is_floating_point():
        return False
    for places, size in ((outputs, num_kept), (inputs, num_tokens)):
        if places.dtype != torch.int64 or not bool(((places >= 0) & (places < size)).all()):
            return False
    sums = torch.zeros(num_kept, dtype=torch.float32, device=weights.device).index_add(0, outputs, weights.float())
    return bool(((sums - 1).abs() < WEIGHT_TOLERANCE).all())
