"""`read_video` returns the colours that were filmed, whatever colour space and range a video states."""

from pathlib import Path

import av
import numpy as np
import pytest

from vidcom2.video.reading import read_video

SIDE = 32
COLOURS = np.array(
    [
        [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)],
        [(0, 255, 255), (255, 0, 255), (200, 120, 40), (40, 90, 160)],
        [(255, 255, 255), (0, 0, 0), (128, 128, 128), (230, 180, 150)],
    ]
)
# The weights of red and blue in luma, and the code of the matrix in ITU-T H.273
MATRICES = {"BT.601": (0.299, 0.114, 6), "BT.709": (0.2126, 0.0722, 1), "BT.2020": (0.2627, 0.0593, 9)}


def planes(matrix: str, is_full: bool, bits: int) -> list[np.ndarray]:
    """Convert the colours to Y, Cb and Cr by the equations of ITU-T H.273."""
    red, green, blue = np.moveaxis(COLOURS / 255, -1, 0)
    of_red, of_blue, _ = MATRICES[matrix]
    luma = of_red * red + (1 - of_red - of_blue) * green + of_blue * blue
    differences = ((blue - luma) / (2 - 2 * of_blue), (red - luma) / (2 - 2 * of_red))
    top, unit = 2**bits - 1, 2 ** (bits - 8)
    if is_full:
        values = [luma * top, *(each * top + 128 * unit for each in differences)]
    else:
        values = [(16 + 219 * luma) * unit, *((128 + 224 * each) * unit for each in differences)]
    return [np.clip(np.rint(each), 0, top).astype("<u2" if bits > 8 else "u1") for each in values]


def write_coloured(path: Path, matrix: str, is_full: bool, pixels: str, codec: str, options: dict[str, str]) -> Path:
    rows, columns = (side * SIDE for side in COLOURS.shape[:2])
    frame = av.VideoFrame(columns, rows, pixels)
    for plane, values in zip(frame.planes, planes(matrix, is_full, 10 if pixels.endswith("10le") else 8)):
        side = SIDE * plane.height // rows
        lines = np.zeros((plane.height, plane.line_size), np.uint8)
        written = values.repeat(side, axis=0).repeat(side, axis=1).view(np.uint8)
        lines[:, : written.shape[1]] = written
        plane.update(lines.tobytes())
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.height, stream.width, stream.pix_fmt = rows, columns, pixels
        for each in (stream.codec_context, frame):
            each.colorspace, each.color_range = MATRICES[matrix][2], 2 if is_full else 1
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return path


LOSSLESS = {"mp4": ("libx264", {"qp": "0"}), "mkv": ("ffv1", {}), "webm": ("libvpx-vp9", {"lossless": "1"})}


@pytest.mark.parametrize(("pixels", "suffix"), [("yuv420p", "mp4"), ("yuv420p10le", "mkv"), ("yuv444p", "webm")])
@pytest.mark.parametrize("is_full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", MATRICES)
def test_colours_are_those_of_the_stated_matrix_and_range(
    tmp_path: Path, matrix: str, is_full: bool, pixels: str, suffix: str
) -> None:
    path = write_coloured(tmp_path / f"clip.{suffix}", matrix, is_full, pixels, *LOSSLESS[suffix])
    rows, columns = (side * SIDE for side in COLOURS.shape[:2])
    for size in (None, (rows, columns), (rows // 2, columns // 2), (2 * rows, 2 * columns)):
        (frame,) = read_video(path, 1, size=size).frames.astype(int)
        side = len(frame) // len(COLOURS)
        found = frame[side // 2 :: side, side // 2 :: side]
        assert np.abs(found - COLOURS).max() <= 3  # the rounding to 8 bits moves a colour by up to 2
