"""Where this project's classes meet Transformers: its names, its tables of classes, the arguments of its calls, and
what it infers from positions and masks. Transformers itself is not patched."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM, modeling_outputs
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    get_model_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_jit_tracing, is_torchdynamo_exporting

from ...configuration.compression_settings import NUM_KEPT, SETTING_NAMES, SHORT_NAMES, name_meant
from ...configuration.family_config import register_as_video_model

# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------


FORMER_NAME = "past_key_values"
_NAMES = [field.name for field in dataclasses.fields(modeling_outputs.BaseModelOutputWithPast)]
CACHE = "cache" if "cache" in _NAMES else FORMER_NAME


def cached_length(cache: Any) -> int:
    """Return how many tokens a KV cache holds; 0 for None."""
    return 0 if cache is None else int(cache.get_seq_length())


def with_cache_name(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments with the KV cache under today's name.

    Raises:
        ValueError: if it is given under both names.
    """
    if CACHE == FORMER_NAME or FORMER_NAME not in arguments:
        return arguments
    arguments = dict(arguments)
    former = arguments.pop(FORMER_NAME)
    if former is not None and arguments.get(CACHE) is not None:
        raise ValueError(
            f"`{FORMER_NAME}` and `{CACHE}` are two names of the KV cache, and both are given. Pass `{CACHE}` alone. "
            f"If a library passes `{FORMER_NAME}`, as PEFT 0.21 does for prefix tuning, upgrade it, or take a "
            "Transformers before 5.24."
        )
    return arguments if former is None else arguments | {CACHE: former}


if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from ...configuration.family_config import FamilyConfig

    Model = TypeVar("Model", bound="ParentModel")

    class ParentModel(PreTrainedModel):
        """Tells type checkers what the mixins use of the video LLMs of Transformers, with and without a head."""

        config: FamilyConfig
        config_class: type[FamilyConfig]
        visual: Any
        vision_tower: Any
        image_newline: Tensor
        get_rope_index: Any
        get_placeholder_mask: Any
        apply_pooling: Any
        multi_modal_projector: Any
        arguments_of_tiles: Any
        features_of_tiles: Any
        _encode: Any

        def forward(self, **inputs: Any) -> Any: ...
        def get_image_features(self, **inputs: Any) -> Any: ...
        def get_video_features(self, **inputs: Any) -> Any: ...
        def generate(self, *args: Any, **arguments: Any) -> Any: ...
        def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...
        def _expand_inputs_for_generation(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]: ...
        def _prefill(self, *args: Any, **kwargs: Any) -> Any: ...
        def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any: ...

        # By Transformers' own annotations, `model.to("cuda")` is an error: they are those of `Module.to`, with `self`.
        def to(self: Model, *args: Any, **kwargs: Any) -> Model: ...
        def cuda(self: Model, *args: Any, **kwargs: Any) -> Model: ...

    class ParentCache(Cache):
        """A KV cache of any kind."""

        def get_conv_state(self, *args: Any, **kwargs: Any) -> Any: ...  # not in Transformers 5.19

else:
    ParentModel = ParentCache = object


# ---------------------------------------------------------------------------------------------------------------------
# Tables of classes
# ---------------------------------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    # config.json names this class. No module needs it, but Transformers saves only files that a model's modules import.
    from .pipeline_video_text_to_text import VideoTextToTextPipeline  # noqa: F401


def register_like(model_class: Any) -> None:
    """Register a model class, or a user's subclass of one, wherever its stock class is registered by name.

    Checkpoints on the Hub have older key names. Transformers renames these, but for classes outside the library only on
    request. Without this, `lm_head` would stay random, and only a warning would say so.

    Renames that Transformers has by `model_type` are registered for the class with the head alone. They reach the inner
    model's weights, too: registered for its class as well, they would be applied twice. They are not registered by
    `model_type`, since they would then be applied to other projects' classes of this type.
    """
    stock = _stock_class(model_class)
    if stock is None:
        return
    mapping = get_checkpoint_conversion_mapping(stock.__name__)  # The class name is first, as in Transformers.
    if mapping is None and model_class.can_generate():
        mapping = get_checkpoint_conversion_mapping(model_class.config_class.model_type)
    if mapping is not None:
        register_checkpoint_conversion_mapping(model_class.__name__, mapping, overwrite=True)
    if model_class.can_generate():
        register_as_video_model(f"vidcom2_{model_class.__name__}", model_class.__name__)
        for auto_class in (AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM):
            if model_class.config_class not in auto_class._model_mapping:  # Ours stays before a user's subclass.
                auto_class.register(model_class.config_class, model_class)


