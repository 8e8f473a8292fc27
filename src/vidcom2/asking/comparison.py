"""Answer one question about one video with and without compression, and measure both."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, ProcessorMixin

from ..checks import check_settings, whole_number
from ..configuration.compression_settings import COMPRESSION_METHODS, NO_BUDGET, CompressionSettings
from ..errors import OptionError
from ..loading.checkpoints import Checkpoint
from ..modeling.methods.compression import TooFewTokensError, VideoCompression
from ..modeling.prompt.prompt_compression import positions_made_for
from ..video.reading import Video
from .candidates import BASELINE, changed_settings, way_in_words
from .frame_device import device_of_frames
from .generation import EncodedVideos, generate_answers, is_static, keep_tokens, run_tower
from .prepared_video import VideoPrompt, num_video_tokens, prepare_video
from .prompting import scored_frames, texts_of
from .stopwatch import Stopwatch

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

# Called with the name of the current step, how much of it is done, and how much there is in all.
Progress = Callable[[str, float, float | None], None]

SMALL_MODEL = 100e6  # parameters; a smaller model counts as small


@dataclass
class Measured:
    """The figures of one side of the comparison, which was asked the same question several times.

    Attributes:
        prompt_tokens: length of the prompt in the KV cache after prefill.
        video_tokens: how many of these tokens belong to the video.
        prefill_seconds: median time that the language model takes for the prompt and the first new token.
        total_seconds: median time of the whole answer: video encoder, compression, prompt, prefill and decoding.
        prefill_seconds_each, total_seconds_each: the times of each repetition.
        new_tokens: how many tokens the last repetition generated.
        answer: the text of these tokens.
        num_positions: one more than the highest position that the language model was given.
    """

    prompt_tokens: int
    video_tokens: int
    prefill_seconds: float
    total_seconds: float
    prefill_seconds_each: list[float]
    total_seconds_each: list[float]
    new_tokens: int
    answer: str
    num_positions: int


@dataclass
class Comparison:
    """What `vidcom2 run` reports.

    Attributes:
        model, prompt: the checkpoint's name, and the question.
        retention_ratio: the ratio of the compressed side.
        settings: all settings of VidCom² that the answer was made with.
        lost_frames: how many frames of the file could not be decoded.
        full_prompt_tokens, full_video_tokens: the tokens of the processor's uncompressed prompt, and of its video.
        frame_seconds: (T,) the time at which each scored frame is shown, in seconds.
        frame_budgets: (T,) the number of tokens kept of each scored frame.
        frame_uniqueness: (T,) the method's score u_t; None for a method without one.
        tokens_per_frame: the number of scored tokens of a frame, M.
        kept_share: the share of the scored tokens that is kept.
        max_position_embeddings: how many positions the language model was made for; None if its config does not say.
        compressed: the side that keeps the tokens of `settings`.
        uncompressed: the side with all tokens; None if it was not asked for.
        other_method, other: another method, and its side; None if it was not asked for.
        environment: the machine and the software, as `environment` describes them.
        chat_template_kwargs: the values that the chat template was given.
        changed_settings: `retention_ratio`, and those that are not at their default, those of the family included.
        num_frames: how many frames of the video were sampled.
        scores: what the method says of the score u_t; None if it says nothing.
        other_kept_share: the share of the scored tokens that the other method keeps. It is `kept_share`, unless that
            method cannot keep so few.
    """

    model: str
    prompt: str
    retention_ratio: float
    settings: dict[str, Any]
    lost_frames: int
    full_prompt_tokens: int
    full_video_tokens: int
    frame_seconds: list[float]
    frame_budgets: list[int]
    frame_uniqueness: list[float] | None
    tokens_per_frame: int
    kept_share: float
    max_position_embeddings: int | None
    compressed: Measured
    uncompressed: Measured | None
    other_method: str | None = None
    other: Measured | None = None
    environment: dict[str, str] = field(default_factory=dict)
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    changed_settings: dict[str, Any] = field(default_factory=dict)
    num_frames: int = 0
    scores: str | None = None
    other_kept_share: float | None = None

    @property
    def way(self) -> str:
        """The method and the ratio of the compressed side."""
        return way_in_words({**self.settings, "retention_ratio": self.retention_ratio})

    @property
    def sides(self) -> dict[str, Measured | None]:
        """All sides of the comparison by their names. A side that did not run is None."""
        sides = {"all tokens": self.uncompressed, self.way: self.compressed}
        return sides if self.other_method is None else {**sides, self.other_method: self.other}

    def too_long(self) -> dict[str, Measured]:
        """Return the sides whose prompt and answer are longer than the model was made for."""
        limit = self.max_position_embeddings
        return {
            name: side
            for name, side in self.sides.items()
            if side is not None and limit is not None and max(side.prompt_tokens, side.num_positions) > limit
        }


def compare_answers(
    checkpoint: Checkpoint,
    video: Video,
    prompt: str,
    max_new_tokens: int,
    repeats: int = 3,
    baseline: bool = True,
    progress: Progress = lambda *_: None,
    other_method: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Answer `prompt` about `video` with the model's retention ratio and, as the baseline, with 1.0.

    The sides take turns, so that other work of the machine slows them down alike.

    Args:
        repeats: how often each side is measured. One unmeasured call comes first, which prepares kernels and memory.
        baseline: whether the full prompt runs too. The full prompt may not fit into memory, even if the compressed one
            does.
        other_method: another method that answers too. It keeps as many tokens, or the fewest that it can keep.
        chat_template_kwargs: as in `ask`.

    Raises:
        OptionError: if `repeats` is no whole number >= 1, if there is no method of that name, and if the other method
            refuses to keep as few tokens.
    """
    repeats = whole_number("repeats", repeats)
    if other_method is not None:
        check_settings({"compression_method": other_method}, typed={"compression_method": "other_method"})
    model, processor = checkpoint.model, checkpoint.processor
    written, inputs = prepare_video(processor, video, model, device=device_of_frames(checkpoint))
    asked = written.prompt(processor, prompt, chat_template_kwargs)
    settings_of = model.config.compression_settings
    settings = settings_of()
    compared: list[dict[str, Any]] = [{"retention_ratio": settings.retention_ratio}]
    if baseline:
        compared.append(BASELINE)
    with steady_threads(model):
        encoded = run_tower(model, inputs, settings)
        kept = keep_tokens(model, encoded, settings)
        compression = kept.video_compressions[0]
        other_kept_share = None
        if other_method is not None:
            compared.append(_with_as_many_tokens(other_method, compression))
            other_kept_share = _share_kept(model, encoded, settings_of(**compared[-1]), compression)
        del encoded  # which has all tokens
        sides: list[list[TimedAnswer]] = [[] for _ in compared]
        steps = (repeats + 1) * len(compared)
        for repeat in range(repeats + 1):
            order = range(len(compared)) if repeat % 2 else reversed(range(len(compared)))
            for i in order:
                progress("Answering", sum(map(len, sides)), steps)
                # The first call generates a single token, unless its steps are compiled, and is not counted.
                side_settings = settings_of(**compared[i])
                most = max_new_tokens if repeat or is_static(model, {}) else 1
                sides[i].append(timed_answer(model, processor, asked, inputs, side_settings, max_new_tokens=most))
        measured = [summarized(calls[1:], processor) for calls in sides]
        where = environment(model)
    u, said = compression.frame_uniqueness, COMPRESSION_METHODS[settings.compression_method].scores
    text_tokens = int(texts_of(model, asked.inputs(processor, model, kept)["input_ids"]).sum())
    full_video_tokens = num_video_tokens(kept)
    return Comparison(
        model=checkpoint.name,
        prompt=prompt,
        retention_ratio=settings.retention_ratio,
        settings=asdict(settings),
        lost_frames=video.lost,
        full_prompt_tokens=text_tokens + full_video_tokens,
        full_video_tokens=full_video_tokens,
        frame_seconds=[round(float(s), 3) for s in video.seconds[scored_frames(len(video.seconds), compression)]],
        frame_budgets=compression.frame_budgets.tolist(),
        frame_uniqueness=None if u is None else [round(value, 6) for value in u.tolist()],
        tokens_per_frame=compression.tokens_per_frame,
        kept_share=len(compression.indices) / compression.num_tokens,
        max_position_embeddings=positions_made_for(model.config.get_text_config()),
        compressed=measured[0],
        uncompressed=measured[1] if baseline else None,
        other_method=other_method,
        other=None if other_method is None else measured[-1],
        environment=where,
        chat_template_kwargs=dict(chat_template_kwargs or {}),
        changed_settings=changed_settings(model.config, settings),
        num_frames=len(video.frames),
        scores=None if u is None or said is None else " ".join(said.split()),
        other_kept_share=other_kept_share,
    )


