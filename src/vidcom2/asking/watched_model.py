"""The model that watched a video: whether another one is the same, and whether this one has changed since.

For the features of a video, the tower, the projector and the processor must be the same, so a language model that was
tuned since can still use them.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ..configuration.compression_settings import SETTING_NAMES
from ..errors import OptionError
from ..loading.checkpoints import Checkpoint
from ..modeling.prompt.processing_short_prompts import OWN

WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
LANGUAGE_MODEL = ("language_model.",)  # how its names in the inner model begin; all else encodes

# ---------------------------------------------------------------------------------------------------------------------
# Another model
# ---------------------------------------------------------------------------------------------------------------------


def encoder_identity(checkpoint: Checkpoint) -> dict[str, str]:
    """Return what the features of a video and its place in a prompt depend on besides the settings: all weights but the
    language model's, their config, and the processor."""
    inner: Any = checkpoint.model.model
    return {
        "dtype": str(inner.dtype),
        "weights": _weights(inner),
        "config": _of_json(_declared(inner.config, without=("text_config",))),
        "processor": processor_identity(checkpoint.processor, of_video=True),
    }


def processor_identity(processor: Any, of_video: bool = False) -> str:
    """Return a digest of what a processor makes of a prompt or, if asked, of its video alone, for which the vocabulary,
    the chat template and our settings do not count: the video has settings of its own."""
    ignored = OWN if of_video else ()
    plain = {name: value for name, value in vars(processor).items() if isinstance(value, bool | int | float | str)}
    own = {name: value for name, value in plain.items() if name not in ignored}
    template, parts = own.pop("chat_template", None), [processor.video_processor.to_dict(), own]
    if not of_video:
        backend = getattr(processor.tokenizer, "backend_tokenizer", None)
        rules = {} if backend is None else json.loads(backend.to_str())
        of_last_call = ("padding", "truncation")
        parts.append({"chat_template": template, "vocabulary": processor.tokenizer.get_vocab()})
        parts.append({name: value for name, value in rules.items() if name not in of_last_call})
    return _of_json(parts)


def model_identity(model: Any) -> dict[str, str]:
    """Return what answers depend on besides the processor and the settings: all weights and the config.

    Raises:
        OptionError: if weights are offloaded, so that they are not in memory.
    """
    return {"weights": _weights(model, without=()), "config": _of_json(_declared(model.config))}


def _declared(config: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields that a config's own class declares. Others say nothing about the model: where it was loaded
    from, with which code it was saved, and our settings, which the video has of its own."""
    ignored = {*(each.name for each in fields(PreTrainedConfig)), *SETTING_NAMES, *without}
    names = {each.name for each in fields(config)} - ignored
    own = {name: value for name, value in vars(config).items() if name in names}
    return own | {name: _declared(each) for name, each in own.items() if isinstance(each, PreTrainedConfig)}


def _weights(module: nn.Module, without: tuple[str, ...] = LANGUAGE_MODEL) -> str:
    """Return a sha256 of the adapters that are on, and of sums over the rows and the columns of each of its
    weights, in whole numbers: exact, the same on each device, and quick, since no weight leaves its device.

    Raises:
        OptionError: on weights that are not in memory.
    """
    total = hashlib.sha256(json.dumps([*_adapters(module, without)], default=str).encode())
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor) or not value.numel() or name.startswith(without):
            continue
        if value.device.type == "meta":
            raise OptionError("the model's weights are offloaded, so it cannot be told which model this is.")
        bits = value.detach().contiguous().view(WHOLE_NUMBERS[value.element_size()])
        bits = bits.reshape(len(bits), -1) if bits.ndim > 1 else bits.reshape(1, -1)
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        for dim in (0, 1):
            total.update(bits.sum(dim=dim, dtype=torch.int64).cpu().numpy().tobytes())
    return total.hexdigest()


def _adapters(module: nn.Module, without: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the layers that PEFT put in, which of their adapters are on, and how much each counts."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    if peft is None:
        return
    for name, layer in module.named_modules():
        if isinstance(layer, peft.BaseTunerLayer) and not name.startswith(without):
            each: Any = layer
            active = () if each.disable_adapters else each.active_adapters
            yield name, *((adapter, getattr(each, "scaling", {}).get(adapter)) for adapter in active)


def _of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# The same model, later
# ---------------------------------------------------------------------------------------------------------------------


def encoder_state(model: Any) -> int:
    """Return a number that changes when the encoder's weights are trained, loaded over or cast, and when other adapters
    are put in or switched on. It costs next to nothing, since no weight is read; so it does not see what is written
    past autograd, by `weight.data`."""
    return _state(model.model, LANGUAGE_MODEL)


def features_state(checkpoint: Checkpoint) -> int:
    """Return a number that changes when a frame would get other features than before: as `encoder_state` does, and
    with the device, the config, the settings of the vision tower and the processor."""
    model: Any = checkpoint.model
    declared = _declared(model.config, without=("text_config",))
    settings = model.config.compression_settings(retention_ratio=1.0).vision_settings()
    others = (model.device, str(declared), str(settings), processor_identity(checkpoint.processor, of_video=True))
    return hash((encoder_state(model), *others))


def model_state(model: Any) -> int:
    """Return such a number for the whole model."""
    return _state(model, ())


def _state(module: nn.Module, without: tuple[str, ...]) -> int:
    weights = (
        (name, value.dtype, 0 if value.is_inference() else value._version)
        for name, value in module.named_parameters()
        if not name.startswith(without)
    )
    return hash((*weights, *_adapters(module, without)))
