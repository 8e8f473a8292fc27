"""A live video: frames arrive one after the other without end, and questions can be asked at any time.

The last frames stay whole. Tokens of older ones go to a `StreamMemory`, so that a question costs the same after an hour
as after a minute.
"""

import copy
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, cast, overload

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from ..asking.answer import Answer
from ..asking.arguments import check_model, checkpoint_of
from ..asking.chats import Chat, Message
from ..asking.frame_device import device_of_frames
from ..asking.generation import run_tower
from ..asking.model_identity import features_state
from ..asking.prepared_video import PreparedVideo, prepare_without_pixels
from ..asking.prompting import frames_together, prepare_inputs, video_arguments
from ..asking.watched import Watched
from ..checks import whole_number
from ..errors import OptionError, brief
from ..loading.placement import Placement
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.compression import VideoCompression
from ..video.file import VideoError
from ..video.frames import CLOCK, rgb_frames
from ..video.reading import Video
from .stream_memory import ScoredFrame, StreamMemory, memory_method_named
from .virtual_frames import virtual_frames

MAX_VIDEO_TOKENS = 1568  # if the model's config names no budget: eight frames of LLaVA-OneVision
MOST_SECONDS = 1e9  # 31 years; Unix times are larger
SCALES = [0.9**step for step in range(1, 27)]  # of frames that have too many tokens, down to a sixteenth
ANY = "?"  # a question, where the processor must have one


