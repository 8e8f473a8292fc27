"""The operator `compress`, which compresses one video by any method, and the registration of methods.

It knows tensors, not models. `method_vidcom2.py` is the paper's Algorithm 1.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ...configuration.compression_methods import COMPRESSION_METHODS, NEEDS, CompressionMethod
from ...configuration.compression_settings import SETTING_NAMES, CompressionSettings
from ...configuration.vision_methods import VISION_METHODS, VisionMethod

# The rows of the table name these functions.
from .method_coverage import coverage
from .method_dycoke import dycoke
from .method_evs import evs
from .method_fastvid import fastvid
from .method_flashvid import flashvid
from .method_holitom import holitom
from .method_random import random_tokens
from .method_uniform_frames import uniform_frames
from .method_vcast import vcast
from .method_vidcom2 import vidcom2
from .method_visionzip import visionzip
from .token_budgets import compress_within_budget
from .video_compression import TokenMerge, VideoCompression, VideoTokens

Method: TypeAlias = Callable[[VideoTokens, CompressionSettings], VideoCompression]
UsersMethod = TypeVar("UsersMethod", bound=Method)


def function_of(row: CompressionMethod) -> Method:
    """Return a method's function. The rows of this project's own methods name functions that are imported above."""
    return _OWN[row.name] if isinstance(row.function, str) else row.function


_FUNCTIONS = {
    function.__name__: function
    for function in (
        coverage,
        dycoke,
        evs,
        fastvid,
        flashvid,
        holitom,
        random_tokens,
        uniform_frames,
        vcast,
        vidcom2,
        visionzip,
    )
}
_OWN: dict[str, Method] = {
    row.name: _FUNCTIONS[row.function.rpartition(".")[2]]
    for row in COMPRESSION_METHODS.values()
    if isinstance(row.function, str)
}
WEIGHT_TOLERANCE = 1e-3  # how far the sum of a merged token's weights may be from 1


def compress(
    video_tokens: Tensor | VideoTokens,
    retention_ratio: float = 0.25,
    *,
    compression_method: str = "vidcom2",
    compression_scoring: str = "paper",
    compression_rounding: str = "ceil",
    compression_temperature: float = 0.01,
    compression_frame_score: str = "mean",
    compression_window: int | None = None,
    compression_positions: str = "consecutive",
    compression_frame_weight: float = 1.0,
    compression_video_weight: float = 1.0,
    max_video_tokens: int | None = None,
    vision_method: str = "full",
    vision_chunk_frames: int | None = 32,
    vision_tolerance: float = 0.0,
) -> VideoCompression:
    """Compress one video: select the tokens that stay, or merge tokens.

    Args:
        video_tokens: (num_frames, tokens_per_frame, dim) of any float dtype, on any device; or `VideoTokens`, because
            some methods need more than the tokens.
        retention_ratio: fraction of the tokens to keep, in (0, 1].
        compression_method, compression_scoring, ...: see `CompressionSettings`. `compression_positions` and the
            settings of the vision tower, `vision_...`, are for models, and select nothing.

    Returns:
        A `VideoCompression` on the device of `video_tokens`. The kept features are
        `compression.kept(video_tokens.flatten(0, 1))`. No gradient flows through the selection.

    Raises:
        ValueError: if a setting is outside its accepted set, if the method does not read a setting, if `video_tokens`
            is not a non-empty 3-D float tensor, if it lacks what the method needs, or if the method cannot keep as few
            tokens as `max_video_tokens` says.
    """
    settings = CompressionSettings(
        retention_ratio=retention_ratio,
        compression_method=compression_method,
        compression_scoring=compression_scoring,
        compression_rounding=compression_rounding,
        compression_temperature=compression_temperature,
        compression_frame_score=compression_frame_score,
        compression_window=compression_window,
        compression_positions=compression_positions,
        compression_frame_weight=compression_frame_weight,
        compression_video_weight=compression_video_weight,
        max_video_tokens=max_video_tokens,
        vision_method=vision_method,
        vision_chunk_frames=vision_chunk_frames,
        vision_tolerance=vision_tolerance,
    )
    return compress_with(settings, video_tokens if isinstance(video_tokens, VideoTokens) else VideoTokens(video_tokens))


def compress_with(settings: CompressionSettings, video: VideoTokens) -> VideoCompression:
    """Compress one video with settings that are already checked.

    If the number of kept tokens follows from the sizes of the video, `torch.compile` takes this into its graph.
    Otherwise each number would break the graph, so all of it runs outside.
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


@torch.no_grad()
def _compress(settings: CompressionSettings, video: VideoTokens) -> VideoCompression:
    _check_video_tokens(video.tokens)
    method = COMPRESSION_METHODS[settings.compression_method]
    _check_needs(method, video)
    num_frames, tokens_per_frame, _ = video.tokens.shape
    with without_autocast(video.tokens.device.type):
        compression = compress_within_budget(settings, num_frames, tokens_per_frame, partial(_by_ratio, method, video))
    compression = replace(compression, tokens_per_frame=tokens_per_frame, grid=video.grid)
    return compression.within(video.in_prompt)


