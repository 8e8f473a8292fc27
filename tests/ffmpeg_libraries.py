"""Find FFmpeg for torchcodec, with which Transformers decodes video files, and write a video to decode."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import av
import numpy as np

NOT_FFMPEGS_NUMBER = 54  # libavcodec 58 belongs to FFmpeg 4, 59 to FFmpeg 5, and so on
SAMPLE_RATE = 16000
TONE = 440


def ffmpeg_environment(folder: Path) -> dict[str, str]:
    """Return environment variables with which torchcodec can decode files in a new process.

    torchcodec needs FFmpeg's shared libraries. Where the system has none, those in PyAV's wheel serve. Their names
    hold a hash, so this makes links with the plain names. The calling process cannot use them itself, because the
    loader reads LD_LIBRARY_PATH only once.

    Args:
        folder: where the links are made.

    Returns:
        An empty dict if torchcodec finds the system's own libraries.

    Raises:
        RuntimeError: there are no libraries that the installed torchcodec was built for.
    """
    if _torchcodec_finds_ffmpeg():
        return {}
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"torchcodec finds no FFmpeg, and PyAV's cannot be lent on {sys.platform}: install FFmpeg.")
    bundled = Path(av.__file__).parents[1] / "av.libs"
    names = {path: re.fullmatch(r"(lib(?:av|sw)\w+)-\w+\.so\.(\d+)\..*", path.name) for path in bundled.glob("lib*")}
    links = {f"{match[1]}.so.{match[2]}": path for path, match in names.items() if match}
    version = next((int(name.rpartition(".")[2]) for name in links if name.startswith("libavcodec.")), None)
    if version is None:
        raise RuntimeError(f"torchcodec finds no FFmpeg, and PyAV's wheel has none in {bundled}: install FFmpeg.")
    major = version - NOT_FFMPEGS_NUMBER
    torchcodec = Path(importlib.util.find_spec("torchcodec").origin).parent
    if not (torchcodec / f"libtorchcodec_core{major}.so").is_file():
        raise RuntimeError(
            f"PyAV {av.__version__} has FFmpeg {major}, but {torchcodec} is for others: install one of those."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in links.items():
        (folder / name).symlink_to(path)
    paths = [folder, bundled, os.environ.get("LD_LIBRARY_PATH")]  # the links' libraries need others from `bundled`
    return {"LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in paths if path)}


def _torchcodec_finds_ffmpeg() -> bool:
    try:
        import torchcodec
    except (ImportError, OSError, RuntimeError):  # releases before 0.16 cannot be imported without FFmpeg
        return False
    return getattr(torchcodec, "ffmpeg_major_version", True) is not None


def write_clip(
    path: Path, num_frames: int = 16, fps: int = 8, size: tuple[int, int] = (64, 48), audio: bool = True
) -> None:
    """Write a small mp4: a nearly still scene with one frame of another scene, and a tone.

    Args:
        size: width and height in pixels, both multiples of 8.
        audio: whether the file gets an audio track.
    """
    width, height = size
    rng = np.random.default_rng(0)
    scene, other = rng.integers(0, 256, (2, height // 8, width // 8, 3))
    with av.open(str(path), "w") as container:
        # The quantizer is fixed, because x264 would choose it by memory around the frames that nobody has set.
        video = container.add_stream("libx264", rate=fps, options={"qp": "18"})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        sound = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono") if audio else None
        for i in range(num_frames):
            blocks = other if i == num_frames // 2 else scene + rng.integers(-20, 20, scene.shape)
            pixels = np.clip(blocks, 0, 255).astype(np.uint8).repeat(8, axis=0).repeat(8, axis=1)
            container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(video.encode(None))
        if sound is not None:
            seconds = np.arange(num_frames * SAMPLE_RATE // fps) / SAMPLE_RATE
            tone = 0.5 * np.sin(2 * np.pi * TONE * seconds)
            samples = av.AudioFrame.from_ndarray(tone[None].astype(np.float32), format="fltp", layout="mono")
            samples.sample_rate = SAMPLE_RATE
            container.mux(sound.encode(samples))
            container.mux(sound.encode(None))
