"""Decoding the wanted frames of a video file, either the whole file in order or from the key frames before them."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import av
import numpy as np
from av.container import InputContainer
from av.error import ArgumentError, FFmpegError
from av.video.frame import PictureType

from .file import Progress, VideoError, check_pixels, opened, packets, video_stream
from .timeline import PacketIndex, Timeline

# A seek waits until the decoder has emptied, about as long as one frame takes. FFmpeg decodes up to 16 frames at once,
# on as many cores, so skipping fewer frames than that is not worth a seek.
FRAMES_WORTH_A_SEEK = 16

# libswscale's SWS_BICUBIC, and SWS_FULL_CHR_H_INT for colours in the full resolution of the result. Of its scalers this
# one comes nearest to those of the processors.
BICUBIC = 0x4 | 0x2000

# Pixels are shown in their shape if one side is this much longer than the other.
MOST_SQUARE, LEAST_SQUARE = 1.01, 4.0
HDR = {16: "PQ", 18: "HLG"}  # by the transfer function's number in ITU-T H.273

# Takes the height and width of an upright frame of the file. Returns those to scale it to, or None to keep its size.
FrameSize: TypeAlias = Callable[[int, int], tuple[int, int] | None]


@dataclass
class Decoded:
    """The wanted frames, and what decoding found out about the file.

    Attributes:
        frames: (height, width, 3) uint8 each.
        ranks: for each frame, which of the n frames of the timeline it is.
        lost: as in `Video`.
        reached_end: whether the file had a frame for each wanted one, up to the last.
        fits: whether the frames' time stamps are those of the timeline. If not, decoding stopped there.
        first_error: the decoder's first error; None if it had none.
    """

    frames: list[np.ndarray] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    lost: int = 0
    reached_end: bool = False
    fits: bool = True
    first_error: FFmpegError | None = None


# ---------------------------------------------------------------------------------------------------------------------
# All of it, in order
# ---------------------------------------------------------------------------------------------------------------------


def decode_in_order(
    path: str,
    source: str,
    timeline: Timeline,
    wanted: np.ndarray,
    size: FrameSize | None,
    threads: str,
    progress: Progress,
) -> Decoded:
    """Decode the whole file once, and keep the wanted frames. The next frame replaces one that is lost."""
    total = len(timeline.stamps)
    result, remaining = Decoded(), wanted.tolist()
    count, refused, rank = 0, 0, -1
    first = last = None
    # Before the first key frame, decoders of H.264 and H.265 leave frames out and raise no error.
    left_out: int | None = None

    def keep(frame: av.VideoFrame, first: av.VideoFrame) -> None:
        result.frames.append(rgb_pixels(frame, first, stream, size, source))
        result.ranks.append(rank)

    with opened(path, source) as container:
        stream = video_stream(container, source)
        stream.thread_type = threads
        for packet in packets(container, stream):
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
                if timeline.start is None:
                    at = min(count - 1 + refused, total - 1)
                else:
                    at = rank + 1 if stamp is None else int(np.searchsorted(timeline.stamps, stamp - timeline.start))
                    at = min(at, total - 1)
                    if left_out is None and stamp is not None:
                        left_out = at - (count - 1)
                    # Frames come in the order in which they are shown, except for some after a damaged place. If they
                    # do not (H.264 in AVI), the time stamps are wrong.
                    is_unforeseen = stamp is None and timeline.otherwise is not None
                    result.fits = not is_unforeseen and (at > rank or bool(refused))
                    if not result.fits:
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
    elif left_out is not None:
        result.lost = left_out
    elif last is not None and not last.interlaced_frame and total > count:  # fields may have been counted as frames
        result.lost = total - count
        result.ranks = [rank + result.lost for rank in result.ranks]
    return result


# ---------------------------------------------------------------------------------------------------------------------
# From the key frames before them
# ---------------------------------------------------------------------------------------------------------------------


class _NotAsIndexed(Exception):
    """Raised when a file does not hold what its packets said."""


@dataclass
class _Run:
    """Consecutive packets, `start` to `stop - 1`, that are decoded to get some wanted frames.

    Attributes:
        wanted: time stamp -> which of the n frames of the timeline it is, for each wanted frame.
        needed: the packets that hold the wanted frames.
    """

    start: int
    stop: int
    wanted: dict[int, int] = field(default_factory=dict)
    needed: set[int] = field(default_factory=set)


def decode_sought(
    path: str,
    source: str,
    index: PacketIndex,
    wanted: np.ndarray,
    size: FrameSize | None,
    progress: Progress,
) -> Decoded | None:
    """Decode from the last key frame before each wanted frame. Where the next one is near, decode on without a seek.

    Returns:
        The same frames that `decode_in_order` gives for an undamaged file. None if nothing can be skipped, or if the
        file is not as its packets said: then only decoding all of it in order shows what it holds.
    """
    runs = _runs(index, wanted)
    total = sum(run.stop - run.start for run in runs)
    if total == len(index.stamps):
        return None
    result = Decoded(reached_end=True)
    first, done = None, 0

    def count() -> None:
        nonlocal done
        done += 1
        progress("Decoding", done, total)

    try:
        with opened(path, source) as container:
            stream = video_stream(container, source)
            stream.thread_type = "AUTO"
            for run in runs:
                for frame in _decoded_run(container, stream, index, run, count):
                    first = first or frame  # the file's first frame, with which the first run begins
                    if frame.pts in run.wanted:
                        result.frames.append(rgb_pixels(frame, first, stream, size, source))
                        result.ranks.append(run.wanted[frame.pts])
    except (VideoError, _NotAsIndexed):
        return None
    return result if result.ranks == wanted.tolist() else None


def _runs(index: PacketIndex, wanted: np.ndarray) -> list[_Run]:
    runs = [_Run(0, 0)]
    for rank in wanted.tolist():
        packet = int(index.of_frames[rank])
        stamp = int(index.stamps[packet])
        # The last key that is shown before the frame also precedes it in the file. A leading picture, which is shown
        # before a key but comes after it in the file, depends on frames before the key.
        before = int(np.searchsorted(index.stamps[index.keys], stamp, side="right")) - 1
        key = int(index.keys[before]) if before >= 0 else 0
        if key - runs[-1].stop >= FRAMES_WORTH_A_SEEK:
            runs.append(_Run(key, key))
        # Take the next packet too: in an interlaced stream it may hold the other half of the frame's lines.
        runs[-1].stop = max(runs[-1].stop, min(packet + 2, len(index.stamps)))
        runs[-1].wanted[stamp] = rank
        runs[-1].needed |= {packet, packet + 1}
    if len(index.stamps) - runs[-1].stop < FRAMES_WORTH_A_SEEK:
        runs[-1].stop = len(index.stamps)
    return runs


def _decoded_run(
    container: InputContainer,
    stream: av.VideoStream,
    index: PacketIndex,
    run: _Run,
    on_packet: Callable[[], None],
) -> Iterator[av.VideoFrame]:
    """Yield the frames of a run in the order in which they are shown, without those that depend on frames before it.

    Raises:
        _NotAsIndexed: if decoding cannot begin there, or if the frames differ from what the packets said.
    """
    stamps = set(index.stamps[run.start : run.stop].tolist())
    begin = int(index.stamps[run.start])
    last = None
    for frame in _all_decoded(container, stream, index, run, on_packet):
        if frame.pts is None or frame.pts not in stamps or frame.is_corrupt:
            raise _NotAsIndexed
        if run.start:
            if frame.pts < begin:  # a leading picture, which depends on frames before the key
                continue
            # A key may instead begin a gradual refresh of the picture, which may not restore it exactly.
            if last is None and (frame.pts != begin or frame.pict_type != PictureType.I):
                raise _NotAsIndexed
        if last is not None and frame.pts <= last:
            raise _NotAsIndexed
        last = frame.pts
        yield frame


def _all_decoded(
    container: InputContainer,
    stream: av.VideoStream,
    index: PacketIndex,
    run: _Run,
    on_packet: Callable[[], None],
) -> Iterator[av.VideoFrame]:
    """Decode a run's packets. Unwanted frames are skipped if no other frame depends on them."""
    context = stream.codec_context
    for i, packet in enumerate(_packets_in(container, stream, index, run), run.start):
        # In H.264 no frame depends on one that is not marked as a reference. (In H.265 those of a higher layer may.)
        if index.decoder == "h264":
            context.skip_frame = "DEFAULT" if i in run.needed else "NONREF"
        yield from packet.decode()
        on_packet()
    yield from context.decode(None)