def _stock_class(model_class: Any) -> Any:
    """Return the class of Transformers that a model class extends; None if the model has a type of its own, and so
    checkpoints with today's key names."""
    stock = _first_of_transformers(model_class)
    config_class = None if stock is None else model_class.config_class
    is_like_it = config_class is not None and config_class.model_type == _first_of_transformers(config_class).model_type
    return stock if is_like_it else None


def _first_of_transformers(cls: Any) -> Any:
    return next((base for base in cls.__mro__ if base.__module__.startswith("transformers.models.")), None)


@contextmanager
def renamed_by_type(inner_class: Any) -> Iterator[None]:
    """Let an inner model that is loaded by itself take the renames of its `model_type`, as its stock class does."""
    stock, name = _stock_class(inner_class), inner_class.__name__
    mapping = None if stock is None else get_checkpoint_conversion_mapping(inner_class.config_class.model_type)
    if mapping is None or get_checkpoint_conversion_mapping(name):
        yield
        return
    register_checkpoint_conversion_mapping(name, mapping, overwrite=True)
    try:
        yield
    finally:
        register_checkpoint_conversion_mapping(name, [], overwrite=True)  # They cannot be taken back.


def to_own_names(model: Any, state_dict: dict[str, Any], prefix: str) -> None:
    """Rename the weights of a checkpoint, which stand under a prefix, to those of the model, in place. Experts that the
    checkpoint holds one by one stay as they are."""
    transforms = get_model_conversion_mapping(model, add_legacy=False)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    own = {name for name, _ in (*model.named_parameters(remove_duplicate=False), *model.named_buffers())}
    for key in [*state_dict]:
        name = key.removeprefix(prefix)
        renamed, _ = rename_source_key(name, renamings, [])
        if name not in own and renamed in own:
            state_dict[prefix + renamed] = state_dict.pop(key)


# ---------------------------------------------------------------------------------------------------------------------
# What callers pass to `forward` and `generate`
# ---------------------------------------------------------------------------------------------------------------------


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
        is_meant = name.startswith(PREFIXES_OF_SETTINGS) or name in SHORT_NAMES
        if is_meant and name not in of_parent and arguments[name] is not None:
            names = ", ".join(map(repr, SETTING_NAMES))
            raise ValueError(f"`{name}` is not a setting.{name_meant(name)} The settings are {names}.")
    return {name: value for name, value in given.items() if value is not None}


def without(arguments: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


def without_token_types(inputs: dict[str, Any]) -> dict[str, Any]:
    """Leave out token types, which serve to find positions: a short prompt already has its positions. Families whose
    attention reads types get those of the short prompt anew."""
    return without(inputs, ("token_type_ids", "mm_token_type_ids"))


def is_2d(mask: Any) -> TypeGuard[Tensor]:
    """Return whether `mask` is a padding mask. For static caches `generate` prepares 4-D ones, by kind of attention."""
    return isinstance(mask, Tensor) and mask.ndim == 2


def take_parents_signatures(model_class: type, mixin: type, *names: str, behind: type | None = None) -> None:
    """Give the methods that a class inherits from a mixin, which take `**kwargs`, the signatures of the parent's.

    `generate`, `Trainer` and the pipelines look at the names of `forward`'s arguments to decide what to pass. The
    parent comes after the mixin, or after another that has these methods too, `behind`.
    """
    for name in names:
        ours, parents = getattr(mixin, name), _parents_method(model_class, behind or mixin, name)
        if getattr(model_class, name) is ours and parents is not None:
            inner: Any = getattr(model_class, "inner_class", model_class)
            setattr(model_class, name, _with_signature(ours, parents, inner.video_arguments))


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
    added = [*(name for name in video_arguments if name not in names), NUM_KEPT, *SETTING_NAMES]
    ours = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in added]
    shown = inspect.Signature([*parameters[:-1], *ours, parameters[-1]])  # the last is **kwargs
    wrapper.__dict__["__signature__"] = shown
    return wrapper


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


