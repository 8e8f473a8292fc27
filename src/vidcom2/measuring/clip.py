"""A video to measure with when the user names none. Its length and size matter; what it shows hardly does."""

from pathlib import Path

import av
import numpy as np

RATE = 25  # frames per second
SECONDS = 30  # or longer, if more frames are asked for


def make_video(path: Path, width: int, height: int, num_frames: int, seed: int = 0) -> None:
    """Write an H.264 video of a slowly moving texture, with a cut every five seconds and a square that runs over it."""
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        scene = np.zeros((height, width, 3), dtype=np.uint8)
        for i in range(num_frames):
            if i % (5 * RATE) == 0:
                blocks = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
                scene = blocks.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
            frame = np.roll(scene, i // 2, axis=1)
            left = 4 * i % width
            frame[height // 3 : 2 * height // 3, left : left + height // 4] = (i * 7 % 256, 40, 200)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def num_frames_of(asked: int) -> int:
    """Return how many frames the video must have so that `asked` of them can be sampled."""
    return max(SECONDS * RATE, asked)
