"""One answer, from the file to the last token, with the time of each stage and the peak of memory.

Stages follow each other without a gap, so that their times add up to the whole. On CUDA the borders are events in the
device's own queue, and nothing waits for the device at a border; elsewhere they are wall-clock times.
"""

import ctypes
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import BatchFeature

from ..answering.ask import prepare_inputs, video_arguments
from ..answering.candidates import AllTokens, Candidate
from ..checkpoints import Checkpoint
from ..configuration.compression_methods import COMPRESSION_METHODS
from ..modeling.encoding.video_features import ParentFeatures
from ..modeling.methods.video_compression import VideoTokens
from ..video.reading import read_video

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

STAGES = {
    "read": "opening the file, finding the frames and decoding them",
    "preprocess": "the processor: resizing, normalising, the prompt; and copying to the device",
    "vision": "the vision tower with projector and pooling",
    "compression": "choosing the tokens, and taking their features",
    "prompt": "shortening the prompt, its embeddings and positions",
    "prefill": "the language model over the prompt, and the first token",
    "decode": "the other tokens",
}


@dataclass(frozen=True)
class Turn:
    """What one answer took.

    Attributes:
        seconds: of each of `STAGES`; `compression` is 0 where all tokens stay.
        step_seconds: (max_new_tokens - 1,) from the start of one step of the language model to that of the next.
        end_to_end_seconds: the whole by the wall clock, read beside the stages.
        prompt_tokens: length of the prompt in the KV cache, and `video_tokens` of these of the video.
        kept_share: kept tokens per scored token.
        peak_bytes: see `reset_peak_memory`; None where it cannot be known.
        new_tokens: (batch, max_new_tokens) their ids.
    """

    seconds: dict[str, float]
    step_seconds: list[float]
    end_to_end_seconds: float
    prompt_tokens: int
    video_tokens: int
    kept_share: float
    peak_bytes: int | None
    new_tokens: list[list[int]]


class MethodRefused(ValueError):
    """A method that does not work at this ratio or on this video; the text says why."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A video, read and encoded, and what that took.

    Attributes:
        inputs: what the processor made of the prompt and the video.
        outputs, tokens: as `encode_videos` returns them.
        seconds: of the first three of `STAGES`; `wall_seconds` of the three together, beside them.
        peak_bytes: as of a turn.
    """

    inputs: BatchFeature
    outputs: ParentFeatures
    tokens: Sequence[VideoTokens]
    seconds: tuple[float, float, float]
    wall_seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class Task:
    """What all contenders are asked.

    Attributes:
        video: path or URL.
        batch_size: how often the question is in a call.
        max_new_tokens: 2 or more; the end of the text is no reason to stop.
    """

    video: str
    num_frames: int
    batch_size: int = 1
    max_new_tokens: int = 16
    question: str = "What happens?"


@torch.no_grad()
def encode(checkpoint: Checkpoint, task: Task, with_tower_states: bool = False) -> Encoded:
    """Read the video, prepare it, and run the vision tower.

    Raises:
        VideoError: if the file cannot be read.
    """
    model, device = checkpoint.model, checkpoint.model.device
    peak_is_known = reset_peak_memory(device)
    synchronize(device)
    begin = time.perf_counter()
    frames = read_video(task.video, task.num_frames)
    was_read = time.perf_counter()
    inputs = prepare_inputs(checkpoint.processor, task.question, frames, model, task.batch_size)
    prepared = time.perf_counter()
    marks = _Marks(device)
    of_model = model.config.compression_settings()
    outputs, tokens = model.model.encode_videos_by(of_model, with_tower_states, **video_arguments(model, inputs))
    marks.add()
    synchronize(device)
    end = time.perf_counter()
    (vision,) = marks.seconds_between()
    seconds = was_read - begin, prepared - was_read, vision
    return Encoded(inputs, outputs, tokens, seconds, end - begin, peak_memory(device) if peak_is_known else None)