class LiveVideo:
    """A stream of frames, of which a model remembers at most `max_video_tokens` tokens.

    What it remembers after a frame depends on no later frame. A stream whose tokens all fit is remembered whole, and is
    answered about as `ask` does at `retention_ratio=1.0`. Frames of which the last ones would fill more than half of
    `max_video_tokens` are scaled down, in families whose processors take frames of any size.

    Args:
        model, processor: as in `ask`.
        max_video_tokens: the most scored tokens that are remembered, and stand in a prompt. Structure tokens, such as
            newlines and the times that some families write, come on top. None means that of the model's config, and
            1568 if it has none.
        recent_frames: how many of the last frames stay whole. In Qwen's families two frames share their tokens, and a
            frame that waits for its second counts as two.
        memory_method: which tokens of the other frames stay: `"coverage"`, or one that `register_memory_method` added.
        prepare_on: where frames are prepared, as in `Placement`: `"auto"` or `"cpu"`.

    Several threads may use it. Frames are taken in one after the other.

    Attributes:
        checkpoint: the model with its processor.
        frames_together: how many frames share their tokens.
        num_frames: how many frames were added.
        tokens_per_frame: M, the tokens of these frames; None before the first.

    Raises:
        OptionError: on an argument outside its accepted set, and on a vision method that compares frames.
        CheckpointError: if the model cannot be loaded.
    """

    recent_share = 0.5  # of `max_video_tokens` that the last frames may fill before frames are scaled down

    def __init__(
        self,
        model: str | PreTrainedModel | None = None,
        processor: ProcessorMixin | None = None,
        *,
        max_video_tokens: int | None = None,
        recent_frames: int = 4,
        memory_method: str = "coverage",
        prepare_on: str = "auto",
    ) -> None:
        self.recent_frames = whole_number("recent_frames", recent_frames)
        self._method = memory_method_named(memory_method)
        placement = Placement(prepare_on=prepare_on)
        self.checkpoint, _ = checkpoint_of(check_model(model, processor, placement, {}), processor, {}, prepare_on)
        its_config: Any = self.checkpoint.model.config
        if max_video_tokens is None:
            max_video_tokens = its_config.max_video_tokens or MAX_VIDEO_TOKENS
        self.max_video_tokens = whole_number("max_video_tokens", max_video_tokens)
        self.settings = its_config.compression_settings(max_video_tokens=self.max_video_tokens, retention_ratio=1.0)
        if self.settings.vision_method != "full":
            raise OptionError(
                f"`vision_method` of the model is {self.settings.vision_method!r}, which compares frames with each "
                "other. Load the model with `vision_method='full'`, or call `vidcom2.apply(model, "
                "vision_method='full')`."
            )
        self.frames_together = frames_together(self.checkpoint.processor)
        self.num_frames = 0
        self.tokens_per_frame: int | None = None
        self._recent: list[ScoredFrame] = []
        self._waiting: list[tuple[np.ndarray, float]] = []  # frames whose last one has not come yet
        self._seconds = -math.inf
        self._watched: Watched | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        kept = f"{min(self.seen_tokens, self.max_video_tokens):,} of {self.seen_tokens:,} video tokens"
        return f"<LiveVideo: {kept} of {self.num_frames:,} frames, by {self.checkpoint.name}>"

    @property
    def seen_tokens(self) -> int:
        """How many scored tokens all frames had until now."""
        return -(-self.num_frames // self.frames_together) * (self.tokens_per_frame or 0)

    def add(self, frame: Any, seconds: float) -> None:
        """Take in the next frame.

        Args:
            frame: (height, width, 3) or (3, height, width), RGB, in one of the forms of `Video.from_frames`; or a PIL
                image. All frames of a stream have one size.
            seconds: when it is shown, counted from the start of the stream.

        Raises:
            VideoError: on a frame of another shape, size or range, a time that is not after the last, and features that
                are not finite. The stream is as it was before the call.
            OptionError: if the last frames alone need more than `max_video_tokens` tokens, if the memory method returns
                something else than places, and if the model has changed since the stream began.
        """
        (image,) = rgb_frames([frame])
        with self._lock:
            self._check_next(image, seconds)
            tokens = self.tokens_per_frame or self._begin(image)
            self._check_model()
            waiting, recent, memory = [*self._waiting, (image, float(seconds))], self._recent, copy.copy(self._memory)
            if len(waiting) == self.frames_together:
                waiting, recent = [], [*recent, self._encoded(waiting)]
            if len(recent) + bool(waiting) > self._num_recent:
                oldest, *recent = recent
                if memory.max_tokens:
                    memory.add(oldest)
            # All steps that may fail are done by now, on copies.
            changed = {"_memory": memory, "_recent": recent, "_waiting": waiting, "_seconds": float(seconds)}
            vars(self).update(changed, _watched=None, num_frames=self.num_frames + 1, tokens_per_frame=tokens)

    @overload
    def ask(  # pyright: ignore[reportOverlappingOverload]  (a text is a sequence of texts, too)
        self, question: str | Sequence[Message], **arguments: Any
    ) -> Answer: ...
    @overload
    def ask(self, question: Sequence[str] | Sequence[Chat], **arguments: Any) -> list[Answer]: ...
    def ask(self, question: Any, **arguments: Any) -> Answer | list[Answer]:
        """Ask one or several questions about the stream until now.

        Args:
            question, **arguments: as in `Watched.ask`.

        Returns:
            The answer; to a list of questions, the list of their answers. Its `full_video_tokens` are those of the
            virtual frames that stand in the prompt.

        Raises:
            ValueError: as in `Watched.ask` and `watched`.
        """
        return self.watched().ask(question, **arguments)

    @torch.no_grad()
    def watched(self) -> Watched:
        """Return what is remembered now. It can be asked and saved, and later frames do not change it.

        Raises:
            OptionError: before the first frame, and if the model has changed since the stream began.
        """
        with self._lock:
            if not self.num_frames:
                raise OptionError("the live video has no frame yet. Call `add` first.")
            self._check_model()
            if self._watched is None:
                self._watched = self._remembered()
            return self._watched

    # -----------------------------------------------------------------------------------------------------------------
    # The next frame
    # -----------------------------------------------------------------------------------------------------------------

    def _check_next(self, image: np.ndarray, seconds: Any) -> None:
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if not is_number or not 0 <= float(seconds) < MOST_SECONDS:
            raise VideoError(
                f"`seconds` is {brief(seconds)}, but must be when the frame is shown, in seconds from the start of the "
                "stream. From a time of day, such as `time.time()`, subtract that of the first frame."
            )
        if float(seconds) < self._seconds + 2 / CLOCK:
            raise VideoError(
                f"`seconds` is {seconds!r}, but the last frame was shown at {self._seconds!r}. Leave it out."
            )
        if self.num_frames and image.shape != self._shape:
            raise VideoError(
                f"`frame` is of shape {image.shape}, but the stream began with {self._shape}. Scale it to that size."
            )

    def _check_model(self) -> None:
        if self._features_state != features_state(self.checkpoint):
            raise OptionError(
                "the model or its processor has changed since the stream began: weights, their dtype or device, "
                "adapters, config, settings or the processor. Undo that, or begin a new `LiveVideo`."
            )

    def _begin(self, image: np.ndarray) -> int:
        """Find out from the first frame how large frames are. Return how many tokens they have."""
        num_recent = -(-self.recent_frames // self.frames_together)
        size = (image.shape[0], image.shape[1])
        tokens = self._count_tokens(size)
        most = self.recent_share * self.max_video_tokens / num_recent
        if tokens > most:
            scaled = ((max(1, round(size[0] * scale)), max(1, round(size[1] * scale))) for scale in SCALES)
            fitting = ((each, fewer) for each in scaled if (fewer := self._count_tokens(each)) <= most)
            size, tokens = next(fitting, (size, tokens))
        if tokens * num_recent > self.max_video_tokens:
            raise OptionError(
                f"`max_video_tokens` is {self.max_video_tokens}, but the last {self.recent_frames} frames alone have "
                f"{tokens * num_recent} tokens. Pass at least that many, or fewer `recent_frames`."
            )
        self._shape, self._size, self._num_recent = image.shape, size, num_recent
        self._memory = StreamMemory(self._method, self.max_video_tokens - tokens * num_recent)
        self._features_state = features_state(self.checkpoint)
        return tokens

    def _count_tokens(self, size: tuple[int, int]) -> int:
        """Return how many tokens a scored frame has, if frames are of this height and width."""
        inputs = self._inputs(np.zeros((1, *size, 3), dtype=np.uint8), [0.0])
        model: Any = self.checkpoint.model
        return model.model.video_sizes(**video_arguments(model, inputs))[0]

    def _inputs(self, frames: np.ndarray, seconds: Sequence[float]) -> BatchFeature:
        video = Video.from_frames(frames, times=seconds)
        of = self.checkpoint
        return prepare_inputs(of.processor, ANY, video, of.model, device=device_of_frames(of))

    def _encoded(self, shown: Sequence[tuple[np.ndarray, float]]) -> ScoredFrame:
        """Encode the frames that share their tokens."""
        images, seconds = zip(*shown, strict=True)
        frames = np.stack([_scaled(image, self._size) for image in images])
        encoded = run_tower(self.checkpoint.model, self._inputs(frames, seconds), self.settings)
        (tokens,), outputs = encoded.tokens, encoded.outputs
        if not bool(tokens.tokens.isfinite().all()):
            raise VideoError(
                f"the features of the frame at {seconds[0]:g} s are not finite: they are beyond the range of "
                f"{tokens.tokens.dtype}, or the weights are damaged. Load the model in another dtype, such as bfloat16."
            )
        places = torch.arange(tokens.tokens.shape[1], device=tokens.tokens.device)
        levels = [outputs.pooler_output, *(outputs.deepstack_features or ())]
        if tokens.layout is not None:
            places = tokens.layout.placeholders_of(places)
        self._video, self._newline = replace(tokens, tokens=tokens.tokens[:0]), outputs.pooler_output[0][-1]
        return ScoredFrame(tuple(level[0][places] for level in levels), seconds)

    # -----------------------------------------------------------------------------------------------------------------
    # What is remembered
    # -----------------------------------------------------------------------------------------------------------------

    def _remembered(self) -> Watched:
        memory, per_frame = self._memory, cast(int, self.tokens_per_frame)
        recent = [*self._recent, *([self._encoded(self._waiting)] if self._waiting else [])]
        packed = virtual_frames(memory.frames, memory.places)
        starts = packed.diff(prepend=packed.new_tensor([-1])).nonzero().flatten()
        seconds = [*memory.seconds[starts].tolist(), *(frame.seconds for frame in recent)]

        whole = torch.arange(len(starts) * per_frame, len(seconds) * per_frame)  # the last frames
        indices, order = torch.cat([packed * per_frame + memory.places, whole]).sort()
        parts = [*([memory.features] if len(starts) else []), *(frame.features for frame in recent)]
        levels = [torch.cat(level) for level in zip(*parts, strict=True)]
        layout = self._video.layout
        compression = VideoCompression(
            indices.to(levels[0].device),
            torch.bincount(indices // per_frame, minlength=len(seconds)).to(levels[0].device),
            tokens_per_frame=per_frame,
            grid=self._video.grid,
            layout=layout and replace(layout, num_frames=len(seconds)),
        )
        levels = [level[order.to(level.device)] for level in levels]
        if compression.layout is not None:  # newlines stand between the tokens
            tokens = self._newline.repeat(compression.num_placeholders, 1)
            tokens[compression.layout.placeholders_of(compression.indices)] = levels[0]
            levels = [compression.kept_among(tokens)]
        features = VidCom2VideoFeatures(
            pooler_output=(levels[0],),
            deepstack_features=[(level,) for level in levels[1:]] or None,
            video_compressions=(compression,),
        )
        return Watched(self.checkpoint, self._prepared(seconds, compression), features, self.settings)

    def _prepared(self, seconds: Sequence[Sequence[float]], compression: VideoCompression) -> PreparedVideo:
        """Return how the processor writes a video of virtual frames into a prompt."""
        times = [each for of_frame in seconds for each in of_frame]
        video = Video.from_frames(np.broadcast_to(np.uint8(0), (len(times), *self._size, 3)), times=times)
        return prepare_without_pixels(self.checkpoint.processor, video, compression, scaled_alone=True)


def _scaled(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale an image to a height and width."""
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BICUBIC))
