"""Draw data/interruption.mp4: a quiet scene that is interrupted for a moment.

    python tests/make_interruption_video.py

A ball drifts over a hill under a nearly still sky. After five of eight seconds another scene flashes up for half a
second. VidCom² should give those frames the largest budgets.
"""

from pathlib import Path

import av
import numpy as np

WIDTH, HEIGHT, FPS, SECONDS = 320, 240, 12, 8
INTERRUPTION = (5.0, 5.5)
OUTPUT = Path(__file__).parent / "data" / "interruption.mp4"


def quiet_scene(seconds: float) -> np.ndarray:
    """Draw (height, width, 3) uint8."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(float)
    sky = np.stack([110 + 60 * y / HEIGHT, 160 + 50 * y / HEIGHT, 235 - 20 * y / HEIGHT], axis=-1)
    hill = y > 165 - 35 * np.sin(x / WIDTH * np.pi)
    grass = 120 + 25 * np.sin(x / 6) * np.cos(y / 5)
    sky[hill] = np.stack([grass * 0.5, grass, grass * 0.4], axis=-1)[hill]
    sky[(x - 60) ** 2 + (y - 50) ** 2 < 24**2] = (250, 225, 120)
    ball_x, ball_y = 30 + seconds / SECONDS * 260, 120 + 18 * np.sin(2.2 * seconds)
    sky[(x - ball_x) ** 2 + (y - ball_y) ** 2 < 15**2] = (205, 50, 45)
    return sky.clip(0, 255).astype(np.uint8)


def interruption(seconds: float) -> np.ndarray:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    board = ((x // 40 + y // 40) % 2).astype(float)[..., None]
    frame = board * np.array([35, 25, 60]) + (1 - board) * np.array([240, 130, 30])
    ring = np.hypot(x - WIDTH / 2, y - HEIGHT / 2)
    frame[(ring > 60) & (ring < 85)] = (60, 220, 200)
    return frame.astype(np.uint8)


def main() -> None:
    OUTPUT.parent.mkdir(exist_ok=True)
    with av.open(str(OUTPUT), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "24", "preset": "veryslow"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for i in range(FPS * SECONDS):
            seconds = i / FPS
            scene = interruption if INTERRUPTION[0] <= seconds < INTERRUPTION[1] else quiet_scene
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene(seconds), format="rgb24")))
        container.mux(stream.encode())
    print(f"{OUTPUT}: {OUTPUT.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
