"""Read frames of a video file, evenly spaced in time, with PyAV, whose wheels include FFmpeg."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from mimetypes import guess_type
from os import PathLike, fspath
from typing import Any, TypeAlias, cast

import numpy as np
from PIL import Image

from ..checks import local_path, whole_number
from ..errors import brief
from ..presets import NUM_FRAMES
from .decoding import FrameSize, decode_in_order, decode_sought
from .file import PIXELS, Progress, VideoError, above, bound, local_file, opened, video_stream
from .frames import Frames, is_list_of_pictures, on_a_clock, positive, rgb_frames
from .timeline import doubtful_gap, look_through, spread_over_time

__all__ = ["Progress", "SizeOfFrames", "Video", "VideoError", "read_video"]

# Takes the number of frames that are read, and the height and width of an upright frame of the file. Returns the height
# and width to scale them to, or None to keep the size of the file.
SizeOfFrames: TypeAlias = Callable[[int, int, int], tuple[int, int] | None]


@dataclass(frozen=True, eq=False)  # == of two arrays is an array, not a bool
class Video:
    """Frames of a video, and when they are shown.

    `read_video` makes one from a file, and `from_frames` from frames that are already decoded.

    Attributes:
        frames: (num_frames, height, width, 3) uint8, RGB, upright.
        frames_indices: (num_frames,) int64, the place of each frame in the file, in units of 1 / fps seconds.
        fps: frames per second of the file. A variable frame rate has no such number. Then `fps` is the rate of the
            file's clock (1000 if its times are in milliseconds), and `frames_indices` are times on that clock.
        total_num_frames: length of the whole video in units of 1 / fps seconds. At a constant rate this counts frames.
        lost: how many frames of the file could not be decoded, judged by the packets that should hold them; 0 if it is
            undamaged. Damage in a part of a long file that no wanted frame needs is not noticed, and not counted.
    """

    frames: np.ndarray = field(repr=False)
    frames_indices: np.ndarray
    fps: float
    total_num_frames: int
    lost: int = 0

    def __post_init__(self) -> None:
        positive("fps", self.fps)

    @classmethod
    def from_frames(
        cls,
        frames: Frames,
        *,
        fps: float | None = None,
        times: Sequence[float] | np.ndarray | None = None,
        duration: float | None = None,
    ) -> "Video":
        """Make a video of frames that are already decoded. All of them are used.

        Args:
            frames: an array or a tensor (num_frames, height, width, 3) or (num_frames, 3, height, width), RGB, uint8 or
                other whole numbers from 0 to 255, or floats from 0 to 1; or a list of such images, of PIL images or of
                the paths of pictures, all of one size. An array of uint8 with the colours last is not copied.
            fps: frames per second. If `times` is given too, `fps` is the frame rate of the file that the frames come
                from, and the model is told the same times as if they had been read from it.
            times: the seconds at which each frame is shown, ascending, counted from the start of the video.
            duration: length of the whole video in seconds. If it is not given, the last frame is shown for 1 / fps
                seconds; without `fps`, for as long as the others on average, or for one second if it is the only one.

        Raises:
            VideoError: a ValueError, on frames of another shape, dtype or range, if the numbers of times and frames
                differ, and if neither `fps` nor `times` is given.
        """
        images = rgb_frames(frames)
        indices, rate, total = on_a_clock(len(images), fps, times, duration)
        return cls(images, indices, rate, total)

    @property
    def seconds(self) -> np.ndarray:
        """(num_frames,) the time at which each frame is shown, in seconds after the first frame of the file."""
        return self.frames_indices / self.fps

    @property
    def duration(self) -> float:
        """Length of the whole video in seconds."""
        return self.total_num_frames / self.fps

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata for Transformers' processors: `processor(..., videos=[v.frames], video_metadata=[v.metadata])`.

        Processors that tell the model the time compute it as `frames_indices / fps`, which is `seconds`. Each access
        makes a new dict, because some processors change it.
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

    def without_pixels(self) -> "Video":
        """Return the video with black frames of the same size, which take no memory."""
        return replace(self, frames=np.broadcast_to(np.uint8(0), self.frames.shape))


def read_video(
    source: str | PathLike[str] | Sequence[str | PathLike[str]],
    num_frames: int = NUM_FRAMES,
    progress: Progress = lambda *_: None,
    *,
    size: tuple[int, int] | SizeOfFrames | None = None,
    fps: float | None = None,
    times: Sequence[float] | None = None,
) -> Video:
    """Sample frames evenly in time, from the first to the last, and turn them upright.

    No frame is taken twice, and a stretch without frames uses up none of the `num_frames`. Only the parts of the file
    that these frames need are decoded, each from the key frame before it. A file that is damaged, or that does not
    support seeking, is decoded as a whole, in order.

    Args:
        source: a path, or an http(s) or file URL. Or a list of the paths of pictures, which are the frames of a video.
            Only those that are sampled are read, so that others may be missing or broken.
        num_frames: how many frames to sample; a shorter video gives all it has.
        size: height and width to scale the frames to, which saves memory and time if they are large. Pixels then differ
            a little from what a processor makes of frames in full size. Or a function that returns both, given the
            number of frames and the height and width of the file's frames. None keeps the size of the file, and
            pictures must then be of one size.
        fps, times: when the pictures are shown, as in `Video.from_frames`. For a list of pictures, one of the two is
            required.

    Raises:
        VideoError: if an argument is outside what is accepted, or if the file is missing, cannot be fetched, or holds
            no decodable video. A partly damaged file gives the frames that decode, and `Video.lost` says how many do
            not.
    """
    num_frames = whole_number("num_frames", num_frames, VideoError)
    size = size if callable(size) else _checked(size)
    if is_list_of_pictures(source):
        return _read_pictures(cast("Sequence[str | PathLike[str]]", source), num_frames, size, fps, times)
    if not isinstance(source, str | PathLike):
        are_frames = _are_frames(source)
        given = f"of the type {type(source).__name__}" if are_frames else brief(source)
        hint = " For frames that are decoded already, call `vidcom2.Video.from_frames`." if are_frames else ""
        raise VideoError(
            f"`source` is {given}, but must be a path or an http(s) URL, or a list of the paths of pictures.{hint}"
        )
    for name, value in (("fps", fps), ("times", times)):
        if value is not None:
            raise VideoError(f"`{name}` is for a list of pictures, but the file has its own times. Leave it out.")
    source = fspath(source)
    with local_file(source, progress) as path:
        timeline, index = look_through(path, source, progress)
        wanted = spread_over_time(timeline.stamps, num_frames)
        of_frame = _of_each_frame(size, len(wanted))
        decoded = None if index is None else decode_sought(path, source, index, wanted, of_frame, progress)
        if decoded is None:
            decoded = decode_in_order(path, source, timeline, wanted, of_frame, "AUTO", progress)
        while not decoded.fits:
            timeline = timeline.otherwise or replace(timeline, start=None)
            wanted = spread_over_time(timeline.stamps, num_frames)
            of_frame = _of_each_frame(size, len(wanted))
            decoded = decode_in_order(path, source, timeline, wanted, of_frame, "AUTO", progress)
        if not decoded.reached_end:  # threads that decode ahead lose the frames around damage at the end
            decoded = decode_in_order(path, source, timeline, wanted, of_frame, "SLICE", progress)
    if not decoded.frames:
        raise VideoError(
            f"cannot read the video {source!r}: none of its {len(timeline.stamps)} frames decodes "
            f"({decoded.first_error or 'no error is given'}). Is the file damaged or encrypted?"
        )
    gap = doubtful_gap(timeline.stamps)
    if gap is not None:
        before, after = (float(time / timeline.fps) for time in timeline.indices[gap : gap + 2].tolist())
        warnings.warn(
            f"the video {source!r} has no frame between {before:.1f} s and {after:.1f} s, which is most of its "
            "duration. If its time stamps are wrong, the model is told wrong times. Then pass decoded frames with "
            "`fps`.",
            UserWarning,
            stacklevel=2,
        )
    return Video(
        frames=np.stack(decoded.frames),
        frames_indices=timeline.indices[decoded.ranks],
        fps=float(timeline.fps),
        total_num_frames=timeline.total_num_frames,
        lost=decoded.lost,
    )


def _read_pictures(
    paths: Sequence[str | PathLike[str]],
    num_frames: int,
    size: tuple[int, int] | SizeOfFrames | None,
    fps: float | None,
    times: Sequence[float] | None,
) -> Video:
    """Read those of the pictures that are evenly spaced in time. Each is scaled before the next is read."""
    names = [fspath(path) for path in paths]
    videos = [name for name in names if (guess_type(name)[0] or "").startswith("video/")]
    if videos:
        raise VideoError(
            f"a list of paths means the pictures of one video, but {videos[0]!r} is named like a video. Pass the path "
            "of one video alone; `vidcom2.answer_many` asks about several."
        )
    indices, rate, total = on_a_clock(len(names), fps, times, None)
    wanted = spread_over_time(indices - indices[0], num_frames)
    of_frame = _of_each_frame(size, len(wanted))
    frames: list[np.ndarray] = []
    for name in (names[i] for i in wanted):
        (frame,) = rgb_frames([name])
        scaled = None if of_frame is None else of_frame(*frame.shape[:2])
        if scaled is not None:
            height, width = scaled
            frame = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC))
        if frames and frame.shape != frames[0].shape:
            (height, width), (tall, wide) = frame.shape[:2], frames[0].shape[:2]
            raise VideoError(
                f"the picture {name!r} has {width} × {height} pixels, but those before it have {wide} × {tall}. Bring "
                "all of them to one size, or pass one height and width as the `size` of `read_video`."
            )
        frames.append(frame)
    return Video(np.stack(frames), indices[wanted], rate, total)


def check_video(source: str) -> None:
    """Open a video file and check that it holds a video stream. Nothing is decoded, and a URL is not fetched.

    Raises:
        VideoError: if the file is missing or holds no video that FFmpeg can decode.
    """
    if local_path(source) is None:
        return
    with local_file(source, lambda *_: None) as path, opened(path, source) as container:
        video_stream(container, source)


def _of_each_frame(size: tuple[int, int] | SizeOfFrames | None, num_frames: int) -> FrameSize | None:
    """Return what the decoder asks for each frame. A function of the caller's is called once for each size of frame."""
    if size is None:
        return None
    if not callable(size):
        return lambda height, width: size
    asked = size

    def checked(height: int, width: int) -> tuple[int, int] | None:
        result = asked(num_frames, height, width)
        given = f"for frames {height} pixels high and {width} wide, the function `size` returned"
        return _checked(result, given, "must return")

    return cache(checked)


def _checked(size: tuple[int, int] | None, given: str = "`size` is", must: str = "must be") -> tuple[int, int] | None:
    """Return a height and width as two ints. The texts are for the VideoError about anything else."""
    if size is None:
        return None
    try:
        height, width = (whole_number("size", side) for side in size)
    except (TypeError, ValueError):
        raise VideoError(
            f"{given} {brief(size)}, but {must} height and width in pixels, such as (384, 672), or None."
        ) from None
    if height * width > bound(PIXELS):
        raise above(PIXELS, f"{given} {brief(size)}, which makes {height * width:,} pixels a frame")
    return height, width


def _are_frames(source: object) -> bool:
    """Tell whether something looks like decoded frames: an array, a tensor, a PIL image or a list of them."""
    first = source[0] if isinstance(source, list | tuple) and source else source
    return isinstance(first, Image.Image) or hasattr(first, "__array__")
