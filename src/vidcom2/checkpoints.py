"""Loading a VidCom² model and its processor for the command line, from the checkpoint's config alone."""

import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoProcessor, PreTrainedModel, ProcessorMixin

from .llava_video import VidCom2LlavaVideoConfig, VidCom2LlavaVideoForConditionalGeneration
from .modeling_vidcom2_llava_onevision import VidCom2LlavaOnevisionForConditionalGeneration
from .modeling_vidcom2_qwen2_vl import VidCom2Qwen2VLForConditionalGeneration
from .tiny import tiny_llava_onevision

MODEL_CLASSES: dict[str, type[PreTrainedModel]] = {
    "llava_onevision": VidCom2LlavaOnevisionForConditionalGeneration,
    VidCom2LlavaVideoConfig.model_type: VidCom2LlavaVideoForConditionalGeneration,
    "qwen2_vl": VidCom2Qwen2VLForConditionalGeneration,
}
DTYPES = ("auto", "float32", "bfloat16", "float16")


class CheckpointError(ValueError):
    """A checkpoint that is missing, unreadable or of a family that VidCom² does not know."""


@dataclass
class Checkpoint:
    """A model with its processor, and what to call it."""

    name: str
    model: PreTrainedModel
    processor: ProcessorMixin


def load_checkpoint(
    name: str | None,
    retention_ratio: float,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
) -> Checkpoint:
    """Load a checkpoint of any supported family; without a name, build a tiny random one.

    Raises:
        CheckpointError: if there is no such checkpoint or no VidCom² class for it.
        ValueError: if `retention_ratio`, `device` or `dtype` is outside its accepted set.
    """
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` is {dtype!r}, but must be one of {', '.join(DTYPES)}.")
    settings: dict[str, Any] = {"retention_ratio": retention_ratio, "dtype": dtype}
    if attn_implementation is not None:
        settings["attn_implementation"] = attn_implementation
    target = torch_device(device)
    if name is not None:
        return _load(name, name, target, settings)
    with tempfile.TemporaryDirectory() as folder:
        for part in tiny_llava_onevision(hidden_size=256, num_layers=4):
            part.save_pretrained(folder)
        return _load("a tiny random LLaVA-OneVision", folder, target, settings)


def _load(name: str, path: str, device: torch.device, settings: dict[str, Any]) -> Checkpoint:
    try:
        model_type = AutoConfig.from_pretrained(path).model_type
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"cannot load the model {name!r}: {reason}") from error
    if model_type not in MODEL_CLASSES:
        raise CheckpointError(
            f"the model {name!r} is of type {model_type!r}, but VidCom² has classes for "
            f"{', '.join(map(repr, MODEL_CLASSES))}."
        )
    try:
        model = MODEL_CLASSES[model_type].from_pretrained(path, **settings).to(device).eval()
        processor = AutoProcessor.from_pretrained(path)
    except OSError as error:
        raise CheckpointError(f"cannot load the model {name!r}: {str(error).strip().splitlines()[0]}") from error
    return Checkpoint(name, model, processor)


def torch_device(name: str) -> torch.device:
    """The named device, or with "auto" the accelerator if there is one.

    Raises:
        ValueError: if there is no such device on this machine.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"`device` is {name!r}, but this machine has no such device ({reason}). Try cpu.") from error
    return device
