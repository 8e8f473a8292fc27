"""Answering questions about many videos. Videos are read and preprocessed ahead, and questions answered in batches."""

import copy
import math
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from ..checkpoints import Checkpoint
from ..checks import is_watched, path_of_watched
from ..configuration.compression_settings import CompressionSettings
from ..errors import OptionError, is_out_of_memory, memory_reason, one_line
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.hosting.in_transformers import CACHE, FORMER_NAME
from ..placement import Placement
from ..video.reading import Video, read_video
from .arguments import (
    DEMO_WARNING,
    OWN_ARGUMENTS,
    check_generate_arguments,
    check_model,
    checkpoint_of,
    pop_call_settings,
    with_tokenizer,
)
from .background import Background
from .frame_size import size_of_frames
from .generation import check_encoded_alike, compress, encode, generate, joined
from .prepared_video import PreparedVideo, prepare_video
from .prompting import (
    check_prompt,
    check_template_arguments,
    padded,
    video_arguments,
)
from .requests import HowToAnswer, VideoRequest, request_of
from .watched import Watched, check_kept, load_watched_file
from .watched_file import encoder_identity, read_header

OUT_OF_MEMORY = "out of memory ({}) for this request alone. Take fewer frames, or keep fewer tokens."
HELD_BATCHES = 4  # how many are encoded before one is answered, so that a batch has prompts of similar length
MOST_PROMPTS_OF_A_VIDEO = 64  # how many are prepared together


