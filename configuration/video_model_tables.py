"""Tables of Transformers in which a model class is entered as one that takes videos. No entry of theirs is changed."""

from typing import cast

from transformers.models.auto import modeling_auto


def register_as_video_model(model_type: str, class_name: str) -> None:
    """Enter a model class into the tables that pipelines and `transformers serve` ask whether it takes videos, and into
    that in which `Trainer` looks whether label smoothing has to shift the labels."""
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.setdefault(model_type, class_name)
    # As a tuple, into which pipelines look and `transformers serve` does not: it takes the classes that it finds here
    # for models that hear, and then fails on videos without sound.
    multimodal = cast("dict[str, str | tuple[str, ...]]", modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
    multimodal.setdefault(model_type, (class_name,))
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(model_type, class_name)
