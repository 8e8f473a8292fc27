"""Frames of a camera, a stream on the net or a file, as they would be seen live: each in its time, and none queued."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError

from ..checks import local_path, no_video_file
from ..errors import one_line
from .decoding import upright_pixels
from .file import VideoError, local_file, opened, video_stream

CAMERA = "camera"
CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}:none")}  # FFmpeg's format, and the name
ON_THE_NET = ("http", "https", "rtmp", "rtmps", "rtp", "rtsp", "srt", "tcp", "udp")
PATIENCE = 5.0  # seconds to wait for a connection and its next bytes, and for a late stream to catch up
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)  # seconds before a stream that broke off is opened again; the last repeats
LONGEST_STEP = 10.0  # seconds between two frames. A clock that jumps farther, or back, was set anew.
JITTER = 0.001  # seconds by which a frame may come too early
USUAL_RATE = 25  # frames per second of a stream that states neither times nor a rate


@dataclass
class LiveSource:
    """A stream of frames that is played at its own speed. Iterate over it once.

    A frame that is late, since the caller was busy, is dropped. A stream on the net that breaks off is opened again,
    and one that ends too, unless it is a recording.

    Args:
        name: a file; a URL that FFmpeg can open (http, rtsp, rtmp, srt, tcp, udp); or `camera`, `camera:1` and so on.
        fps: the most frames per second that are given out.

    Attributes:
        dropped: how many of these frames were late.
        reopened: how often the stream was opened again.

    Raises:
        VideoError: if there is no such file.
    """

    name: str
    fps: float = 2.0
    dropped: int = 0
    reopened: int = 0

    def __post_init__(self) -> None:
        self._stopped = Event()
        path = local_path(self.name) if self._is_file else None
        if path is not None and not Path(path).is_file():
            raise VideoError(
                f"{no_video_file(self.name, path)} A stream may also be `{CAMERA}`, or a URL of one of "
                f"{', '.join(ON_THE_NET)}."
            )
        if self._is_camera and sys.platform not in CAMERAS:
            raise VideoError(f"`{CAMERA}` is for Linux and macOS. Here, pass the URL of a stream, or a file.")

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the iteration that another thread is in. If it waits for the net, that takes `PATIENCE` at most."""
        self._stopped.set()

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield frames (height, width, 3) uint8, upright, and how many seconds after the first each is shown.

        Raises:
            VideoError: if there is no such camera, if nobody answers at a URL, or if it has no video.
        """
        step, last, failed = 1 / self.fps, -1 / self.fps, 0
        start = resumed = None
        while not self._stopped.is_set():
            try:
                with self._opened() as container:
                    stream, begins, first = video_stream(container, self.name), None, None
                    for frame, seconds in _timed(container, stream):
                        now = time.monotonic()
                        start, first = now if start is None else start, first or frame
                        resumed = now if resumed is None else resumed
                        # Time goes on by this machine's clock while a stream is away.
                        begins = max(now - start, last + step) if begins is None else begins
                        seconds += begins
                        if self._stopped.is_set():
                            return
                        if seconds < last + step - JITTER:
                            continue
                        last, late = seconds, now - start - seconds
                        if late > step and now - resumed < PATIENCE:
                            self.dropped += 1
                            continue
                        start += late if late > step else 0  # decoding is too slow to catch up
                        if self._stopped.wait(-late):
                            return
                        yield upright_pixels(frame, first, stream, None), seconds
                        resumed, failed = time.monotonic(), 0
                    if self._is_file or container.duration is not None:
                        return
            except FFmpegError as error:
                if start is None:
                    raise VideoError(f"cannot open {self.name!r} as a stream: {one_line(error)}.") from error
            self._stopped.wait(PAUSES[min(failed, len(PAUSES) - 1)])
            failed, self.reopened = failed + 1, self.reopened + 1

    @property
    def _is_file(self) -> bool:
        return not self._is_camera and self.name.partition("://")[0].lower() not in ON_THE_NET

    @property
    def _is_camera(self) -> bool:
        return self.name.partition(":")[0] == CAMERA

    def _opened(self) -> InputContainer:
        if self._is_file:
            return opened(str(local_path(self.name)))
        if self._is_camera:
            kind, name = CAMERAS[sys.platform]
            return av.open(name.format(self.name.partition(":")[2] or 0), format=kind)
        over_tcp = {"rtsp_transport": "tcp"} if self.name.lower().startswith("rtsp") else {}
        return av.open(self.name, timeout=PATIENCE, options=over_tcp, metadata_errors="ignore")


def played(path: str, fps: float) -> Iterator[tuple[np.ndarray, float]]:
    """Yield what a `LiveSource` of a file would, as fast as the frames are decoded. Raises what `read_video` raises."""
    with local_file(path, lambda *_: None) as local, opened(local) as container:
        stream, first, last = video_stream(container, path), None, -1 / fps
        for frame, seconds in _timed(container, stream):
            first = first or frame
            if seconds >= last + 1 / fps - JITTER:
                last = seconds
                yield upright_pixels(frame, first, stream, None), seconds


def _timed(container: InputContainer, stream: av.VideoStream) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yield the frames of a stream that can be decoded, and how many seconds after the first each is shown."""
    rate = float(stream.average_rate or stream.guessed_rate or USUAL_RATE)
    stream.thread_type = "AUTO"
    seconds: float | None = None
    before: float | None = None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except FFmpegError:  # a damaged place, as at the beginning of most streams
            continue
        for frame in frames:
            step = 1 / rate if frame.time is None or before is None else frame.time - before
            if seconds is None:
                seconds = 0.0
            else:
                seconds += step if 0 <= step <= LONGEST_STEP else 1 / rate
            before = frame.time
            yield frame, seconds
