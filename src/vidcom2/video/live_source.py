"""A live source of video, such as a camera, a URL or a file that is played, as frames that arrive at its own speed."""

import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from math import floor
from os import PathLike, fspath
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
from ..errors import brief, sentence
from .decoding import MOST_SQUARE, rgb_pixels
from .file import FORMATS, VideoError, local_file, opened, packets, video_stream
from .frames import positive
from .reading import check_video

SCHEMES = ("http", "https", "rtsp", "rtsps", "rtmp", "rtmps", "tcp", "udp")
OF_STREAMS = {  # playlists lead to sound and subtitles too, and to no file of this machine
    "format_whitelist": f"{FORMATS},hls,dash,mpjpeg,rtsp,aac,ac3,eac3,mp3,webvtt",
    "protocol_whitelist": "crypto,data,http,httpproxy,https,rtmp,rtmps,rtp,srtp,tcp,tls,udp",
}
CAMERAS = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}  # FFmpeg's name of a system's cameras
TIMEOUT = 5.0  # seconds that a source may send nothing, before it counts as broken off; closing may take as long
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a source that broke off is opened again
FAILURES_BEFORE_WARNING = 3  # how often in a row a source may fail before a warning says so
JUMP_BACK, JUMP_AHEAD = 1.0, 10.0  # seconds; time stamps that jump further begin to count anew
HOUR = 3600.0  # seconds; in a file, a still may last long, and only time stamps that jump further are wrong
FASTER = 4  # what arrives this many times as fast as it is shown is a file, not filmed at the moment
MADE_UP = (2**31 - 1, 2**32 - 1)  # lengths in bytes that servers state of streams without an end
MOST_BYTES = 10**11  # a stated length above this is made up, too
ROUNDING = 0.001  # seconds; Matroska rounds times to so much