@dataclass(frozen=True)
class AnsweredRequest:
    """A request with its answer, or with the reason why there is none.

    Attributes:
        answer: the text; None after an error.
        error: why there is no answer, in one line; None if there is one.
        prompt_tokens, video_tokens, full_prompt_tokens, full_video_tokens, new_tokens: as in `Answer`.
        lost_frames: how many frames of the file could not be decoded.
    """

    request: VideoRequest
    answer: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    video_tokens: int | None = None
    full_prompt_tokens: int | None = None
    full_video_tokens: int | None = None
    new_tokens: int | None = None
    lost_frames: int | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The row that `vidcom2 run` writes: `id`, `given`, and either `error` or all the other attributes."""
        found = {name: value for name, value in vars(self).items() if name != "request" and value is not None}
        return {"id": self.request.id, "given": self.request.given, **found}


def answer_many(
    requests: Iterable[Mapping[str, Any] | VideoRequest],
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    num_frames: int = 32,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    workers: int = 2,
    scale_while_reading: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    read: Callable[[str, int], Video] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | None = None,
    revision: str | None = None,
    **arguments: Any,
) -> Generator[AnsweredRequest, None, None]:
    """Ask a model about many videos, and yield each answer as it comes.

    Threads read and preprocess the next videos while the model runs. Prompts of similar length share a call of
    `generate`, so answers come in a different order than requests. Requests are taken as needed. Consecutive requests
    about the same video read it once. A mistake in a request, an unreadable video, or too little memory becomes the
    `error` of that request alone. A batch that does not fit into memory is halved.

    Args:
        requests: dicts with `video` (a path, a URL, a `Video`, or, with `fps` or `times`, a list of the paths of
            pictures) and `prompt`. They may have an `id` (otherwise their number, from 1), `num_frames`,
            `max_new_tokens`, `chat_template_kwargs` and settings of VidCom² of their own. A path that ends in
            `.watched` is a file of `Watched.save`, which has frames and settings already.
        model: as in `ask`.
        processor: the processor of a loaded model.
        num_frames: how many frames are sampled, evenly in time.
        max_new_tokens: the most tokens that an answer may have.
        batch_size: the most requests in a call of `generate`. Up to four times as many wait encoded, in the model's
            memory.
        workers: threads that read videos. `workers` + `batch_size` videos are in memory at a time.
        scale_while_reading: as in `ask`, for the requests whose video is a file.
        chat_template_kwargs: as in `ask`. Those of a request are added to these, or replace them.
        read: reads a video's frames in place of `read_video`, and raises a ValueError if it cannot. Several threads
            call it.
        device, dtype, attn_implementation, device_map, revision: how to load a model that is named.
        **arguments: as in `ask`, for all requests.

    Returns:
        A generator. The threads end when it is exhausted or closed.

    Raises:
        CheckpointError: at once, if the model cannot be loaded.
        ValueError: at once, on an argument that is unknown, outside its accepted set, or useless with another.
    """
    if isinstance(requests, Mapping | VideoRequest):
        raise OptionError("`requests` is a single request. Pass a list of them, or another iterable.")
    settings = pop_call_settings(arguments)
    placement = Placement(
        device=device,
        device_map=device_map,
        dtype=dtype,
        attn_implementation=attn_implementation,
        revision=revision,
    )
    how = HowToAnswer(
        num_frames=num_frames,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        workers=workers,
        scale_while_reading=scale_while_reading,
        chat_template_kwargs=chat_template_kwargs or {},
    )
    if scale_while_reading and read is not None:
        raise OptionError(
            "`scale_while_reading` is for `read_video`, but `read` is given, which may scale frames itself. Leave one "
            "of them out."
        )
    check_generate_arguments("answer_many", arguments, (*OWN_ARGUMENTS, "streamer", FORMER_NAME, CACHE))
    found = check_model(model, processor, placement, settings)
    if model is None:
        warnings.warn(DEMO_WARNING, UserWarning, stacklevel=2)
    checkpoint, settings = checkpoint_of(found, processor, settings)
    engine = TransformersEngine(checkpoint, how, settings, arguments)
    numbered = zip(count(1), requests)
    asked = (each if isinstance(each, VideoRequest) else request_of(each, number) for number, each in numbered)
    return engine.answers(asked, read)


# ---------------------------------------------------------------------------------------------------------------------
# What all engines share
# ---------------------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """Raised in a thread that reads a video which is no longer needed."""


@dataclass(eq=False)
class Prepared:
    """Consecutive requests about one video, after it was read.

    Attributes:
        prompts: what the engine takes for each request that can be asked.
        video: what it takes for their video, if that is not part of the prompts.
        written: how the video stands in a prompt, for an engine that prepares it once.
        watched: the video, if it was watched before and is not encoded again.
    """

    prompts: list[Any] = field(default_factory=list)
    video: dict[str, Any] = field(default_factory=dict)
    written: PreparedVideo | None = None
    watched: Watched | None = None
    lost_frames: int = 0
    refused: list[AnsweredRequest] = field(default_factory=list)


class Engine(ABC):
    """What answers requests. Threads read their videos and prepare their prompts, while the model runs in the caller's
    thread.

    Args:
        ahead: how many videos may be in work, or wait for the model.
    """

    def __init__(self, processor: Any, how: HowToAnswer, ahead: int) -> None:
        check_template_arguments(processor, how.chat_template_kwargs)
        self.processor, self.how, self.ahead = processor, how, ahead

    def answers(
        self, requests: Iterable[VideoRequest], read: Callable[..., Video] | None = None
    ) -> Generator[AnsweredRequest, None, None]:
        """Yield the answers as they come. The engine may be asked again afterwards.

        Args:
            read: reads a video in place of `read_video`.
        """

        def prepare(group: Sequence[VideoRequest]) -> Prepared:
            return self.prepared(group, read or partial(read_video, progress=go_on, size=size))

        def go_on(*_: object) -> None:
            if background.stopping.is_set():
                raise Stopped

        size = size_of_frames(self.processor) if self.how.scale_while_reading else None
        with Background(prepare, consecutive(iter(requests)), self.how.workers, self.ahead) as background:
            yield from self._answered(background.take)

    def rows(self, requests: Sequence[VideoRequest]) -> Generator[dict[str, Any], None, None]:
        """Yield the rows of the answers, with `video_file`, the `video_stamp` of the video before it was read."""
        videos = {request.id: request.stamp.video_file for request in requests}
        with closing(self.answers(requests)) as answers:
            for answer in answers:
                yield answer.row | {"video_file": videos[answer.request.id]}

    def prepared(self, group: Sequence[VideoRequest], read: Callable[..., Video]) -> Prepared:
        """Read the video of these requests, and prepare each. Any thread may call this."""
        result = Prepared()
        video: Video | Watched | None = None
        unreadable: str | None = None
        for request in group:
            try:
                self.check(request)
                if unreadable is not None:
                    raise OptionError(unreadable)
                if video is None:
                    try:
                        if is_watched(request.video):
                            video = self.watched(path_of_watched(str(request.video)))
                        else:
                            video = request.read_by(read, self.how.num_frames)
                            result.lost_frames = video.lost
                    except Exception as error:
                        unreadable = refusal(error)
                        raise
                template_arguments = {**self.how.chat_template_kwargs, **request.chat_template_kwargs}
                result.prompts.append(self.prompt(request, video, template_arguments, result))
            except Exception as error:
                reason = refusal(error)
                if reason is None:
                    raise
                result.refused.append(AnsweredRequest(request, error=reason))
        return result

    def check(self, request: VideoRequest) -> None:
        """Check what can be known before the video is read. Raises a ValueError."""
        if request.problem is not None:
            raise OptionError(request.problem)
        check_prompt(self.processor, request.prompt)
        check_template_arguments(self.processor, request.chat_template_kwargs)

    def watched(self, path: Path) -> Watched:
        """Return what a file holds of a watched video. Raises an OptionError if it does not fit, or with an engine that
        encodes videos itself."""
        raise OptionError(
            f"{str(path)!r} is a watched video, but this engine encodes videos itself. Ask about the video that it was "
            "made of, or with --engine transformers."
        )

    @abstractmethod
    def prompt(self, request: VideoRequest, video: Any, template_arguments: dict[str, Any], group: Prepared) -> Any:
        """Return what the engine takes for a request of this group. Raises a ValueError on one that it refuses."""

    @abstractmethod
    def _answered(self, take: Callable[[bool], Prepared | None]) -> Iterator[AnsweredRequest]:
        """Answer what `Background.take` hands out, until nothing is left."""

    def close(self) -> None:  # noqa: B027  (most engines have nothing to end)
        """End what runs beside this process."""


def consecutive(requests: Iterator[VideoRequest]) -> Iterator[list[VideoRequest]]:
    """Group consecutive requests about the same video. A request with a problem makes a group of its own."""

    def video(request: VideoRequest) -> tuple[Any, ...]:
        return (id(request),) if request.problem else (request.video, request.num_frames, request.fps, request.times)

    for _, same in groupby(requests, key=video):
        while group := list(islice(same, MOST_PROMPTS_OF_A_VIDEO)):
            yield group


def refusal(error: Exception) -> str | None:
    """Return why a request has no answer; None for a bug, which the caller must raise."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY.format(memory_reason(error))
    if isinstance(error, OSError):  # such as no right to read the file, or no space for a download
        return f"cannot read the video: {one_line(error)}"
    return one_line(error) if isinstance(error, ValueError) else None


