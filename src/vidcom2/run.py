"""The main job: one question about one video, answered with and without compression, and measured."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from .answer import prepare_inputs
from .checkpoints import Checkpoint
from .compression import VideoCompression
from .video import Video


@dataclass
class Measured:
    """One call of `generate`, as it happened.

    Attributes:
        prompt_tokens: length of the prompt in the KV cache after prefill.
        video_tokens: of these, tokens of the video.
        prefill_seconds: the language model over the prompt.
        total_seconds: the whole of `generate`: video encoder, compression, prefill and decoding.
        new_tokens: how many tokens were generated.
        answer: their text.
    """

    prompt_tokens: int
    video_tokens: int
    prefill_seconds: float
    total_seconds: float
    new_tokens: int
    answer: str


@dataclass
class Run:
    """What `vidcom2 run` reports."""

    model: str
    prompt: str
    retention_ratio: float
    frame_seconds: list[float]
    frame_budgets: list[int]
    frame_uniqueness: list[float]
    tokens_per_frame: int
    kept_share: float  # kept tokens per scored token, measured
    compressed: Measured
    uncompressed: Measured
    environment: dict[str, str] = field(default_factory=dict)


def encode_video(model: PreTrainedModel, inputs: BatchFeature) -> VideoCompression:
    """What VidCom² keeps of the prompt's one video; the language model does not run."""
    arguments = {name: inputs[name] for name in ("pixel_values_videos", "video_grid_thw") if name in inputs}
    with torch.no_grad():
        return model.get_video_features(**arguments).video_compressions[0]


def scored_frames(num_frames: int, compression: VideoCompression) -> slice:
    """Which frames of the video stand for the T scored ones: Qwen2-VL makes one of two."""
    return slice(None, None, -(-num_frames // len(compression.frame_budgets)))


def run(checkpoint: Checkpoint, video: Video, prompt: str, max_new_tokens: int) -> Run:
    """Answer `prompt` about `video` twice, with the model's retention ratio and with 1.0."""
    model, processor = checkpoint.model, checkpoint.processor
    inputs = prepare_inputs(processor, prompt, video).to(model.device, model.dtype)
    compression = encode_video(model, inputs)
    # The first call on a device prepares kernels and memory: neither of the two measured ones should pay for that.
    model.generate(**inputs, max_new_tokens=1, do_sample=False)
    compressed = _measure(model, processor, inputs, max_new_tokens, model.config.retention_ratio)
    uncompressed = _measure(model, processor, inputs, max_new_tokens, 1.0)
    return Run(
        model=checkpoint.name,
        prompt=prompt,
        retention_ratio=model.config.retention_ratio,
        frame_seconds=[round(float(s), 3) for s in video.seconds[scored_frames(len(video.seconds), compression)]],
        frame_budgets=compression.frame_budgets.tolist(),
        frame_uniqueness=[round(u, 6) for u in compression.frame_uniqueness.tolist()],
        tokens_per_frame=compression.token_uniqueness.shape[1],
        kept_share=len(compression.indices) / compression.token_uniqueness.numel(),
        compressed=compressed,
        uncompressed=uncompressed,
        environment=environment(model),
    )


def _measure(
    model: PreTrainedModel, processor: ProcessorMixin, inputs: BatchFeature, max_new_tokens: int, ratio: float
) -> Measured:
    with _language_model_calls(model) as calls:
        start = _now()
        out = model.generate(
            **inputs,
            retention_ratio=ratio,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
        )
        total = _now() - start
    new = out.sequences[0, inputs["input_ids"].shape[1] :]
    prompt_tokens, prefill_seconds = calls[0]
    text_tokens = int((inputs["input_ids"] != model.config.video_token_id).sum())
    return Measured(
        prompt_tokens=prompt_tokens,
        video_tokens=prompt_tokens - text_tokens,
        prefill_seconds=prefill_seconds,
        total_seconds=total,
        new_tokens=len(new),
        answer=processor.decode(new, skip_special_tokens=True),
    )


@contextmanager
def _language_model_calls(model: PreTrainedModel) -> Iterator[list[tuple[int, float]]]:
    """(tokens, seconds) of each call of the language model; the first is the prefill."""
    calls: list[tuple[int, float]] = []
    started = 0.0

    def before(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal started
        started = _now()

    def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        calls.append((output.last_hidden_state.shape[1], _now() - started))

    language_model = model.get_decoder()
    hooks = [
        language_model.register_forward_pre_hook(before, with_kwargs=True),
        language_model.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def environment(model: PreTrainedModel) -> dict[str, str]:
    """Where the figures come from."""
    import platform

    import transformers

    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} {device.type}"
    return {
        "device": name,
        "threads": str(torch.get_num_threads()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