def _packets_in(
    container: InputContainer, stream: av.VideoStream, index: PacketIndex, run: _Run
) -> Iterator[av.Packet]:
    if run.start:
        container.seek(int(index.seek_to[run.start]), stream=stream, any_frame=True)
    at = run.start
    for packet in container.demux(stream):
        if at == run.start > 0 and packet.pts is not None and packet.pts < index.stamps[at]:
            continue  # a container may seek to an earlier place
        if (packet.pts, packet.size) != (index.stamps[at], index.sizes[at]):
            raise _NotAsIndexed
        yield packet
        at += 1
        if at == run.stop:
            return
    raise _NotAsIndexed


# ---------------------------------------------------------------------------------------------------------------------
# Pixels
# ---------------------------------------------------------------------------------------------------------------------


def rgb_pixels(
    frame: av.VideoFrame, first: av.VideoFrame, stream: av.VideoStream, size: FrameSize | None, source: str
) -> np.ndarray:
    """Return (height, width, 3) uint8, upright, in the size that is asked for or else that of the file's first frame,
    as wide as players show it.

    A stream may change its size on the way, but all frames of a `Video` have the same. Another shape is warned of, and
    so is HDR, whose colours are not converted.
    """
    if frame is first and frame.color_trc in HDR:
        problem = f"{source!r} is HDR ({HDR[frame.color_trc]}), and comes out pale. Convert it to SDR first."
        warnings.warn(problem, stacklevel=2)
    if not 1 / MOST_SQUARE < frame.width * first.height / (frame.height * first.width) < MOST_SQUARE:
        shapes = f"{first.width} × {first.height} to {frame.width} × {frame.height}"
        problem = f"{source!r} changes from {shapes} pixels. What it shows then is stretched to the first shape."
        warnings.warn(problem, stacklevel=2)
    matrix = _display_matrix(first)
    is_turned = _is_turned(*matrix)
    stored = first.height, round(first.width * _pixel_aspect(stream, *matrix))
    wanted = None if size is None else size(*(reversed(stored) if is_turned else stored))
    if wanted is None:
        check_pixels(source, stored[1], stored[0])
    if wanted is None and stored == (first.height, first.width):
        pixels = frame.to_ndarray(format="rgb24", width=first.width, height=first.height)
    else:
        height, width = stored if wanted is None else reversed(wanted) if is_turned else wanted
        try:
            pixels = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation=BICUBIC)
        except ArgumentError as error:  # the file is not to blame: FFmpeg has bounds of its own
            raise VideoError(
                f"FFmpeg cannot scale the frames of {source!r} to a height of {height} and a width of {width} pixels."
                + ("" if wanted is None else " Pass a smaller `size`.")
            ) from error
    return _upright(pixels, *matrix)


