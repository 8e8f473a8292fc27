"""What Transformers 5.24 gave other names: the KV cache, and the outputs of models that see.

- The KV cache is `cache`. It was `past_key_values`, which all models still take.
- The outputs derive from classes that also hold what the encoders of images, videos and sounds returned.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from transformers import modeling_outputs

FORMER_NAME = "past_key_values"
_NAMES = [field.name for field in dataclasses.fields(modeling_outputs.BaseModelOutputWithPast)]
CACHE = "cache" if "cache" in _NAMES else FORMER_NAME

if TYPE_CHECKING:
    from transformers.modeling_outputs import CausalLMOutputWithPast, MoeCausalLMOutputWithPast
else:
    CausalLMOutputWithPast, MoeCausalLMOutputWithPast = (
        getattr(modeling_outputs, f"Multimodal{name}", getattr(modeling_outputs, name))
        for name in ("CausalLMOutputWithPast", "MoeCausalLMOutputWithPast")
    )


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
