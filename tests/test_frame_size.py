"""Frames that are scaled while they are read have the size that the processor would give them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_clips import write_clip
from models import save_tiny
from test_cli import vidcom2

from vidcom2 import Video, answer_many, ask, read_video
from vidcom2.asking.frame_size import size_of_frames
from vidcom2.errors import OptionError
from vidcom2.families.table import FAMILIES
from vidcom2.loading.checkpoints import load_checkpoint
from vidcom2.video.reading import VideoError

QUESTION = "What happens?"
LARGE = (600, 1064)  # height and width of a frame that each of the tiny processors makes smaller


def picture(number: int) -> np.ndarray:
    """Draw a frame in which neighbouring pixels differ little, so that all scalers agree."""
    rows, columns = np.mgrid[: LARGE[0], : LARGE[1]]
    return np.stack([rows * 255 // LARGE[0], columns * 255 // LARGE[1], np.full_like(rows, 10 * number)], -1).astype(
        np.uint8
    )


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "large.mp4", [i / 10 for i in range(8)], picture=picture)


@pytest.fixture(
    scope="module", params=["llava_onevision", "llava_next_video", "qwen2_vl", "qwen3_vl", "kimi_k25", "video_llama_3"]
)
def processor(request: pytest.FixtureRequest) -> Any:
    """Return the processor of a tiny model, one for each class of video processors."""
    return FAMILIES[request.param].build_tiny()[1]


def pixels_of(processor: Any, frames: np.ndarray) -> dict[str, torch.Tensor]:
    inputs = processor.video_processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    return {name: inputs[name] for name in ("pixel_values_videos", "video_grid_thw") if name in inputs}


def test_the_processor_makes_nearly_the_same_pixels_of_frames_that_were_scaled_before(
    processor: Any, clip: Path
) -> None:
    whole = read_video(clip, 4)
    scaled = read_video(clip, 4, size=size_of_frames(processor))
    assert whole.frames.shape[1:3] == LARGE > scaled.frames.shape[1:3]
    expected, got = pixels_of(processor, whole.frames), pixels_of(processor, scaled.frames)
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert got[name].shape == values.shape
        torch.testing.assert_close(got[name], values, rtol=0, atol=0.1)  # one level of 255 is 0.008 to 0.015


def test_frames_that_the_processor_would_not_make_smaller_keep_their_size(processor: Any) -> None:
    size = size_of_frames(processor)
    scaled = size(4, *LARGE)
    assert scaled is not None and size(4, *scaled) in (scaled, None)
    assert size(4, 20, 30) in (None, (20, 30))  # Kimi-K2.5's pads them
    assert size(1, *LARGE) is not None  # a single frame, which some processors refuse


def test_ask_answer_many_and_run_read_the_frames_in_the_size_of_the_processor(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny(tmp_path / "model")
    checkpoint = load_checkpoint(str(folder), device="cpu")
    given = {"processor": checkpoint.processor, "max_new_tokens": 2, "num_frames": 4}
    scaled = read_video(clip, 4, size=(84, 84))
    expected = ask(scaled, QUESTION, checkpoint.model, **given)

    found = ask(clip, QUESTION, checkpoint.model, scale_while_reading=True, **given)
    assert np.array_equal(found.video.frames, scaled.frames)
    assert ask(clip, QUESTION, checkpoint.model, **given).video.frames.shape == (4, *LARGE, 3)

    read: list[Video] = []

    def reading(*args: Any, **kwargs: Any) -> Video:
        read.append(read_video(*args, **kwargs))
        return read[-1]

    monkeypatch.setattr("vidcom2.bulk.engine.read_video", reading)
    monkeypatch.setattr("vidcom2.video.reading.read_video", reading)
    requests = [{"video": str(clip), "prompt": QUESTION}]
    (answer,) = answer_many(requests, checkpoint.model, scale_while_reading=True, **given)
    assert answer.answer == found == expected
    command = ["run", "--model", folder, "--video", clip, "--num-frames", 4, "--max-new-tokens", 2, "--repeats", 1]
    assert vidcom2(*command, "--scale-while-reading", "--json")[0] == 0
    assert len(read) == 2
    for video in read:
        assert np.array_equal(video.frames, scaled.frames)


def test_scaling_is_refused_where_nothing_is_read(clip: Path) -> None:
    with pytest.raises(OptionError, match="`scale_while_reading` is for files, but `video` is already decoded"):
        ask(read_video(clip, 2), QUESTION, scale_while_reading=True)
    with pytest.raises(OptionError, match="`scale_while_reading` is for `read_video`, but `read` is given"):
        answer_many([], scale_while_reading=True, read=read_video)
    with pytest.raises(VideoError, match="there is no video file"):
        ask("missing.mp4", QUESTION, scale_while_reading=True)


def test_a_function_for_the_size_is_called_once_with_the_upright_frame(tmp_path: Path) -> None:
    turned = (0, 1, 0, -1, 0, 0, 0, 0, 1)
    path = write_clip(tmp_path / "turned.mp4", [i / 10 for i in range(8)], display_matrix=turned)
    asked: list[tuple[int, ...]] = []

    def size(*of_file: int) -> tuple[int, int]:
        asked.append(of_file)
        return 48, 32

    assert np.array_equal(read_video(path, 3, size=size).frames, read_video(path, 3, size=(48, 32)).frames)
    assert asked == [(3, 96, 64)]
    assert np.array_equal(read_video(path, 3, size=lambda *_: None).frames, read_video(path, 3).frames)
    with pytest.raises(VideoError, match=r"the function `size` returned \(0, 3\)"):
        read_video(path, 3, size=lambda *_: (0, 3))