def _pixel_aspect(stream: av.VideoStream, a: int, b: int, c: int, d: int) -> float:
    """Return how much wider than high a stored pixel is shown; 1 if that is almost square, or too much to be true."""
    aspect = float(stream.sample_aspect_ratio or 1)
    stretch = np.hypot(a, b) / (np.hypot(c, d) or 1)
    if not MOST_SQUARE > stretch > 1 / MOST_SQUARE:
        aspect = stretch  # FFmpeg gives that of the frame as it is shown, not as it is stored
    is_square = MOST_SQUARE > aspect > 1 / MOST_SQUARE
    return aspect if LEAST_SQUARE > aspect > 1 / LEAST_SQUARE and not is_square else 1.0


def _display_matrix(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    """Return (a, b, c, d): the stored point (x, y) is shown at (a x + c y, b x + d y), x to the right and y down."""
    try:
        side_data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV does not know one kind of the frame's side data, and then gives out none of it
        turn = np.radians(frame.rotation)  # counterclockwise
        return round(np.cos(turn)), -round(np.sin(turn)), round(np.sin(turn)), round(np.cos(turn))
    if side_data is None:
        return 1, 0, 0, 1
    a, b, _, c, d = np.frombuffer(side_data, dtype=np.int32)[:5].tolist()
    return a, b, c, d


def _is_turned(a: int, b: int, c: int, d: int) -> bool:
    """Tell whether the frame is turned by 90 degrees, so that height and width change places."""
    return abs(b) + abs(c) > abs(a) + abs(d)


def _upright(pixels: np.ndarray, a: int, b: int, c: int, d: int) -> np.ndarray:
    """Turn a frame by the nearest multiple of 90 degrees to its matrix, and mirror it if the matrix does."""
    if _is_turned(a, b, c, d):
        pixels, a, d = pixels.transpose(1, 0, 2), c, b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
