"""What Transformers looks up by class name, for the classes of this project too. Stock models stay as they are."""

from typing import TYPE_CHECKING

from transformers import AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping

from ...configuration.video_model_tables import register_as_video_model

if TYPE_CHECKING:
    from .parent_classes import ParentModel

    # Named in config.json, needed by no module: but Transformers saves with a model only the files that these import.
    from .pipeline_video_text_to_text import VideoTextToTextPipeline  # noqa: F401


def register_like(model_class: "type[ParentModel]") -> None:
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
        for auto_class in (AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM):
            if model_class.config_class not in auto_class._model_mapping:  # a user's subclass comes after ours
                auto_class.register(model_class.config_class, model_class)
