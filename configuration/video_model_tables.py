"""Enters a model class into the tables by which Transformers knows classes that take videos. No entry is changed."""

from typing import cast

from transformers.models.auto import modeling_auto


def register_as_video_model(model_type: str, class_name: str) -> None:
    """Enter a model class into Transformers' tables of classes that take videos.

    Pipelines and `transformers serve` look there to see whether a model takes videos. A further table tells `Trainer`
    whether label smoothing has to shift the labels.
    """
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.setdefault(model_type, class_name)
    # The entry is a tuple, which pipelines look into and `transformers serve` does not. The server assumes that every
    # class it finds here can hear, and then fails on videos without sound.
    multimodal = cast("dict[str, str | tuple[str, ...]]", modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
    multimodal.setdefault(model_type, (class_name,))
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(model_type, class_name)
