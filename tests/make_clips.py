"""Write small clips for the tests with PyAV. Each frame shows its own number as two grey levels."""

import re
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

HEIGHT, WIDTH = 64, 96
INTERRUPTION = Path(__file__).parent / "data" / "interruption.mp4"  # 8 quiet seconds, another scene at 5.0 to 5.5 s
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


def numbers(frames: np.ndarray) -> list[int]:
    return list(map(number_of, frames))


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
    aspect: Fraction | None = None,
) -> Path:
    """Write a clip whose i-th frame is shown at `seconds[i]`, or at i / rate with `tick=None`. Each pixel is `aspect`
    times as wide as it is high."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"g": "12", **(options or {})})
        stream.height, stream.width = picture(0).shape[:2]
        stream.pix_fmt = pixels
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
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


def remuxed(source: Path, target: Path, later: float = 0.0, start: int = 0, together: int = 1, **options: str) -> Path:
    """Copy a stream from its packet `start` on, `later` seconds later, with several packets as one.

    Args:
        together: how many packets become one, with the time stamps of the first.
        options: options of the muxer.
    """
    with av.open(str(source)) as old, av.open(str(target), "w", options=options) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        kept = [packet for packet in old.demux(old.streams.video[0]) if packet.size][start:]
        for i in range(0, len(kept), together):
            first, copy = kept[i], av.Packet(b"".join(map(bytes, kept[i : i + together])))
            ticks = round(later / first.time_base)
            copy.pts = None if first.pts is None else first.pts + ticks
            copy.dts = None if first.dts is None else first.dts + ticks
            copy.duration, copy.time_base, copy.is_keyframe = first.duration, first.time_base, first.is_keyframe
            copy.stream = stream
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


def write_fields(path: Path, num_frames: int) -> Path:
    """Write raw interlaced H.264, ISO 14496-10, in which each field is a packet. FFmpeg has no encoder that does.

    All macroblocks hold their samples as they are (I_PCM).
    """

    def unit(header: int, *values: tuple[str, int, int] | bytes) -> bytes:
        bits = ""
        for value in values:
            if isinstance(value, bytes):
                bits += "0" * (-len(bits) % 8) + "".join(f"{byte:08b}" for byte in value)
                continue
            kind, number, width = value
            code = f"{number + 1:b}" if kind == "ue" else f"{number:0{width}b}"
            bits += "0" * (len(code) - 1) + code if kind == "ue" else code
        bits += "1"
        bits += "0" * (-len(bits) % 8)
        payload = int(bits, 2).to_bytes(len(bits) // 8, "big")
        return bytes([0, 0, 0, 1, header]) + re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", payload)  # no start code inside

    def ue(*numbers: int) -> list[tuple[str, int, int]]:
        return [("ue", number, 0) for number in numbers]

    def u(width: int, number: int) -> tuple[str, int, int]:
        return ("u", number, width)

    timing = [u(5, 1), u(32, 1), u(32, 50), u(1, 1), u(4, 0)]  # 50 fields per second
    shape = [*ue(0, 0, 0, 4, 1), u(1, 0), *ue(WIDTH // 16 - 1, HEIGHT // 32 - 1), u(2, 0), u(2, 2), u(1, 1)]
    parameters = unit(0x67, u(8, 77), u(8, 0), u(8, 30), *shape, *timing)
    parameters += unit(0x68, *ue(0, 0), u(2, 0), *ue(0, 0, 0), u(3, 0), *ue(0, 0, 0), u(3, 0))
    written = b""
    for number in range(num_frames):
        luma = (16 + numbered(number)[..., 0] * (219 / 255)).round().astype(np.uint8)
        for field in range(2):
            is_first = number == field == 0
            head = [*ue(0, 7, 0), u(4, number % 16), u(1, 1), u(1, field)]
            head += [*ue(0), u(8, 0), u(2, 0)] if is_first else [u(8, (2 * number + field) % 256), u(1, 0)]
            blocks: list[tuple[str, int, int] | bytes] = []
            for row in range(field, HEIGHT, 32):
                for column in range(0, WIDTH, 16):
                    samples = luma[row : row + 32 : 2, column : column + 16]
                    blocks += [*ue(25), samples.tobytes() + bytes([128]) * 128]
            written += (
                unit(9, u(3, 0)) + parameters * is_first + unit(0x65 if is_first else 0x61, *head, *ue(0), *blocks)
            )
    path.write_bytes(written)
    return path
