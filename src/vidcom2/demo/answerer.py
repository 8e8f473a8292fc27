"""What all users of the page share: one model, and the clips that it has encoded.

Several threads may call everything here. The model runs for one caller at a time. Choosing the tokens of an encoded
clip needs no model, so any number of callers can do it at once.
"""

import copy
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from transformers import StoppingCriteria, TextStreamer

from ..asking.candidates import BASELINE, changed_settings, in_words
from ..asking.chats import Prompt
from ..asking.comparison import Measured, steady_threads, summarized, timed_answer
from ..asking.frame_device import device_of_frames
from ..asking.generation import EncodedVideos, keep_tokens, run_tower
from ..asking.prepared_video import PreparedVideo, VideoPrompt, prepare_video
from ..asking.stopwatch import Stopwatch
from ..configuration.compression_settings import CompressionSettings
from ..explaining.explanation import Explanation, explanation_of
from ..loading.checkpoints import Checkpoint
from ..video.reading import Video, read_video

Side = Literal["few", "all"]
SIDES: tuple[Side, ...] = ("few", "all")  # in this order they are answered
MOST_CLIPS = 8  # how many clips' features are kept
PICTURE_PIXELS = 280  # the longer side of a picture
QUICK = 0.5  # seconds; an answer that takes less is given again, so that its times can be compared
TIMES = 5  # how often it is given again
CPU = torch.device("cpu")

OnDevice = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, eq=False)
class EncodedClip:
    """A video that was read and encoded. Its features are kept on the CPU, and its frames as small pictures.

    Attributes:
        video: the video with black frames of the same size, which take no memory. What it shows is encoded.
        written: how it stands in a prompt.
        encoded: the video's features, for each side.
        encoder_seconds: how long the vision tower took, for each side.
        whole: which tokens are kept with the model's own settings. It also holds the pictures of the frames.
    """

    video: Video
    written: PreparedVideo
    encoded: Mapping[Side, EncodedVideos]
    encoder_seconds: Mapping[Side, float]
    whole: Explanation


@dataclass(frozen=True, eq=False)
class Update:
    """One step of an answer, which has begun, has become longer, or is complete.

    Attributes:
        text: the answer so far.
        measured: the figures of the answer; None until it is complete.
    """

    side: Side
    text: str
    measured: Measured | None = None


@dataclass(frozen=True, eq=False)
class _Prompt:
    """Everything that one side needs to answer, on the CPU."""

    side: Side
    prompt: VideoPrompt
    videos: EncodedVideos
    settings: CompressionSettings
    max_new_tokens: int


