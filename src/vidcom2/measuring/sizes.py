"""The sizes of released models, as their config.json gives them; those of Qwen3.5-4B are from two fine-tunes.

This file does not import PyTorch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OptionError, did_you_mean


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that decide how long it takes.

    Attributes:
        model_type: the `model_type` of its family.
        checkpoint: the id of the Hub checkpoint that has these sizes, or None if nobody released one.
        text, vision: fields of the configs of the language model and of the vision tower.
        tiny: arguments of the family's tiny builder, so that its processor has the real frame size.
        audio: fields of the config of the tower for sound, if the model has one.
    """

    model_type: str
    checkpoint: str | None
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)
    audio: Mapping[str, Any] = field(default_factory=dict)


SMALL = "llava-onevision-small"  # the model of `--quick`, which nobody released
MODEL_SIZES: dict[str, ModelSize] = {
    name: ModelSize(**size)
    for name, size in json.loads(Path(__file__).with_name("model_sizes.json").read_text(encoding="utf-8")).items()
}


def size_named(name: str) -> ModelSize:
    """Return the size of this name.

    Raises:
        OptionError: if there is none.
    """
    if name not in MODEL_SIZES:
        known = ", ".join(MODEL_SIZES)
        raise OptionError(
            f"`--model-size` is {name!r}, but must be one of {known}. For another model, pass --model."
            f"{did_you_mean(name, MODEL_SIZES)}"
        )
    return MODEL_SIZES[name]
