"""Starting what answers a run's requests: a model in Transformers, or vLLM's engine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..configuration.compression_settings import SETTING_NAMES
from ..loading.finding_checkpoints import Resolved
from ..records.fingerprints import identity_of
from .requests import HowToAnswer

if TYPE_CHECKING:
    from .engine import Engine


def start_engine(
    name: str, model: Resolved, how: HowToAnswer, engine_arguments: Mapping[str, Any]
) -> "tuple[Engine, Mapping[str, Any] | None]":
    """Load a model into an engine. Returns the engine, and the identity of what was loaded.

    Args:
        engine_arguments: further arguments of `vllm.LLM`.

    Raises:
        CheckpointError: if the model cannot be loaded.
        OptionError: if vLLM cannot answer as the model's settings say.
    """
    if name == "vllm":
        from .many_in_vllm import VllmEngine

        return VllmEngine(model, how, engine_arguments), identity_of(model.source)
    from ..loading.checkpoints import load_resolved
    from .many_in_transformers import TransformersEngine

    checkpoint = load_resolved(model)
    given = {name: value for name, value in model.settings.items() if name in SETTING_NAMES and value is not None}
    return TransformersEngine(checkpoint, how, loaded_with=given), checkpoint.identity
