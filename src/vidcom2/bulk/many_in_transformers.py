"""Answering questions about many videos with a model in Transformers: prompts of similar length share a batch."""

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature

from ..asking.arguments import with_tokenizer
from ..asking.frame_device import device_of_frames
from ..asking.generation import check_encoded_alike, generate_answers, joined, keep_tokens, run_tower
from ..asking.prepared_video import VideoPrompt, num_video_tokens, prepare_video
from ..asking.prompting import padded, texts_of, video_arguments
from ..asking.watched import Watched, check_kept, load_watched_file
from ..asking.watched_file import read_header
from ..asking.watched_model import encoder_identity
from ..checkpoints import Checkpoint
from ..checks import is_watched
from ..configuration.compression_settings import CompressionSettings
from ..errors import is_out_of_memory, reason_of
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..video.reading import Video
from .engine import Engine, Prepared
from .requests import AnsweredRequest, HowToAnswer, VideoRequest

HELD_BATCHES = 4  # how many are encoded before one is answered, so that a batch has prompts of similar length


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
        self.samples = bool(self.arguments.get("do_sample"))
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
            group.written, inputs = prepare_video(processor, video, device=device_of_frames(self.checkpoint))
            # A video that waits for its turn takes no memory of the model's.
            group.video = video_arguments(self.model, inputs.to("cpu"))
            # This halves the memory for a model in half precision. Other inputs must not be rounded.
            group.video["pixel_values_videos"] = group.video["pixel_values_videos"].to(self.model.dtype)
        return request, group.written.prompt(processor, request.prompt, template_arguments)

    def _processor_of_thread(self) -> Any:
        if not hasattr(self._of_thread, "processor"):  # threads cannot use a tokenizer at the same time
            self._of_thread.processor = copy.deepcopy(self.processor)
        return self._of_thread.processor

    def _answered(self, take: Callable[..., Prepared | None]) -> Iterator[AnsweredRequest]:
        held: list[_Prompt] = []
        most = HELD_BATCHES * self.how.batch_size
        while True:
            # With a full batch at hand the model does not wait for more, but takes what is ready, which may fit better.
            # Samples depend on what shares a batch, so they wait, and take the videos in order.
            group = take(self.samples or len(held) < self.how.batch_size, in_order=self.samples)
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
        kept: dict[tuple[Any, ...], VidCom2VideoFeatures | str] = {}
        try:
            if group.watched is not None:
                seen = group.watched
                of_each = [
                    self._prompt(request, prompt, seen.features, seen.settings, seen.lost_frames)
                    for request, prompt in group.prompts
                ]
                return of_each, refused
            on_device = BatchFeature(group.video).to(self.model.device)
            video = run_tower(self.model, on_device, self.model.config.compression_settings())
            for request, prompt in group.prompts:
                settings = self._settings(request)
                key = tuple(settings.as_dict().items())
                if key not in kept:
                    try:
                        kept[key] = keep_tokens(self.model, video, settings)
                    except Exception as error:  # such as a ratio too low for the method
                        if is_out_of_memory(error):
                            raise
                        kept[key] = reason_of(error)
                features = kept[key]
                if isinstance(features, str):
                    refused.append(AnsweredRequest(request, error=features))
                else:
                    prompts.append(self._prompt(request, prompt, features, settings, group.lost_frames))
        except Exception as error:
            reason = reason_of(error)
            if is_out_of_memory(error) and not gives_up:
                return None
            return [], group.refused + [AnsweredRequest(request, error=reason) for request, _ in group.prompts]
        return prompts, refused

    def _settings(self, request: VideoRequest) -> CompressionSettings:
        return self.model.config.compression_settings(**{**self.settings, **request.settings})

    def _prompt(
        self,
        request: VideoRequest,
        prompt: VideoPrompt,
        features: VidCom2VideoFeatures,
        settings: CompressionSettings,
        lost_frames: int,
    ) -> _Prompt:
        inputs = prompt.inputs(self.processor, self.model, features, device="cpu")
        return _Prompt(
            request=request,
            inputs=inputs,
            features=features,
            together=(request.max_new_tokens or self.how.max_new_tokens, settings.compression_positions),
            tokens=int(texts_of(self.model, inputs["input_ids"]).sum()) + len(features.pooler_output[0]),
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
        """Answer a batch, in halves if it does not fit into memory or one of its prompts raises anything else."""
        try:
            answers, reason = self._generated(batch), None
        except Exception as error:
            answers, reason = [], reason_of(error)
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
        new = generate_answers(self.model, inputs, features, positions, **arguments).cpu()
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
        video_tokens, full_video_tokens = len(prompt.features.pooler_output[0]), num_video_tokens(prompt.features)
        return AnsweredRequest(
            request=prompt.request,
            answer=self.processor.decode(new, skip_special_tokens=True),
            prompt_tokens=prompt.tokens,
            video_tokens=video_tokens,
            full_prompt_tokens=prompt.tokens - video_tokens + full_video_tokens,
            full_video_tokens=full_video_tokens,
            new_tokens=len(new),
            lost_frames=prompt.lost_frames,
        )
