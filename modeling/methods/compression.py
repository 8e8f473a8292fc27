"""Compressing one video by the method that the settings name: what a method is given, what it returns, and steps that
several methods share. Nothing here knows models. `method_vidcom2.py` is the paper's Algorithm 1.

Shapes: T frames, M tokens per frame, D channels, K kept tokens. A frame here is one frame of the video, or in Qwen's
families two, which share their tokens.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from ...configuration.compression_settings import (
    COMPRESSION_METHODS,
    CompressionMethod,
    CompressionSettings,
    Count,
)

# ---------------------------------------------------------------------------------------------------------------------
# Numbers of tokens
# ---------------------------------------------------------------------------------------------------------------------


REMAINDER_NOISE = 1e-6  # A budget closer than this to a whole number counts as that number: the rest is float64 noise.


def fixed_total_budgets(budgets: Tensor, tokens_per_frame: int, retention_ratio: float) -> Tensor:
    """Turn real-valued budgets (T,) into whole ones: (T,) int64 in [1, M], whose total is `exact_total`."""
    total = exact_total(len(budgets), tokens_per_frame, retention_ratio)
    return shares_of_total(budgets, total, most=tokens_per_frame, least=1)


def shares_of_total(weights: Tensor, total: int, most: int, least: int = 0) -> Tensor:
    """Divide a total among frames in proportion to their weights: (T,) int64 in [least, most], which add up to it.

    All weights are scaled by one factor and held within the bounds. The factor is the one that makes them add up to the
    total, so what a full frame cannot take goes to the others in proportion. Largest remainders then decide which
    shares are rounded up to whole tokens, and the earlier frame wins a tie.

    Args:
        weights: (T,) float64, none negative.
        total: between T · least and T · most.
    """
    # The sum is piecewise linear in the factor, with a bend where a frame reaches a bound. Find the last bend at which
    # the sum is at most the total, and follow the slope of the frames that are between their bounds from there.
    weights = weights.clamp(min=1e-290)  # Otherwise the bends of a tiny retention ratio would be infinite.
    bends = torch.cat([least / weights, most / weights]).sort().values
    sums = (bends[:, None] * weights).clamp(least, most).sum(dim=1)
    bend = bends.gather(0, (sums <= total + 1e-9).sum(0, keepdim=True).sub_(1).clamp_(min=0))
    at_bend = (bend * weights).clamp(least, most)
    growing = (bend * weights >= least - 1e-12) & (bend * weights < most * (1 - 1e-12))
    slope = (growing * weights).sum()
    factor = bend + torch.where(slope > 0, (total - at_bend.sum()) / slope.clamp(min=1e-300), 0.0)
    shares = (factor * weights).clamp(least, most)

    whole, remainders = whole_and_remainders(shares)
    missing = total - whole.sum()
    order = remainders.argsort(descending=True, stable=True)  # The earlier frame wins a tie.
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(weights), device=order.device))
    return (whole + (rank < missing)).long()


def whole_and_remainders(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the whole tokens of each share, and what is left over, in units of `REMAINDER_NOISE`."""
    whole = (shares + REMAINDER_NOISE).floor()
    return whole, (shares - whole).div(REMAINDER_NOISE).round()


def in_float64(scores: Tensor) -> Tensor:
    """Return scores in float64, in which budgets are computed; on the CPU if the device, MPS, has no float64."""
    return scores.cpu().double() if scores.device.type == "mps" else scores.double()