class Answerer:
    """Encodes clips and answers questions with one model for all users.

    Args:
        on_device: wraps the two functions that run the model, for a machine that lends its GPU to one call at a time.
    """

    def __init__(self, checkpoint: Checkpoint, on_device: OnDevice = lambda function: function) -> None:
        self.checkpoint, self.model = checkpoint, checkpoint.model
        self._model_lock, self._processor_lock, self._clips_lock = (threading.Lock() for _ in range(3))
        self._decoder: Any = copy.deepcopy(checkpoint.processor)  # two threads cannot use one tokenizer at once
        self._clips: OrderedDict[tuple[Any, ...], Future[EncodedClip]] = OrderedDict()
        self._encode, self._answer = on_device(self._encoded), on_device(self._streamed)

    def way(self, overrides: Mapping[str, Any]) -> str:
        """Return in words how the side with few tokens is compressed. Raises what `settings` raises."""
        return in_words(changed_settings(self.model.config, self.settings(overrides)))

    def settings(self, overrides: Mapping[str, Any]) -> CompressionSettings:
        """Return the model's settings, changed by those of a call. Raises a ValueError if these are refused."""
        return self.model.config.compression_settings(**overrides)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the model and its processor alone, after all who asked before."""
        with self._processor_lock, self._model_lock:
            yield

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the model and its processor alone if they are free. Yields whether they are."""
        with ExitStack() as held:
            for lock in (self._processor_lock, self._model_lock):
                if not lock.acquire(blocking=False):
                    yield False
                    return
                held.callback(lock.release)
            yield True

    # -----------------------------------------------------------------------------------------------------------------
    # Clips
    # -----------------------------------------------------------------------------------------------------------------

    def warm_up(self, path: str, num_frames: int) -> None:
        """Answer once, so that the first user does not wait for what the first call prepares.

        The clip is encoded again when a user asks about it, because the time of its first encoding is too long.
        """
        for _ in self.answers(self.clip(path, num_frames), "What happens?", {}, max_new_tokens=2):
            pass
        with self._clips_lock:
            self._clips.clear()

    def has(self, path: str, num_frames: int) -> bool:
        """Return whether the file is encoded already, or is being encoded."""
        with self._clips_lock:
            return _key(path, num_frames) in self._clips

    def clip(self, path: str, num_frames: int) -> EncodedClip:
        """Return the encoded clip of a file. It is encoded again only if it is not among the last `MOST_CLIPS`.

        Raises:
            VideoError: if it cannot be read.
            ValueError: if the model refuses it.
        """
        key = _key(path, num_frames)
        with self._clips_lock:
            is_new = key not in self._clips
            clip = self._clips.setdefault(key, Future())
            self._clips.move_to_end(key)
            while len(self._clips) > MOST_CLIPS:
                self._clips.popitem(last=False)
        if is_new:
            try:
                clip.set_result(self._read_and_encode(path, num_frames))
            except BaseException as error:  # callers who wait for the same clip get the error too
                with self._clips_lock:
                    self._clips.pop(key, None)
                clip.set_exception(error)
        return clip.result()

    def _read_and_encode(self, path: str, num_frames: int) -> EncodedClip:
        video = read_video(path, num_frames)
        side_settings = {"few": self.settings({}), "all": self.settings(BASELINE)}
        # The sides may share one encoding.
        tower_settings = {_of_tower(settings): settings for settings in side_settings.values()}
        written, results = self._encode(video, list(tower_settings.values()))
        encoded = dict(zip(tower_settings, results))
        videos, seconds = {}, {}
        for side, settings in side_settings.items():
            videos[side], seconds[side] = encoded[_of_tower(settings)]
        compression = keep_tokens(self.model, videos["few"], side_settings["few"]).video_compressions[0]
        whole = explanation_of(self.checkpoint, video, side_settings["few"], compression, pixels=PICTURE_PIXELS)
        return EncodedClip(video.without_pixels(), written, videos, seconds, whole)

    def _encoded(
        self, video: Video, settings: Sequence[CompressionSettings]
    ) -> tuple[PreparedVideo, list[tuple[EncodedVideos, float]]]:
        """Prepare a video. Return how it stands in a prompt and, for each of these settings, its features and the
        seconds that the vision tower took."""
        results, on = [], device_of_frames(self.checkpoint)
        with self._model_lock, steady_threads(self.model):
            written, inputs = prepare_video(self._decoder, video, self.model, device=on)
            for each in settings:
                watch = Stopwatch(self.model)
                videos = run_tower(self.model, inputs, each, watch)
                results.append((videos.on(CPU), watch.seconds()["vision"]))
        return written, results

    def explanation(self, clip: EncodedClip, overrides: Mapping[str, Any]) -> Explanation:
        """Return what `explain` returns for the clip with these settings. No model runs, as the features are kept.

        Raises:
            ValueError: on settings that do not go together, or that the method refuses for this clip.
        """
        settings = self.settings(overrides)
        compression = keep_tokens(self.model, clip.encoded["few"], settings).video_compressions[0]
        return explanation_of(self.checkpoint, clip.video, settings, compression, clip.whole.frames)

    # -----------------------------------------------------------------------------------------------------------------
    # Answers
    # -----------------------------------------------------------------------------------------------------------------

    def answers(
        self,
        clip: EncodedClip,
        question: str,
        overrides: Mapping[str, Any],
        max_new_tokens: int,
        earlier: Mapping[Side, Sequence[tuple[str, str]]] | None = None,
    ) -> Iterator[Update]:
        """Answer with few tokens, and then with all. Yield an update whenever an answer has grown.

        Closing the iterator stops the answer.

        Args:
            overrides: settings of the side with few tokens.
            earlier: the earlier questions, each with the answer of that side.

        Raises:
            ValueError: on a question that cannot be asked, or settings that are refused.
        """
        prompts = []
        for side in SIDES:
            with self._processor_lock:
                before = () if earlier is None else earlier[side]
                prompt = clip.written.prompt(self.checkpoint.processor, _chat(before, question))
            settings = self.settings(overrides if side == "few" else BASELINE)
            prompts.append(_Prompt(side, prompt, clip.encoded[side], settings, max_new_tokens))
        yield from self._answer(prompts)

    def _streamed(self, prompts: Sequence[_Prompt]) -> Iterator[Update]:
        """Generate the answers in a thread of their own, and yield their updates meanwhile."""
        updates: queue.SimpleQueue[Update | Exception | None] = queue.SimpleQueue()
        stop = threading.Event()

        def work() -> None:
            try:
                with self._model_lock, steady_threads(self.model):
                    for prompt in prompts:
                        if not stop.is_set():
                            self._generate(prompt, updates.put, stop)
                updates.put(None)
            except Exception as error:
                updates.put(error)

        threading.Thread(target=work, name="vidcom2 answers", daemon=True).start()
        try:
            while (update := updates.get()) is not None:
                if isinstance(update, Exception):
                    raise update
                yield update
        finally:
            stop.set()

    def _generate(self, prompt: _Prompt, put: Callable[[Update], None], stop: threading.Event) -> None:
        put(Update(prompt.side, ""))  # says that this side has begun
        asked = self.model, self._decoder, prompt.prompt, prompt.videos.on(self.model.device), prompt.settings
        given = {"max_new_tokens": prompt.max_new_tokens, "stopping_criteria": [_Stop(stop)]}
        words = _Words(self._decoder.tokenizer, lambda text: put(Update(prompt.side, text)))
        answer = timed_answer(*asked, streamer=words, **given)
        if (
            answer.total_seconds < QUICK and not stop.is_set()
        ):  # that was the warm-up: it paid for what the first call of a size prepares
            again = [timed_answer(*asked, **given) for _ in range(TIMES)]
            # Other work of the machine makes a time longer, never shorter.
            prefill, total = (
                min(getattr(each, name) for each in again) for name in ("prefill_seconds", "total_seconds")
            )
            answer = replace(answer, prefill_seconds=prefill, total_seconds=total)
        measured = summarized([answer], self._decoder)
        put(Update(prompt.side, measured.answer, measured))


def _key(path: str, num_frames: int) -> tuple[Any, ...]:
    """Return the key of a file's features. It changes if another file takes its place."""
    file = os.stat(path)
    return path, file.st_size, file.st_mtime_ns, num_frames


def _chat(earlier: Sequence[tuple[str, str]], question: str) -> Prompt:
    """Return the conversation so far, as questions with their answers, followed by a question."""
    turns = [
        {"role": role, "content": text}
        for each in earlier
        for role, text in zip(("user", "assistant"), each, strict=True)
    ]
    return [*turns, {"role": "user", "content": question}]


def _of_tower(settings: CompressionSettings) -> tuple[Any, ...]:
    """Return what two sides must have in common to share one encoding."""
    return tuple(settings.vision_settings().items())


class _Words(TextStreamer):
    """Passes on the answer so far whenever a word is added."""

    def __init__(self, tokenizer: Any, put: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._put, self._text = put, ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._text += text
        self._put(self._text)


class _Stop(StoppingCriteria):
    """Stops an answer that nobody waits for any more."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        return torch.full((len(input_ids),), self._stop.is_set(), device=input_ids.device)
