"""Checking the arguments that `ask` and `answer_many` share: the model, the settings and those of `generate`."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, ProcessorMixin

from ..checks import FAMILY_SETTINGS, check_settings, settings_hint
from ..configuration.compression_settings import SETTING_NAMES, left_out
from ..errors import OptionError, brief
from ..families.table import FAMILIES
from ..loading.checkpoints import Checkpoint, load_resolved
from ..loading.finding_checkpoints import Resolved, resolve
from ..loading.placement import Placement
from ..loading.processors import check_processor
from ..modeling.hosting.in_transformers import pop_settings
from ..toys import TOYS

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

DEMO_WARNING = (
    "No `model` was named, so the bundled toy model answers: it knows the videos of its benchmark, and nothing else. "
    "Name a checkpoint, such as model='llava-hf/llava-onevision-qwen2-0.5b-ov-hf'."
)
# Arguments of `generate` that `ask` sets itself, or whose effect it could not return.
OWN_ARGUMENTS = ("inputs", "input_ids", "num_return_sequences", "return_dict_in_generate")
# Further arguments of both functions, which a misspelt one may have meant.
OF_CALLS = ("num_frames", "processor", "chat_template_kwargs", "scale_while_reading", *Placement.__dataclass_fields__)


def check_generate_arguments(function: str, arguments: dict[str, Any], own: tuple[str, ...] = OWN_ARGUMENTS) -> None:
    """Check that all are arguments of `generate`, and that `function` leaves them to its callers.

    Args:
        function: the name of the function that was called, for the errors.
        own: arguments of `generate` that the function does not take.

    Raises:
        OptionError: on the first that is not accepted.
    """
    taken = [name for name in own if name in arguments]
    if taken:
        raise OptionError(
            f"`{taken[0]}` is not an argument of `{function}`, which returns one answer to a question. For more, call "
            "the model's own `generate`."
        )
    if "generation_config" in arguments:
        raise OptionError(
            f"`generation_config` is not an argument of `{function}`, whose own arguments would override it. Pass the "
            "values of its fields as arguments."
        )
    if "custom_generate" in arguments:  # a function of the user's, which may take arguments of any name
        return
    known = {
        *inspect.signature(vars(GenerationMixin)["generate"]).parameters,
        *GenerationConfig().to_dict(),
        "tokenizer",
    }
    unknown = sorted(arguments.keys() - known)
    if unknown:
        raise OptionError(
            f"{', '.join(map(repr, unknown))} is neither an argument of `{function}` or `generate`, nor a "
            f"setting of VidCom².{settings_hint(unknown[0], (*known, *OF_CALLS))}"
        )


def pop_placement(model: Any, arguments: dict[str, Any]) -> Placement:
    """Remove the options of loading from a call's arguments and return them.

    The kind of KV cache of a model that is loaded already stays among them: it is an argument of `generate`, too.

    Raises:
        OptionError: on a kind that is unknown, or that changes what the stock class computes.
    """
    placement = Placement.popped_from(arguments)
    kind = placement.cache_implementation
    if kind is None or not isinstance(model, PreTrainedModel):
        return placement
    placement.check_cache()
    if model.config.model_type in FAMILIES:  # otherwise `check_model` refuses it
        FAMILIES[model.config.model_type].check_cache(kind)
    arguments["cache_implementation"] = kind
    return replace(placement, cache_implementation=None)


def check_model(
    model: str | PreTrainedModel | None,
    processor: ProcessorMixin | None,
    placement: Placement,
    settings: dict[str, Any],
) -> PreTrainedModel | Resolved:
    """Return a call's model, or where it is if it is named and not loaded yet. Raises an OptionError or a
    CheckpointError."""
    if model is None or isinstance(model, str):
        if processor is not None:
            raise OptionError(
                "`processor` goes with a model that is loaded. A named model brings its own: leave it out."
            )
        return resolve(model, placement, settings)
    check_settings(settings)
    if not hasattr(getattr(model, "model", None), "encode_videos"):
        raise OptionError(
            f"`model` is a {type(model).__name__}, which compresses nothing. Change its class, "
            "`vidcom2.apply(model)`, or pass the checkpoint's name. For a wrapper such as a `PeftModel`, pass "
            "the model inside: `model.get_base_model()`."
        )
    if processor is None:
        raise OptionError("`processor` is None, but a loaded model needs its own: AutoProcessor.from_pretrained(...).")
    check_processor("`processor`", processor, FAMILIES[model.config.model_type])
    placement.check_preparing()
    for name, value in placement.given.items():
        if name == "prepare_on":
            continue
        raise OptionError(
            f"`{name}` is {brief(value)}, but the model is loaded already. Pass it when you load the model."
        )
    return model


def pop_call_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings from a call's arguments and return them. `check_model` checks them."""
    return {name: arguments.pop(name) for name in (*SETTING_NAMES, *FAMILY_SETTINGS) if name in arguments}


def replaced_by(own: Mapping[str, Any], shared: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the settings of one call: those that several calls share, replaced by its own.

    Where its own choose another method, shared ones that this does not read are left out, as those of the config are.
    """
    unread = left_out(config.as_dict() | shared, own)
    return {name: value for name, value in shared.items() if name not in unread} | dict(own)


def checkpoint_of(
    model: PreTrainedModel | Resolved,
    processor: ProcessorMixin | None,
    settings: dict[str, Any],
    prepare_on: str = "auto",
) -> tuple[Checkpoint, dict[str, Any]]:
    """Return the model that `check_model` returned, and the settings to pass to each call of it.

    A model that is named is loaded with the settings, so none are left for the calls.

    Args:
        prepare_on: as in `Placement`, for a loaded model.

    Raises:
        CheckpointError: if the model cannot be loaded.
        ValueError: on a setting that does not exist, or that a loaded model cannot change.
    """
    if isinstance(model, Resolved):
        return load_resolved(model), {}
    for name, value in settings.items():
        own = getattr(model.config, name, None)
        if value is None and own is not None:
            raise OptionError(
                f"`{name}` is None, which in a call stands for the loaded model's own value, {own!r}. Set "
                f"`model.config.{name} = None` instead."
            )
    loaded, its_own = cast("VidCom2GenerationMixin", model), cast(ProcessorMixin, processor)
    name = model.config.name_or_path or type(model).__name__
    toys = {str(toy.folder): toy.title for toy in TOYS.values()}
    return Checkpoint(toys.get(name, name), loaded, its_own, prepare_on=prepare_on), pop_settings(settings)


def with_tokenizer(arguments: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the arguments of `generate`, with the tokenizer added if it needs one, as `stop_strings` does."""
    stops = arguments.get("stop_strings", getattr(checkpoint.model.generation_config, "stop_strings", None))
    return arguments if stops is None else {"tokenizer": cast(Any, checkpoint.processor).tokenizer, **arguments}
