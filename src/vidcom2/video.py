"""Decoding a video file to frames, with PyAV (its wheels bring FFmpeg along)."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import av
import httpx
import numpy as np

# Called with what is being done, how much of it is done, and how much there is, if known.
Progress = Callable[[str, float, float | None], None]


class VideoError(ValueError):
    """A video that is missing, unreachable or unreadable."""


@dataclass(frozen=True)
class Video:
    """Frames sampled from a video file.

    Attributes:
        frames: (num_frames, height, width, 3) uint8, RGB.
        seconds: (num_frames,) when each is shown.
    """

    frames: np.ndarray
    seconds: np.ndarray


def read_video(source: str, num_frames: int, progress: Progress = lambda *_: None) -> Video:
    """Sample frames evenly, from the first to the last.

    Args:
        source: a path, or an http(s) URL.
        num_frames: how many; a shorter video gives all it has.

    Raises:
        VideoError: if the file is missing, cannot be fetched, or holds no decodable video.
    """
    with _local_file(source, progress) as path:
        try:
            total = _count_frames(path, progress)
            wanted = np.unique(np.linspace(0, total - 1, num_frames).round().astype(int))
            frames, seconds = _decode(path, wanted, progress)
        except (av.FFmpegError, UnicodeDecodeError) as error:
            raise VideoError(f"cannot read the video {source!r}: {error}. Is it a video file?") from error
    if not frames:
        raise VideoError(f"the video {source!r} has no frames.")
    return Video(np.stack(frames), np.array(seconds))


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


def _count_frames(path: str, progress: Progress) -> int:
    """From the packets: what a container's header says is often missing or wrong."""
    with av.open(path) as container:
        if not container.streams.video:
            raise VideoError(f"{path!r} holds no video stream, only {[s.type for s in container.streams]}.")
        count = 0
        for packet in container.demux(container.streams.video[0]):
            count += packet.size > 0
            if count % 100 == 0:
                progress("Looking through the file", count, None)
        return count


def _decode(path: str, wanted: np.ndarray, progress: Progress) -> tuple[list[np.ndarray], list[float]]:
    frames, seconds, last = [], [], None
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        remaining = wanted.tolist()
        for i, frame in enumerate(container.decode(stream)):
            if not remaining:
                break
            last = frame
            while remaining and i == remaining[0]:
                remaining.pop(0)
                frames.append(frame.to_ndarray(format="rgb24"))
                seconds.append(float(frame.time or 0.0))
            progress("Decoding", i + 1, int(wanted[-1]) + 1)
        if remaining and last is not None:  # a packet that holds no frame: the last frame stands for the end
            frames.append(last.to_ndarray(format="rgb24"))
            seconds.append(float(last.time or 0.0))
    return frames, seconds
