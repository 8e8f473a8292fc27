"""Additive registrations with Transformers: nothing that stock models use is changed."""

from typing import TYPE_CHECKING

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto import modeling_auto

if TYPE_CHECKING:
    # Named in config.json, needed by no module: but Transformers saves with a model only the files that these import.
    from .pipeline_video_text_to_text import VideoTextToTextPipeline  # noqa: F401


def register_like(model_class: type[PreTrainedModel], parent: str) -> None:
    """Give a model class what Transformers looks up by class name, as the parent class has it.

    Args:
        model_class: a subclass of a Transformers model, outside the library.
        parent: key of the parent's checkpoint conversion: its `model_type`, or its class name where it has one of
            its own.
    """
    # Checkpoints on the Hub have older key names. Transformers renames them, but for classes outside the library only
    # on request; without it `lm_head` would stay random behind a mere warning.
    mapping = get_checkpoint_conversion_mapping(parent)
    register_checkpoint_conversion_mapping(model_class.__name__, mapping, overwrite=True)
    # Pipelines and `transformers serve` ask these tables whether a class can take images and videos.
    for table in ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"):
        model_type = f"vidcom2_{model_class.config_class.model_type}"
        getattr(modeling_auto, table).setdefault(model_type, model_class.__name__)
