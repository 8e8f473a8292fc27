"""Turn a model that is already loaded into a VidCom² model, and back into a stock model, in place.

Our classes have the same weights and modules as their parent classes, so changing the class of the object is enough.
Whatever else refers to the old class changes with it: the config, and methods that other libraries put on the object.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel, ProcessorMixin

from ..checks import check_settings
from ..configuration.compression_settings import SETTING_NAMES, left_out, with_settings
from ..errors import OptionError
from ..families.table import FAMILIES, Family, no_class_for
from ..modeling.encoding.packed_attention import pack_attention, unpack_attention
from ..shipping.shipped_code import CODE_FIELDS
from .finding_checkpoints import check_settings_of
from .processors import check_processor, restore, shorten

Model = TypeVar("Model", bound=nn.Module)

# Compared by name, because a model from a Hub repo has its own copy of these classes.
OUR_MIXINS = {"VidCom2GenerationMixin", "VidCom2ModelMixin"}
# The attribute of an applied model that keeps the stock class's config, for `remove`.
STOCK_CONFIG = "config_before_vidcom2"


def apply(model: Model, processor: ProcessorMixin | None = None, **settings: Any) -> Model:
    """Turn a stock model into the VidCom² model of its family, in place. No weight is copied or moved.

    Everything else about the model stays as it is: its device, dtype, quantization, adapters, hooks, mode and
    `generation_config`. The settings are then in `model.config`, and `save_pretrained` writes what it would write for a
    model that was loaded with the VidCom² class.

    Args:
        model: a model of the Transformers class of a supported family, with or without its head, or a `PeftModel`
            around one. If it is already a VidCom² model, only its settings change.
        processor: its stock processor, which changes in place too: its prompts then have a placeholder for each video
            token that stays. Without it, prompts have one for every token, and the model shortens them (InternVL's and
            SmolVLM's refuse them, since their frames are among images).
        **settings: settings of VidCom² (`retention_ratio=0.15`). Those that are not given come from the config, or are
            the defaults. If they choose another method, those of the config that it does not read are left out.

    Returns:
        The same object.

    Raises:
        ValueError: on a model of no supported family, a subclass of a stock class, a wrapper that has to come after
            `apply` (`torch.compile`, DDP, FSDP), a method of the model that someone replaced, and a setting that does
            not exist, is outside its accepted set, or belongs to another family. The model is left unchanged.
    """
    loaded = _inside(model, "apply")
    check_settings(settings)
    check_settings_of("the model", _family_of(loaded), settings)
    if processor is not None:
        check_processor("`processor`", processor, _family_of(loaded))
    changes = left_out(loaded.config.as_dict(), settings) | settings if _is_ours(type(loaded)) else None
    if changes is None:
        if not (family := _family_of(loaded)).runs_here:
            family.config_class()  # It says which Transformers has the classes.
        new_class = _class_for(loaded)
        config = with_settings(loaded.config, new_class.config_class, settings)
    else:
        new_class, config = None, copy.copy(loaded.config)
        _set(config, changes)
    config.compression_settings(**_of_every_family(settings))  # what is spelled out must be read
    if processor is not None:
        shorten(copy.copy(processor), config)  # raises what the change below would, before the model has changed
    if changes is not None:
        _set(loaded.config, changes)
    else:
        stock_config = loaded.config
        _turn(model, loaded, new_class, lambda: copy.copy(config) if config is stock_config else config)
        loaded.__dict__[STOCK_CONFIG] = stock_config
    if processor is not None:
        shorten(processor, config)
    return model


def remove(model: Model, processor: ProcessorMixin | None = None) -> Model:
    """Turn a VidCom² model into the stock model of its family, in place. This undoes what `apply` did.

    The model gets back the config object that it had before `apply`, including later changes to its fields, but without
    the settings of VidCom². A model that was loaded with the VidCom² class gets a stock config with the same fields.
    LLaVA-Video keeps its config and the settings in it, because Transformers has no class of its own for this family.
    What it saves loads as a VidCom² model again.

    Args:
        model: a model that `apply` returned, one that was loaded with a VidCom² class, or a `PeftModel` around one.
        processor: its processor, which becomes the stock one again, in place.

    Returns:
        The same object.

    Raises:
        ValueError: on a model that is not a VidCom² model, a subclass of one, a wrapper that has to come after
            `remove`, and a method of the model that someone replaced. The model is left unchanged.
    """
    loaded = _inside(model, "remove")
    if not _is_ours(type(loaded)):
        raise OptionError(
            f"`model` is a {type(loaded).__name__}, which is not a VidCom² model, so there is nothing to remove. Pass "
            "a model that `vidcom2.apply` returned."
        )
    family = _family_of(loaded)
    known = {family.model_class.__name__, family.model_class.inner_class.__name__}
    if type(loaded).__name__ not in known:
        raise OptionError(
            f"`model` is a {type(loaded).__name__}, a subclass of {' or '.join(sorted(known))}. What it adds would be "
            "lost. Load the checkpoint with the stock class instead."
        )
    stock_class = _stock_class(type(loaded))
    _turn(model, loaded, stock_class, lambda: _stock_config(loaded, stock_class))
    loaded.__dict__.pop(STOCK_CONFIG, None)
    if processor is not None:
        restore(processor)
    return model


# ---------------------------------------------------------------------------------------------------------------------
# Which class
# ---------------------------------------------------------------------------------------------------------------------


def _inside(model: nn.Module, function: str) -> PreTrainedModel:
    """Return the model of Transformers, which PEFT may have wrapped.

    Raises:
        OptionError: if there is none, or if a wrapper around it would keep calling the old class.
    """
    wrapped = [name for name in ("_orig_mod", "module") if name in getattr(model, "_modules", {})]
    sharded = any(base.__name__ == "FSDPModule" for base in type(model).__mro__)
    if sharded or (wrapped and not isinstance(model, PreTrainedModel)):
        what = {"_orig_mod": "`torch.compile`"}.get(wrapped[0] if wrapped else "", "a wrapper for several devices")
        raise OptionError(
            f"`model` is a {type(model).__name__}: {what} is around the model, and would keep calling its old class. "
            f"Call `vidcom2.{function}` on the model itself, before it is wrapped or compiled."
        )
    if not isinstance(model, PreTrainedModel) and callable(getattr(model, "get_base_model", None)):
        return _inside(model.get_base_model(), function)  # pyright: ignore[reportCallIssue]  (PEFT's, not imported)
    if not isinstance(model, PreTrainedModel):
        raise OptionError(
            f"`model` is a {type(model).__name__}, but must be a model of Transformers that is already loaded, or a "
            "`PeftModel` around one. To load a checkpoint by its name, call `vidcom2.load`."
        )
    return model


def _family_of(model: PreTrainedModel) -> Family:
    model_type = getattr(model.config, "model_type", None)
    if model_type not in FAMILIES:
        raise OptionError(no_class_for(f"`model`, a {type(model).__name__},", model_type))
    return FAMILIES[model_type]


def _is_ours(model_class: type) -> bool:
    return any(base.__name__ in OUR_MIXINS for base in model_class.__mro__)


def _stock_class(model_class: type) -> type[PreTrainedModel]:
    """Return the class of Transformers that one of our classes extends."""
    return next(base for base in model_class.__mro__ if issubclass(base, PreTrainedModel) and not _is_ours(base))


def _class_for(model: PreTrainedModel) -> Any:
    """Return our class that extends the model's class.

    Raises:
        OptionError: if there is none, or if the model or its inner model is of a subclass, whose methods would be lost.
    """
    with_head = _family_of(model).model_class
    ours = {_stock_class(each): each for each in (with_head, with_head.inner_class)}
    stock = next((each for each in ours if isinstance(model, each)), None)
    if stock is None:
        raise OptionError(
            f"`model` is a {type(model).__name__}, but VidCom² has classes for "
            f"{' and '.join(each.__name__ for each in ours)} of this family. Load the checkpoint with one of these."
        )
    _check_exact("`model`", type(model), stock, ours[stock])
    if ours[stock] is with_head and with_head.inner_class is not with_head:
        inner = _stock_class(with_head.inner_class)
        _check_exact("`model.model`", type(model.model), inner, with_head.inner_class)
    return ours[stock]


def _check_exact(what: str, found: type, stock: type, ours: type) -> None:
    """Raise an OptionError if the class is not the stock class itself."""
    if found is stock:
        return
    if not issubclass(found, stock):
        raise OptionError(
            f"{what} is a {found.__name__}, but must be a {stock.__name__}. Call `vidcom2.apply` before it is wrapped, "
            "compiled or replaced."
        )
    raise OptionError(
        f"{what} is a {found.__name__}, a subclass of {stock.__name__}: what it adds would be lost, since the class "
        f"changes to {ours.__name__}. Derive your class from {ours.__name__}, and load the checkpoint with it."
    )


# ---------------------------------------------------------------------------------------------------------------------
# The change
# ---------------------------------------------------------------------------------------------------------------------


def _turn(model: nn.Module, loaded: PreTrainedModel, new_class: Any, config_of_new: Callable[[], Any]) -> None:
    """Change the class of a model, and of its inner model if it has a head. If this raises, nothing has changed."""
    inner_class = getattr(new_class, "inner_class", None) or getattr(type(loaded), "inner_class", None)
    changes: list[tuple[nn.Module, type]] = [(loaded, new_class)]
    if inner_class is not None and inner_class not in (new_class, type(loaded)):
        changes.append((loaded.model, inner_class if _is_ours(new_class) else _stock_class(inner_class)))
    rebound = [
        (holder, name, method)
        for module, to in changes
        for holder in _holders(model, module)
        for name, method in _rebound(holder, module, to)
    ]
    old_config, config = loaded.config, config_of_new()
    for module, to in changes:
        module.__class__ = to
    (pack_attention if _is_ours(new_class) else unpack_attention)(changes[-1][0])
    for holder, name, method in rebound:
        holder.__dict__[name] = method
    for module, _ in changes:
        hooked = vars(module).get("forward")
        if isinstance(hooked, functools.partial):  # accelerate's hook shows the signature of what it calls
            vars(hooked).clear()
            functools.update_wrapper(hooked, vars(module)["_old_forward"])
    for module in loaded.modules():
        if vars(module).get("config") is old_config:
            module.__dict__["config"] = config


def _holders(model: nn.Module, module: nn.Module) -> Iterator[nn.Module]:
    """Yield the objects that may hold bound methods of the module: the module itself, and PEFT's wrappers around it."""
    yield module
    while model is not module and not isinstance(model, PreTrainedModel):
        yield model
        model = model.get_submodule("base_model" if "base_model" in model._modules else "model")


def _rebound(holder: nn.Module, module: nn.Module, to: type) -> Iterator[tuple[str, MethodType]]:
    """Yield the name of each attribute that is a method of the module's old class, with the new class's method for it.

    Such attributes are the `forward` that accelerate keeps behind its hook, and PEFT's `prepare_inputs_for_generation`.

    Raises:
        OptionError: if someone has replaced one of the methods that differ between the two classes.
    """
    old = type(module)
    is_hooked = "_hf_hook" in vars(module) and "_old_forward" in vars(module)
    for name, value in vars(holder).items():
        if isinstance(value, MethodType) and value.__self__ is module:
            method = value.__func__.__name__
            if getattr(old, method, None) is value.__func__:
                yield name, MethodType(getattr(to, method), module)
                continue
        if holder is not module or not (callable(getattr(to, name, None)) or name == "_old_forward"):
            continue
        is_accelerates = name == "forward" and is_hooked and isinstance(value, functools.partial)
        differs = name == "_old_forward" or getattr(old, name, None) is not getattr(to, name, None)
        if differs and not is_accelerates:
            raise OptionError(
                f"`{name.removeprefix('_old_')}` of this {old.__name__} was replaced on the object, by "
                f"{getattr(value, '__qualname__', None) or type(value).__name__}, and the method of {to.__name__} "
                "would never run. Change the class first, and let the other library replace the method afterwards."
            )


# ---------------------------------------------------------------------------------------------------------------------
# The config
# ---------------------------------------------------------------------------------------------------------------------


def _set(config: Any, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(config, name, value)


def _of_every_family(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in SETTING_NAMES}


def _stock_config(model: PreTrainedModel, stock_class: type[PreTrainedModel]) -> Any:
    """Return the stock class's config for a VidCom² model."""
    of_vidcom2 = {*SETTING_NAMES, *CODE_FIELDS, "architectures"}
    fields = {name: value for name, value in vars(model.config).items() if name not in of_vidcom2}
    config: Any = vars(model).get(STOCK_CONFIG)
    if config is not None:
        vars(config).update(fields)
        return config
    config_class: Any = stock_class.config_class
    if isinstance(model.config, config_class) and type(model.config) is config_class:  # LLaVA-Video has no other config
        return copy.copy(model.config)
    if not isinstance(model.config, config_class):  # whose class is another family's
        config_class = next(base for base in type(model.config).__mro__ if base.__module__.startswith("transformers."))
    config = config_class.__new__(config_class)
    vars(config).update(fields)
    config.architectures = [stock_class.__name__] if model.config.architectures else None
    return config
