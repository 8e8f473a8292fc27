"""Watching a stream in the background, while questions are asked about it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..video.file import VideoError
from ..video.live_source import LiveSource
from .live_video import LiveVideo


class Viewer(threading.Thread):
    """Adds the frames of a source to a live video, until the source ends or `stop` is called.

    Args:
        ended: called from this thread when nothing more will come, with the error if there was one.

    Attributes:
        live, source: what it was given.
        seconds: the time of the last frame.
    """

    def __init__(self, live: LiveVideo, source: LiveSource, ended: Callable[[Exception | None], None]) -> None:
        super().__init__(name="viewer", daemon=True)
        self.live, self.source, self.ended = live, source, ended
        self.seconds = 0.0
        self._turn, self._nobody_asks, self._something = threading.Lock(), threading.Event(), threading.Event()
        self._nobody_asks.set()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            for frame, seconds in self.source:
                self._nobody_asks.wait()
                with self._turn:
                    self.live.add(frame, seconds)
                self.seconds = seconds
                self._something.set()
            if not self.live.num_frames and not self.source.stopped:
                raise VideoError(f"the stream {self.source.name!r} has no frames.")
        except Exception as error:  # it belongs to the thread that asks
            self._error = error
        self._something.set()
        self.ended(self._error)

    def stop(self) -> None:
        """End the watching, and wait for its end."""
        self.source.stop()
        self._nobody_asks.set()
        self.join()

    def wait_for_a_frame(self) -> None:
        """Wait until there is something to ask about. Raises what the source raised if nothing comes."""
        self._something.wait()
        if self._error is not None and not self.live.num_frames:
            raise self._error

    @contextmanager
    def paused(self) -> Iterator[LiveVideo]:
        """Lend out the live video for a question. Frames that come meanwhile are late, and dropped."""
        self._nobody_asks.clear()
        try:
            with self._turn:
                yield self.live
        finally:
            self._nobody_asks.set()