def _by_ratio(method: CompressionMethod, video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Compress at the ratio of the settings, whatever their budget."""
    if settings.retention_ratio == 1.0:
        return _whole(method, video, settings)
    return _OWN[method.name](video, settings) if method.is_own else _users(method, video, settings)


_compress_uncompiled: Any = None  # made when it is first needed


def _whole(method: CompressionMethod, video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep all tokens. A method of this project still scores them."""
    num_frames, tokens_per_frame, _ = video.tokens.shape
    indices = torch.arange(num_frames * tokens_per_frame, device=video.tokens.device)
    whole = VideoCompression(indices, torch.full_like(indices[:num_frames], tokens_per_frame))
    if not method.is_own:
        return whole
    scored = _OWN[method.name](video, settings)
    return replace(scored, indices=whole.indices, frame_budgets=whole.frame_budgets, merge=None)


def _users(method: CompressionMethod, video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Run a registered method, and check what it returns."""
    assert callable(method.function)
    version = None if video.tokens.is_inference() else video.tokens._version
    compression = _checked(method.name, method.function(video, settings), video)
    if version is not None and video.tokens._version != version:
        raise ValueError(
            f"`compression_method={method.name!r}` wrote into the video's tokens, which enter the model. Compute on a "
            "copy: `.float()` makes none of a float32 tensor."
        )
    return compression


def register_compression_method(
    name: str, *, settings: Sequence[str] = (), needs: Sequence[str] = ()
) -> Callable[[UsersMethod], UsersMethod]:
    """Make a function selectable as `compression_method=name`, in every model and in `compress`.

    The function receives the `VideoTokens` of one video and the `CompressionSettings` of the call. It runs without
    gradients and outside autocast, and returns a `VideoCompression` with `indices`, `frame_budgets`, and the scores and
    the merge if it has them. The result is checked. At `retention_ratio=1.0` all tokens stay, and the function is not
    called. If it only scores tokens, `register_score_method` is shorter.

    Args:
        settings: names of the settings that it reads, besides `retention_ratio`. Others must be at their default.
        needs: the fields of `VideoTokens` that it looks at, of `"grid"`, `"tower_states"` and `"tower_attention"`.

    Raises:
        ValueError: if another function has the name, if a setting or a need is not known, or if what is registered is
            not a function.
    """
    check_registration("compression method", name, settings=(settings, SETTING_NAMES), needs=(needs, NEEDS))

    def register(function: UsersMethod) -> UsersMethod:
        require_function(name, function)
        add_method(CompressionMethod(name, function, tuple(settings), tuple(needs)))
        return function

    return register


def check_registration(kind: str, name: str, **declared: tuple[Sequence[str], Sequence[str]]) -> None:
    """Check the name of a method and what it declares.

    Args:
        kind: what the method is, for the message.
        declared: what it declares, and the names that are known.

    Raises:
        ValueError: if a method cannot have them.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a {kind} is {name!r}, but must be a string that is not empty.")
    for what, (given, known) in declared.items():
        if isinstance(given, str) or not set(given) <= set(known):
            raise ValueError(f"`{what}` of method {name!r} is {given!r}, but must be some of {', '.join(known)}.")


def require_function(name: str, registered: Any) -> None:
    """Check that a function is registered, since a function has a file that a Hub repo can hold.

    Raises:
        ValueError: if it is anything else.
    """
    if not inspect.isfunction(registered):
        raise ValueError(f"method {name!r} is a {type(registered).__name__}, but must be a function. Wrap it in one.")


def add_method(method: CompressionMethod | VisionMethod) -> None:
    """Put a user's method into the table of its kind.

    Raises:
        ValueError: if another function has its name.
    """
    table: dict[str, Any] = COMPRESSION_METHODS if isinstance(method, CompressionMethod) else VISION_METHODS
    setting = "compression_method" if isinstance(method, CompressionMethod) else "vision_method"
    name, function = method.name, method.function
    assert callable(function)
    taken = table.get(name)
    if taken is not None and (not callable(taken.function) or _place(taken.function) != _place(function)):
        owner = ".".join(_place(taken.function)) if callable(taken.function) else "this project"
        raise ValueError(f"`{setting}` {name!r} is taken by {owner}; choose another name.")
    table[name] = method


def _place(function: Callable[..., Any]) -> tuple[str, str]:
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


def _check_needs(method: CompressionMethod, video: VideoTokens) -> None:
    missing = [name for name in method.needs if getattr(video, name) is None]
    if missing:
        raise ValueError(
            f"`compression_method={method.name!r}` looks at {' and '.join(f'`{name}`' for name in missing)} of the "
            "video, which a tensor of tokens does not tell. Pass `VideoTokens` with these fields; models do."
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
