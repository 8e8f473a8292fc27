"""Answering questions about many videos with a model in Transformers: prompts of similar length share a batch."""

import copy
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from transformers import BatchFeature

from ..asking.arguments import replaced_by, with_tokenizer
from ..asking.frame_device import device_of_frames
from ..asking.generation import EncodedVideos, generate_answers, joined, keep_tokens, run_tower
from ..asking.model_identity import encoder_identity
from ..asking.prepared_video import VideoPrompt, num_video_tokens, prepare_video
from ..asking.prompting import padded, texts_of, video_arguments
from ..asking.watched import Watched, check_kept, load_watched_file
from ..asking.watched_file import read_header
from ..checks import is_watched
from ..configuration.compression_settings import CompressionSettings
from ..errors import is_out_of_memory
from ..loading.checkpoints import Checkpoint
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..video.reading import Video
from .engine import Engine, Prepared
from .requests import AnsweredRequest, HowToAnswer, VideoRequest

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

HELD_BATCHES = 4
Made = TypeVar("Made")


class SeenVideo:
    """A video in the model's memory. The vision tower runs once for all requests that let it run alike, and tokens are
    chosen once for all that choose alike.

    Args:
        inputs: those that describe the video, on any device.
    """

    def __init__(self, model: "VidCom2GenerationMixin", inputs: Mapping[str, Any]) -> None:
        self.model, self._inputs = model, inputs
        self._encoded = dict[str, EncodedVideos | _Failure]()
        self._compressed = dict[str, VidCom2VideoFeatures | _Failure]()

    @cached_property
    def _on_device(self) -> BatchFeature:
        return BatchFeature(dict(self._inputs)).to(self.model.device)

    def encoded(self, settings: CompressionSettings) -> EncodedVideos:
        """Return the video as the vision tower sees it with these settings. Raises a ValueError if the model refuses
        it."""
        key = str(settings.vision_settings())
        return _once(self._encoded, key, lambda: run_tower(self.model, self._on_device, settings))

    def compressed(self, settings: CompressionSettings) -> VidCom2VideoFeatures:
        """Return the features that stay. Raises a ValueError if the model refuses the video, or the method the
        settings."""
        key = str(settings.as_dict())
        return _once(self._compressed, key, lambda: keep_tokens(self.model, self.encoded(settings), settings))


@dataclass(frozen=True)
class _Failure:
    """Why something is not made. The exception itself would hold the failed call's tensors."""

    kind: type[Exception]
    reason: str


def _once(found: dict[str, Made | _Failure], key: str, make: Callable[[], Made]) -> Made:
    """Return what is made once, or raise once more that it is refused or does not fit into memory."""
    if key not in found:
        try:
            found[key] = make()
        except Exception as error:
            is_full = is_out_of_memory(error)
            if not (is_full or isinstance(error, ValueError)):
                raise
            found[key] = _Failure(MemoryError if is_full else ValueError, str(error))
    made = found[key]
    if isinstance(made, _Failure):
        raise made.kind(made.reason)
    return made


@dataclass(frozen=True, eq=False)
class EncodedRequest:
    """A request whose video is encoded and compressed.

    Attributes:
        prompt: its text.
        inputs: its inputs without pixels, on the CPU.
        features: what stays of its video.
        max_new_tokens: the most tokens that its answer may have.
        positions: the setting `compression_positions`.
        together: what requests must have in common to share a call of `generate`.
        tokens: length of the compressed prompt.
    """

    request: VideoRequest
    prompt: VideoPrompt
    inputs: dict[str, Any]
    features: VidCom2VideoFeatures
    max_new_tokens: int
    positions: str
    together: Hashable
    tokens: int
    lost_frames: int

    @property
    def most_tokens(self) -> int:
        """Length of the compressed prompt with the longest answer."""
        return self.tokens + self.max_new_tokens


