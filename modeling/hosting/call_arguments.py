"""Reads and checks what callers pass to `forward` and `generate`: settings for one call, masks, positions to keep."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeGuard

from torch import Tensor, nn
from transformers.utils.import_utils import is_jit_tracing, is_torchdynamo_exporting

from ...configuration.compression_settings import SETTING_NAMES
from .transformers_names import with_cache_name

# An argument that begins like a setting but is none is misspelt. The parents take any argument, and would ignore it.
PREFIXES_OF_SETTINGS = ("compression_", "retention_", "vision_", "max_video")


def pop_settings(arguments: dict[str, Any], of_parent: Collection[str] = ()) -> dict[str, Any]:
    """Remove the settings of VidCom² from a call's arguments and return those that are not None.

    Args:
        of_parent: names of arguments that the parent takes, whatever they begin with.

    Raises:
        ValueError: if a setting does not exist, or is fixed when the model is loaded.
    """
    for name in ("compression_newlines", "spatial_pool_mode"):
        if arguments.get(name) is not None:
            raise ValueError(
                f"`{name}` is {arguments[name]!r} in one call, but belongs to the model, whose processor relies on "
                f"it. Pass it to `from_pretrained`, or set `model.config.{name}`."
            )
    given = {name: arguments.pop(name) for name in SETTING_NAMES if name in arguments}
    for name in arguments:
        if name.startswith(PREFIXES_OF_SETTINGS) and name not in of_parent and arguments[name] is not None:
            raise ValueError(f"`{name}` is not a setting. The settings are {', '.join(map(repr, SETTING_NAMES))}.")
    return {name: value for name, value in given.items() if value is not None}


def without(arguments: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


def without_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    return without(arguments, SETTING_NAMES)


def without_token_types(inputs: dict[str, Any]) -> dict[str, Any]:
    """Leave out token types, which serve to find positions: a short prompt already has its positions. Families whose
    attention reads types get those of the short prompt anew."""
    return without(inputs, ("token_type_ids", "mm_token_type_ids"))


def types_with_cached(types: Tensor | None, cache: Any, num_new: int) -> Tensor | None:
    """Return the types (B, P + n) of the P cached tokens and the n new ones.

    Attention within an image or a frame looks types up by position. If those of the cached tokens are not at hand, they
    count as text: only a chunk of a prompt continues a frame of which a part is cached, and it has all types.

    Args:
        types: (B, P + n); or of another number of tokens, n or more, of which the last n are taken.

    Raises:
        ValueError: if they are of fewer tokens.
    """
    if types is None:
        return None
    num_cached = 0 if cache is None else int(cache.get_seq_length())
    if types.shape[1] == num_cached + num_new:
        return types
    return nn.functional.pad(types_of_new(types, num_new), (num_cached, 0))


def types_of_new(types: Tensor, num_new: int) -> Tensor:
    """Return the types (B, n) of the n new tokens, from those of these or more tokens. Raise as `types_with_cached`."""
    if types.shape[1] < num_new:
        raise ValueError(
            f"`mm_token_type_ids` is {tuple(types.shape)}, but there are {num_new} new tokens. Pass the types of the "
            "new tokens or of the whole conversation, as the processor returns them, or none: then the tokens of a "
            "frame do not attend to later ones."
        )
    return types[:, -num_new:]


def wants_some_rows(logits_to_keep: int | Tensor) -> bool:
    return not isinstance(logits_to_keep, int) or logits_to_keep != 0


def is_2d(mask: Any) -> TypeGuard[Tensor]:
    """Whether `mask` is a padding mask. For static caches, `generate` prepares 4-D masks, one per kind of attention."""
    return isinstance(mask, Tensor) and mask.ndim == 2


def take_parents_signatures(model_class: type, mixin: type, *names: str) -> None:
    """Give the methods that a class inherits from a mixin, which take `**kwargs`, the signatures of the parent's.

    `generate`, `Trainer` and the pipelines look at the names of `forward`'s arguments to decide what to pass.
    """
    for name in names:
        ours, parents = getattr(mixin, name), _parents_method(model_class, mixin, name)
        if getattr(model_class, name) is ours and parents is not None:
            setattr(model_class, name, _with_signature(ours, parents, model_class.video_arguments))


def arguments_of_parent(model_class: type, mixin: type, *names: str) -> frozenset[str]:
    """Return the names of the arguments that the parent's methods take, in a class that inherits a mixin's methods.

    It is called when a class is made, since `torch.compile` cannot look at signatures.
    """
    methods = [_parents_method(model_class, mixin, name) for name in names]
    return frozenset(name for method in methods if method is not None for name in inspect.signature(method).parameters)


def _parents_method(model_class: type, mixin: type, name: str) -> Callable | None:
    """Return the method behind a mixin's that names its arguments. One that takes `**kwargs` alone passes them on."""
    bases = model_class.__mro__[model_class.__mro__.index(mixin) + 1 :]
    methods = (vars(base)[name] for base in bases if name in vars(base))
    return next((method for method in methods if len(inspect.signature(method).parameters) > 2), None)


def _with_signature(method: Callable, parent_method: Callable, video_arguments: Sequence[str]) -> Callable:
    """Wrap a method that takes `**kwargs`, so that its signature has the parent's arguments, those for videos that the
    parent does not have, and the settings."""

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        if len(args) > len(names):
            raise TypeError(
                f"`{method.__name__}` was given {len(args)} arguments by position, but takes {len(names)}: "
                f"{', '.join(names)}. Pass the others by name."
            )
        return method(self, **dict(zip(names, args)), **with_cache_name(kwargs))

    parameters = list(inspect.signature(parent_method).parameters.values())
    names = [parameter.name for parameter in parameters[1:-1]]  # between `self` and **kwargs
    added = [*(name for name in video_arguments if name not in names), *SETTING_NAMES]
    ours = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in added]
    shown = inspect.Signature([*parameters[:-1], *ours, parameters[-1]])  # the last is **kwargs
    wrapper.__dict__["__signature__"] = shown
    return wrapper


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


