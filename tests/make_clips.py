"""Write small clips for the tests with PyAV. Each frame shows its own number as two grey levels."""

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

HEIGHT, WIDTH = 64, 96
INTERRUPTION = Path(__file__).parent / "data" / "interruption.mp4"  # drawn by `make_interruption_video.py`
IDENTITY = (1, 0, 0, 0, 1, 0, 0, 0, 1)


def numbered(number: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Draw a number as (height, width, 3) uint8: the sixteens on the left, the ones on the right."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:, : width // 2] = number // 16 * 16 + 8
    picture[:, width // 2 :] = number % 16 * 16 + 8
    return picture


def number_of(frame: np.ndarray) -> int:
    """Read the number that `numbered` drew, also after lossy encoding."""
    height, width = frame.shape[:2]
    inner = frame[height // 8 : -height // 8].astype(float)
    left, right = inner[:, width // 16 : width // 2 - width // 16], inner[:, width // 2 + width // 16 : -width // 16]
    return int(left.mean()) // 16 * 16 + int(right.mean()) // 16


def write_clip(
    path: Path,
    seconds: Sequence[float],
    codec: str = "libx264",
    pixels: str = "yuv420p",
    rate: int | Fraction = 25,
    tick: Fraction | None = Fraction(1, 1000),
    picture: Callable[[int], np.ndarray] = numbered,
    display_matrix: Sequence[int] = IDENTITY,
    options: dict[str, str] | None = None,
) -> Path:
    """Write a clip whose i-th frame is shown at `seconds[i]`, or at i / rate with `tick=None`."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"g": "12", **(options or {})})
        stream.height, stream.width = picture(0).shape[:2]
        stream.pix_fmt = pixels
        if tick is not None:
            stream.codec_context.time_base = tick
        for i, second in enumerate(seconds):
            frame = av.VideoFrame.from_ndarray(picture(i), format="rgb24")
            if tick is not None:
                frame.pts, frame.time_base = round(second / tick), tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    if tuple(display_matrix) != IDENTITY:
        set_display_matrix(path, display_matrix)
    return path


def set_display_matrix(path: Path, matrix: Sequence[int]) -> None:
    """Write {a, b, u, c, d, v, x, y, w} of ISO 14496-12 into the one track header of an MP4 file."""
    data = bytearray(path.read_bytes())
    assert data.count(b"tkhd") == 1
    # Skip version and flags, five fields of 4 bytes, two reserved, layer to volume: 4 + 5 * 4 + 2 * 4 + 4 * 2.
    start = data.index(b"tkhd") + 4 + 4 + 5 * 4 + 2 * 4 + 4 * 2
    units = (1 << 16, 1 << 16, 1 << 30) * 3  # 16.16 and 2.30 fixed point
    fixed = struct.pack(">9i", *(value * unit for value, unit in zip(matrix, units)))
    assert bytes(data[start : start + 36]) == struct.pack(">9i", *(v * u for v, u in zip(IDENTITY, units)))
    data[start : start + 36] = fixed
    path.write_bytes(data)


def with_bad_packets(source: Path, target: Path, bad: Sequence[int]) -> Path:
    """Copy a stream, with the packets `bad` (in file order) replaced by zeros."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for i, packet in enumerate(old.demux(old.streams.video[0])):
            if packet.size == 0:
                continue
            copy = av.Packet(bytes(len(bytes(packet))) if i in bad else bytes(packet))
            copy.pts, copy.dts, copy.duration = packet.pts, packet.dts, packet.duration
            copy.time_base, copy.is_keyframe, copy.stream = packet.time_base, packet.is_keyframe, stream
            new.mux(copy)
    return target


def joined(sources: Sequence[Path], target: Path, seconds: float) -> Path:
    """Join the streams of several clips into one, in which each begins `seconds` after the one before."""
    with av.open(str(target), "w") as new:
        stream = None
        for i, source in enumerate(sources):
            with av.open(str(source)) as old:
                stream = stream or new.add_stream_from_template(old.streams.video[0])
                for packet in old.demux(old.streams.video[0]):
                    if packet.size == 0:
                        continue
                    later = round(i * seconds / packet.time_base)
                    packet.pts, packet.dts, packet.stream = packet.pts + later, packet.dts + later, stream
                    new.mux(packet)
    return target


def start_later(path: Path, seconds: float) -> None:
    """Move the start in the one edit list of a MOV or MP4 file, ISO 14496-12."""
    data = bytearray(path.read_bytes())
    assert data.count(b"elst") == data.count(b"mdhd") == 1
    # Behind version and flags, creation and modification stand the ticks per second.
    (ticks_per_second,) = struct.unpack_from(">I", data, data.index(b"mdhd") + 4 + 3 * 4)
    # Behind version and flags, the number of entries and the duration of the first stands where it starts.
    start = data.index(b"elst") + 4 + 3 * 4
    (ticks,) = struct.unpack_from(">i", data, start)
    struct.pack_into(">i", data, start, ticks + round(seconds * ticks_per_second))
    path.write_bytes(data)