class TransformersEngine(Engine):
    """A loaded model of ours.

    Args:
        settings: those of the run, besides the model's own.
        arguments: further arguments of `generate`.
        loaded_with: settings that the user gave and the model was loaded with. A watched video must have the same.
        held_requests: how many are encoded before some are answered, so that a batch has prompts of similar length. By
            default, four batches.
        in_order: whether videos are taken in the order of their requests, whichever is read first, so that the same
            requests share a batch in each run.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        how: HowToAnswer,
        settings: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        loaded_with: Mapping[str, Any] | None = None,
        held_requests: int | None = None,
        in_order: bool = False,
    ) -> None:
        self.checkpoint, self.model = checkpoint, checkpoint.model
        self.settings = dict(settings or {})
        self.given = {**(loaded_with or {}), **self.settings}
        self.model.config.compression_settings(**self.settings)  # refuses settings that do not fit together, at once
        super().__init__(checkpoint.processor, how, ahead=how.workers + how.batch_size)
        self.arguments = with_tokenizer(dict(arguments or {}), checkpoint)
        # Samples depend on what shares a batch.
        self.in_order = in_order or bool(self.arguments.get("do_sample"))
        self.held_requests = held_requests or HELD_BATCHES * how.batch_size
        self.fitting = math.inf  # most tokens of a batch, with padding and answers; lowered when a batch does not fit
        self._of_thread = threading.local()
        self._encoder: Mapping[str, Any] | None = None

    def check(self, request: VideoRequest) -> None:
        super().check(request)
        if not is_watched(request.video):  # `prompt` compares its own settings
            self.settings_of(request)

    def watched(self, path: Path) -> Watched:
        header = read_header(path)
        if self._encoder is None:  # which reads all of its weights
            self._encoder = encoder_identity(self.checkpoint)
        own = replace(self.checkpoint, processor=self._processor_of_thread())
        return load_watched_file(path, header, own, self.given, self._encoder)

    def prompt(
        self, request: VideoRequest, video: Video | Watched, template_arguments: dict[str, Any], group: Prepared
    ) -> tuple[VideoRequest, VideoPrompt]:
        """Return the request with its prompt, which is written once it is known how many tokens stay."""
        processor = self._processor_of_thread()
        if isinstance(video, Watched):
            check_kept(video.settings, request.settings)
            group.written, group.watched = video.prepared, video
        elif group.written is None:
            try:
                group.written, inputs = prepare_video(processor, video, device=device_of_frames(self.checkpoint))
            except ValueError as error:
                group.written = error
                raise
            # A video that waits for its turn takes no memory of the model's.
            group.video = video_arguments(self.model, inputs.to("cpu"))
            # This halves the memory for a model in half precision. Other inputs must not be rounded.
            group.video["pixel_values_videos"] = group.video["pixel_values_videos"].to(self.model.dtype)
        if isinstance(group.written, ValueError):
            raise group.written
        return request, group.written.prompt(processor, request.prompt, template_arguments)

    def _processor_of_thread(self) -> Any:
        if not hasattr(self._of_thread, "processor"):  # threads cannot use a tokenizer at the same time
            self._of_thread.processor = copy.deepcopy(self.processor)
        return self._of_thread.processor

    def _answered(
        self, take: Callable[..., Prepared | None], prepare: Callable[[Sequence[VideoRequest]], Prepared]
    ) -> Iterator[AnsweredRequest]:
        held: list[EncodedRequest] = []
        again: list[VideoRequest] = []  # those that had no room beside what was held
        while True:
            # With a full batch at hand the model does not wait for more, but takes what is ready, which may fit better.
            waits = self.in_order or len(held) < self.how.batch_size
            group = take(waits, in_order=self.in_order) if len(held) < self.held_requests else None
            if group is not None:
                yield from self._held(group, held, again)
                del group
                if len(held) < self.held_requests:
                    continue
            if not held:
                return
            yield from self.answered(self.taken(held), held, again)
            if again:
                while held:
                    yield from self.answered(self.taken(held), held, again)
                requests, again = again, []
                for request in requests:
                    yield from self._held(prepare([request]), held, again)
                    while held:
                        yield from self.answered(self.taken(held), held, again)

    def _held(
        self, group: Prepared, held: list[EncodedRequest], again: list[VideoRequest]
    ) -> Iterator[AnsweredRequest]:
        """Add the requests of a group to those that are held. If memory runs out meanwhile, answer some of these."""
        yield from group.refused
        while group.prompts:
            for encoded in self.encoded(group, gives_up=not held):
                if isinstance(encoded, AnsweredRequest):
                    yield encoded
                else:
                    held.append(encoded)
            if group.prompts:
                self.held_requests = max(1, len(held))
                yield from self.answered(self.taken(held), held, again)  # which frees memory

    def encoded(self, group: Prepared, gives_up: bool) -> list[EncodedRequest | AnsweredRequest]:
        """Encode the video of a group, and compress it for each request, of which the refused ones are answered by
        that. If memory runs out, requests are left in the group.

        Args:
            gives_up: whether to refuse a request that does not fit into memory, because no others can be answered
                before.
        """
        found: list[EncodedRequest | AnsweredRequest] = []
        seen = group.watched or SeenVideo(self.model, group.video)
        while group.prompts:
            request, prompt = group.prompts[0]
            try:
                encoded: EncodedRequest | AnsweredRequest = self.encoded_request(request, prompt, seen, group)
            except Exception as error:  # such as a ratio too low for the method
                alone = gives_up and all(isinstance(each, AnsweredRequest) for each in found)
                if is_out_of_memory(error) and not alone:
                    return found
                encoded = AnsweredRequest.without(request, error, of_model=True)
            found.append(encoded)
            del group.prompts[0]
        return found

    def encoded_request(
        self, request: VideoRequest, prompt: VideoPrompt, seen: SeenVideo | Watched, group: Prepared
    ) -> EncodedRequest:
        """Return a request with what stays of its video. Raises a ValueError if the model or the method refuses it."""
        if isinstance(seen, Watched):
            settings, features, lost_frames = seen.settings, seen.features, seen.lost_frames
        else:
            settings, lost_frames = self.settings_of(request), group.lost_frames
            features = self.features_of(request, seen, settings)
        inputs = prompt.inputs(self.processor, self.model, features, device="cpu")
        return EncodedRequest(
            request=request,
            prompt=prompt,
            inputs=inputs,
            features=features,
            max_new_tokens=self.length_of_answer(request),
            positions=settings.compression_positions,
            together=self.together(request, settings),
            tokens=int(texts_of(self.model, inputs["input_ids"]).sum()) + len(features.pooler_output[0]),
            lost_frames=lost_frames,
        )

    def settings_of(self, request: VideoRequest) -> CompressionSettings:
        config = self.model.config
        return config.compression_settings(**replaced_by(request.settings, self.settings, config))

    def features_of(
        self, request: VideoRequest, seen: SeenVideo, settings: CompressionSettings
    ) -> VidCom2VideoFeatures:
        return seen.compressed(settings)

    def length_of_answer(self, request: VideoRequest) -> int:
        return request.max_new_tokens or self.how.max_new_tokens

    def together(self, request: VideoRequest, settings: CompressionSettings) -> Hashable:
        """Return what requests must have in common to share a call of `generate`."""
        return self.length_of_answer(request), settings.compression_positions

    def taken(self, held: list[EncodedRequest]) -> list[EncodedRequest]:
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

    def answered(
        self, batch: Sequence[EncodedRequest], held: Sequence[EncodedRequest], again: list[VideoRequest]
    ) -> Iterator[AnsweredRequest]:
        """Answer a batch, in halves if it does not fit into memory or one of its prompts raises anything else. What
        does not fit alone, beside others that are held, will be asked again when none is."""
        failed, is_full = None, False
        try:
            answers = self.generated(batch)
        except Exception as error:
            answers, failed = [], AnsweredRequest.without(batch[0].request, error, of_model=True)
            is_full = is_out_of_memory(error)
            if is_full and len(batch) > 1:
                self.fitting = len(batch) * max(each.most_tokens for each in batch) / 2
        # This is outside the handler, because the exception holds the failed call's tensors.
        if failed is None:
            yield from answers
        elif len(batch) > 1:
            first, second = batch[: len(batch) // 2], batch[len(batch) // 2 :]
            yield from self.answered(first, [*second, *held], again)
            yield from self.answered(second, held, again)
        elif is_full and held:
            self.held_requests = max(1, self.held_requests // 2)
            again.append(batch[0].request)
        else:
            yield failed

    def generated(self, batch: Sequence[EncodedRequest]) -> Sequence[AnsweredRequest]:
        """Answer requests in one call of `generate`."""
        rows = self.new_tokens(batch, batch[0].max_new_tokens, **self.arguments).cpu()
        return [self._answer(each, row[: self._length(row)]) for each, row in zip(batch, rows, strict=True)]

    def new_tokens(self, batch: Sequence[EncodedRequest], max_new_tokens: int, **arguments: Any) -> Any:
        """Return what `generate_answers` returns for these requests and these arguments of `generate`."""
        inputs = BatchFeature(padded([each.inputs for each in batch], self.processor.tokenizer)).to(self.model.device)
        features = joined([each.features for each in batch])
        arguments = {"max_new_tokens": max_new_tokens, **arguments}
        return generate_answers(self.model, inputs, features, batch[0].positions, **arguments)

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

    def _answer(self, encoded: EncodedRequest, new: Tensor) -> AnsweredRequest:
        video_tokens, full_video_tokens = len(encoded.features.pooler_output[0]), num_video_tokens(encoded.features)
        return AnsweredRequest(
            request=encoded.request,
            answer=self.processor.decode(new, skip_special_tokens=True),
            prompt_tokens=encoded.tokens,
            video_tokens=video_tokens,
            full_prompt_tokens=encoded.tokens - video_tokens + full_video_tokens,
            full_video_tokens=full_video_tokens,
            new_tokens=len(new),
            lost_frames=encoded.lost_frames,
        )
