"""Where a processor prepares frames: beside the model's vision tower, if that is on an accelerator.

Frames then travel as bytes, a quarter of what the prepared pixels take, and the accelerator resizes and normalizes
them. The CPU's pixels differ a little, since it resizes bytes in whole numbers, and an accelerator as floats.
"""

from typing import Any, cast

import torch
from transformers import PreTrainedModel, ProcessorMixin
from transformers.image_utils import PILImageResampling

from ..loading.checkpoints import Checkpoint
from ..loading.processors import class_for
from .model_identity import LANGUAGE_MODEL


def device_of_frames(checkpoint: Checkpoint) -> torch.device | None:
    """Return the device on which the frames of videos are prepared for a model; None if that is the CPU."""
    return None if checkpoint.prepare_on == "cpu" else device_of_encoder(checkpoint.model)


def device_of_encoder(model: PreTrainedModel) -> torch.device | None:
    """Return the accelerator that holds all of a model that encodes videos; None if the CPU holds a part of it, if it
    is offloaded, or if it is spread over several devices."""
    weights = cast(Any, model).model.named_parameters()
    places = {weight.device for name, weight in weights if not name.startswith(LANGUAGE_MODEL)}
    return next(iter(places)) if len(places) == 1 and not {each.type for each in places} & {"cpu", "meta"} else None


def takes_a_device(processor: ProcessorMixin) -> bool:
    """Tell whether a processor's video processor can be told where to work. Slow ones cannot. One that has a `device`
    of its own, which its user set, keeps to that. And no accelerator has SmolVLM's filter, for which Transformers would
    take another."""
    of_videos = cast(Any, processor).video_processor
    known = getattr(getattr(of_videos, "valid_kwargs", None), "__annotations__", {})
    is_free = getattr(of_videos, "device", None) is None and not class_for(processor).prepares_on_cpu
    return "device" in known and is_free and getattr(of_videos, "resample", None) != PILImageResampling.LANCZOS
