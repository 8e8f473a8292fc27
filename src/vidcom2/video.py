"""Reading a video file: frames evenly spaced in time, with PyAV (its wheels bring FFmpeg along)."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

import av
import httpx
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition

# Called with what is being done, how much of it is done, and how much there is, if known.
Progress = Callable[[str, float, float | None], None]

MOST_ERRORS_IN_A_ROW = 100  # of a container, without a packet between them
DEFAULT_RATE = Fraction(25)  # frames per second of a raw stream that states none: FFmpeg's own default


class VideoError(ValueError):
    """A video that is missing, unreachable or unreadable."""


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class Video:
    """Frames sampled from a video file.

    Attributes:
        frames: (num_frames, height, width, 3) uint8, RGB, upright.
        frames_indices: (num_frames,) int64, the place of each in the file, in units of 1 / fps seconds.
        fps: frames per second of the file. With a variable frame rate no such number exists: then it is the clock
            of the file (1000 where times are in milliseconds), and `frames_indices` are times on that clock.
        total_num_frames: length of the whole video in units of 1 / fps seconds: at a constant rate, its frames.
        lost: frames of the file that could not be decoded, by the packets that should hold them; 0 if it is sound.
    """

    frames: np.ndarray = field(repr=False)
    frames_indices: np.ndarray
    fps: float
    total_num_frames: int
    lost: int = 0

    @property
    def seconds(self) -> np.ndarray:
        """(num_frames,) when each frame is shown, counted from the first of the file."""
        return self.frames_indices / self.fps

    @property
    def duration(self) -> float:
        """Length of the whole video in seconds."""
        return self.total_num_frames / self.fps

    @property
    def metadata(self) -> dict[str, Any]:
        """What the processors of Transformers take: `processor(..., videos=[v.frames], video_metadata=[v.metadata])`.

        Those that tell the model the time compute it as `frames_indices / fps`, which are `seconds`. A new dict each
        time, since some of them change it.
        """
        height, width = self.frames.shape[1:3]
        return {
            "total_num_frames": self.total_num_frames,
            "fps": self.fps,
            "width": width,
            "height": height,
            "duration": self.duration,
            "video_backend": "pyav",
            "frames_indices": self.frames_indices.tolist(),
        }


def read_video(source: str | PathLike[str], num_frames: int, progress: Progress = lambda *_: None) -> Video:
    """Sample frames evenly in time, from the first to the last, and turn them upright.

    No frame is taken twice: where frames are far apart in time, their neighbours are taken.

    Args:
        source: a path, or an http(s) URL.
        num_frames: how many; a shorter video gives all it has.

    Raises:
        VideoError: if the file is missing, cannot be fetched, or holds no decodable video. A file that is damaged in
            part gives the frames that decode, and `Video.lost` says how many do not.
        ValueError: if `num_frames` is below 1.
    """
    if num_frames < 1:
        raise VideoError(f"`num_frames` is {num_frames}, but must be at least 1.")
    source = fspath(source)
    with _local_file(source, progress) as path:
        try:
            timeline = _look_through(path, source, progress)
            wanted = _evenly_spaced(timeline.stamps, num_frames)
            decoded = _decode(path, source, timeline, wanted, "AUTO", progress)
            if decoded.is_out_of_order:
                timeline = replace(timeline, start=None)
                decoded = _decode(path, source, timeline, wanted, "AUTO", progress)
            if not decoded.reached_end:  # threads that decode ahead swallow the frames around damage at the end
                decoded = _decode(path, source, timeline, wanted, "SLICE", progress)
        except FFmpegError as error:
            raise VideoError(f"cannot read the video {source!r}: {error}. Is it a video file?") from error
    if not decoded.frames:
        raise VideoError(
            f"cannot read the video {source!r}: none of its {len(timeline.stamps)} frames decodes "
            f"({decoded.first_error or 'no error is given'}). Is the file damaged or encrypted?"
        )
    return Video(
        frames=np.stack(decoded.frames),
        frames_indices=timeline.indices[decoded.ranks],
        fps=float(timeline.fps),
        total_num_frames=timeline.total_num_frames,
        lost=decoded.lost,
    )


@contextmanager
def _local_file(source: str, progress: Progress) -> Iterator[str]:
    if not source.startswith(("http://", "https://")):
        if not Path(source).is_file():
            raise VideoError(f"there is no video file {source!r}. Pass a path or an http(s) URL.")
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video"
        try:
            with httpx.stream("GET", source, follow_redirects=True, timeout=30) as response, path.open("wb") as file:
                response.raise_for_status()
                size = int(response.headers.get("content-length", 0)) or None
                for chunk in response.iter_bytes():
                    file.write(chunk)
                    progress("Downloading", response.num_bytes_downloaded, size)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise VideoError(f"cannot download {source!r}: {error}") from error
        yield str(path)


# ---------------------------------------------------------------------------------------------------------------------
# When the frames are shown
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Timeline:
    """When the n frames of a file are shown, as its packets say.

    Attributes:
        stamps: (n,) int64, ascending, in ticks after the first frame.
        start: the first frame's own time stamp, or None if those of the frames cannot be used, and frames are counted.
        indices: (n,) int64, the same in units of 1 / fps seconds.
        fps, total_num_frames: as in `Video`.
    """

    stamps: np.ndarray
    start: int | None
    indices: np.ndarray
    fps: Fraction
    total_num_frames: int


def _look_through(path: str, source: str, progress: Progress) -> _Timeline:
    """From the packets, without decoding: what a container's header says is often missing or wrong."""
    count, stamped = 0, []
    with _opened(path) as container:
        stream = _video_stream(container, source)
        for packet in _packets(container, stream):
            if packet.size == 0 or packet.is_discard:  # the flush; before the start of an edited file
                continue
            count += 1
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is not None:
                stamped.append((stamp, packet.duration or 0))
            if count % 100 == 0:
                progress("Looking through the file", count, None)
        rates = [rate for rate in (stream.average_rate, stream.guessed_rate) if rate]
        tick = cast(Fraction, stream.time_base)  # that of a stream in a file is known
    if not count:
        raise VideoError(f"the video {source!r} has no frames. Is it complete?")
    stamps, durations = np.array(sorted(stamped), dtype=np.int64).reshape(-1, 2).T
    if 2 * len(np.unique(stamps)) < count:  # a raw stream: frames follow each other at the rate that it states
        rate = (rates or [DEFAULT_RATE])[-1]
        return _Timeline(np.arange(count), None, np.arange(count), rate, count)

    start, stamps = int(stamps[0]), stamps - stamps[0]
    length = int(stamps[-1])
    numbers = np.arange(len(stamps))
    if length:
        rates.append((len(stamps) - 1) / (length * tick))
    for rate in rates or [DEFAULT_RATE]:
        # Time stamps are rounded to ticks, the first one as well; in AVI a tick is a whole frame, and exact.
        ticks_per_frame = float(1 / (rate * tick))
        if np.abs(stamps - numbers * ticks_per_frame).max() <= min(1, ticks_per_frame / 4) + 1e-6:
            return _Timeline(stamps, start, numbers, rate, len(stamps))
    last = int(durations[-1]) or round(length / (len(stamps) - 1))
    return _Timeline(stamps, start, stamps, 1 / tick, length + last)