# ---------------------------------------------------------------------------------------------------------------------
# Transformers
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Prompt:
    """A request whose video is encoded and compressed.

    Attributes:
        inputs: its inputs without pixels, on the CPU.
        together: what requests must have in common to share a call of `generate`: `max_new_tokens` and
            `compression_positions`.
        tokens: length of the compressed prompt.
    """

    request: VideoRequest
    inputs: dict[str, Any]
    features: VidCom2VideoFeatures
    together: tuple[int, str]
    tokens: int
    full_video_tokens: int
    lost_frames: int

    @property
    def most_tokens(self) -> int:
        """Length of the compressed prompt with the longest answer."""
        return self.tokens + self.together[0]


class TransformersEngine(Engine):
    """A loaded model of ours.

    Args:
        settings: those of the run, besides the model's own.
        arguments: further arguments of `generate`.
        loaded_with: settings that the user gave and the model was loaded with. A watched video must have the same.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        how: HowToAnswer,
        settings: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        loaded_with: Mapping[str, Any] | None = None,
    ) -> None:
        self.checkpoint, self.model = checkpoint, checkpoint.model
        self.settings = dict(settings or {})
        self.given = {**(loaded_with or {}), **self.settings}
        self.model.config.compression_settings(**self.settings)  # refuses settings that do not fit together, at once
        super().__init__(checkpoint.processor, how, ahead=how.workers + how.batch_size)
        self.arguments = with_tokenizer(dict(arguments or {}), checkpoint)
        self.fitting = math.inf  # most tokens of a batch, with padding and answers; lowered when a batch does not fit
        self._of_thread = threading.local()
        self._encoder: Mapping[str, Any] | None = None

    def check(self, request: VideoRequest) -> None:
        super().check(request)
        if is_watched(request.video):  # `prompt` compares its own settings
            return
        settings = self._settings(request)  # the videos of all requests are encoded together
        check_encoded_alike(settings, self.model.config.compression_settings().vision_settings())

    def watched(self, path: Path) -> Watched:
        header = read_header(path)
        if self._encoder is None:  # which reads all of its weights
            self._encoder = encoder_identity(self.checkpoint)
        return load_watched_file(path, header, self.checkpoint, self.given, self._encoder)

    def prompt(
        self, request: VideoRequest, video: Video | Watched, template_arguments: dict[str, Any], group: Prepared
    ) -> tuple[VideoRequest, dict[str, Any]]:
        """Return the request with its inputs for a batch of one, without pixels."""
        if not hasattr(self._of_thread, "processor"):  # threads cannot use a tokenizer at the same time
            self._of_thread.processor = copy.deepcopy(self.processor)
        processor = self._of_thread.processor
        if isinstance(video, Watched):
            check_kept(video.settings, request.settings)
            group.written, group.watched = video.prepared, video
        elif group.written is None:
            group.written, inputs = prepare_video(processor, video)
            group.video = video_arguments(self.model, inputs)
            # This halves the memory for a model in half precision. Other inputs must not be rounded.
            group.video["pixel_values_videos"] = group.video["pixel_values_videos"].to(self.model.dtype)
        return request, group.written.prompt(processor, self.model, request.prompt, template_arguments, device="cpu")

    def _answered(self, take: Callable[[bool], Prepared | None]) -> Iterator[AnsweredRequest]:
        held: list[_Prompt] = []
        most = HELD_BATCHES * self.how.batch_size
        while True:
            # With a full batch at hand the model does not wait for more, but takes what is ready, which may fit better.
            group = take(len(held) < self.how.batch_size)
            if group is not None:
                while (encoded := self.encoded(group, gives_up=not held)) is None:
                    yield from self.answered(self.taken(held))  # which frees memory
                prompts, refused = encoded
                yield from refused
                held += prompts
                if len(held) < most:
                    continue
            if not held:
                return
            yield from self.answered(self.taken(held))

    def encoded(self, group: Prepared, gives_up: bool) -> tuple[list[_Prompt], list[AnsweredRequest]] | None:
        """Run the vision tower once, and compress the video for each request. Returns the requests that can be
        answered, and the refused ones; None if memory ran out.

        Args:
            gives_up: whether to refuse the requests if memory runs out, because none can be freed.
        """
        prompts: list[_Prompt] = []
        refused = list(group.refused)
        if not group.prompts:
            return prompts, refused
        if group.watched is not None:
            features, settings = group.watched.features, group.watched.settings
            of_each = [self._prompt(request, inputs, features, settings, 0) for request, inputs in group.prompts]
            return of_each, refused
        settings_of_each = [self._settings(request) for request, _ in group.prompts]
        kept: dict[tuple[Any, ...], VidCom2VideoFeatures | ValueError] = {}
        try:
            on_device = BatchFeature(group.video).to(self.model.device)
            video = encode(self.model, on_device, self.model.config.compression_settings())
            for (request, inputs), settings in zip(group.prompts, settings_of_each, strict=True):
                key = tuple(settings.as_dict().items())
                if key not in kept:
                    try:
                        kept[key] = compress(self.model, video, settings)
                    except ValueError as error:  # such as a ratio too low for the method
                        kept[key] = error
                features = kept[key]
                if isinstance(features, ValueError):
                    refused.append(AnsweredRequest(request, error=one_line(features)))
                else:
                    prompts.append(self._prompt(request, inputs, features, settings, group.lost_frames))
        except Exception as error:
            reason = refusal(error)
            if reason is None:
                raise
            if is_out_of_memory(error) and not gives_up:
                return None
            return [], group.refused + [AnsweredRequest(request, error=reason) for request, _ in group.prompts]
        return prompts, refused

    def _settings(self, request: VideoRequest) -> CompressionSettings:
        return self.model.config.compression_settings(**{**self.settings, **request.settings})

    def _prompt(
        self,
        request: VideoRequest,
        inputs: dict[str, Any],
        features: VidCom2VideoFeatures,
        settings: CompressionSettings,
        lost_frames: int,
    ) -> _Prompt:
        full_video_tokens = int(self.model.model.is_video(inputs["input_ids"]).sum())
        return _Prompt(
            request=request,
            inputs=inputs,
            features=features,
            together=(request.max_new_tokens or self.how.max_new_tokens, settings.compression_positions),
            tokens=inputs["input_ids"].numel() - full_video_tokens + len(features.pooler_output[0]),
            full_video_tokens=full_video_tokens,
            lost_frames=lost_frames,
        )

    def taken(self, held: list[_Prompt]) -> list[_Prompt]:
        """Remove and return the next batch of the held prompts: the first, and those nearest to it in length."""
        first = held[0]
        others = [each for each in held[1:] if each.together == first.together]
        batch, longest = [first], first.most_tokens
        for each in sorted(others, key=lambda other: abs(other.tokens - first.tokens)):
            longest = max(longest, each.most_tokens)
            if len(batch) == self.how.batch_size or (len(batch) + 1) * longest > self.fitting:
                break
            batch.append(each)
        for each in batch:
            held.remove(each)
        return batch

    def answered(self, batch: Sequence[_Prompt]) -> Iterator[AnsweredRequest]:
        """Answer a batch, in halves if it does not fit into memory or the model refuses one of its prompts."""
        try:
            answers, reason = self._generated(batch), None
        except Exception as error:
            answers, reason = [], refusal(error)
            if reason is None:
                raise
            if is_out_of_memory(error) and len(batch) > 1:
                self.fitting = len(batch) * max(each.most_tokens for each in batch) / 2
        # This is outside the handler, because the exception holds the failed call's tensors.
        if reason is None:
            yield from answers
        elif len(batch) == 1:
            yield AnsweredRequest(batch[0].request, error=reason)
        else:
            yield from self.answered(batch[: len(batch) // 2])
            yield from self.answered(batch[len(batch) // 2 :])

    def _generated(self, batch: Sequence[_Prompt]) -> list[AnsweredRequest]:
        max_new_tokens, positions = batch[0].together
        inputs = BatchFeature(padded([each.inputs for each in batch], self.processor.tokenizer)).to(self.model.device)
        features = joined([each.features for each in batch])
        arguments = {"max_new_tokens": max_new_tokens, **self.arguments}
        new = generate(self.model, inputs, features, positions, **arguments).cpu()
        return [self._answer(prompt, row[: self._length(row)]) for prompt, row in zip(batch, new, strict=True)]

    def _length(self, new: Tensor) -> int:
        """Return the length of an answer (n,) without the padding that follows if another of the batch is longer."""
        config = self.arguments.get("generation_config") or self.model.generation_config
        ends, pad, stops = (
            self.arguments.get(name, getattr(config, name, None))
            for name in ("eos_token_id", "pad_token_id", "stop_strings")
        )
        is_end = torch.isin(new, torch.as_tensor([] if ends is None else ends, dtype=new.dtype))
        if is_end.any():
            return int(is_end.nonzero()[0]) + 1
        if pad is not None and (stops or "stopping_criteria" in self.arguments):
            return int((new != pad).nonzero().max()) + 1 if (new != pad).any() else 0
        return len(new)

    def _answer(self, prompt: _Prompt, new: Tensor) -> AnsweredRequest:
        full_prompt_tokens = prompt.inputs["input_ids"].numel()
        return AnsweredRequest(
            request=prompt.request,
            answer=self.processor.decode(new, skip_special_tokens=True),
            prompt_tokens=prompt.tokens,
            video_tokens=len(prompt.features.pooler_output[0]),
            full_prompt_tokens=full_prompt_tokens,
            full_video_tokens=prompt.full_video_tokens,
            new_tokens=len(new),
            lost_frames=prompt.lost_frames,
        )