class LiveSource:
    """An iterator of the frames of a live source, each with its time.

    A thread reads the source at its own speed, a file too, whether or not frames are taken. Of the frames that arrive
    in the meantime only the newest waits. A source other than a file that ends or breaks off is opened again, after
    pauses that grow. A warning gives the reason if that fails repeatedly. Use it in a `with` statement: its end closes
    the source.

    A file at a URL, too, is played at its own speed. It is recognised by its duration, or by the length that its server
    states. If neither is known, it counts as a stream, of which everything that arrives at once is passed over, and a
    warning says so.

    Yields:
        (frame, seconds): (height, width, 3) uint8, upright, all of one size; and when it is shown, in seconds from the
        first frame. A file begins when its first frame is asked for.

    Args:
        source: the path of a file; a URL of one of `SCHEMES`; `"camera"`, or `"camera:1"` for the second camera.
        fps: yield at most this many frames per second.

    Attributes:
        is_file: whether the source is a file of this machine, which is played once.
        dropped: how many frames were replaced by newer ones because they were not taken in time.
        reopened: how often the source was opened again.
        last_error: why the source broke off or could not be opened again; None once it shows frames again.

    Raises:
        VideoError: if an argument is outside what is accepted, or if the source cannot be opened or shows no video.
    """

    def __init__(self, source: str | PathLike[str], fps: float = 2.0) -> None:
        self.source, self.fps = _checked_source(source), positive("fps", fps)
        self.dropped, self.reopened = 0, 0
        self.last_error: Exception | None = None
        self.is_file = not _is_url(self.source) and _camera(self.source) is None
        self._started: float | None = None  # when the first frame was shown, by the clock of this machine
        self._slot = -1  # index of the 1/fps-second slot of the last frame
        self._shape: tuple[int, int] | None = None  # height and width of all frames
        self._is_stretched = False  # whether a warning said that frames are stretched to that shape
        self._fast_ends = 0  # how often in a row the source ended when it had sent much at once
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
                    raise _no_source(self.source)
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
        pause, failures = FIRST_PAUSE, 0
        while not self._stopping.is_set():
            before, error = self._slot, None
            try:
                if container is None:
                    container = self._open()
                    self.reopened += 1
                with container:
                    self._play(container)
            except (FFmpegError, VideoError) as failure:  # the network failed, or the server has no video yet
                self.last_error = error = failure
            container = None
            failures = 0 if error is None or self._slot > before else failures + 1
            if failures == FAILURES_BEFORE_WARNING and not self._stopping.is_set():
                reason = error.strerror if isinstance(error, FFmpegError) else error
                problem = f"the live video {self.source!r} broke off and has not come back: {sentence(reason)}"
                warnings.warn(f"{problem} It is opened again at least every {LONGEST_PAUSE:g} s.", stacklevel=2)
            pause = FIRST_PAUSE if self._slot > before else min(2 * pause, LONGEST_PAUSE)
            self._stopping.wait(pause)

    def _play(self, container: InputContainer) -> None:
        """Offer the frames of a stream when they are to be shown, until it ends or is closed."""
        stream = video_stream(container, self.source)
        stream.thread_type = "SLICE"  # frames decoded at once would be shown late
        # Files, and the segments of HLS and DASH, may arrive faster than they are to be shown.
        is_paced = _is_file(container) or container.format.name in ("hls", "dash")
        by_arrival = not is_paced and container.format.flags & Flags.no_timestamps.value
        size = None if self._shape is None else self._size
        first, last, zero = None, 0.0, 0.0  # `zero` is when the source's clock would have shown 0
        sent, took, start = 0.0, 0.0, (0.0, 0.0)  # how many seconds of video came, and in how many seconds
        try:
            for frame, stated in _stamped(stream, container.demux(stream)):
                if self._stopping.is_set():
                    return
                now = self._now()
                stamp = now if by_arrival else stated
                if first is None or not -JUMP_BACK <= stamp - last <= JUMP_AHEAD:
                    zero, start = now - stamp, (stated, now)
                if (
                    not is_paced
                ):  # the frame with the least delay so far best estimates the offset to the source's clock
                    zero = min(zero, now - stamp)
                first, last = first or frame, stamp
                sent, took = stated - start[0], now - start[1]
                seconds = zero + stamp
                slot = floor((seconds + ROUNDING) * self.fps)
                if slot <= self._slot:
                    continue
                self._wait(seconds - now)
                if self._stopping.is_set():
                    return
                pixels = rgb_pixels(frame, first, stream, size, self.source)
                self._slot, self._shape, self.last_error = slot, pixels.shape[:2], None
                self._offer(pixels, seconds)
        finally:  # Over HTTP, what has no stated length ends in an error.
            if not is_paced and not self._stopping.is_set():
                self._note_end(sent > FASTER * took + 1)
        if first is None and not self._stopping.is_set():
            raise VideoError(f"{self.source!r} ended without a frame that can be decoded.")

    def _note_end(self, was_fast: bool) -> None:
        """Warn if a source ended for the second time in a row when it had sent much more than it was open for. A stream
        that begins with what was filmed before may do so once."""
        self._fast_ends = self._fast_ends + 1 if was_fast else 0
        if self._fast_ends == 2:
            warnings.warn(
                f"{self.source!r} sends its video at once and ends, as a file does. Its server does not state its "
                "length, so it counts as a stream, and most of its frames are passed over. If it is a file, download "
                "it, and pass its path.",
                stacklevel=2,
            )

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of all frames, given that of the frames since the source was opened again."""
        tall, wide = self._shape or (height, width)
        if not self._is_stretched:
            self._is_stretched = not 1 / MOST_SQUARE < width * tall / (height * wide) < MOST_SQUARE
            if self._is_stretched:
                problem = f"{self.source!r} came back with {width} × {height} pixels instead of {wide} × {tall}"
                warnings.warn(f"{problem}. What it shows now is stretched to the first shape.", stacklevel=2)
        return tall, wide

    def _now(self) -> float:
        """Return how many seconds ago the first frame was shown."""
        now = monotonic()
        if self._started is None:
            self._started = now
        return now - self._started

    def _wait(self, seconds: float) -> None:
        """Wait this long, or until the source is closed."""
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
                "Does the address lead to a video, and is its server running?"
                if camera is None
                else "Is it plugged in, and do you have permission to use it? `camera:1` is the second camera."
            )
            raise VideoError(f"cannot open the live video {source!r}: {reason}. {remedy}") from error
        try:
            video_stream(container, source)
        except VideoError:
            container.close()
            raise
        return container


def _checked_source(source: str | PathLike[str]) -> str:
    path = fspath(source) if isinstance(source, str | PathLike) else None
    if not isinstance(path, str):
        raise VideoError(f"`source` is {brief(source)}, but must be a path, a URL or `camera`.")
    return path


def _no_source(source: str) -> VideoError:
    """Return the error for a source that is no camera, no URL and no file that exists."""
    if re.fullmatch(r"camera(:.*|\s*\d+)?", source, re.IGNORECASE):
        return VideoError(
            f"there is no camera {source!r}. The first one is called `camera` or `camera:0`, the second `camera:1`, "
            "and so on, in lower case."
        )
    return VideoError(
        f"there is no video file {source!r}. Pass a file, a URL that begins with one of {', '.join(SCHEMES)}, or "
        "`camera`."
    )


def _is_url(source: str) -> bool:
    scheme, found, _ = source.partition("://")
    return bool(found) and scheme.lower() in SCHEMES


def _is_file(container: InputContainer) -> bool:
    """Tell whether what stands at a URL is a file: its duration is known, or its server states how many bytes it has.

    Some cameras state a length of what has no end, above all of multipart streams of JPEGs.
    """
    is_stated = 0 < container.size < MOST_BYTES and container.size not in MADE_UP
    return bool(container.duration) or (is_stated and container.format.name != "mpjpeg")


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
    """Yield the frames that a `LiveSource` of a file would, as fast as they are decoded.

    Where time stamps go back, or jump ahead by more than an hour, the clock begins anew. A warning reports each jump
    ahead.

    Raises:
        VideoError: as `read_video` does, and if `fps` is not a number above 0.
    """
    fps = positive("fps", fps)
    first, slot, seconds, last, zero = None, -1, 0.0, 0.0, 0.0
    with local_file(path, lambda *_: None) as local, opened(local, path) as container:
        stream = video_stream(container, path)
        stream.thread_type = "AUTO"
        step = 1 / _rate(stream)  # between the last two frames: a wrong time stamp makes the average wrong, too
        for frame, stamp in _stamped(stream, packets(container, stream)):
            jumps_ahead = first is not None and stamp - last > HOUR
            if jumps_ahead:
                warnings.warn(
                    f"the time stamps of the video {path!r} jump from {last:.1f} s to {stamp:.1f} s. They are "
                    "probably wrong, so it is played on without a pause. `read_video` keeps them as they are.",
                    stacklevel=2,
                )
            if first is None or jumps_ahead or stamp - last < -JUMP_BACK:  # the clock begins, or begins anew
                zero = (0.0 if first is None else seconds + step) - stamp
            elif stamp > last:
                step = stamp - last
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
    # AVI records only the order of storage, which is not that of showing where there are B-frames.
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
