"""What a processor makes of a question and a video, for the steps of `generation.py`."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from ..errors import OptionError
from ..modeling.methods.video_compression import VideoCompression
from ..video.reading import Video


def check_prompt(processor: ProcessorMixin, prompt: str) -> None:
    """That a prompt holds no token that stands for a video or an image. Raises an OptionError if it does."""
    for token in (cast(Any, processor).video_token, cast(Any, processor).image_token):
        if token in prompt:
            raise OptionError(f"the prompt contains {token!r}, which stands for a video or an image. Leave it out.")


def prepare_inputs(
    processor: ProcessorMixin,
    prompt: str,
    video: Video,
    model: PreTrainedModel | None = None,
    batch_size: int = 1,
    earlier: Sequence[tuple[str, str]] = (),
) -> BatchFeature:
    """The chat prompt with its placeholders, and the pixels, as the checkpoint's own processor makes them.

    It is told when each frame is shown; whether the model hears of it is the family's affair.

    Args:
        model: whose device all of it goes to, and whose dtype the pixels get. No other number does: Qwen2.5-VL computes
            positions from the times of frames, and in bfloat16 neighbours would share one.
        batch_size: how often the prompt and the video are in the batch.
        earlier: the questions about the video that came before `prompt`, each with its answer.
    """
    chat: list[dict[str, Any]] = []
    for question, answer in earlier:
        chat.append({"role": "user", "content": [{"type": "text", "text": question}]})
        chat.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    chat.append({"role": "user", "content": [{"type": "text", "text": prompt}]})
    chat[0]["content"].insert(0, {"type": "video"})
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    frames, metadata = video.frames, video.metadata
    if len(frames) == 1 < getattr(cast(Any, processor).video_processor, "temporal_patch_size", 1):
        # Qwen2-VL's processor itself shows a frame twice where it takes two together. Qwen3-VL's refuses it.
        frames = np.concatenate([frames, frames])
        metadata = metadata | {"frames_indices": np.repeat(metadata["frames_indices"], 2)}
    inputs: BatchFeature = cast(Any, processor)(  # by its annotations it takes nothing that is for a part alone
        text=[text] * batch_size,
        videos=[frames] * batch_size,
        video_metadata=[dict(metadata) for _ in range(batch_size)],
        do_sample_frames=False,
        return_tensors="pt",
    )
    if model is not None:
        inputs = inputs.to(model.device)
        inputs["pixel_values_videos"] = inputs["pixel_values_videos"].to(model.dtype)
    return inputs


def video_arguments(model: PreTrainedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's `get_video_features` takes of a prompt's inputs."""
    names = inspect.signature(cast(Any, model).get_video_features).parameters
    return {name: inputs[name] for name in names if name in inputs}


def without_pixels(inputs: BatchFeature) -> dict[str, Any]:
    """What is left of a prompt's inputs once its videos are encoded."""
    return {name: value for name, value in inputs.items() if name != "pixel_values_videos"}


def padded(prompts: Sequence[dict[str, Tensor]], tokenizer: Any) -> dict[str, Tensor]:
    """Prompts of one question each as one batch, padded on the left."""
    length = max(prompt["input_ids"].shape[1] for prompt in prompts)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    batch = {}
    for name in prompts[0]:
        values = [prompt[name] for prompt in prompts]
        if values[0].shape == prompts[0]["input_ids"].shape:  # an entry for each token, 0 at padding
            fill = pad if name == "input_ids" else 0
            values = [nn.functional.pad(value, (length - value.shape[1], 0), value=fill) for value in values]
        batch[name] = torch.cat(values)
    return batch


def scored_frames(num_frames: int, compression: VideoCompression) -> slice:
    """Which frames of the video stand for the T scored ones: Qwen2-VL makes one of two."""
    return slice(None, None, -(-num_frames // len(compression.frame_budgets)))