def _with_as_many_tokens(method: str, compression: VideoCompression) -> dict[str, Any]:
    """Return the settings with which another method keeps as many tokens as this compression did. Its ratio alone says
    how many, so no budget refuses a method that cannot keep so few."""
    ratio = len(compression.indices) / compression.num_tokens
    settings = {"compression_method": method, "retention_ratio": ratio, "max_video_tokens": NO_BUDGET}
    if COMPRESSION_METHODS[method].reads("compression_rounding"):
        settings["compression_rounding"] = "exact"
    return settings


def _share_kept(
    model: "VidCom2GenerationMixin", videos: EncodedVideos, settings: CompressionSettings, compressed: VideoCompression
) -> float:
    """Return the share of the scored tokens that the other method keeps, before anything is generated.

    Args:
        settings: those of the other method.
        compressed: what the compressed side keeps.

    Raises:
        OptionError: if the other method refuses to keep as few.
    """
    total = compressed.num_tokens
    try:
        kept = keep_tokens(model, videos, settings).video_compressions[0]
    except TooFewTokensError as error:
        ratio = math.ceil(error.least / total * 10**4) / 10**4
        budget = "" if model.config.max_video_tokens is None else f" and --max-video-tokens {error.least} or more"
        raise OptionError(
            f"`--against {settings.compression_method}` would have to keep {len(compressed.indices)} of the {total} "
            f"scored tokens of this video, as the compressed side does, but it needs {error.least}. Pass "
            f"--retention-ratio {ratio:g} or more{budget}, or name another method."
        ) from error
    return len(kept.indices) / total


