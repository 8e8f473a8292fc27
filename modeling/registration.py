"""Additive registrations with Transformers: nothing that stock models use is changed."""

from typing import TYPE_CHECKING

from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto import modeling_auto

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    # Named in config.json, needed by no module: but Transformers saves with a model only the files that these import.
    from .pipeline_video_text_to_text import VideoTextToTextPipeline  # noqa: F401


def register_like(model_class: "type[PreTrainedModel]") -> None:
    """Give a model class, and a user's subclass of it, what Transformers looks up by class name, as the stock class
    that it extends has it.

    Checkpoints on the Hub have older key names. Transformers renames them, but for classes outside the library only on
    request; without it `lm_head` would stay random behind a mere warning.
    """
    stock = next((base for base in model_class.__mro__ if base.__module__.startswith("transformers.models.")), None)
    if stock is None or model_class.config_class.model_type != stock.config_class.model_type:
        return  # a model of its own, whose checkpoints have today's names
    for name in (stock.__name__, stock.config_class.model_type):  # the class name first, as Transformers looks it up
        mapping = get_checkpoint_conversion_mapping(name)
        if mapping is not None:
            register_checkpoint_conversion_mapping(model_class.__name__, mapping, overwrite=True)
            break
    if model_class.can_generate():
        register_as_video_model(f"vidcom2_{model_class.__name__}", model_class.__name__)


def register_as_video_model(model_type: str, class_name: str) -> None:
    """Enter a model class into the tables that pipelines and `transformers serve` ask whether it takes videos, and into
    that in which `Trainer` looks whether label smoothing has to shift the labels."""
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.setdefault(model_type, class_name)
    # As a tuple, into which pipelines look and `transformers serve` does not: it takes the classes that it finds here
    # for models that hear, and then fails on videos without sound.
    modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.setdefault(model_type, (class_name,))
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(model_type, class_name)
