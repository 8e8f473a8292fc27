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
from av.format import Flags

from ..checks import local_path
from ..errors import brief
from .decoding import rgb_pixels
from .file import FORMATS, VideoError, local_file, opened, packets, video_stream
from .reading import check_video

SCHEMES = ("http", "https", "rtsp", "rtsps", "rtmp", "rtmps", "tcp", "udp")
OF_STREAMS = {  # playlists lead to sound and subtitles too, and to no file of this machine
    "format_whitelist": f"{FORMATS},hls,dash,mpjpeg,rtsp,aac,ac3,eac3,mp3,webvtt",
    "protocol_whitelist": "crypto,data,http,httpproxy,https,rtmp,rtmps,rtp,srtp,tcp,tls,udp",
}
CAMERAS = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}  # FFmpeg's name of a system's cameras
TIMEOUT = 5.0  # seconds that a source may send nothing, before it counts as broken off; closing may take as long
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a source that broke off is opened again
JUMP_BACK, JUMP_AHEAD = 1.0, 10.0  # seconds; time stamps that jump further begin to count anew
ROUNDING = 0.001  # seconds; Matroska rounds times to so much


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
            if self.is_file:
                if not Path(local_path(self.source) or "").is_file():
                    raise VideoError(
                        f"there is no video file {self.source!r}. Pass a file, a URL that begins with one of "
                        f"{', '.join(SCHEMES)}, or `camera`."
                    )
                check_video(self.source)
                self._opened.set()
                self._begun.wait()
                for pixels, seconds in played(self.source, self.fps):
                    self._wait(seconds - self._now())
                    if self._stopping.is_set():
                        break
                    self._offer(pixels, seconds)
            else:
                container = self._open()
                self._opened.set()
                self._play_again_and_again(container)
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
        """Offer the frames of a stream when they are to be shown, until it ends or is closed."""
        stream = video_stream(container, self.source)
        stream.thread_type = "SLICE"  # frames decoded at once would be shown late
        # Files, and the segments of HLS and DASH, may arrive faster than they are to be shown.
        is_paced = bool(container.duration) or container.format.name in ("hls", "dash")
        by_arrival = not is_paced and container.format.flags & Flags.no_timestamps.value
        shape = self._shape
        first, last, zero = None, 0.0, 0.0  # `zero` is when the source's clock would have shown 0
        for frame, stamp in _stamped(stream, container.demux(stream)):
            if self._stopping.is_set():
                return
            now = self._now()
            stamp = now if by_arrival else stamp
            if first is None or not -JUMP_BACK <= stamp - last <= JUMP_AHEAD:
                zero = now - stamp
            if not is_paced:  # the frame that was on its way for the shortest time tells what the source's clock shows
                zero = min(zero, now - stamp)
            first, last = first or frame, stamp
            seconds = zero + stamp
            slot = floor((seconds + ROUNDING) * self.fps)
            if slot <= self._slot:
                continue
            self._wait(seconds - now)
            if self._stopping.is_set():
                return
            pixels = rgb_pixels(frame, first, stream, shape and (lambda *_: shape), self.source)
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
            else:
                container = av.open(source, container_options=OF_STREAMS, timeout=TIMEOUT, metadata_errors="ignore")
        except FFmpegError as error:
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
        return av.open(f"/dev/video{number}", format=kind, timeout=TIMEOUT)
    if kind == "avfoundation":  # without a rate, it asks for one that many cameras refuse
        return av.open(str(number), format=kind, options={"framerate": "30"}, timeout=TIMEOUT)
    names = [each.name for each in av.enumerate_input_devices(kind) if "video" in each.media_types]
    if number >= len(names):
        raise VideoError(f"there is no camera {number}: Windows knows {len(names)}. They are counted from 0.")
    return av.open(f"video={names[number]}", format=kind, timeout=TIMEOUT)


def played(path: str, fps: float) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the frames that a `LiveSource` of a file would, as fast as they are decoded. Raises like `read_video`."""
    first, slot, seconds, last, zero = None, -1, 0.0, 0.0, 0.0
    with local_file(path, lambda *_: None) as local, opened(local, path) as container:
        stream = video_stream(container, path)
        stream.thread_type = "AUTO"
        for frame, stamp in _stamped(stream, packets(container, stream)):
            if first is None or stamp - last < -JUMP_BACK:  # the clock begins, or begins anew
                zero = (0.0 if first is None else seconds + 1 / _rate(stream)) - stamp
            first, last, seconds = first or frame, stamp, zero + stamp
            if floor((seconds + ROUNDING) * fps) > slot:
                slot = floor((seconds + ROUNDING) * fps)
                yield rgb_pixels(frame, first, stream, None, path), seconds
    if first is None:
        raise VideoError(f"no frame of the video {path!r} can be decoded. Download it again.")


def _stamped(
    stream: av.VideoStream, arriving: Iterable["av.Packet[av.VideoStream]"]
) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yield the frames that can be decoded, and when each is shown by the stream's own clock, in seconds."""
    # AVI knows the order in which frames are stored, which B-frames are not shown in.
    has_times = stream.container.format.name != "avi" or not stream.codec_context.has_b_frames
    count = 0
    for packet in arriving:
        try:
            frames = packet.decode()
        except FFmpegError:  # a damaged frame
            continue
        for frame in frames:
            yield frame, frame.time if has_times and frame.time is not None else count / _rate(stream)
            count += 1


def _rate(stream: av.VideoStream) -> float:
    return float(stream.average_rate or 25)