def _evenly_spaced(stamps: np.ndarray, num_frames: int) -> np.ndarray:
    """Which of n frames: for evenly spaced times the nearest ones, none of them twice."""
    if num_frames >= len(stamps):
        return np.arange(len(stamps))
    halfway = (stamps[1:] + stamps[:-1]) / 2
    nearest = np.searchsorted(halfway, np.linspace(0, stamps[-1], num_frames))
    steps = np.arange(num_frames)
    ascending = np.maximum.accumulate(nearest - steps) + steps  # a frame that is taken passes the turn to the next
    return np.minimum(ascending, len(stamps) - num_frames + steps)


# ---------------------------------------------------------------------------------------------------------------------
# Decoding
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class _Decoded:
    """Frames that were wanted, and what the others say about the file.

    Attributes:
        frames: (height, width, 3) uint8 each.
        ranks: for each, which of the n frames of the timeline it is.
        lost: as in `Video`.
        reached_end: whether there was a frame for each one wanted, up to the last.
        is_out_of_order: whether the frames' time stamps are wrong, found on the way.
        first_error: of the decoder.
    """

    frames: list[np.ndarray] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    lost: int = 0
    reached_end: bool = False
    is_out_of_order: bool = False
    first_error: FFmpegError | None = None


def _decode(
    path: str, source: str, timeline: _Timeline, wanted: np.ndarray, threads: str, progress: Progress
) -> _Decoded:
    """Decode the whole file once, in order, and keep the wanted frames; for one that is lost, the next."""
    total = len(timeline.stamps)
    result, remaining = _Decoded(), wanted.tolist()
    count, refused, rank = 0, 0, -1
    first = last = None

    def keep(frame: av.VideoFrame, first: av.VideoFrame) -> None:
        # A stream may change its size on the way; the frames of a video have one.
        pixels = frame.to_ndarray(format="rgb24", width=first.width, height=first.height)
        result.frames.append(_upright(pixels, *_display_matrix(first)))
        result.ranks.append(rank)

    with _opened(path) as container:
        stream = _video_stream(container, source)
        stream.thread_type = threads
        for packet in _packets(container, stream):
            try:
                frames = packet.decode()
            except FFmpegError as error:
                refused += 1
                result.first_error = result.first_error or error
                continue
            for last in frames:
                first = first or last
                count += 1
                stamp = last.dts if last.pts is None else last.pts
                if timeline.start is None or stamp is None:
                    at = min(count - 1 + refused, total - 1)
                else:
                    at = min(int(np.searchsorted(timeline.stamps, stamp - timeline.start)), total - 1)
                    # Frames come in the order in which they are shown, but for some after a damaged place. Where that
                    # is not so (H.264 in AVI), it is the time stamps that are wrong.
                    result.is_out_of_order = at <= rank and not refused
                    if result.is_out_of_order:
                        return result
                rank = max(rank, at)
                if remaining and rank >= remaining[0]:
                    keep(last, first)
                    remaining = [r for r in remaining if r > rank]
                progress("Decoding", rank + 1, total)
        result.reached_end = not remaining
        if remaining and first is not None and last is not None and rank not in result.ranks:
            keep(last, first)
    if refused:
        result.lost = max(refused, total - count)
    return result


