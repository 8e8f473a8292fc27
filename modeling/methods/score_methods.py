"""The short way to a compression method of your own: a function that only scores tokens.

The scores decide how many tokens each frame keeps, and which ones, either as in the paper's Algorithm 1 or by one
ranking over the whole video. Shapes: T frames, M tokens per frame.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from ...configuration.compression_settings import (
    BY_BUDGETS,
    BY_SIZES,
    SETTING_NAMES,
    CompressionMethod,
    CompressionSettings,
)
from .compression import (
    REMAINDER_NOISE,
    VideoCompression,
    VideoTokens,
    check_registration,
    enter,
    most_unique_tokens,
    most_unique_tokens_of_video,
)
from .method_vidcom2 import FRAME_BUDGET_SETTINGS, frame_budgets, frame_uniqueness

Scores: TypeAlias = Callable[..., Tensor]
UsersScores = TypeVar("UsersScores", bound=Scores)


def register_score_method(
    name: str, *, ranking: str = "frame", settings: Sequence[str] = ()
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

    Raises:
        ValueError: as in `register_compression_method`, and if the ranking is unknown or the function does not take the
            settings.
    """
    check_registration("compression method", name, settings, SETTING_NAMES)
    if ranking not in RANKINGS:
        raise ValueError(
            f"`ranking` of method {name!r} is {ranking!r}, but must be one of {', '.join(map(repr, RANKINGS))}."
        )
    rank, read, kept = RANKINGS[ranking]

    def register(function: UsersScores) -> UsersScores:
        try:
            inspect.signature(function).bind(None, **dict.fromkeys(settings))
        except TypeError as error:
            raise ValueError(
                f"method {name!r} cannot be called with a `VideoTokens` and the settings {tuple(settings)} that it is "
                f"registered with: {error}. Give it one argument for the video, and one for each setting, by its name."
            ) from None

        @functools.wraps(function)
        def compress(video: VideoTokens, of_call: CompressionSettings) -> VideoCompression:
            given = function(video, **{each: getattr(of_call, each) for each in settings})
            return rank(checked_scores(name, given, video), of_call)

        of_both = tuple(dict.fromkeys((*read, *settings)))
        enter("compression_method", CompressionMethod(name=name, settings=of_both, kept=kept, function=compress))
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
    num_kept = max(1, math.floor(settings.retention_ratio * scores.numel() + REMAINDER_NOISE))
    return VideoCompression(*most_unique_tokens_of_video(scores, num_kept), token_uniqueness=scores)


# For each ranking: the function that turns scores into a selection, the settings it reads, and what K follows from.
RANKINGS: dict[str, tuple[Callable[[Tensor, CompressionSettings], VideoCompression], tuple[str, ...], str]] = {
    "frame": (ranked_in_frames, (*FRAME_BUDGET_SETTINGS, "compression_frame_score"), BY_BUDGETS),
    "video": (ranked_over_video, (), BY_SIZES),
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
