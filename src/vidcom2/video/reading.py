"""Reading a video file: frames evenly spaced in time, with PyAV (its wheels bring FFmpeg along)."""

from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any

import numpy as np
from av.error import FFmpegError

from ..checks import whole_number
from .decoding import decode_in_order, decode_sought
from .file import Progress, VideoError, local_file, opened, video_stream
from .timeline import evenly_spaced, look_through

__all__ = ["Progress", "Video", "VideoError", "read_video"]


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
            Damage in a part of a long file that no wanted frame needs is not met, and not counted.
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


def read_video(
    source: str | PathLike[str],
    num_frames: int,
    progress: Progress = lambda *_: None,
    *,
    size: tuple[int, int] | None = None,
) -> Video:
    """Sample frames evenly in time, from the first to the last, and turn them upright.

    No frame is taken twice: where frames are far apart in time, their neighbours are taken. Of a long file only what
    they need is decoded, from the key frames before them; all of it, in order, where it is damaged or cannot be sought.

    Args:
        source: a path, or an http(s) URL.
        num_frames: how many; a shorter video gives all it has.
        size: height and width of the frames, to save the memory and time of large ones. Pixels then differ a little
            from what a processor makes of frames in full size. By default as in the file.

    Raises:
        VideoError: on an argument outside what is accepted; if the file is missing, cannot be fetched, or holds no
            decodable video. A file that is damaged in part gives the frames that decode, and `Video.lost` says how many
            do not.
    """
    num_frames = whole_number("num_frames", num_frames, VideoError)
    size = _checked(size)
    if not isinstance(source, str | PathLike):
        raise VideoError(f"`source` is {source!r}, but must be a path or an http(s) URL.")
    source = fspath(source)
    with local_file(source, progress) as path:
        try:
            timeline, index = look_through(path, source, progress)
            wanted = evenly_spaced(timeline.stamps, num_frames)
            decoded = None if index is None else decode_sought(path, source, index, wanted, size, progress)
            if decoded is None:
                decoded = decode_in_order(path, source, timeline, wanted, size, "AUTO", progress)
            if decoded.is_out_of_order:
                timeline = replace(timeline, start=None)
                decoded = decode_in_order(path, source, timeline, wanted, size, "AUTO", progress)
            if not decoded.reached_end:  # threads that decode ahead swallow the frames around damage at the end
                decoded = decode_in_order(path, source, timeline, wanted, size, "SLICE", progress)
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


def check_video(source: str) -> None:
    """Open a video file and check that it holds a video stream. Nothing is decoded, and a URL is not fetched.

    Raises:
        VideoError: if the file is missing or holds no video that FFmpeg can decode.
    """
    if source.startswith(("http://", "https://")):
        return
    with local_file(source, lambda *_: None) as path:
        try:
            with opened(path) as container:
                video_stream(container, source)
        except FFmpegError as error:
            raise VideoError(f"cannot read the video {source!r}: {error}. Is it a video file?") from error


def _checked(size: tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    try:
        height, width = (whole_number("size", side) for side in size)
    except (TypeError, ValueError):
        raise VideoError(
            f"`size` is {size!r}, but must be height and width in pixels, such as (384, 672), or None."
        ) from None
    return height, width
