"""Enters this project's classes where Transformers looks classes up by name. Stock models stay as they are."""

from typing import TYPE_CHECKING

from transformers import AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping

from ...configuration.video_model_tables import register_as_video_model

if TYPE_CHECKING:
    from .parent_classes import ParentModel

    # config.json names this class. No module needs it, but Transformers saves only files that a model's modules import.
    from .pipeline_video_text_to_text import VideoTextToTextPipeline  # noqa: F401


def register_like(model_class: "type[ParentModel]") -> None:
    """Register a model class, or a user's subclass of one, wherever its stock class is registered by name.

    Checkpoints on the Hub have older key names. Transformers renames these, but for classes outside the library only on
    request. Without this, `lm_head` would stay random, with nothing but a warning.
    """
    stock = next((base for base in model_class.__mro__ if base.__module__.startswith("transformers.models.")), None)
    if stock is None or model_class.config_class.model_type != stock.config_class.model_type:
        return  # The model has a type of its own, and its checkpoints have today's key names.
    for name in (stock.__name__, stock.config_class.model_type):  # The class name is first, as in Transformers.
        mapping = get_checkpoint_conversion_mapping(name)
        if mapping is not None:
            register_checkpoint_conversion_mapping(model_class.__name__, mapping, overwrite=True)
            break
    if model_class.can_generate():
        register_as_video_model(f"vidcom2_{model_class.__name__}", model_class.__name__)
        for auto_class in (AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM):
            if model_class.config_class not in auto_class._model_mapping:  # Ours stays before a user's subclass.
                auto_class.register(model_class.config_class, model_class)