def whole_videos(placeholders: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether consecutive videos of these sizes exactly fill the prompts' placeholders, prompt by prompt."""
    remaining = list(sizes)
    for count in placeholders:
        while count > 0 and remaining:
            count -= remaining.pop(0)
        if count != 0:
            return False
    return not remaining


def check_no_gaps(mask: Tensor, num_cached: int) -> None:
    """Check that no token is hidden between a prompt's first token and its new ones, for linear attention.

    Linear attention reads all tokens, in order, into states. It leaves out the padding before a prompt, but from the
    first token on the states fade at every token, hidden or not. Transformers would not object.

    Args:
        mask: (B, P + n) over the P tokens in the KV cache and the n new ones.
        num_cached: P.

    Raises:
        ValueError: if a token is hidden there.
    """
    attended = mask.bool()
    hidden = ~attended & (attended.cumsum(dim=1) > 0)
    behind = attended & (hidden.cumsum(dim=1) > 0)
    rows = behind[:, num_cached:].any(dim=1).nonzero().flatten().tolist()
    if rows:
        raise ValueError(
            f"In prompts {rows} of the batch, padding or tokens that `attention_mask` hides stand between the tokens "
            "in the KV cache and the new ones. This model's linear attention cannot leave them out. All prompts "
            "must continue with equally many tokens, after compression too, and none may be hidden: continue one "
            "prompt at a time, or start over without the cache."
        )


# Of arguments that are whole numbers: how many axes they have, and how many entries on the last; None for any number.
NUMBERS = {
    "input_ids": (2, None),
    "video_grid_thw": (2, 3),
    "image_grid_thw": (2, 3),
    "video_merge_sizes": (1, None),
    "image_merge_sizes": (1, None),
    "target_sizes_videos": (2, 2),
    "target_sizes": (2, 2),
    "num_frames_per_video": (1, None),
    "num_patches_per_frame": (1, None),
    "video_position_ids": (3, 2),
}
TENSORS = (
    "pixel_values_videos",
    "pixel_values",
    "pixel_attention_mask",
    "attention_mask",
    "video_compression_mask",
    "video_second_per_grid",
    *NUMBERS,
)


def check_tensors(inputs: dict[str, Any]) -> None:
    """Check the form of the inputs of a prompt with videos: that they are tensors, and of whole numbers where these
    describe videos.

    The stock classes fail on anything else without naming the argument. A mask may also be of a type that Transformers
    prepares itself.

    Raises:
        ValueError: if an input has another form.
    """
    for name in TENSORS:
        value = inputs.get(name)
        is_array = isinstance(value, list | tuple) or hasattr(value, "__array__")
        if value is None or (name == "attention_mask" and not is_array):
            continue
        if not isinstance(value, Tensor):
            raise ValueError(
                f"`{name}` is a {type(value).__name__}, but must be a tensor. Pass what the processor returns with "
                '`return_tensors="pt"`, or convert it with `torch.as_tensor`.'
            )
        axes, last = NUMBERS.get(name, (max(value.ndim, 1), None))
        is_fraction = name in NUMBERS and value.is_floating_point()
        if value.ndim != axes or is_fraction or last not in (None, value.shape[-1]):
            entries = "" if last is None else f", the last of {last} entries"
            raise ValueError(
                f"`{name}` is {value.dtype} of shape {tuple(value.shape)}, but must have {axes} axes{entries}"
                f"{', and whole numbers' * (name in NUMBERS)}. Pass it as the processor returned it."
            )


def check_patches(patches: Tensor, vision_config: Any) -> None:
    """Check that patches (..., values) have as many values as the vision tower reads.

    Raises:
        ValueError: if they have others.
    """
    side = getattr(vision_config, "model_patch_size", vision_config.patch_size)
    frames = getattr(vision_config, "temporal_patch_size", 1)
    channels = getattr(vision_config, "in_channels", getattr(vision_config, "num_channels", 3))
    if patches.shape[-1] != frames * channels * side**2:
        raise ValueError(
            f"The last axis of `pixel_values_videos` has {patches.shape[-1]} entries, but must have a patch's "
            f"{frames * channels * side**2} values ({frames} × {channels} × {side} × {side}). Build it with the "
            "checkpoint's processor."
        )


def check_frame_size(frames: Tensor, vision_config: Any) -> None:
    """Check that frames (..., height, width) have as many patches as those for which the vision tower was made.

    Raises:
        ValueError: if they have others.
    """
    size, patch = (
        (side, side) if isinstance(side, int) else tuple(side)
        for side in (vision_config.image_size, vision_config.patch_size)
    )
    if any(found // each != made // each for found, made, each in zip(frames.shape[-2:], size, patch, strict=True)):
        raise ValueError(
            f"The frames in `pixel_values_videos` have {frames.shape[-2]} × {frames.shape[-1]} pixels, but the vision "
            f"tower was made for {size[0]} × {size[1]}. Build them with the checkpoint's processor."
        )


def check_not_exported() -> None:
    """Check that PyTorch is not exporting the model, which makes one graph for all inputs.

    Raises:
        ValueError: during `torch.export` and `torch.jit.trace`.
    """
    exporter = "torch.export" if is_torchdynamo_exporting() else "torch.jit.trace" if is_jit_tracing() else None
    if exporter is not None:
        raise ValueError(
            f"`{exporter}` makes one fixed graph for all videos, but a model that compresses keeps tokens according to "
            "what a video shows. Export with `retention_ratio=1.0`, or use `torch.compile`."
        )
