"""`vidcom2 chat --stream` answers questions about a live video. `live/live_video.py` and `video/live_source.py` do the
work; here a thread hands the frames from one to the other."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, cast

from ..errors import OptionError
from ..loading.finding_checkpoints import resolve
from ..loading.placement import Placement
from .console import print_line
from .loading import import_libraries

if TYPE_CHECKING:
    from ..asking.answer import Answer
    from ..live.live_video import LiveVideo
    from ..video.live_source import LiveSource


class StreamChat:
    """Adds the frames of a source to a live video in a thread, except while a question is answered."""

    def __init__(self, live: "LiveVideo", source: "LiveSource", arguments: Mapping[str, Any]) -> None:
        self.live, self.source, self.arguments = live, source, arguments
        self.seconds = 0.0  # the time of the last frame that was added
        self._answering, self._ended, self._leaving = False, False, False
        self._error: Exception | None = None
        self._changed = Condition()  # whose lock the thread holds while it uses the live video
        self._thread = Thread(target=self._watch, name="vidcom2 chat", daemon=True)

    def ask(self, question: str, streamer: Any) -> str:
        """Answer a question about all that was seen. Return a line that says how much that was and what is remembered.

        Raises:
            OptionError: on a question that cannot be asked.
            VideoError: if the stream could not be watched.
        """
        try:
            self._answering = True  # from now on the thread waits, and frames are dropped
            with self._changed:
                self._changed.wait_for(lambda: self.live.num_frames or self._ended)
                self.raise_error()
                answer = cast("Answer", self.live.ask(question, streamer=streamer, **self.arguments))
                return self._summary(len(answer.compression.indices))
        finally:
            self._answering = False
            with self._changed:
                self._changed.notify_all()

    def raise_error(self) -> None:
        """Raise the error that ended the stream, if one did."""
        from ..video.file import VideoError

        if isinstance(self._error, OptionError):  # no other question would do
            raise VideoError(str(self._error)) from self._error
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        try:
            for frame, seconds in self.source:
                with self._changed:
                    self._wait_for_the_answer()
                    self.live.add(frame, seconds)
                    self.seconds = seconds
                    self._changed.notify_all()
        except Exception as error:  # the main thread raises it
            self._error = error
        with self._changed:
            self._wait_for_the_answer()
            self._ended = True
            self._changed.notify_all()
            if self._error is None and not self._leaving:
                print_line(f"(the video has ended at {_clock(self.seconds)}: questions are about all of it)", "dim")

    def _wait_for_the_answer(self) -> None:
        self._changed.wait_for(lambda: self._leaving or not self._answering or not self.live.num_frames)

    def _summary(self, remembered: int) -> str:
        live, source = self.live, self.source
        parts = [f"at {_clock(self.seconds)}", f"{remembered:,} of {live.seen_tokens:,} scored tokens remembered"]
        if source.dropped:
            parts.append(f"{source.dropped:,} {'frame' if source.dropped == 1 else 'frames'} dropped")
        if source.reopened:
            parts.append(f"opened again {source.reopened:,} times")
        return f"({', '.join(parts)})"

    def __enter__(self) -> "StreamChat":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._leaving = True
        with self._changed:
            self._changed.notify_all()
        self.source.close()
        self._thread.join()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@contextmanager
def stream_chat(
    model: str | None,
    stream: str,
    fps: float,
    placement: Placement,
    settings: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Iterator[StreamChat]:
    """Open a stream, load the model, and let it watch the stream until the end of the `with` statement.

    Args:
        arguments: of `LiveVideo.ask`, for each question.
    """
    resolved = resolve(model, placement, settings)
    from ..video.live_source import LiveSource

    with LiveSource(stream, fps) as source:  # refuses what cannot be opened before the model is loaded
        import_libraries(placement)
        from ..live.live_video import LiveVideo
        from ..loading.checkpoints import load_resolved

        checkpoint = load_resolved(resolved)
        live = LiveVideo(checkpoint.model, checkpoint.processor, prepare_on=placement.prepare_on)
        with StreamChat(live, source, arguments) as chat:
            yield chat
        chat.raise_error()
