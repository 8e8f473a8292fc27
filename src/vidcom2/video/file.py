"""Opening a video file with PyAV, whose wheels include FFmpeg, and reading its packets."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mimetypes import guess_type
from pathlib import Path
from typing import Any, cast

import av
import httpx
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition

from ..checks import is_watched, local_path, no_video_file

# Called with the name of the current step, how much of it is done, and how much there is, if known.
Progress = Callable[[str, float, float | None], None]

MOST_ERRORS_IN_A_ROW = 100  # how many a container may raise without a packet between them


class VideoError(ValueError):
    """Raised for a video that is missing, unreachable or unreadable."""


@contextmanager
def local_file(source: str, progress: Progress) -> Iterator[str]:
    """Yield the path of a file. A URL is downloaded to a temporary file. Raises a VideoError if it is missing."""
    local = local_path(source)
    if local is not None and not Path(local).is_file():
        raise VideoError(no_video_file(source, local))
    if is_watched(source):
        raise VideoError(
            f"{source!r} is a watched video, which holds tokens and no frames. Pass the video that it was made of; "
            "`vidcom2 run`, `vidcom2 chat` and `load_watched` answer from a watched one."
        )
    if local is not None:
        if Path(local).stat().st_size == 0:
            raise VideoError(f"the file {source!r} is empty: it has 0 bytes. Download or copy it again.")
        yield local
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


def unreadable(source: str, error: FFmpegError) -> VideoError:
    """Return the error for a file that FFmpeg cannot read."""
    return VideoError(
        f"cannot read the video {source!r}: {error.strerror}. Is it a video file, and complete? Download or convert it "
        "again."
    )


def opened(path: str, **arguments: Any) -> InputContainer:
    """Open a video file, or what else FFmpeg reads, with further arguments of `av.open`."""
    return av.open(path, metadata_errors="ignore", **arguments)  # a title in another encoding is no reason to fail


def video_stream(container: InputContainer, source: str) -> av.VideoStream:
    """Return the stream that players choose; a song's cover picture does not count. Raises a VideoError if none."""
    stream = container.streams.best("video")
    if stream is None or stream.disposition & Disposition.attached_pic:
        raise VideoError(f"{source!r} holds no video stream, only {[s.type for s in container.streams]}.")
    kind = guess_type(source)[0] or ""
    if kind.startswith("video/") and container.format.name.endswith(("_pipe", "image2")):
        picture = stream.codec_context.name if stream.codec_context else "unknown"
        raise VideoError(
            f"{source!r} is named like a video, but is a picture of the format {picture!r}. Pass the video, or pass "
            "pictures as a list of their paths, with `fps`."
        )
    if stream.codec_context is None:
        raise VideoError(f"the video {source!r} is in a format that FFmpeg {av.ffmpeg_version_info} cannot decode.")
    if stream.codec_context.name == "webp" and _is_animated_webp(container.name):
        raise VideoError(
            f"the video {source!r} is an animated WebP, and FFmpeg {av.ffmpeg_version_info} has no decoder for it. "
            "Convert it to a GIF or an MP4, or pass the frames that PIL reads."
        )
    return cast(av.VideoStream, stream)


def _is_animated_webp(path: str) -> bool:
    """Tell by the flags in the header."""
    with open(path, "rb") as file:
        header = file.read(21)
    return header[12:16] == b"VP8X" and bool(header[20] & 2)


def is_video(path: str) -> bool:
    """Tell whether a file holds a video stream that can be decoded. Pictures, and texts, which FFmpeg opens as well,
    are no videos."""
    try:
        with opened(path) as container:
            video_stream(container, path)
            return not container.format.name.endswith(("_pipe", "image2", "tty"))
    except (FFmpegError, VideoError):
        return False


def packets(
    container: InputContainer, stream: av.VideoStream, damages: list[Exception] | None = None
) -> Iterator["av.Packet[av.VideoStream]"]:
    """Yield all packets in file order. The last one is empty and flushes the decoder.

    Reading continues after damaged places of the container; their errors are added to `damages`.
    """
    errors_in_a_row = 0
    while True:
        try:
            for packet in container.demux(stream):
                errors_in_a_row = 0
                yield packet
            return
        except FFmpegError as error:
            errors_in_a_row += 1
            if damages is not None:
                damages.append(error)
            if errors_in_a_row > MOST_ERRORS_IN_A_ROW:
                return