def _opened(path: str) -> InputContainer:
    return av.open(path, metadata_errors="ignore")  # a title in another encoding is no reason


def _video_stream(container: InputContainer, source: str) -> av.VideoStream:
    """The one that players choose. The cover picture of a song is none."""
    stream = container.streams.best("video")
    if stream is None or stream.disposition & Disposition.attached_pic:
        raise VideoError(f"{source!r} holds no video stream, only {[s.type for s in container.streams]}.")
    if stream.codec_context is None:
        raise VideoError(f"the video {source!r} is in a format that FFmpeg {av.ffmpeg_version_info} cannot decode.")
    return cast(av.VideoStream, stream)


def _packets(container: InputContainer, stream: av.VideoStream) -> Iterator[av.Packet]:
    """All packets in file order, over damaged places of the container; the last is empty and flushes the decoder."""
    errors_in_a_row = 0
    while True:
        try:
            for packet in container.demux(stream):
                errors_in_a_row = 0
                yield packet
            return
        except FFmpegError:
            errors_in_a_row += 1
            if errors_in_a_row > MOST_ERRORS_IN_A_ROW:
                return


def _display_matrix(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    """(a, b, c, d): the stored point (x, y) is shown at (a x + c y, b x + d y), x to the right and y downwards."""
    try:
        side_data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV has no name for another kind of the frame's side data, and then hands out none of it
        turn = np.radians(frame.rotation)  # counterclockwise
        return round(np.cos(turn)), -round(np.sin(turn)), round(np.sin(turn)), round(np.cos(turn))
    if side_data is None:
        return 1, 0, 0, 1
    a, b, _, c, d = np.frombuffer(side_data, dtype=np.int32)[:5].tolist()
    return a, b, c, d


def _upright(pixels: np.ndarray, a: int, b: int, c: int, d: int) -> np.ndarray:
    """The frame as it is shown: turned by the nearest multiple of 90 degrees, and mirrored if the matrix says so."""
    if abs(b) + abs(c) > abs(a) + abs(d):
        pixels, a, d = pixels.transpose(1, 0, 2), c, b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
