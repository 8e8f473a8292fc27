"""Check frames that are already decoded, and the times at which they are shown, for `Video.from_frames`."""

import math
from collections.abc import Sequence
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from ..checks import local_path
from ..errors import brief
from .file import VideoError, check_pixels, local_file

CLOCK = 1_000_000  # ticks per second of times that come without the frame rate of their file
MOST_TICKS = 2**53  # up to which float64 holds every whole number; 285 years of the clock
OFF_THE_CLOCK = 0.01  # how far a time may lie from that of a frame, in units of 1 / fps seconds
# Formats that PIL reads itself. It looks at the content, not the name, and for PostScript it starts Ghostscript.
PICTURES = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")

# NumPy arrays, tensors, or lists of these, of PIL images or of the paths of pictures.
Frames: TypeAlias = Any
FORMS = (
    "Pass an array or a tensor (num_frames, height, width, 3) or (num_frames, 3, height, width), or a list of images "
    "or of the paths of pictures."
)


def rgb_frames(frames: Frames) -> np.ndarray:
    """Return frames in the form that `Video` holds: (num_frames, height, width, 3) uint8.

    Args:
        frames: in any form that `Video.from_frames` accepts.

    Raises:
        VideoError: on a shape, dtype or range of values that it does not accept.
    """
    if isinstance(frames, list | tuple):
        images = [_picture(each) if isinstance(each, str | PathLike) else _as_array(each) for each in frames]
        if len({image.dtype.kind == "f" for image in images}) > 1:
            raise VideoError(
                "`frames` holds images of floats and images of whole numbers. Convert all of them to uint8."
            )
        shapes = sorted({image.shape for image in images})
        if len(shapes) > 1:
            raise VideoError(
                f"`frames` holds images of different shapes, {shapes[0]} and {shapes[1]}. Bring them to one size."
            )
        array = np.stack(images) if images else np.empty(0)
    else:
        array = _as_array(frames)
    return _as_bytes(_channels_last(array))


def on_a_clock(
    num_frames: int, fps: float | None, times: Sequence[float] | np.ndarray | None, duration: float | None
) -> tuple[np.ndarray, float, int]:
    """Return when frames are shown, as the fields of `Video` that say it: `frames_indices`, `fps`, `total_num_frames`.

    Args:
        fps, times, duration: the arguments of `Video.from_frames`.

    Raises:
        VideoError: if neither `fps` nor `times` is given, or if a value is impossible.
    """
    if fps is None and times is None:
        example = [i / 2 for i in range(num_frames)] if num_frames <= 8 else f"[i / 2 for i in range({num_frames})]"
        raise VideoError(
            "Nothing says when the frames are shown, and video LLMs need to know it. Pass `fps`, how many of them a "
            f"second has, such as `fps=2`, or the second at which each is shown, such as `times={example}`."
        )
    rate = CLOCK if fps is None else positive("fps", fps)
    if times is None:
        indices, end = np.arange(num_frames), num_frames / rate
    else:
        seconds = _checked_times(times, num_frames)
        _check_ticks("times", float(seconds[-1]), rate)
        indices = np.rint(seconds * rate).astype(np.int64)
        if fps is not None and np.abs(indices - seconds * rate).max() > OFF_THE_CLOCK:
            raise VideoError(
                f"`times` are not those of frames at `fps={fps}`: {_worst(seconds, rate)} s is between two frames. "
                "Leave `fps` out, or pass the frame rate of the file."
            )
        if (np.diff(indices) < 1).any():
            raise VideoError(f"`times` holds two that are less than 1 / {rate:g} seconds apart. Leave out one of them.")
        step = 1 / rate if fps is not None else 1.0
        if fps is None and num_frames > 1:
            step = (seconds[-1] - seconds[0]) / (num_frames - 1)
        end = float(seconds[-1] + step)
    length = end if duration is None else positive("duration", duration)
    _check_ticks("duration", length, rate)
    total = round(length * rate)
    if total <= indices[-1]:
        raise VideoError(
            f"`duration` is {duration!r}, but the last frame is shown at {indices[-1] / rate:g} s. Pass the length of "
            "the whole video in seconds, or leave it out."
        )
    return indices, float(rate), total


def is_list_of_pictures(frames: Any) -> bool:
    """Tell whether frames are given as the paths of picture files."""
    return (
        isinstance(frames, list | tuple) and bool(frames) and all(isinstance(each, str | PathLike) for each in frames)
    )


def _picture(name: str | PathLike[str]) -> np.ndarray:
    name = fspath(name)
    local = local_path(name)
    if local is not None and not Path(local).is_file():
        raise VideoError(f"there is no picture {name!r}. Pass paths or http(s) URLs.")
    with local_file(name, lambda *_: None) as path:
        return read_picture(path, name)


