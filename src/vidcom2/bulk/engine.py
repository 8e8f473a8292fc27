"""What all engines that answer requests share: threads read the videos ahead, and prepare their prompts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from ..asking.frame_size import size_of_frames
from ..asking.prepared_video import PreparedVideo
from ..asking.prompting import check_template_arguments
from ..asking.watched import Watched
from ..checks import is_watched, path_of_watched
from ..errors import OptionError, reason_of
from ..records.fingerprints import stamp_of_content, video_stamp
from ..video.reading import Video, read_video
from .background import Background
from .requests import AnsweredRequest, HowToAnswer, VideoRequest


class Stopped(BaseException):
    """Raised in a thread that reads a video which is no longer needed. It is no error of that video."""


@dataclass(eq=False)
class Prepared:
    """Consecutive requests about one video, after it was read.

    Attributes:
        prompts: what the engine takes for each request that can be asked.
        video: what it takes for their video, if that is not part of the prompts.
        written: how the video stands in a prompt, for an engine that prepares it once; or the error of that.
        watched: the video, if it was watched before and is not encoded again.
    """

    prompts: list[Any] = field(default_factory=list)
    video: dict[str, Any] = field(default_factory=dict)
    written: PreparedVideo | ValueError | None = None
    watched: Watched | None = None
    lost_frames: int = 0
    refused: list[AnsweredRequest] = field(default_factory=list)


class Engine(ABC):
    """Answers requests. Threads read their videos and prepare their prompts, while the model runs in the caller's
    thread.

    Args:
        ahead: how many videos may be in work, or wait for the model.

    Attributes:
        most_of_a_video: how many requests about a video are prepared together.
    """

    most_of_a_video = 256

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
        with Background(
            prepare, consecutive(iter(requests), self.most_of_a_video), self.how.workers, self.ahead
        ) as background:
            yield from self._answered(background.take, prepare)

    def rows(self, requests: Sequence[VideoRequest]) -> Generator[dict[str, Any], None, None]:
        """Yield the rows of the answers, with `video_file`, the stamp of the video before it was read and a digest of
        its content."""
        videos = {request.id: video_stamp(request.video) for request in requests}
        with closing(self.answers(requests)) as answers:
            for answer in answers:
                file = videos[answer.request.id]
                yield answer.row | {
                    "video_file": file if answer.error is not None else stamp_of_content(answer.request.video, file)
                }

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
                        unreadable = reason_of(error, reading=True)
                        raise OptionError(unreadable) from error
                template_arguments = {**self.how.chat_template_kwargs, **request.chat_template_kwargs}
                result.prompts.append(self.prompt(request, video, template_arguments, result))
            except Exception as error:
                result.refused.append(AnsweredRequest.without(request, error))
        return result

    def check(self, request: VideoRequest) -> None:
        """Check what can be known before the video is read. Raises a ValueError."""
        if request.problem is not None:
            raise OptionError(request.problem)
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
    def _answered(
        self, take: Callable[..., Prepared | None], prepare: Callable[[Sequence[VideoRequest]], Prepared]
    ) -> Iterator[AnsweredRequest]:
        """Answer what `Background.take` hands out, until nothing is left.

        Args:
            prepare: reads and prepares requests about one video, as the threads did, to ask them again.
        """

    def close(self) -> None:  # noqa: B027  (most engines have nothing to end)
        """End what runs beside this process."""


def consecutive(requests: Iterator[VideoRequest], most: int) -> Iterator[list[VideoRequest]]:
    """Group consecutive requests about the same video, so many at most. A request with a problem makes a group of its
    own."""

    def video(request: VideoRequest) -> tuple[Any, ...]:
        return (id(request),) if request.problem else (request.video, request.num_frames, request.fps, request.times)

    for _, same in groupby(requests, key=video):
        while group := list(islice(same, most)):
            yield group
