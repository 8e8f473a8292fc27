"""Opening a video file with PyAV, whose wheels include FFmpeg, and reading its packets."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mimetypes import guess_type
from pathlib import Path
from typing import cast

import anyio
import av
import httpx
from anyio.from_thread import start_blocking_portal
from av.container import InputContainer
from av.error import ArgumentError, FFmpegError
from av.stream import Disposition

from ..checks import foreign_scheme, is_watched, local_path, no_video_file, whole_number

# Called with the name of the current step, how much of it is done, and how much there is, if known.
Progress = Callable[[str, float, float | None], None]

MOST_ERRORS_IN_A_ROW = 100  # how many a container may raise without a packet between them

# The most that a file may take of this machine, unless environment variables of these names say otherwise
PIXELS, BYTES, SECONDS = "VIDCOM2_MAX_FRAME_PIXELS", "VIDCOM2_MAX_DOWNLOAD_BYTES", "VIDCOM2_MAX_DOWNLOAD_SECONDS"
BOUNDS = {PIXELS: 8192 * 4320, BYTES: 4 * 1024**3, SECONDS: 3600}

# FFmpeg's formats that hold a video or a picture themselves. Others read what a file names (concat, dash, hls, imf,
# sdp), or what its own name leads to (image2, mlv, vobsub).
FORMATS = (
    "apng,asf,av1,avi,bmp_pipe,dhav,dirac,dv,flv,gif,gxf,h261,h263,h264,hevc,ivf,jpeg_pipe,live_flv,m4v,matroska,mjpeg,"
    "mov,mpeg,mpegts,mpegvideo,mxf,nsv,nut,obu,ogg,png_pipe,rm,tiff_pipe,vc1,vvc,webp_pipe,wtv,yuv4mpegpipe"
)


class VideoError(ValueError):
    """Raised for a video that is missing, unreachable or unreadable."""


@contextmanager
def local_file(source: str, progress: Progress) -> Iterator[str]:
    """Yield the path of a file. A URL is downloaded to a temporary file. Raises a VideoError if it is missing."""
    local, scheme = local_path(source), foreign_scheme(source)
    if scheme is not None:
        raise VideoError(
            f"{source!r} is a URL of the scheme {scheme!r}, but it must be http, https or file. Pass such a URL or a "
            "path. `vidcom2 chat --stream` takes streams."
        )
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
            with start_blocking_portal() as portal:  # of all ways to call httpx, only this one can be ended at any time
                portal.call(_download, source, path, progress)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise VideoError(f"cannot download {source!r}: {str(error) or type(error).__name__}") from error
        yield str(path)


async def _download(source: str, path: Path, progress: Progress) -> None:
    client = httpx.AsyncClient(follow_redirects=True, timeout=30)
    with anyio.move_on_after(bound(SECONDS)), path.open("wb") as file:
        async with client, client.stream("GET", source) as response:
            response.raise_for_status()
            size = int(response.headers.get("content-length", 0)) or None
            async for chunk in response.aiter_bytes():  # of which a small compressed response may hold many
                if max(file.tell() + len(chunk), size or 0) > bound(BYTES):
                    raise above(BYTES, f"cannot download {source!r}: it has too many bytes")
                file.write(chunk)
                progress("Downloading", response.num_bytes_downloaded, size)
            return
    raise above(SECONDS, f"cannot download {source!r}: it takes too many seconds")


def bound(name: str) -> int:
    """Return one of `BOUNDS`. Raises a VideoError if the environment sets it to anything but a number."""
    given = os.environ.get(name, str(BOUNDS[name]))
    return whole_number(name, int(given) if given.isdecimal() else given, VideoError)


def above(name: str, problem: str) -> VideoError:
    """Return the error for a file that is above one of `BOUNDS`."""
    return VideoError(f"{problem}. At most {bound(name):,} are accepted; set {name} to accept more.")


def check_pixels(source: str, width: int, height: int) -> None:
    """Check the size of a frame before it takes memory. Raises a VideoError if it is above the bound."""
    if width * height > bound(PIXELS):
        raise above(PIXELS, f"{source!r} has {width} × {height} pixels a frame")


@contextmanager
def opened(path: str, source: str) -> Iterator[InputContainer]:
    """Open a video file, which cannot make FFmpeg read another one. Raises a VideoError if FFmpeg fails, now or later.

    Args:
        source: what the user calls the file.
    """
    try:
        with av.open(
            f"file:{path}",  # without which "12:30.mov" would name a protocol
            container_options={"format_whitelist": FORMATS, "protocol_whitelist": "file"},
            metadata_errors="ignore",  # a title in another encoding is no reason to fail
        ) as container:
            yield container
    except FFmpegError as error:
        is_other = isinstance(error, ArgumentError)  # its format is none of `FORMATS`
        reason = "it names other files, as playlists do, or is no video" if is_other else error.strerror
        raise VideoError(
            f"cannot read the video {source!r}: {reason}. Is it a video file, and complete? Download or convert it "
            "again."
        ) from error


def video_stream(container: InputContainer, source: str) -> av.VideoStream:
    """Return the stream that players choose; a song's cover picture does not count. Raises a VideoError if none."""
    stream = cast("av.VideoStream | None", container.streams.best("video"))
    if stream is not None and stream.frames == 1:  # it may be a cover picture, even if it is not marked as one
        stream = max(stream, *container.streams.video, key=lambda each: each.frames)
    if stream is None or stream.disposition & Disposition.attached_pic:
        raise VideoError(f"{source!r} holds no video stream, only {[s.type for s in container.streams]}.")
    kind = guess_type(source)[0] or ""
    if kind.startswith("video/") and container.format.name.endswith("_pipe"):
        picture = stream.codec_context.name if stream.codec_context else "unknown"
        raise VideoError(
            f"{source!r} is named like a video, but is a picture of the format {picture!r}. Pass the video, or pass "
            "pictures as a list of their paths, with `fps`."
        )
    if stream.codec_context is None:
        raise VideoError(f"the video {source!r} is in a format that FFmpeg {av.ffmpeg_version_info} cannot decode.")
    path = container.name.removeprefix("file:")
    if stream.codec_context.name == "webp" and path != container.name and _is_animated_webp(path):
        raise VideoError(
            f"the video {source!r} is an animated WebP, and FFmpeg {av.ffmpeg_version_info} has no decoder for it. "
            "Convert it to a GIF or an MP4, or pass the frames that PIL reads."
        )
    check_pixels(source, stream.codec_context.width, stream.codec_context.height)
    stream.codec_context.options = {"max_pixels": str(bound(PIXELS))}  # later frames may be larger than the header says
    return stream


def _is_animated_webp(path: str) -> bool:
    """Tell by the flags in the header."""
    with open(path, "rb") as file:
        header = file.read(21)
    return header[12:16] == b"VP8X" and bool(header[20] & 2)


def is_video(path: str) -> bool:
    """Tell whether a file holds a video stream that can be decoded. Pictures, which FFmpeg opens as well, are none."""
    try:
        with opened(path, path) as container:
            video_stream(container, path)
            return not container.format.name.endswith("_pipe")
    except VideoError:
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
