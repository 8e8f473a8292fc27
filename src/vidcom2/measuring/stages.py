"""One answer, from the file to the last token, with the time of each stage and the peak of memory."""

import ctypes
import gc
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BatchFeature

from ..answering import generation
from ..answering.candidates import AllTokens, Candidate
from ..answering.generation import STAGES, EncodedVideos, compress, generate
from ..answering.prompting import prepare_inputs
from ..answering.stopwatch import Stopwatch
from ..checkpoints import Checkpoint
from ..video.reading import read_video

__all__ = ["STAGES", "Encoded", "MethodRefused", "Task", "Turn", "answer", "encode", "peak_memory", "reset_peak_memory"]


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
        seconds: of the first three of `STAGES`; `wall_seconds` of the three together, beside them.
        peak_bytes: as of a turn.
    """

    inputs: BatchFeature
    videos: EncodedVideos
    seconds: dict[str, float]
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


def encode(checkpoint: Checkpoint, task: Task, sharing: Sequence[Candidate] = ()) -> Encoded:
    """Read the video, prepare it, and run the vision tower.

    Args:
        sharing: the candidates that it is encoded for.

    Raises:
        VideoError: if the file cannot be read.
    """
    model, device = checkpoint.model, checkpoint.model.device
    peak_is_known = reset_peak_memory(device)
    watch = Stopwatch(model)
    begin = time.perf_counter()
    video = read_video(task.video, task.num_frames)
    watch.ended("read")
    inputs = prepare_inputs(checkpoint.processor, task.question, video, model, task.batch_size)
    watch.ended("preprocess")
    methods = filter(None, (each.settings.get("compression_method") for each in sharing))
    videos = generation.encode(model, inputs, model.config.compression_settings(), methods, watch)
    seconds = watch.seconds()
    wall_seconds = time.perf_counter() - begin
    return Encoded(inputs, videos, seconds, wall_seconds, peak_memory(device) if peak_is_known else None)


def answer(checkpoint: Checkpoint, task: Task, candidate: Candidate, encoded: Encoded) -> Turn:
    """Compress an encoded video and generate: with `encode` all that `generate` does with pixels.

    Raises:
        MethodRefused: if the candidate's method refuses.
    """
    model, device = checkpoint.model, checkpoint.model.device
    settings = model.config.compression_settings(**candidate.overrides)
    features, kept_share = encoded.videos.outputs, 1.0
    peak_is_known = reset_peak_memory(device)
    watch = Stopwatch(model)
    begin = time.perf_counter()
    if isinstance(candidate, AllTokens):
        watch.ended("compression")
    else:
        try:
            features = compress(model, encoded.videos, settings, watch)
        except ValueError as error:
            raise MethodRefused(" ".join(str(error).split())) from error
        kept_share = len(features.video_compressions[0].indices) / features.video_compressions[0].num_tokens
    new = generate(
        model,
        encoded.inputs,
        features,
        settings.compression_positions,
        watch,
        min_new_tokens=task.max_new_tokens,
        max_new_tokens=task.max_new_tokens,
    )
    seconds = encoded.seconds | {"decode": 0.0} | watch.seconds()
    end = time.perf_counter()

    steps = [each for stage, each in watch.each() if stage == "decode"]
    assert len(steps) == task.max_new_tokens - 1, f"{len(steps)} steps of the language model after the prefill"
    prompt_tokens = watch.calls[0].tokens
    text_tokens = int((~model.model.is_video(encoded.inputs["input_ids"][0])).sum())
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
