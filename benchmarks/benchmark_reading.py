"""Measure what seeking saves: `read_video` and decoding the whole file, in turns, on a file of any length.

    PYTHONPATH=src python benchmarks/benchmark_reading.py --minutes 10 --json reading.json
    PYTHONPATH=src python benchmarks/benchmark_reading.py --video film.mp4 --repeats 1

Without `--video` it makes two files in a temporary folder, of some 65 MB a minute: H.264, 1920 x 1080 at 25 frames per
second with a key frame every 250 frames, one without and one with B-frames. One minute of FFmpeg's moving test picture
is encoded, and its packets are repeated up to the given length. Both ways must give the same frames, bit for bit.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import av
import av.filter
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import vidcom2.video.reading
from vidcom2.records.provenance import birth_certificate, cpu_name
from vidcom2.video.reading import Video, read_video
from vidcom2.video.timeline import look_through

FPS, SECONDS, SIZE, KEY_EVERY = 25, 60, (1920, 1080), 250


def make_video(path: Path, minutes: int, b_frames: int) -> Path:
    """Write a test video to `path`, and return the path."""
    width, height = SIZE
    graph = av.filter.Graph()
    graph.link_nodes(
        graph.add("testsrc2", f"size={width}x{height}:rate={FPS}:duration={SECONDS}"),
        graph.add("format", "pix_fmts=yuv420p"),
        graph.add("buffersink"),
    ).configure()
    options = {"preset": "ultrafast", "crf": "30", "g": str(KEY_EVERY), "sc_threshold": "0", "bf": str(b_frames)}
    minute = path.with_name("minute.mp4")
    with av.open(str(minute), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(FPS * SECONDS):
            frame = graph.vpull()
            frame.pts, frame.time_base, frame.pict_type = i, Fraction(1, FPS), 0
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with av.open(str(minute)) as container, av.open(str(path), "w") as long:
        stream = container.streams.video[0]
        repeated = long.add_stream_from_template(stream)
        packets = [packet for packet in container.demux(stream) if packet.size]
        for number in range(minutes):
            for packet in packets:
                later = number * round(SECONDS / packet.time_base)
                copy = av.Packet(bytes(packet))
                copy.pts, copy.dts, copy.duration = packet.pts + later, packet.dts + later, packet.duration
                copy.time_base, copy.is_keyframe, copy.stream = packet.time_base, packet.is_keyframe, repeated
                long.mux(copy)
    return path


def read_in_order(path: Path, num_frames: int) -> Video:
    """Read as `read_video` reads a file in which it cannot seek."""
    with mock.patch.object(vidcom2.video.reading, "decode_sought", lambda *_: None):
        return read_video(path, num_frames)


def measure(path: Path, num_frames: int, repeats: int, in_order: bool) -> dict[str, Any]:
    """Time each way to read the file, in turns, and the look through its packets, which is a part of each way."""
    contenders: dict[str, Callable[[], Any]] = {
        "sought": lambda: read_video(path, num_frames),
        "look_through": lambda: look_through(str(path), str(path), lambda *_: None),
    }
    if in_order:
        contenders["in_order"] = lambda: read_in_order(path, num_frames)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    results = {}
    for _ in range(repeats):
        for name, contender in contenders.items():
            begin = time.perf_counter()
            results[name] = contender()
            seconds[name].append(time.perf_counter() - begin)
    sought = results["sought"]
    if in_order and not np.array_equal(sought.frames, results["in_order"].frames):
        raise RuntimeError(f"seeking in {path.name} gives other frames than decoding all of it.")
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "minutes": round(sought.duration / 60, 2),
        "frames": sought.total_num_frames,
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "seconds": median,
        "fastest": {name: min(values) for name, values in seconds.items()},
        "slowest": {name: max(values) for name, values in seconds.items()},
        "speedup": median["in_order"] / median["sought"] if in_order else None,
    }


def main(
    video: Annotated[Path | None, typer.Option(help="A file of your own. By default two are made.")] = None,
    minutes: Annotated[
        list[int] | None, typer.Option(help="Minutes of a made file, by default 2. May be repeated.")
    ] = None,
    num_frames: Annotated[int, typer.Option(min=1)] = 32,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    longest_in_order: Annotated[int, typer.Option(help="Minutes above which only seeking is timed.")] = 10,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures and their origin.")] = None,
) -> None:
    """Time the ways to read a file, and print a table."""
    rows = []
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        if video is not None:
            rows.append({"video": video.name, **measure(video, num_frames, repeats, in_order=True)})
        else:
            for b_frames in (0, 3):
                for length in minutes or [2]:
                    path = make_video(Path(folder) / "video.mp4", length, b_frames)
                    row = measure(path, num_frames, repeats, in_order=length <= longest_in_order)
                    rows.append({"b_frames": b_frames, **row})
                    path.unlink()
    table = Table("file", "minutes", "sought, s", "of it: packets, s", "in order, s", "ratio")
    for row in rows:
        seconds = row["seconds"]
        table.add_row(
            row.get("video", f"{row.get('b_frames')} B-frames"),
            str(row["minutes"]),
            f"{seconds['sought']:.2f}",
            f"{seconds['look_through']:.2f}",
            f"{seconds['in_order']:.2f}" if "in_order" in seconds else "-",
            f"{row['speedup']:.1f}" if row["speedup"] else "-",
        )
    Console().print(table)
    if json_file is not None:
        certificate = birth_certificate(
            model="none",
            command="benchmarks/benchmark_reading.py",
            device=cpu_name(),
            cpu_cores=os.cpu_count(),
            load_average=load_average,
            pyav=av.__version__,
            num_frames=num_frames,
            repeats=repeats,
            statistic="median",
        )
        json_file.write_text(json.dumps({"birth_certificate": certificate, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
