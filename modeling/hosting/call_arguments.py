"""What callers pass: settings for one call, masks, positions to keep, and what a compressed prompt cannot be given."""

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeGuard

from torch import Tensor
from transformers.utils.import_utils import is_jit_tracing, is_torchdynamo_exporting

from ...configuration.compression_settings import SETTING_NAMES

# A misspelt setting begins as the others do. The parents, which take any argument, would pass over it.
PREFIXES_OF_SETTINGS = ("compression_", "retention_", "vision_", "max_video")


def pop_settings(arguments: dict[str, Any], of_parent: Collection[str] = ()) -> dict[str, Any]:
    """Take the settings of VidCom² out of a call's arguments; None stands for the config's value.

    Args:
        of_parent: names of arguments that the parent takes, whatever they begin with.

    Raises:
        ValueError: on a setting that does not exist, or is fixed when the model is loaded.
    """
    for name in ("compression_newlines", "spatial_pool_mode"):
        if arguments.get(name) is not None:
            raise ValueError(
                f"`{name}` is {arguments[name]!r} in one call, but belongs to the model: its processor counts on it. "
                f"Pass it to `from_pretrained`, or set `model.config.{name}`."
            )
    given = {name: arguments.pop(name) for name in SETTING_NAMES if name in arguments}
    for name in arguments:
        if name.startswith(PREFIXES_OF_SETTINGS) and name not in of_parent and arguments[name] is not None:
            raise ValueError(f"`{name}` is no setting. The settings are {', '.join(map(repr, SETTING_NAMES))}.")
    return {name: value for name, value in given.items() if value is not None}


def without_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in SETTING_NAMES}


def without_token_types(inputs: dict[str, Any]) -> dict[str, Any]:
    """Token types serve to find positions, and those of a short prompt are known."""
    return {name: value for name, value in inputs.items() if name not in ("token_type_ids", "mm_token_type_ids")}


def wants_some_rows(logits_to_keep: int | Tensor) -> bool:
    return not isinstance(logits_to_keep, int) or logits_to_keep != 0


def is_2d(mask: Any) -> TypeGuard[Tensor]:
    """Whether it is a padding mask. `generate` prepares 4-D masks for static caches, one per kind of attention."""
    return isinstance(mask, Tensor) and mask.ndim == 2


def take_parents_signatures(model_class: type, mixin: type, *names: str) -> None:
    """Show the signatures of the parent's methods where a class inherits a mixin's ones, which take `**kwargs`.

    `generate`, `Trainer` and the pipelines look at the names of `forward`'s arguments to decide what to pass it.
    """
    for name in names:
        ours, parents = getattr(mixin, name), getattr(super(mixin, model_class), name, None)
        if getattr(model_class, name) is ours and parents is not None:
            setattr(model_class, name, _with_signature(ours, parents))


def arguments_of_parent(model_class: type, mixin: type, *names: str) -> frozenset[str]:
    """What the parent's methods of these names take, in a class that inherits a mixin's. When a class is made, since
    `torch.compile` cannot look at signatures."""
    methods = [getattr(super(mixin, model_class), name, None) for name in names]
    return frozenset(name for method in methods if method is not None for name in inspect.signature(method).parameters)


def _with_signature(method: Callable, parent_method: Callable) -> Callable:
    """A method that takes `**kwargs`, with the parent's arguments, and the settings, as its signature."""

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        return method(self, **dict(zip(names, args)), **kwargs)

    parameters = list(inspect.signature(parent_method).parameters.values())
    names = [parameter.name for parameter in parameters[1:]]
    ours = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in SETTING_NAMES]
    shown = inspect.Signature([*parameters[:-1], *ours, parameters[-1]])  # the last is **kwargs
    wrapper.__dict__["__signature__"] = shown
    return wrapper


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


def whole_videos(placeholders: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether consecutive videos of these sizes fill the prompts' placeholders, prompt by prompt."""
    remaining = list(sizes)
    for count in placeholders:
        while count > 0 and remaining:
            count -= remaining.pop(0)
        if count != 0:
            return False
    return not remaining


def check_no_gaps(mask: Tensor, num_cached: int) -> None:
    """For linear attention, which reads all tokens in their order into states: it leaves out the padding before a
    prompt, but after its first token the states fade at each one, hidden or not. Transformers computes on.

    Args:
        mask: (B, P + n) over the tokens in the KV cache and the new ones.
        num_cached: P.

    Raises:
        ValueError: if tokens are hidden between a prompt's first token and a new one of its.
    """
    attended = mask.bool()
    hidden = ~attended & (attended.cumsum(dim=1) > 0)
    behind = attended & (hidden.cumsum(dim=1) > 0)
    rows = behind[:, num_cached:].any(dim=1).nonzero().flatten().tolist()
    if rows:
        raise ValueError(
            f"In prompts {rows} of the batch there is padding, or are tokens that `attention_mask` hides, between the "
            "tokens in `past_key_values` and new ones. This model's linear attention cannot leave them out. Let all "
            "prompts go on with equally many tokens, after compression too, and hide none of them: go on with one "
            "prompt at a time, or start anew without the cache."
        )


def check_tensors(inputs: dict[str, Any]) -> None:
    """Raises a ValueError on a prompt with videos that is not in tensors: the stock classes fail on it without a name.
    A mask may be of another type too: Transformers prepares some of its own."""
    if inputs.get("pixel_values_videos") is None:
        return
    for name in ("pixel_values_videos", "video_grid_thw", "input_ids", "attention_mask"):
        value = inputs.get(name)
        is_array = isinstance(value, list | tuple) or hasattr(value, "__array__")
        if value is None or isinstance(value, Tensor) or (name == "attention_mask" and not is_array):
            continue
        raise ValueError(
            f"`{name}` is a {type(value).__name__}, but must be a tensor. Pass what the processor returns with "
            '`return_tensors="pt"`, or make it one: `torch.as_tensor`.'
        )


def check_not_exported() -> None:
    """Raises a ValueError where PyTorch makes one graph for all inputs of what is called."""
    exporter = "torch.export" if is_torchdynamo_exporting() else "torch.jit.trace" if is_jit_tracing() else None
    if exporter is not None:
        raise ValueError(
            f"`{exporter}` of a model that compresses makes a graph without choices, but how many tokens of a video "
            "stay, and which, follows from what it shows. Export with `retention_ratio=1.0`, or use `torch.compile`."
        )