@torch.no_grad()
def answer(checkpoint: Checkpoint, task: Task, candidate: Candidate, encoded: Encoded) -> Turn:
    """Compress an encoded video and generate: with `encode` all that `generate` does with pixels.

    Raises:
        MethodRefused: if the candidate's method refuses.
    """
    model, device = checkpoint.model, checkpoint.model.device
    settings = model.config.compression_settings(**candidate.overrides)
    outputs, kept_share, of_call = encoded.outputs, 1.0, {"retention_ratio": 1.0}
    peak_is_known = reset_peak_memory(device)
    synchronize(device)
    begin = time.perf_counter()
    marks = _Marks(device)
    if not isinstance(candidate, AllTokens):
        of_call = {"compression_positions": settings.compression_positions}  # the other settings are in the features
        try:
            outputs = model.model.compressed_features(encoded.outputs, encoded.tokens, settings)
        except ValueError as error:
            raise MethodRefused(" ".join(str(error).split())) from error
        kept_share = len(outputs.video_compressions[0].indices) / outputs.video_compressions[0].num_tokens
    marks.add()
    with _language_model_starts(model, marks) as lengths:
        generated = model.generate(
            **{name: value for name, value in encoded.inputs.items() if name != "pixel_values_videos"},
            mm_encoder_outputs={"video": outputs},
            **of_call,
            min_new_tokens=task.max_new_tokens,
            max_new_tokens=task.max_new_tokens,
            do_sample=False,
        )
    marks.add()
    synchronize(device)
    end = time.perf_counter()

    compression, prompt, prefill, *steps = marks.seconds_between()
    assert len(steps) == task.max_new_tokens - 1, f"{len(steps)} steps of the language model after the prefill"
    input_ids = encoded.inputs["input_ids"]
    text_tokens = int((~model.model.is_video(input_ids[0])).sum())
    peaks = (encoded.peak_bytes, peak_memory(device) if peak_is_known else None)
    return Turn(
        seconds=dict(zip(STAGES, (*encoded.seconds, compression, prompt, prefill, sum(steps)), strict=True)),
        step_seconds=steps,
        end_to_end_seconds=encoded.wall_seconds + end - begin,
        prompt_tokens=lengths[0],
        video_tokens=lengths[0] - text_tokens,
        kept_share=kept_share,
        peak_bytes=None if None in peaks else max(each for each in peaks if each is not None),
        new_tokens=generated[:, input_ids.shape[1] :].tolist(),
    )


def needs_tower_states(checkpoint: Checkpoint, candidates: Sequence[Candidate]) -> bool:
    """Whether one of the methods looks at the vision tower's own states."""
    settings = (checkpoint.model.config.compression_settings(**each.overrides) for each in candidates)
    return any("tower_states" in COMPRESSION_METHODS[each.compression_method].needs for each in settings)


# ---------------------------------------------------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------------------------------------------------


class _Marks:
    """Borders of stages; the first is where it is made."""

    def __init__(self, device: torch.device):
        self.device, self.marks = device, []
        self.add()

    def add(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.marks.append(event)
        else:
            synchronize(self.device)
            self.marks.append(time.perf_counter())

    def seconds_between(self) -> list[float]:
        """From each to the next; the device must have reached the last."""
        pairs = zip(self.marks, self.marks[1:])
        if self.device.type == "cuda":
            return [first.elapsed_time(second) / 1000 for first, second in pairs]
        return [second - first for first, second in pairs]


def synchronize(device: torch.device) -> None:
    """Wait for what was asked of the device; the CPU is never ahead of itself."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def _language_model_starts(model: "VidCom2GenerationMixin", marks: _Marks) -> Iterator[list[int]]:
    """A mark where each step of the language model starts; gives how many tokens each runs over."""
    lengths: list[int] = []

    def before(module: Any, args: Any, kwargs: Any) -> None:
        marks.add()
        lengths.append(kwargs["inputs_embeds"].shape[1])

    hook = model.get_decoder().register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield lengths
    finally:
        hook.remove()


# ---------------------------------------------------------------------------------------------------------------------
# Memory
# ---------------------------------------------------------------------------------------------------------------------


def reset_peak_memory(device: torch.device) -> bool:
    """Begin anew with what `peak_memory` reports; returns whether this machine can tell it.

    On CUDA it is what PyTorch has allocated, with the weights. On Linux' CPU it is what of the process lies in memory
    (VmHWM), with libraries and weights: the kernel keeps track of it at no cost to what is timed. What earlier turns
    left with the C library is given back first.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    if device.type != "cpu":
        return False
    with suppress(AttributeError, OSError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # another system than Linux, or it is not allowed
        return False
    return True


def peak_memory(device: torch.device) -> int | None:
    """Bytes since `reset_peak_memory`, where that can tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