@dataclass
class TimedAnswer:
    """The figures of one answer. `Measured` summarizes those of several repetitions.

    Attributes:
        prompt_tokens, video_tokens, num_positions: as in `Measured`.
        prefill_seconds, total_seconds: the times of this answer.
        new_tokens: (new,) the ids of the generated tokens.
    """

    prompt_tokens: int
    video_tokens: int
    prefill_seconds: float
    total_seconds: float
    num_positions: int
    new_tokens: Tensor


def timed_answer(
    model: "VidCom2GenerationMixin",
    processor: ProcessorMixin,
    prompt: VideoPrompt,
    videos: EncodedVideos | Mapping[str, Any],
    settings: CompressionSettings,
    **arguments: Any,
) -> TimedAnswer:
    """Answer one prompt, and measure how long it takes.

    Args:
        videos: the prompt's video, or the processor's outputs for it. `total_seconds` includes encoding these.
        arguments: arguments of `generate`.
    """
    watch = Stopwatch(model)
    if not isinstance(videos, EncodedVideos):
        videos = run_tower(model, videos, settings, hook=watch)
    features = keep_tokens(model, videos, settings, watch)
    inputs = prompt.inputs(processor, model, features)
    new = generate_answers(model, inputs, features, settings.compression_positions, hook=watch, **arguments)
    seconds = watch.seconds()
    return TimedAnswer(
        prompt_tokens=watch.calls[0].tokens,
        video_tokens=watch.calls[0].tokens - int(texts_of(model, inputs["input_ids"]).sum()),
        prefill_seconds=seconds["prefill"],
        total_seconds=sum(seconds.values()),
        num_positions=watch.num_positions,
        new_tokens=new[0],
    )


def summarized(calls: Sequence[TimedAnswer], processor: ProcessorMixin) -> Measured:
    """Summarize the repetitions of one side of a comparison. The answer is that of the last one."""
    last = calls[-1]
    prefill, total = [call.prefill_seconds for call in calls], [call.total_seconds for call in calls]
    return Measured(
        prompt_tokens=last.prompt_tokens,
        video_tokens=last.video_tokens,
        prefill_seconds=median(prefill),
        total_seconds=median(total),
        prefill_seconds_each=prefill,
        total_seconds_each=total,
        new_tokens=len(last.new_tokens),
        answer=processor.decode(last.new_tokens, skip_special_tokens=True),
        num_positions=last.num_positions,
    )


@contextmanager
def steady_threads(model: PreTrainedModel) -> Iterator[None]:
    """Run a small model on one thread of the CPU, unless OMP_NUM_THREADS sets the number.

    The parallel steps of a small model are shorter than a time slice of the system. On a core that is busy with
    something else, each step waits for a whole slice. The compressed prompt has the shortest steps, so it loses most.
    """
    before = torch.get_num_threads()
    small = sum(parameter.numel() for parameter in model.parameters()) < SMALL_MODEL
    if model.device.type == "cpu" and small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def environment(model: PreTrainedModel) -> dict[str, str]:
    """Describe the machine and software that figures come from, for reports and result files."""
    import platform

    import transformers

    devices = dict.fromkeys(map(str, getattr(model, "hf_device_map", {"": model.device}).values()))
    name = f"{platform.machine()} {model.device.type}"
    if model.device.type == "cuda":
        name = torch.cuda.get_device_name(model.device)
    return {
        "device": name if len(devices) == 1 else f"{name} (spread over {', '.join(devices)})",
        "threads": str(torch.get_num_threads()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": str(model.config._attn_implementation),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
