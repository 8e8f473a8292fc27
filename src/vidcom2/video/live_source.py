"""A live source of video, such as a camera, a URL or a file that is played, as frames that arrive at its own speed."""

import re
import sys
from collections.abc import Iterable, Iterator
from math import floor, inf
from pathlib import Path
from threading import Condition, Event, Thread
from time import monotonic
from types import TracebackType

import av
import numpy as np
from av.container import InputContainer
from av.error import ExitError, FFmpegError

from ..checks import local_path
from ..errors import brief
from .decoding import rgb_pixels
from .file import VideoError, local_file, opened, packets, unreadable, video_stream

SCHEMES = ("http", "https", "rtsp", "rtsps", "rtmp", "rtmps", "tcp", "udp")
CAMERAS = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}  # FFmpeg's name of a system's cameras
TIMEOUT = 5.0  # seconds that a source may send nothing, before it counts as broken off; closing may take as long
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a source that broke off is opened again
JUMP_BACK, JUMP_AHEAD = 1.0, 10.0  # seconds; time stamps that jump further begin to count anew


class LiveSource:
    """An iterator of the frames of a live source, each with its time.

    A thread reads the source at its own speed, a file too, whether or not frames are taken. Of the frames that arrive
    in the meantime only the newest waits. A source other than a file that ends or breaks off is opened again, after
    pauses that grow. Use it in a `with` statement: its end closes the source.

    Yields:
        (frame, seconds): (height, width, 3) uint8, upright, all of one size; and when it is shown, in seconds from the
        first frame. A file begins when its first frame is asked for.

    Args:
        source: a file; a URL of one of `SCHEMES`; `"camera"`, or `"camera:1"` for the second camera.
        fps: the most frames of a second that are shown.

    Attributes:
        is_file: whether the source is a file, which has an end.
        dropped: how many frames were replaced by newer ones because they were not taken in time.
        reopened: how often the source was opened again.

    Raises:
        VideoError: if the source cannot be opened or shows no video.
    """

    def __init__(self, source: str, fps: float = 2.0) -> None:
        if not 0 < fps < inf:
            raise VideoError(f"`fps` is {brief(fps)}, but must be a number of frames a second, above 0.")
        self.source, self.fps = source, fps
        self.dropped, self.reopened = 0, 0
        self.is_file = not _is_url(source) and _camera(source) is None
        self._started: float | None = None  # when the first frame was shown, by the clock of this machine
        self._slot = -1  # which of the 1 / fps seconds the last frame is of
        self._shape: tuple[int, int] | None = None
        self._waiting: tuple[np.ndarray, float] | None = None
        self._error: Exception | None = None
        self._opened, self._begun, self._stopping, self._changed = Event(), Event(), Event(), Condition()
        self._thread = Thread(target=self._run, name="vidcom2 live source", daemon=True)
        self._thread.start()
        try:
            self._opened.wait()  # which Ctrl-C interrupts, other than opening itself
        except BaseException:
            self.close()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error

    def __iter__(self) -> "LiveSource":
        return self

    def __next__(self) -> tuple[np.ndarray, float]:
        with self._changed:
            self._begun.set()
            self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
            newest, self._waiting = self._waiting, None
        if newest is not None:
            return newest
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Close the source. This waits for the thread, so up to `TIMEOUT` seconds where a source sends nothing."""
        self._stop()
        self._begun.set()
        self._thread.join(TIMEOUT + 1)
        self._waiting = None

    def __enter__(self) -> "LiveSource":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -----------------------------------------------------------------------------------------------------------------
    # In the thread
    # -----------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            container = self._open()
            self._opened.set()
            if self.is_file:
                self._begun.wait()
                with container:
                    self._play(container)
                if self._shape is None and not self._stopping.is_set():
                    raise VideoError(f"no frame of the video {self.source!r} can be decoded. Download it again.")
            else:
                self._play_again_and_again(container)
        except FFmpegError as error:
            self._error = unreadable(self.source, error)
        except Exception as error:  # it is raised where frames are taken
            self._error = error
        self._stop()
        self._opened.set()

    def _stop(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()

    def _play_again_and_again(self, container: InputContainer | None) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            before = self._slot
            try:
                if container is None:
                    container = self._open()
                    self.reopened += 1
                with container:
                    self._play(container)
            except (FFmpegError, VideoError):  # the network failed, or the server has no video yet
                pass
            container = None
            pause = FIRST_PAUSE if self._slot > before else min(2 * pause, LONGEST_PAUSE)
            self._stopping.wait(pause)

    def _play(self, container: InputContainer) -> None:
        """Offer the frames of a source when they are to be shown, until it ends or is closed."""
        stream = video_stream(container, self.source)
        stream.thread_type = "AUTO" if self.is_file else "SLICE"  # frames decoded at once would be shown late
        # A file may be read on after a damaged place. A connection that failed would fail again and again.
        arriving = packets(container, stream) if self.is_file else container.demux(stream)
        shape = self._shape
        first, last, zero = None, 0.0, 0.0  # `zero` is when the source's clock would have shown 0
        for frame, stamp in _stamped(stream, arriving):
            if self._stopping.is_set():
                return
            jump = stamp - last
            if first is None or jump < -JUMP_BACK or (jump > JUMP_AHEAD and not self.is_file):
                zero = self._now() - stamp
            first, last = first or frame, stamp
            seconds = zero + stamp
            slot = floor(seconds * self.fps)
            if slot <= self._slot:
                continue
            self._wait(seconds - self._now())
            if self._stopping.is_set():
                return
            pixels = rgb_pixels(frame, first, stream, None if shape is None else lambda *_: shape)
            self._slot, self._shape = slot, pixels.shape[:2]
            self._offer(pixels, seconds)

    def _now(self) -> float:
        """Return how many seconds ago the first frame was shown."""
        now = monotonic()
        if self._started is None:
            self._started = now
        return now - self._started

    def _wait(self, seconds: float) -> None:
        """Wait so long, or until the source is closed."""
        self._stopping.wait(max(0.0, seconds))

    def _offer(self, pixels: np.ndarray, seconds: float) -> None:
        with self._changed:
            self.dropped += self._waiting is not None and self._begun.is_set()
            self._waiting = pixels, seconds
            self._changed.notify_all()

    # -----------------------------------------------------------------------------------------------------------------
    # Opening
    # -----------------------------------------------------------------------------------------------------------------

    def _open(self) -> InputContainer:
        source, camera = self.source, _camera(self.source)
        try:
            if camera is not None:
                container = _opened_camera(camera)
            elif self.is_file:
                path = local_path(source)
                if path is None or not Path(path).is_file():
                    raise VideoError(
                        f"there is no video file {source!r}. Pass a file, a URL that begins with one of "
                        f"{', '.join(SCHEMES)}, or `camera`."
                    )
                container = opened(path)
            else:
                container = opened(source, timeout=TIMEOUT)
        except FFmpegError as error:
            if self.is_file:
                raise unreadable(source, error) from error
            reason = f"it sent nothing in {TIMEOUT:g} s" if isinstance(error, ExitError) else error.strerror
            remedy = (
                "Does the address lead to a video, and does its server run?"
                if camera is None
                else "Is it plugged in, and may you use it? `camera:1` is the second camera."
            )
            raise VideoError(f"cannot open the live video {source!r}: {reason}. {remedy}") from error
        try:
            video_stream(container, source)
        except VideoError:
            container.close()
            raise
        return container


def _is_url(source: str) -> bool:
    scheme, found, _ = source.partition("://")
    return bool(found) and scheme.lower() in SCHEMES


def _camera(source: str) -> int | None:
    """Return the number of the camera that a source names; None if it names none."""
    match = re.fullmatch(r"camera(?::(\d+))?", source)
    return None if match is None else int(match[1] or 0)


def _opened_camera(number: int) -> InputContainer:
    """Open a camera by its number, from 0."""
    kind = CAMERAS.get(sys.platform)
    if kind is None:
        raise VideoError(f"cameras cannot be opened on {sys.platform!r}. Pass the URL of a stream instead.")
    if kind == "v4l2":
        return opened(f"/dev/video{number}", format=kind, timeout=TIMEOUT)
    if kind == "avfoundation":  # without a rate, it asks for one that many cameras refuse
        return opened(str(number), format=kind, options={"framerate": "30"}, timeout=TIMEOUT)
    names = [each.name for each in av.enumerate_input_devices(kind) if "video" in each.media_types]
    if number >= len(names):
        raise VideoError(f"there is no camera {number}: Windows knows {len(names)}. They are counted from 0.")
    return opened(f"video={names[number]}", format=kind, timeout=TIMEOUT)


def played(path: str, fps: float) -> Iterator[tuple[np.ndarray, float]]:
    """Yield what a `LiveSource` of a file would, as fast as the frames are decoded. Raises what `read_video` raises."""
    with local_file(path, lambda *_: None) as local, opened(local) as container:
        stream, first, slot, seconds = video_stream(container, path), None, -1, 0.0
        last = zero = 0.0
        for frame, stamp in _stamped(stream, packets(container, stream)):
            if first is None or stamp - last < -JUMP_BACK:  # the clock begins, or begins anew
                zero = (0.0 if first is None else seconds + 1 / _rate(stream)) - stamp
            first, last, seconds = first or frame, stamp, zero + stamp
            if floor(seconds * fps) > slot:
                slot = floor(seconds * fps)
                yield rgb_pixels(frame, first, stream, None), seconds


def _stamped(
    stream: av.VideoStream, arriving: Iterable["av.Packet[av.VideoStream]"]
) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yield the frames that can be decoded, and when each is shown by the stream's own clock, in seconds."""
    count = 0
    for packet in arriving:
        try:
            frames = packet.decode()
        except FFmpegError:  # a damaged frame
            continue
        for frame in frames:
            yield frame, count / _rate(stream) if frame.time is None else frame.time
            count += 1


def _rate(stream: av.VideoStream) -> float:
    return float(stream.average_rate or 25)