def whole_videos(placeholders: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether consecutive videos of these sizes exactly fill the prompts' placeholders, prompt by prompt."""
    remaining = list(sizes)
    for count in placeholders:
        while count > 0 and remaining:
            count -= remaining.pop(0)
        if count != 0:
            return False
    return not remaining


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
    "num_chunks_per_video": (1, None),
    "video_position_ids": (3, 2),
    "video_token_pooling": (2, None),
    "image_token_pooling": (2, None),
    "video_grids": (2, 3),
    "image_grids": (2, 4),
}
TENSORS = (
    NUM_KEPT,
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


def engine_of(config: Any) -> str | None:
    """Return the engine that runs a model in place of `generate`, as its attention is called; None if there is none."""
    attention = config.get_text_config()._attn_implementation
    return attention if attention in ("vllm", "sglang") else None


# ---------------------------------------------------------------------------------------------------------------------
# Where the prompt of each row begins and ends
# ---------------------------------------------------------------------------------------------------------------------


SEQUENCE_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # Transformers' names for them


def with_prompt_extent(inputs: dict[str, Any], text_config: Any) -> dict[str, Any]:
    """Return the arguments of a parent's `forward` with what makes each row one prompt, from its first token on.

    - Without a KV cache and a mask, masks are made from the positions, and no token attends to what stands before a
      gap. A mask of ones takes precedence.
    - For a single row that is not masked, FlashAttention gets the lengths of packed prompts. After a gap,
      Transformers would tell it that there are as many keys as queries, and the cached keys would be ignored. The
      real lengths take precedence, or, with linear attention, the order of the tokens in front of their positions.
    - Without a mask, FlashAttention would also read the empty places of a static cache. `generate` of Transformers 5.23
      keeps the mask for that, but that of 5.19 does not. A mask of ones is added, over what the cache holds.

    Args:
        inputs: arguments, with the positions of the n new tokens: (B, n) or, with M-RoPE, (4, B, n) with the order of
            the tokens in front, which has no gaps.
        text_config: the language model's config.

    Raises:
        ValueError: if FlashAttention is to continue a KV cache whose layers hold different numbers of tokens.
    """
    cache, position_ids = inputs.get(CACHE), inputs.get("position_ids")
    if position_ids is None:
        return inputs
    num_rows, num_new = position_ids.shape[-2:]
    uses_flash = is_flash_attention_requested(text_config)
    is_unmasked = is_missing(inputs.get("attention_mask"))
    has_empty_places = uses_flash and cache is not None and cache.is_compileable
    may_look_packed = (is_unmasked and cache is None) or (uses_flash and num_rows == 1)
    has_gaps = may_look_packed and _has_gaps(position_ids)
    if is_unmasked and (has_empty_places or (has_gaps and cache is None)):
        num_cached = cached_length(cache)
        mask = torch.ones(num_rows, num_cached + num_new, dtype=torch.long, device=position_ids.device)
        inputs = inputs | {"attention_mask": mask}
    if has_gaps and uses_flash and num_rows == 1:
        if "linear_attention" in (getattr(text_config, "layer_types", None) or ()):
            order, is_read = _with_order(position_ids, cache), getattr(text_config, "rope_parameters", None) is not None
            return inputs | {"position_ids": order if is_read else order[0]}  # Nemotron-H's layers read none.
        inputs = inputs | _lengths_of_one_sequence(position_ids, cache)
    return inputs


def is_missing(mask: Any) -> bool:
    """Return whether there is no mask. For static caches, `generate` prepares one for each kind of attention."""
    return all(each is None for each in (mask.values() if isinstance(mask, dict) else [mask]))


def _has_gaps(position_ids: Tensor) -> bool:
    if position_ids.ndim != 2 or position_ids.shape[1] == 1:
        return False
    steps = position_ids.diff(dim=1)
    return bool((steps > 1).any() & (steps >= 0).all())  # Positions that start again are the caller's packed prompts.


def _with_order(position_ids: Tensor, cache: Any) -> Tensor:
    """Return (4, 1, n) positions with the order of the tokens in front, as with M-RoPE. Linear attention takes no
    lengths, but the language models that have it, Qwen3.5's, take such positions."""
    num_cached = cached_length(cache)
    order = num_cached + torch.arange(position_ids.shape[1], device=position_ids.device)
    return torch.stack([order[None], *[position_ids] * 3])


def _lengths_of_one_sequence(position_ids: Tensor, cache: Any) -> dict[str, Any]:
    """Return what FlashAttention takes in place of positions (1, n): n queries, and as many keys as a layer reads."""
    num_queries = num_keys = position_ids.shape[1]
    if cached_length(cache) > 0:
        # Layers that read the keys of others hold none.
        holding = [number for number, layer in enumerate(cache.layers) if getattr(layer, "keys", None) is not None]
        of_layers = sorted({int(cache.get_mask_sizes(num_queries, number)[0]) for number in holding})
        if len(of_layers) > 1:
            raise ValueError(
                '`compression_positions="original"` leaves gaps between the positions of a video that follows on '
                "the KV cache. FlashAttention must then be told how many tokens a layer reads, but the layers "
                f"read {of_layers} tokens, since some have a sliding window. Load the model with "
                '`attn_implementation="sdpa"`, use `compression_positions="consecutive"`, or start over without the '
                "cache."
            )
        num_keys = of_layers[0]
    starts = [torch.tensor([0, n], dtype=torch.int32, device=position_ids.device) for n in (num_queries, num_keys)]
    return dict(zip(SEQUENCE_LENGTHS, (*starts, num_queries, num_keys), strict=True))