def read_picture(file: str | BinaryIO, name: str) -> np.ndarray:
    """Return a picture as (height, width, 3) uint8, upright. Raises a VideoError if it cannot be read."""
    Image.init()  # which finds the formats of this version
    try:
        with Image.open(file, formats=[each for each in PICTURES if each in Image.OPEN]) as picture:
            check_pixels(name, *picture.size)
            if (count := getattr(picture, "n_frames", 1)) > 1 and picture.format != "MPO":  # a photo with a preview
                raise VideoError(
                    f"the picture {name!r} has {count} frames. Pass each as a picture of its own, or a GIF alone, as a "
                    "video."
                )
            return _as_array(picture)
    except VideoError:
        raise
    except Exception as error:  # PIL raises errors of many kinds on a damaged file
        raise VideoError(f"cannot read the picture {name!r}: {error}. Formats are {', '.join(PICTURES)}.") from error


def _as_array(frames: Any) -> np.ndarray:
    if hasattr(frames, "getbands") and hasattr(frames, "convert"):  # a PIL image
        if frames.mode in ("I", "F") or frames.mode.startswith("I;"):
            raise VideoError(
                f"`frames` holds a picture of mode {frames.mode!r}, whose values need more than 8 bits. Scale it to "
                "0 to 255 and convert it to 'RGB'."
            )
        frames = ImageOps.exif_transpose(frames)  # upright
        if frames.getbands()[-1] == "A" or "transparency" in frames.info:  # on white, as in browsers
            shown = frames.convert("RGBA")
            frames = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)
        frames = frames.convert("RGB")
    elif hasattr(frames, "detach"):  # a tensor
        frames = frames.detach().cpu()
        frames = (frames.float() if frames.is_floating_point() else frames).numpy()
    elif not hasattr(frames, "__array__"):
        raise VideoError(f"`frames` is or holds a {type(frames).__name__}. {FORMS}")
    return np.asarray(frames)


def _channels_last(array: np.ndarray) -> np.ndarray:
    if array.ndim != 4 or 0 in array.shape:
        one = " Is it a batch? Then pass one video of it: `frames[0]`." if array.ndim == 5 else ""
        raise VideoError(f"`frames` is of shape {array.shape}.{one} {FORMS}")
    first, last = array.shape[1] == 3, array.shape[3] == 3
    if first == last:
        reason = "either axis could be the colours" if first else "no axis has the three colours"
        raise VideoError(f"`frames` is of shape {array.shape}, in which {reason}. {FORMS}")
    return array.transpose(0, 2, 3, 1) if first else array


def _as_bytes(array: np.ndarray) -> np.ndarray:
    kind = array.dtype.kind
    if array.dtype == np.uint8:
        return array
    if kind not in "iuf":
        raise VideoError(
            f"`frames` is of dtype {array.dtype}. Pass uint8, other whole numbers from 0 to 255, or floats from 0 to 1."
        )
    top = 1 if kind == "f" else 255
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):  # NaN fails this too
        raise VideoError(
            f"`frames` holds {array.dtype} values from {low:g} to {high:g}, but must hold whole numbers from 0 to 255 "
            "or floats from 0 to 1, before any normalisation. Scale them, or convert them to uint8."
        )
    return np.rint(array * 255).astype(np.uint8) if kind == "f" else array.astype(np.uint8)


def positive(name: str, value: Any) -> float:
    """Return a number as a float. Raises a VideoError if it is not finite and above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise VideoError(f"`{name}` is {brief(value)}, but must be a finite number above 0.")
    return float(value)


def _check_ticks(name: str, seconds: float, rate: float) -> None:
    if not seconds * rate <= MOST_TICKS:
        raise VideoError(
            f"`{name}` reaches {seconds:g} s, but at {rate:g} ticks per second a video can last "
            f"{MOST_TICKS / rate:.3g} s at most. It is counted in seconds: divide milliseconds by 1e3, and nanoseconds "
            "by 1e9."
        )


def _checked_times(times: Any, num_frames: int) -> np.ndarray:
    """Return the times as (num_frames,) float64. Raises a VideoError if they are not ascending and one per frame."""
    try:
        seconds = np.asarray(times.detach().cpu() if hasattr(times, "detach") else times, dtype=np.float64)
    except (TypeError, ValueError):
        seconds = np.array(math.nan)
    if seconds.ndim != 1 or not np.isfinite(seconds).all() or (seconds < 0).any() or (np.diff(seconds) <= 0).any():
        raise VideoError(
            f"`times` is {brief(times)}, but must hold the seconds of each frame, ascending, none below 0."
        )
    if len(seconds) != num_frames:
        raise VideoError(f"`times` holds {len(seconds)} seconds, but there are {num_frames} frames. Pass one for each.")
    return seconds


def _worst(seconds: np.ndarray, rate: float) -> float:
    return float(seconds[np.abs(np.rint(seconds * rate) - seconds * rate).argmax()])
