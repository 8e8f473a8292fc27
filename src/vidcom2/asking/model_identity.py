"""Tell models apart: is another model the one that watched a video or answered, and has this one changed since?

An identity is a digest of weights, config and processor, the same in every process. A state is a number that tells
within a process whether something changed, without reading any weight. The features of a video depend on the encoder
alone (tower, projector and processor), so they stay valid when only the language model is tuned.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedConfig

from ..configuration.compression_settings import SETTING_NAMES
from ..errors import OptionError
from ..loading.checkpoints import Checkpoint
from ..modeling.prompt.processing_short_prompts import OWN

# Numbers of the parameters that a state was asked of. An address could be that of a later parameter.
NUMBERS, COUNT = WeakTensorKeyDictionary(), count()
INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
# How the names of the language model's weights begin in an inner model; SmolVLM has the other one. All else encodes.
LANGUAGE_MODEL = ("language_model.", "text_model.")

# ---------------------------------------------------------------------------------------------------------------------
# Another model
# ---------------------------------------------------------------------------------------------------------------------


def encoder_identity(checkpoint: Checkpoint) -> dict[str, str]:
    """Return digests of what a video's features and its place in a prompt depend on, apart from the settings: all
    weights but the language model's, their config, and the processor.

    Raises:
        OptionError: if weights are offloaded, so that they are not in memory.
    """
    inner: Any = checkpoint.model.model
    return {
        "dtype": str(inner.dtype),
        "weights": _weights_digest(inner, without=LANGUAGE_MODEL),
        "config": _json_digest(_declared_fields(inner.config, without=("text_config",))),
        "processor": processor_identity(checkpoint.processor, of_video=True),
    }


def processor_identity(processor: Any, of_video: bool = False) -> str:
    """Return a digest of all that a processor's output for a prompt depends on.

    Args:
        of_video: whether only what it makes of a video counts: neither vocabulary and chat template, nor this project's
            settings, which are stored with the video.
    """
    ignored = {"chat_template", *(OWN if of_video else ())}
    values = {name: value for name, value in vars(processor).items() if isinstance(value, int | float | str)}
    parts = [processor.video_processor.to_dict(), {name: values[name] for name in values.keys() - ignored}]
    if not of_video:
        backend = getattr(processor.tokenizer, "backend_tokenizer", None)
        rules = {} if backend is None else json.loads(backend.to_str())
        left_by_last_call = ("padding", "truncation")
        parts.append({"chat_template": values.get("chat_template"), "vocabulary": processor.tokenizer.get_vocab()})
        parts.append({name: value for name, value in rules.items() if name not in left_by_last_call})
    return _json_digest(parts)


def model_identity(model: Any) -> dict[str, str]:
    """Return what answers depend on besides the processor and the settings: all weights and the config.

    Raises:
        OptionError: if weights are offloaded, so that they are not in memory.
    """
    return {"weights": _weights_digest(model, without=()), "config": _json_digest(_declared_fields(model.config))}


def _declared_fields(config: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields that a config's own class declares. The others do not describe the model: where it was loaded
    from, which code saved it, and this project's settings, which callers compare by themselves."""
    ignored = {*(each.name for each in fields(PreTrainedConfig)), *SETTING_NAMES, *without}
    names = {each.name for each in fields(config)} - ignored
    own = {name: value for name, value in vars(config).items() if name in names}
    return own | {name: _declared_fields(each) for name, each in own.items() if isinstance(each, PreTrainedConfig)}


def _weights_digest(module: nn.Module, without: tuple[str, ...]) -> str:
    """Return a sha256 of the adapters that are on, and of each weight's sums over rows and over columns, as integers:
    exact, equal on every device, and quick, since only the sums leave the device.

    Args:
        without: how the names of weights that do not count begin.

    Raises:
        OptionError: on weights that are not in memory.
    """
    total = hashlib.sha256(json.dumps([*_active_adapters(module, without)], default=str).encode())
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor) or not value.numel() or name.startswith(without):
            continue
        if value.device.type == "meta":
            raise OptionError(
                "the model's weights are offloaded, so it cannot be told which model this is. Load it without "
                "offloading, on a device that holds all of it."
            )
        bits = value.detach().contiguous().view(INTEGER_OF_SIZE[value.element_size()])
        bits = bits.reshape(len(bits), -1) if bits.ndim > 1 else bits.reshape(1, -1)
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        for dim in (0, 1):
            total.update(bits.sum(dim=dim, dtype=torch.int64).cpu().numpy().tobytes())
    return total.hexdigest()


def _active_adapters(module: nn.Module, without: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the layers that PEFT inserted, with the adapters that are on in each, and how they are scaled."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    if peft is None:
        return
    for name, layer in module.named_modules():
        if isinstance(layer, peft.BaseTunerLayer) and not name.startswith(without):
            each: Any = layer
            active = () if each.disable_adapters else each.active_adapters
            yield name, *((adapter, getattr(each, "scaling", {}).get(adapter)) for adapter in active)


def _json_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# The same model, later
# ---------------------------------------------------------------------------------------------------------------------


def encoder_state(model: Any) -> int:
    """Return a number that changes when the encoder's weights are trained, replaced or cast, and when other adapters
    are inserted or switched on. It costs next to nothing, since no weight is read; so it does not see what is written
    past autograd, by `weight.data`."""
    return _state(model.model, LANGUAGE_MODEL)


def features_state(checkpoint: Checkpoint) -> int:
    """Return a number that changes when a frame would get other features than before: where `encoder_state` does, and
    with the device, the config, the settings of the vision tower and the processor."""
    model: Any = checkpoint.model
    declared = _declared_fields(model.config, without=("text_config",))
    settings = model.config.compression_settings(retention_ratio=1.0).vision_settings()  # of any ratio
    others = (model.device, str(declared), str(settings), processor_identity(checkpoint.processor, of_video=True))
    return hash((encoder_state(model), *others))


def model_state(model: Any) -> int:
    """Return a number that changes as `encoder_state` does, for the whole model."""
    return _state(model, ())


def _state(module: nn.Module, without: tuple[str, ...]) -> int:
    # `load_state_dict(assign=True)` replaces the parameters themselves. So does offloading, which puts meta tensors in
    # their place; these do not count.
    weights = (
        (name, value.dtype, 0 if value.is_meta else _number_of(value), 0 if value.is_inference() else value._version)
        for name, value in module.named_parameters()
        if not name.startswith(without)
    )
    return hash((*weights, *_active_adapters(module, without)))


def _number_of(value: Tensor) -> int:
    """Return a number that no other parameter of this process has or had."""
    if value not in NUMBERS:
        NUMBERS[value] = next(COUNT)
    return NUMBERS[value]
