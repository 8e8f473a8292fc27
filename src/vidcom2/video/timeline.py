"""Finding out from the packets of a video file when its frames are shown, and where in the file they are."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .file import Progress, VideoError, opened, packets, video_stream

MOST_REORDERED = 17  # packets: H.264 and H.265 hold at most 16 frames back to show them later
DEFAULT_RATE = Fraction(25)  # frames per second of a raw stream that states no rate, as in FFmpeg
# With these decoders, decoding from a packet that is marked as a key gives the same frames as decoding from the start.
# With others the mark may mean less: a GIF draws each frame over the last.
DECODERS_WITH_KEYS = {"h264", "hevc", "libdav1d", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp8", "vp9"}


@dataclass(frozen=True)
class Timeline:
    """The times at which the n frames of a file are shown, as its packets say.

    Attributes:
        stamps: (n,) int64, ascending, in ticks after the first frame.
        start: the first frame's own time stamp. None if the frames' time stamps are unusable, so that frames are
            counted instead.
        indices: (n,) int64, the same times in units of 1 / fps seconds.
        fps, total_num_frames: as in `Video`.
        otherwise: the timeline to take instead if frames without a time stamp are decoded. A packet without one may
            hold a frame, or only the second field of an interlaced frame. None if all packets have stamps.
    """

    stamps: np.ndarray
    start: int | None
    indices: np.ndarray
    fps: Fraction
    total_num_frames: int
    otherwise: "Timeline | None" = None


@dataclass(frozen=True)
class PacketIndex:
    """The places of a file's n frames: its m packets, in file order, including those that are decoded but not shown.

    Attributes:
        stamps: (m,) int64, when the frame of each packet is shown, in ticks; no two are equal.
        seek_to: (m,) int64, the time to seek to for each packet, in ticks. It is the time of decoding where known.
        sizes: (m,) int64, in bytes.
        keys: (num_keys,) int64, the packets where decoding can begin, ascending. All that comes before such a packet in
            the file is shown before it, so that their stamps ascend, too.
        of_frames: (n,) int64, the packet of each frame of the timeline.
        decoder: FFmpeg's name of the decoder.
    """

    stamps: np.ndarray
    seek_to: np.ndarray
    sizes: np.ndarray
    keys: np.ndarray
    of_frames: np.ndarray
    decoder: str


class _Packet(NamedTuple):
    """The part of a packet that is kept. Its frame is shown at `pts` and decoded at `dts`, both in ticks."""

    pts: int | None
    dts: int | None
    duration: int
    size: int
    is_key: bool
    is_shown: bool  # False before the start of an edited file

    @property
    def stamp(self) -> int | None:
        return self.dts if self.pts is None else self.pts


def look_through(path: str, source: str, progress: Progress) -> tuple[Timeline, PacketIndex | None]:
    """Read the timeline and the index from the packets, without decoding. A container's header is often incomplete or
    wrong.

    Returns:
        The timeline and the index. The index is None for a file that can only be read in order, because it is damaged,
        or does not say when each packet is shown or where decoding can begin.

    Raises:
        VideoError: if the file has no frames.
    """
    damages: list[Exception] = []
    found: list[_Packet] = []
    with opened(path, source) as container:
        stream = video_stream(container, source)
        for packet in packets(container, stream, damages):
            if packet.size == 0:  # the flush
                continue
            if packet.is_corrupt:
                damages.append(VideoError(f"packet {len(found)} is corrupt"))
            found.append(
                _Packet(
                    packet.pts,
                    packet.dts,
                    packet.duration or 0,
                    packet.size,
                    packet.is_keyframe,
                    not packet.is_discard,
                )
            )
            if len(found) % 100 == 0:
                progress("Looking through the file", len(found), None)
        rates = [rate for rate in (stream.average_rate, stream.guessed_rate) if rate]
        tick = cast(Fraction, stream.time_base)  # never None for a stream in a file
        decoder = stream.codec_context.name
        decoder_rate = stream.codec_context.framerate
    shown = [packet for packet in found if packet.is_shown]
    if not shown:
        raise VideoError(f"the video {source!r} has no frames. Is it complete?")
    # Each packet of interlaced H.264 may hold a field, which is half a frame. Its duration tells.
    field = 1 / (2 * decoder_rate * tick) if decoder == "h264" and decoder_rate else None
    num_fields = sum(packet.duration == field for packet in shown)
    timeline = _timeline(shown, rates, tick, len(shown) - num_fields // 2)
    if damages or timeline.start is None or decoder not in DECODERS_WITH_KEYS:
        return timeline, None
    return timeline, _packet_index(found, decoder)


def _timeline(shown: list[_Packet], rates: list[Fraction], tick: Fraction, num_frames: int) -> Timeline:
    stamped = [packet for packet in shown if packet.stamp is not None]
    given = np.array([packet.stamp for packet in stamped], dtype=np.int64)
    num_different = len(np.unique(given))
    if not stamped:
        rates = _rates_without_stamps(shown, rates, tick, num_frames)
    # The frames of a raw stream follow each other at the rate that it states.
    raw = Timeline(np.arange(num_frames), None, np.arange(num_frames), (rates or [DEFAULT_RATE])[-1], num_frames)
    if num_different < min(2, len(shown)) or 2 * num_different < len(stamped):
        return raw
    last = max((cast(int, packet.stamp), packet.duration) for packet in stamped)[1]
    stamps = np.sort(_continued(given))
    start = int(stamps[0]) if np.array_equal(stamps, np.sort(given)) else None
    timeline = _with_clock(stamps, start, last, rates, tick)
    if len(stamped) == len(shown):
        return timeline
    if shown[0].stamp is None:
        stamps = _with_frames_before(stamps, len(shown))
        return replace(timeline, otherwise=_with_clock(stamps, int(stamps[0]), last, rates, tick))
    between = _with_frames_between(shown)
    return replace(timeline, otherwise=raw if between is None else _with_clock(between, None, last, rates, tick))


def _rates_without_stamps(
    shown: list[_Packet], rates: list[Fraction], tick: Fraction, num_frames: int
) -> list[Fraction]:
    """Return the rates that may be those of frames without any time stamp, such as all of a Matroska file that ends
    before time 0. Where nothing states a rate, FFmpeg gives that of the clock. Then packets may say how long they last.
    """
    stated = [rate for rate in rates if rate != 1 / tick]
    durations = [packet.duration for packet in shown]
    return stated or ([num_frames / (sum(durations) * tick)] if min(durations) > 0 else [])


def _with_clock(stamps: np.ndarray, start: int | None, last: int, rates: list[Fraction], tick: Fraction) -> Timeline:
    """Return the timeline of frames with these time stamps, of which the last is shown for `last` ticks if not 0."""
    stamps = stamps - stamps[0]
    places = np.flatnonzero(np.diff(stamps, prepend=-1))
    if 1 < len(places) < len(stamps):  # some frames have the same time stamp
        stamps = _interpolated(places, stamps[places], len(stamps))
    length = int(stamps[-1])
    numbers = np.arange(len(stamps))
    if length:
        rates = [*rates, (len(stamps) - 1) / (length * tick)]
    for rate in rates or [DEFAULT_RATE]:
        # Time stamps, the first included, are rounded to ticks. In AVI a tick is a whole frame, and they are exact.
        ticks_per_frame = float(1 / (rate * tick))
        if np.abs(stamps - numbers * ticks_per_frame).max() <= min(1, ticks_per_frame / 4) + 1e-6:
            return Timeline(stamps, start, numbers, rate, len(stamps))
    last = last or round(length / (len(stamps) - 1))
    return Timeline(stamps, start, stamps, 1 / tick, length + last)


def _continued(stamps: np.ndarray) -> np.ndarray:
    """Return the time stamps of packets, in file order, with those of a clock that starts anew after the ones before.

    That happens where recordings were joined. Frames that are shown in another order than they are stored also go back
    in time, but only by some frames.
    """
    if len(stamps) < 2:
        return stamps
    before = sliding_window_view(np.pad(stamps, (MOST_REORDERED, 0), "edge"), MOST_REORDERED)[: len(stamps)]
    after = sliding_window_view(np.pad(stamps, (0, MOST_REORDERED), "edge"), MOST_REORDERED)[: len(stamps)]
    restarts = (stamps < before.min(axis=1)) & (after.max(axis=1) < before.max(axis=1))
    if not restarts.any():
        return stamps
    steps = np.diff(np.unique(stamps))
    parts, end = [], 0
    for part in np.split(stamps, np.flatnonzero(restarts)):
        parts.append(part - part.min() + end)
        end = int(parts[-1].max() + np.median(steps))
    return np.concatenate(parts)


def _with_frames_before(known: np.ndarray, num_frames: int) -> np.ndarray:
    """Return the time stamps of all frames of a Matroska file that begins before time 0. FFmpeg gives its packets from
    before then none, so these are taken to be as far apart as the others are on average."""
    step = (known[-1] - known[0]) / (len(known) - 1)
    before = known[0] - np.rint(step * np.arange(num_frames - len(known), 0, -1))
    return np.concatenate([before.astype(np.int64), known])


def _with_frames_between(shown: list[_Packet]) -> np.ndarray | None:
    """Return the time stamps of all frames of a transport or program stream, in which only the first of several frames
    that are packed together has one. The times of decoding ascend in the file, so they tell where the others belong.
    None if there is only one time."""
    times = [packet.pts if packet.dts is None else packet.dts for packet in shown]
    places = np.array([place for place, time in enumerate(times) if time is not None])
    known = _continued(np.array([time for time in times if time is not None], dtype=np.int64))
    known = np.maximum.accumulate(known)
    is_last = np.diff(known, append=known[-1] + 1) > 0  # FFmpeg may give a frame's time to the one before it as well
    return _interpolated(places[is_last], known[is_last], len(times)) if is_last.sum() > 1 else None


def _interpolated(places: np.ndarray, stamps: np.ndarray, num_frames: int) -> np.ndarray:
    """Return the time stamps of n frames, given those at some places. The others are spread evenly between them."""
    step = (stamps[-1] - stamps[0]) / (places[-1] - places[0])
    end = stamps[-1] + step * (num_frames - places[-1])
    every = np.interp(np.arange(num_frames), [*places, num_frames], [*stamps, end])
    return np.rint(every).astype(np.int64)


def _packet_index(found: list[_Packet], decoder: str) -> PacketIndex | None:
    stamps = np.array([packet.pts for packet in found if packet.pts is not None], dtype=np.int64)
    if len(np.unique(stamps)) < len(found):
        return None
    is_shown = np.array([packet.is_shown for packet in found])
    is_key = np.array([packet.is_key for packet in found]) & is_shown & (stamps == np.maximum.accumulate(stamps))
    order = np.argsort(stamps)
    return PacketIndex(
        stamps=stamps,
        seek_to=np.array([packet.pts if packet.dts is None else packet.dts for packet in found], dtype=np.int64),
        sizes=np.array([packet.size for packet in found], dtype=np.int64),
        keys=np.flatnonzero(is_key),
        of_frames=order[is_shown[order]],
        decoder=decoder,
    )


def spread_over_time(stamps: np.ndarray, num_frames: int) -> np.ndarray:
    """Return which of n frames to take: those nearest to evenly spaced times, none of them twice.

    A gap without frames that is longer than the time between two of these counts as no longer, so that it takes no
    frames from the rest. One wrong time stamp, or hours between two recordings, would otherwise take most of them.
    """
    if num_frames >= len(stamps):
        return np.arange(len(stamps))
    if num_frames == 1:
        return np.array([0])
    gaps = np.diff(stamps)
    rest, steps = int(stamps[-1] - stamps[0]), num_frames - 1
    for longest in np.sort(gaps)[::-1].tolist():
        if longest * steps <= rest:
            break
        rest, steps = rest - longest, steps - 1
    times = np.concatenate([[0], np.minimum(gaps, rest / steps).cumsum()])
    halfway = (times[1:] + times[:-1]) / 2
    nearest = np.searchsorted(halfway, np.linspace(0, times[-1], num_frames))
    numbers = np.arange(num_frames)
    ascending = np.maximum.accumulate(nearest - numbers) + numbers  # if a frame is taken already, take the next one
    return np.minimum(ascending, len(stamps) - num_frames + numbers)


def doubtful_gap(stamps: np.ndarray) -> int | None:
    """Return the number of the frame before a gap that is most of the video, and a hundred times as long as the other
    gaps are on average. None if there is no such gap."""
    gaps = np.diff(stamps)
    if len(gaps) < 2:
        return None
    longest = int(gaps.argmax())
    rest = int(stamps[-1] - stamps[0] - gaps[longest])
    return longest if gaps[longest] > max(rest, 100 * rest / (len(gaps) - 1)) else None
