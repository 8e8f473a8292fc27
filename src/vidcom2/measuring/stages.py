"""Measure one answer, from the file to the last token: the time of each stage and the peak of memory."""

import ctypes
import gc
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..asking import generation
from ..asking.candidates import AllTokens, Candidate
from ..asking.frame_device import device_of_frames
from ..asking.generation import STAGES, EncodedVideos, generate_answers, keep_tokens
from ..asking.prepared_video import VideoPrompt, prepare_video
from ..asking.prompting import texts_of
from ..asking.stopwatch import Stopwatch
from ..configuration.compression_settings import CompressionSettings
from ..loading.checkpoints import Checkpoint
from ..video.reading import read_video

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

__all__ = ["STAGES", "Encoded", "MethodRefused", "Task", "Turn", "answer", "encode", "peak_memory", "reset_peak_memory"]


@dataclass(frozen=True)
class Turn:
    """The time and memory that one answer took.

    Attributes:
        seconds: the time of each of `STAGES`; `compression` is 0 if all tokens are kept.
        step_seconds: (max_new_tokens - 1,) from the start of one step of the language model to the start of the next.
        end_to_end_seconds: the whole by the wall clock, measured independently of the stages.
        prompt_tokens: length of the prompt in the KV cache; `video_tokens` of these belong to the video.
        kept_share: kept tokens per scored token.
        peak_bytes: see `reset_peak_memory`; None where it cannot be known.
        new_tokens: (batch, max_new_tokens) ids of the new tokens.
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
    """Raised where a method does not work at this ratio or on this video. The message says why."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A video that was read and encoded, and the time and memory that it took.

    Attributes:
        prompt: the question about the video.
        seconds: the time of each of the first three of `STAGES`.
        wall_seconds: the three together by the wall clock, measured independently.
        peak_bytes: as in `Turn`.
    """

    prompt: VideoPrompt
    videos: EncodedVideos
    seconds: dict[str, float]
    wall_seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class Task:
    """The question that all contenders answer.

    Attributes:
        video: path or URL.
        batch_size: how many times a call contains the question.
        max_new_tokens: 2 or more. Generation does not stop earlier, even at an end-of-text token.
        cache_implementation: the kind of KV cache; None means that of the model's generation config.
    """

    video: str
    num_frames: int
    batch_size: int = 1
    max_new_tokens: int = 16
    question: str = "What happens?"
    cache_implementation: str | None = None


def encode(checkpoint: Checkpoint, task: Task, candidate: Candidate | None = None) -> Encoded:
    """Read the video, prepare it, and run the vision tower with the settings of a candidate, or as the stock model.

    Raises:
        MethodRefused: if the model refuses these settings.
        VideoError: if the file cannot be read.
    """
    model, device = checkpoint.model, checkpoint.model.device
    settings = _settings_of(candidate or AllTokens(), model)
    peak_is_known = reset_peak_memory(device)
    begin = time.perf_counter()  # before the stopwatch starts, so that the stages never add up to more
    watch = Stopwatch(model)
    video = read_video(task.video, task.num_frames)
    watch.ended("read")
    on = device_of_frames(checkpoint)
    written, inputs = prepare_video(checkpoint.processor, video, model, batch_size=task.batch_size, device=on)
    prompt = written.prompt(checkpoint.processor, task.question)
    watch.ended("preprocess")
    videos = generation.run_tower(model, inputs, settings, watch)
    seconds = watch.seconds()
    wall_seconds = time.perf_counter() - begin
    return Encoded(prompt, videos, seconds, wall_seconds, peak_memory(device) if peak_is_known else None)


def _settings_of(candidate: Candidate, model: "VidCom2GenerationMixin") -> CompressionSettings:
    try:
        return candidate.settings_in(model.config)
    except ValueError as error:
        raise _refused(error) from error


def _refused(error: ValueError) -> MethodRefused:
    return MethodRefused(" ".join(str(error).split()))


def answer(checkpoint: Checkpoint, task: Task, candidate: Candidate, encoded: Encoded) -> Turn:
    """Compress an encoded video and generate. Together with `encode` this is all that `generate` does given pixels.

    Raises:
        MethodRefused: if the candidate's method refuses.
    """
    model, device = checkpoint.model, checkpoint.model.device
    settings = _settings_of(candidate, model)
    features, kept_share = encoded.videos.outputs, 1.0
    peak_is_known = reset_peak_memory(device)
    begin = time.perf_counter()
    watch = Stopwatch(model)
    if isinstance(candidate, AllTokens):
        watch.ended("compression")
    else:
        try:
            features = keep_tokens(model, encoded.videos, settings, watch)
        except ValueError as error:
            raise _refused(error) from error
        kept_share = len(features.video_compressions[0].indices) / features.video_compressions[0].num_tokens
    inputs = encoded.prompt.inputs(checkpoint.processor, model, features)
    new = generate_answers(
        model,
        inputs,
        features,
        settings.compression_positions,
        watch,
        min_new_tokens=task.max_new_tokens,
        max_new_tokens=task.max_new_tokens,
        **({} if task.cache_implementation is None else {"cache_implementation": task.cache_implementation}),
    )
    seconds = encoded.seconds | {"decode": 0.0} | watch.seconds()
    end = time.perf_counter()

    steps = [each for stage, each in watch.each() if stage == "decode"]
    assert len(steps) == task.max_new_tokens - 1, f"{len(steps)} steps of the language model after the prefill"
    prompt_tokens = watch.calls[0].tokens
    text_tokens = int(texts_of(model, inputs["input_ids"][0]).sum())
    peaks = (encoded.peak_bytes, peak_memory(device) if peak_is_known else None)
    return Turn(
        seconds={stage: seconds[stage] for stage in STAGES},
        step_seconds=steps,
        end_to_end_seconds=encoded.wall_seconds + end - begin,
        prompt_tokens=prompt_tokens,
        video_tokens=prompt_tokens - text_tokens,
        kept_share=kept_share,
        peak_bytes=None if None in peaks else max(each for each in peaks if each is not None),
        new_tokens=new.tolist(),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Memory
# ---------------------------------------------------------------------------------------------------------------------


def reset_peak_memory(device: torch.device) -> bool:
    """Reset the peak that `peak_memory` reports, and return whether this machine can report one.

    On CUDA the peak is the memory that PyTorch has allocated, including the weights. On a CPU under Linux it is the
    process's resident memory (VmHWM), including libraries and weights; the kernel keeps track of it without slowing
    down what is timed. Memory that the C library still holds from earlier turns is given back first.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    if device.type != "cpu":
        return False
    with suppress(AttributeError, OSError, TypeError):  # the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # the system is not Linux, or does not allow it
        return False
    return True


def peak_memory(device: torch.device) -> int | None:
    """Return the peak in bytes since `reset_peak_memory`, on machines where that returned True."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
