"""Compressing one video by the method that the settings name, and registering methods. It knows tensors, not models.

`method_vidcom2.py` is the paper's Algorithm 1.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ...configuration.compression_settings import SETTING_NAMES, CompressionSettings
from ...configuration.method_tables import (
    COMPRESSION_METHODS,
    TABLES,
    CompressionMethod,
    Method,
    function_of,
)
from .token_budgets import compress_within_budget
from .video_compression import TokenMerge, VideoCompression, VideoTokens

Compress: TypeAlias = Callable[[VideoTokens, CompressionSettings], VideoCompression]
AnyCompress = TypeVar("AnyCompress", bound=Compress)

WEIGHT_TOLERANCE = 1e-3  # how far the sum of a merged token's weights may be from 1


def compress_with(settings: CompressionSettings, video: VideoTokens) -> VideoCompression:
    """Compress one video with settings that are already checked.

    If the number of kept tokens follows from the sizes of the video, `torch.compile` takes this into its graph.
    Otherwise each number would break the graph, so all of it runs outside.

    Raises:
        ValueError: if the video has no tokens, if the method is not here or keeps more tokens than `max_video_tokens`,
            or if what it returns is no compression of the video.
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
        compression = compress_within_budget(settings, num_frames, tokens_per_frame, partial(_by_ratio, video))
    compression = replace(compression, tokens_per_frame=tokens_per_frame, grid=video.grid)
    return compression.within(video.in_prompt)


def _by_ratio(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Compress at the ratio of the settings, whatever their budget."""
    name = settings.compression_method
    compress, is_own = function_of("compression_method", name), COMPRESSION_METHODS[name].file is not None
    if settings.retention_ratio == 1.0:  # All tokens stay. A method of this project still scores them.
        num_frames, tokens_per_frame, _ = video.tokens.shape
        indices = torch.arange(num_frames * tokens_per_frame, device=video.tokens.device)
        budgets = torch.full_like(indices[:num_frames], tokens_per_frame)
        whole = VideoCompression(indices, budgets)
        return replace(compress(video, settings), indices=indices, frame_budgets=budgets) if is_own else whole
    if is_own:  # Tests check what it returns, so that the device need not be asked here.
        return compress(video, settings)
    version = None if video.tokens.is_inference() else video.tokens._version
    compression = _checked(name, compress(video, settings), video)
    if version is not None and video.tokens._version != version:
        raise ValueError(
            f"`compression_method={name!r}` wrote into the video's tokens, which enter the model. Compute on a copy: "
            "`.float()` makes none of a float32 tensor."
        )
    return compression


def register_compression_method(name: str, *, settings: Sequence[str] = ()) -> Callable[[AnyCompress], AnyCompress]:
    """Make a function selectable as `compression_method=name`, in every model and in `compress`.

    The function receives the `VideoTokens` of one video and the `CompressionSettings` of the call. It runs without
    gradients and outside autocast, and returns a `VideoCompression` with `indices`, `frame_budgets`, and the scores and
    the merge if it has them. The result is checked. At `retention_ratio=1.0` all tokens stay, and the function is not
    called. If it only scores tokens, `register_score_method` is shorter.

    Args:
        settings: names of the settings that it reads, besides `retention_ratio`. Others must be at their default. (For
            a method of this project, its row of the table says so.)

    Raises:
        ValueError: if another function has the name, if a setting is not known, or if what is registered is not a
            function.
    """
    check_registration("compression method", name, settings, SETTING_NAMES)

    def register(function: AnyCompress) -> AnyCompress:
        enter("compression_method", CompressionMethod(name=name, settings=tuple(settings), function=function))
        return function

    return register


def check_registration(kind: str, name: str, settings: Sequence[str], known: Sequence[str]) -> None:
    """Check the name of a method and the settings that it declares.

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


def enter(setting: str, method: Method) -> None:
    """Enter a method into the table of its kind. Of a method of this project, only the function enters.

    Args:
        setting: the one that chooses methods of this kind.

    Raises:
        ValueError: if it is no function, since only a function has a file that a Hub repo can hold; or if another
            function has its name.
    """
    table, defined = TABLES[setting], inspect.unwrap(method.function)
    if not inspect.isfunction(defined):
        raise ValueError(
            f"method {method.name!r} is a {type(defined).__name__}, but must be a function. Wrap it in one."
        )
    taken = table.get(method.name)
    if taken is not None and taken.file is not None:
        if defined.__module__.rpartition(".")[2] != taken.file:
            raise ValueError(f"`{setting}` {method.name!r} is taken by this project; choose another name.")
        method = replace(taken, function=method.function)
    elif taken is not None and _place(taken.function) != _place(defined):
        owner = ".".join(_place(taken.function))
        raise ValueError(f"`{setting}` {method.name!r} is taken by {owner}; choose another name.")
    table[method.name] = method


def _place(function: Any) -> tuple[str, str]:
    """Return where a function is defined. A function that is defined there again, by a reload or in a notebook, is a
    new version of the first."""
    return function.__module__, function.__qualname__


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


def _checked(name: str, compression: VideoCompression, video: VideoTokens) -> VideoCompression:
    """Return what a registered method returned, if it is right.

    Raises:
        ValueError: otherwise, with what is wrong.
    """

    def require(holds: bool, otherwise: str) -> None:
        if not holds:
            raise ValueError(f"`compression_method={name!r}` returned {otherwise}.")

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