def exact_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K of `compression_rounding="exact"`: ⌊R·T·M⌋, but at least one token per frame."""
    num_tokens = num_frames * tokens_per_frame
    return max(num_frames, min(num_tokens, math.floor(retention_ratio * num_tokens + REMAINDER_NOISE)))


# ---------------------------------------------------------------------------------------------------------------------
# Ranking tokens
# ---------------------------------------------------------------------------------------------------------------------


def most_unique_tokens(token_scores: Tensor, budgets: Tensor, num_kept: int) -> Tensor:
    """Return the k_t tokens with the highest scores in each frame, in the order of the video.

    In a tie the earlier token is kept.

    Args:
        token_scores: (T, M) float without nan.
        budgets: (T,) int64: k_t of each frame, at most M.
        num_kept: K, the sum of the budgets, so that the device need not be asked for it.

    Returns:
        (K,) int64, ascending: indices into the T·M tokens.
    """
    order = token_scores.argsort(dim=1, descending=True, stable=True)
    within_budget = torch.arange(order.shape[1], device=order.device) < budgets[:, None]
    kept = torch.zeros_like(within_budget).scatter_(1, order, within_budget).flatten()
    # The stable sort puts the kept positions first, in order. Unlike `nonzero`, it need not ask the device for K.
    return (~kept).to(torch.uint8).argsort(stable=True)[:num_kept]


def most_unique_tokens_of_video(token_scores: Tensor, num_kept: int) -> tuple[Tensor, Tensor]:
    """Return the K tokens with the highest scores in the whole video; a frame may keep nothing.

    In a tie the earlier token is kept.

    Args:
        token_scores: (T, M) float without nan.
        num_kept: K.

    Returns:
        (K,) int64, ascending: indices into the T·M tokens. And (T,) int64: how many of them each frame keeps.
    """
    num_frames, tokens_per_frame = token_scores.shape
    # The whole video is ranked as if it were a single frame.
    whole = torch.full((1,), num_kept, device=token_scores.device)
    indices = most_unique_tokens(token_scores.reshape(1, -1), whole, num_kept)
    budgets = torch.zeros(num_frames, dtype=torch.int64, device=token_scores.device)
    return indices, budgets.index_add_(0, indices // tokens_per_frame, torch.ones_like(indices))


def mask_of(indices: Tensor, like: Tensor) -> Tensor:
    """Return a bool mask of the shape of `like`, (T, M), that is true at these indices into the T·M tokens."""
    return torch.zeros(like.numel(), dtype=torch.bool, device=like.device).index_fill(0, indices, True).view_as(like)


# ---------------------------------------------------------------------------------------------------------------------
# What a method is given, and what it returns
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VideoTokens:
    """The tokens of one video, before any is dropped.

    Attributes:
        tokens: (T, M, D), any float dtype: the tokens that would enter the language model, without structure tokens
            such as newlines.
        grid: rows and columns of a frame's tokens; M = rows · columns, and token m is in row m // columns. None if not
            known, and for frames with slices, whose tokens form no grid.
        in_prompt: (T, M) bool: which tokens have a placeholder in the prompt; None if all have. A processor may leave
            out tokens that repeat the frame before. Methods choose among all tokens.
        layout: a `VideoLayout`, where newlines stand between the tokens in the prompt; None if there are none.
    """

    tokens: Tensor
    grid: tuple[int, int] | None = None
    in_prompt: Tensor | None = None
    layout: Any = None


@dataclass(frozen=True)
class VideoCompression:
    """Which tokens of one video stay, and why.

    Attributes:
        indices: (K,) int64, ascending, into the frame-major flattened (T·M) tokens: the kept tokens. A merged token
            takes the place of the kept token at its index.
        frame_budgets: (T,) int64, k_t: number of tokens kept in each frame, possibly none; their sum is K.
        frame_uniqueness: (T,) float32, u_t, where larger is more unique; None if the method has no such score.
        token_uniqueness: (T, M) float32, u_{t,m}, where -inf marks a token with a non-finite value; None if the method
            has no such score.
        merge: how tokens are merged into the kept ones, a `TokenMerge`; None if these stay as they are.
        tokens_per_frame: M; 0 until it is known, as in what a method returns.
        grid: rows and columns of a frame's tokens; None if not known.
        in_prompt: as in `VideoTokens`. The kept tokens are among these.
        layout: as in `VideoTokens`.
    """

    indices: Tensor
    frame_budgets: Tensor
    frame_uniqueness: Tensor | None = None
    token_uniqueness: Tensor | None = None
    merge: Any = None
    tokens_per_frame: int = 0
    grid: tuple[int, int] | None = None
    in_prompt: Tensor | None = None
    layout: Any = None

    def __repr__(self) -> str:
        total = f" of {self.num_placeholders:,}" if self.tokens_per_frame else ""
        return f"<VideoCompression: {len(self.placeholders):,}{total} video tokens of {len(self.frame_budgets)} frames>"

    @classmethod
    def of_mask(cls, kept: Tensor, **scores: Any) -> "VideoCompression":
        """Make a compression from a bool mask (T, M) of the tokens that stay, and other fields by name."""
        return cls(kept.flatten().nonzero().flatten(), kept.sum(dim=1), **scores)

    def within(self, in_prompt: Tensor | None) -> "VideoCompression":
        """Keep only the tokens that have a placeholder, (T, M) bool; None keeps all. If no kept token has one, keep the
        first token that has one, unmerged, so that something of the video stays."""
        if in_prompt is None:
            return self
        stays, merge = in_prompt.flatten()[self.indices], self.merge
        indices = self.indices[stays]
        if len(indices) == 0:
            indices, merge = in_prompt.flatten().nonzero()[0], None
        elif merge is not None:
            merge = merge.into(stays)
        kept = mask_of(indices, in_prompt)
        return replace(self, indices=indices, frame_budgets=kept.sum(dim=1), merge=merge, in_prompt=in_prompt)

    @property
    def num_tokens(self) -> int:
        """T·M, the number of tokens before any was dropped."""
        return len(self.frame_budgets) * self.tokens_per_frame

    @property
    def placeholders(self) -> Tensor:
        """Which of the video's placeholders stay, int64 in the order of their features. Newlines are among them."""
        if self.in_prompt is not None:
            return self.in_prompt.flatten().cumsum(0)[self.indices] - 1
        return self.indices if self.layout is None else self.layout.kept(self.indices)

    @property
    def num_placeholders(self) -> int:
        """How many placeholders the video has in the full prompt."""
        if self.in_prompt is not None:
            return int(self.in_prompt.sum())
        return self.num_tokens if self.layout is None else self.layout.num_placeholders

    @property
    def placeholders_per_frame(self) -> list[int]:
        """How many placeholders each frame has in the full prompt; frames without any are left out."""
        if self.in_prompt is not None:
            return [count for count in self.in_prompt.sum(dim=1).tolist() if count]
        return [self.num_placeholders // len(self.frame_budgets)] * len(self.frame_budgets)

    def kept_among(self, features: Tensor) -> Tensor:
        """Return the features that stay of a video; a merged feature takes the place of the token it was merged into.

        Args:
            features: (placeholders, ...), a row for each of the video's placeholders, including newlines; with
                `in_prompt`, a row for each scored token.
        """
        if self.merge is not None:
            scored = torch.arange(self.num_tokens, device=features.device)
            scored = scored if self.layout is None else self.layout.placeholders_of(scored)
            features = features.index_copy(0, scored[self.indices], self.kept(features[scored]))
        if self.in_prompt is not None:
            features = features[self.in_prompt.flatten()]
        return features.index_select(0, self.placeholders)

    def kept(self, features: Tensor) -> Tensor:
        """Return the kept or merged ones of the tokens' features (T·M, ...): (K, ...) of the same dtype."""
        if self.merge is not None:
            return self.merge.merged(features, len(self.indices))
        return features.index_select(0, self.indices)


# ---------------------------------------------------------------------------------------------------------------------
# How many tokens stay: `retention_ratio` and `max_video_tokens`
# ---------------------------------------------------------------------------------------------------------------------


class TooFewTokensError(ValueError):
    """A ratio at which a video would keep fewer tokens than the method needs.

    Attributes:
        least: how many it needs.
    """

    def __init__(self, least: int, message: str):
        super().__init__(message)
        self.least = least


def keeping(num_kept: int, num_tokens: int, settings: CompressionSettings) -> CompressionSettings:
    """Return the settings with which a video of `num_tokens` scored tokens keeps `num_kept`, or its method's least."""
    rounds = COMPRESSION_METHODS[settings.compression_method].reads("compression_rounding")
    return replace(
        settings,
        retention_ratio=num_kept / num_tokens,
        compression_rounding="exact" if rounds else settings.compression_rounding,
        max_video_tokens=None,
    )


Compress: TypeAlias = Callable[[VideoTokens, CompressionSettings], VideoCompression]
Result = TypeVar("Result")


def own_method(
    name: str, *, settings: Sequence[str] = (), count: Count, compiles: bool = False, scores: str | None = None
) -> Callable[[Compress], Compress]:
    """Make a function of this project selectable as `compression_method=name`. The other arguments are fields of
    `CompressionMethod`.

    The form is that of a user's `register_compression_method`, but the function is trusted: it is called at
    `retention_ratio=1.0` too, for its scores, and what it returns is not checked.
    """

    def register(function: Compress) -> Compress:
        row = CompressionMethod(name=name, settings=tuple(settings), count=count, compiles=compiles, scores=scores)
        COMPRESSION_METHODS[name] = replace(row, function=function, own=True)
        return function

    return register


def within_budget(
    settings: CompressionSettings,
    num_frames: int,
    tokens_per_frame: int,
    compress: Callable[[CompressionSettings], Result],
    kept: Callable[[Result], int],
) -> Result:
    """Compress a video by its ratio, or by budget / (T·M) if its ratio keeps more tokens than the budget.

    If the number of kept tokens follows from the sizes, the method runs only once.

    Args:
        compress: compresses the video at the ratio of its argument.
        kept: returns how many tokens a result of `compress` keeps.

    Raises:
        TooFewTokensError: if the method keeps more tokens than the budget at the lower ratio too.
    """
    budget, num_tokens = settings.max_video_tokens, num_frames * tokens_per_frame
    if budget is None or num_tokens <= budget:
        return compress(settings)
    method = COMPRESSION_METHODS[settings.compression_method]
    counts = method.count is not None and method.keeps_by_sizes(settings.compression_rounding)
    exceeds = counts and counted(method, num_frames, tokens_per_frame, settings.retention_ratio) > budget
    if settings.retention_ratio < 1.0 and not exceeds:
        result = compress(settings)
        if kept(result) <= budget:
            return result
    try:
        result = compress(keeping(budget, num_tokens, settings))
        least = kept(result)
    except TooFewTokensError as error:
        least = error.least
    else:
        if least <= budget:
            return result
    raise TooFewTokensError(
        least,
        f"`max_video_tokens` is {budget}, but `compression_method={method.name!r}` needs {least} of the {num_tokens} "
        f"tokens of this video ({num_frames} frames of {tokens_per_frame}), even at a lower ratio. Pass {least} or "
        "more, fewer frames, or another method.",
    )


def num_kept_tokens(settings: CompressionSettings, num_frames: int, tokens_per_frame: int) -> int:
    """Return K, how many of a video's T·M tokens stay, from its sizes alone.

    Raises:
        ValueError: if K is not known before, if the ratio or the budget is too small for the method, or if a user's
            count returns no number of tokens.
    """
    method = COMPRESSION_METHODS[settings.compression_method]
    by_sizes = method.keeps_by_sizes(settings.compression_rounding)
    if method.count is None or not by_sizes:
        remedy = "Register it with `count=...`" if by_sizes else 'Set the rounding to "exact"'
        raise ValueError(
            f"`compression_method={method.name!r}` with `compression_rounding={settings.compression_rounding!r}` does "
            f"not say how many tokens of a video stay before it is encoded, when the prompt is written. {remedy}, or "
            "write the prompt with the stock processor, and the model shortens it."
        )

    def at_ratio(of: CompressionSettings) -> int:
        is_whole = of.retention_ratio == 1.0
        return num_tokens if is_whole else counted(method, num_frames, tokens_per_frame, of.retention_ratio)

    num_tokens = num_frames * tokens_per_frame
    return within_budget(settings, num_frames, tokens_per_frame, at_ratio, kept=lambda number: number)


def counted(method: CompressionMethod, num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K by the method's own `count`.

    Raises:
        ValueError: if a user's count returns no number of tokens.
    """
    number = cast(Count, method.count)(num_frames, tokens_per_frame, retention_ratio)
    if not isinstance(number, int) or not 1 <= number <= num_frames * tokens_per_frame:
        raise ValueError(
            f"`count` of `compression_method={method.name!r}` is {number!r:.100} for {num_frames} frames of "
            f"{tokens_per_frame} tokens, but must be an int from 1 to {num_frames * tokens_per_frame}."
        )
    return number


# ---------------------------------------------------------------------------------------------------------------------
# Compressing
# ---------------------------------------------------------------------------------------------------------------------


def compress_with(settings: CompressionSettings, video: VideoTokens) -> VideoCompression:
    """Compress one video with settings that are already checked.

    `torch.compile` takes this into its graph if the method allows it, and if the number of kept tokens follows from the
    sizes of the video. Otherwise each number would break the graph, so all of it runs outside.

    Raises:
        ValueError: if the video has no tokens, if the method keeps more tokens than `max_video_tokens`, or if what a
            user's method returns is no compression of the video.
    """
    method = COMPRESSION_METHODS[settings.compression_method]
    if method.compiles and method.keeps_by_sizes(settings.compression_rounding):
        return _compress(settings, video)
    if getattr(video.tokens, "is_meta", False):
        raise ValueError(
            "`video_tokens` is on the device 'meta', which has sizes but no values, and the values decide what stays. "
            'Pass a tensor with values; sizes are enough for "vidcom2" with `compression_rounding="exact"`.'
        )
    if "_dynamo" not in vars(torch):  # nothing is compiled; the compiler itself takes seconds to import
        return _compress(settings, video)
    global _compress_uncompiled
    if _compress_uncompiled is None:
        _compress_uncompiled = torch.compiler.disable(_compress)
    return _compress_uncompiled(settings, video)


_compress_uncompiled: Any = None  # made when it is first needed


@torch.no_grad()
def _compress(settings: CompressionSettings, video: VideoTokens) -> VideoCompression:
    _check_video_tokens(video.tokens)
    num_frames, tokens_per_frame, _ = video.tokens.shape
    with without_autocast(video.tokens.device.type):
        by_ratio = partial(_by_ratio, video)
        compression = within_budget(settings, num_frames, tokens_per_frame, by_ratio, lambda each: len(each.indices))
    compression = replace(compression, tokens_per_frame=tokens_per_frame, grid=video.grid, layout=video.layout)
    return compression.within(video.in_prompt)


def _by_ratio(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Compress at the ratio of the settings, whatever their budget."""
    method: Any = COMPRESSION_METHODS[settings.compression_method].function
    compression = method(video, settings)
    return all_of(video, compression) if settings.retention_ratio == 1.0 else compression


def all_of(video: VideoTokens, scored: VideoCompression | None = None) -> VideoCompression:
    """Return a compression that keeps all tokens of a video, with the scores of another one."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    indices = torch.arange(num_frames * tokens_per_frame, device=video.tokens.device)
    whole = VideoCompression(indices, torch.full_like(indices[:num_frames], tokens_per_frame))
    return whole if scored is None else replace(scored, indices=indices, frame_budgets=whole.frame_budgets, merge=None)


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values from the CPU to a device, without waiting for the device."""
    return values.to(device, non_blocking=True)


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Switch autocast off. In mixed-precision training it would compute the matrix products in half precision."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _check_video_tokens(video_tokens: Tensor) -> None:
    if not isinstance(video_tokens, Tensor) or not video_tokens.is_floating_point() or video_tokens.ndim != 3:
        got = (
            f"{video_tokens.dtype} of shape {tuple(video_tokens.shape)}"
            if isinstance(video_tokens, Tensor)
            else type(video_tokens).__name__
        )
        raise ValueError(
            f"`video_tokens` is {got}, but must be a float tensor (num_frames, tokens_per_frame, dim); "
            "compress the videos of a batch one at a time."
        )
    if 0 in video_tokens.shape:
        raise ValueError(
            f"`video_tokens` has shape {tuple(video_tokens.shape)}: the video is empty. "
            "Pass at least one frame with one token."
        )
