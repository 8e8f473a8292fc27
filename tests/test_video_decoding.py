"""Seeking in long videos gives the frames of decoding everything in order, without decoding the rest."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from make_clips import joined, start_later, with_bad_packets, write_clip
from PIL import Image

from vidcom2.video import decoding as video_decoding
from vidcom2.video import reading as video
from vidcom2.video.reading import Video, read_video
from vidcom2.video.timeline import look_through, spread_over_time

NUM_FRAMES = 140
CONSTANT = [i / 25 for i in range(NUM_FRAMES)]
VARIABLE = np.cumsum(np.random.default_rng(0).uniform(0.01, 0.4, NUM_FRAMES)).round(3)
GOP = {"g": "40", "bf": "3"}
OPEN_GOP = {"g": "40", "bf": "5", "x264-params": "open-gop=1:b-pyramid=normal:ref=4"}
BLOCKS = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8).repeat(4, axis=0).repeat(4, axis=1)


def moving(number: int) -> np.ndarray:
    """Draw a frame (64, 96, 3) uint8. No two are alike, so that a decoder's mistake shows in later frames too."""
    return np.roll(BLOCKS, (number, 3 * number), axis=(0, 1))


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Video]:
    """Return a `read_video` that never seeks."""

    def read(*args: object, **options: object) -> Video:
        with monkeypatch.context() as patch:
            patch.setattr(video, "decode_sought", lambda *_: None)
            return read_video(*args, **options)

    return read


@pytest.fixture
def was_sought(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collect for each file that is read whether its frames were found by seeking."""
    outcomes, decode_sought = [], video.decode_sought

    def spy(*args: object) -> video_decoding.Decoded | None:
        decoded = decode_sought(*args)
        outcomes.append(decoded is not None)
        return decoded

    monkeypatch.setattr(video, "decode_sought", spy)
    return outcomes


def assert_same(one: Video, other: Video) -> None:
    assert np.array_equal(one.frames, other.frames)
    assert one.frames_indices.tolist() == other.frames_indices.tolist()
    assert (one.fps, one.total_num_frames, one.lost) == (other.fps, other.total_num_frames, other.lost)


# -- the same frames --------------------------------------------------------------------------------------------------

# x265 starts threads for each clip, which takes longer than encoding it.
X265 = "pools=none:frame-threads=1:log-level=none:keyint=40:bframes=3"
CLIPS = {
    "closed.mp4": {"options": GOP},
    "closed.mov": {"options": GOP},
    "open.mp4": {"options": OPEN_GOP},
    "open.ts": {"options": OPEN_GOP},
    "no_b_frames.avi": {"options": {"g": "40", "bf": "0"}, "tick": None},
    "odd.mp4": {"options": {"g": "37", "bf": "2", "x264-params": "scenecut=0"}},
    "short.mp4": {"options": {"g": "3", "bf": "2"}},
    "one_key.mp4": {"options": {"g": "999", "x264-params": "scenecut=0"}},
    "variable.mkv": {"options": GOP, "seconds": VARIABLE},
    "late.mkv": {"options": GOP, "seconds": [5 + time for time in CONSTANT]},
    "interlaced.ts": {"options": {**GOP, "x264-params": "interlaced=1"}},
    "turned.mp4": {"options": GOP, "display_matrix": (0, 1, 0, -1, 0, 0, 0, 0, 1)},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"g": "40", "deadline": "realtime", "cpu-used": "8"}},
    "open_h265.mkv": {"codec": "libx265", "options": {"preset": "ultrafast", "x265-params": f"{X265}:open-gop=1"}},
    "mpeg4.mp4": {"codec": "mpeg4", "options": {"g": "40", "bf": "2", "b": "4M"}, "tick": None},
    "mpeg2.ts": {"codec": "mpeg2video", "options": {"g": "40", "bf": "2", "b": "4M"}, "tick": None},
}
IN_ORDER_ONLY = {
    "with_b_frames.avi": {"options": GOP, "tick": None},  # tells only when packets are decoded
    "raw.h264": {"options": GOP, "tick": None},
    "each_over_the_last.gif": {"codec": "gif", "pixels": "rgb8", "tick": None},
    "no_key_but_the_first.mp4": {"options": {"g": "40", "x264-params": "intra-refresh=1"}},
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("clips")

    def written(name: str) -> Path:
        path = folder / name
        if not path.exists():
            write_clip(path, **{"seconds": CONSTANT, "picture": moving, **(CLIPS | IN_ORDER_ONLY)[name]})
        return path

    return written


@pytest.mark.parametrize("name", CLIPS)
def test_seeking_gives_the_frames_of_decoding_in_order(
    clip: Callable, name: str, in_order: Callable, was_sought: list[bool]
) -> None:
    for num_frames in (1, 4):
        assert_same(read_video(clip(name), num_frames), in_order(clip(name), num_frames))
    assert was_sought == [True, name != "one_key.mp4"]


@pytest.mark.parametrize("name", IN_ORDER_ONLY)
def test_a_clip_that_cannot_be_sought_is_decoded_in_order(
    clip: Callable, name: str, in_order: Callable, was_sought: list[bool]
) -> None:
    assert_same(read_video(clip(name), 4), in_order(clip(name), 4))
    assert not any(was_sought)


def test_each_frame_of_an_open_gop_is_found(clip: Callable) -> None:
    """That includes leading pictures, which are shown before a key frame and stored behind it in the file."""
    path = str(clip("open.mp4"))
    timeline, index = look_through(path, path, lambda *_: None)
    leading = [rank for rank in range(1, NUM_FRAMES) if (index.keys < index.of_frames[rank]).sum() > 1]
    leading = [r for r in leading if index.stamps[index.keys[index.keys < index.of_frames[r]][-1]] > timeline.stamps[r]]
    assert leading  # otherwise the clip proves nothing
    ranks = np.arange(70, 90)
    every = video_decoding.decode_in_order(path, path, timeline, np.arange(NUM_FRAMES), None, "AUTO", lambda *_: None)
    for rank in ranks.tolist():
        sought = video_decoding.decode_sought(path, path, index, np.array([0, rank]), None, lambda *_: None)
        assert sought and sought.ranks == [0, rank]
        assert np.array_equal(sought.frames[1], every.frames[rank])


def test_seeking_works_with_an_edit_list_that_starts_between_two_keys(
    tmp_path: Path, in_order: Callable, was_sought: list[bool]
) -> None:
    path = write_clip(tmp_path / "edited.mov", CONSTANT, picture=moving, options=GOP)
    start_later(path, 50 / 25)
    with av.open(str(path)) as container:
        discarded = [packet.is_discard for packet in container.demux(video=0)]
    assert any(discarded)  # otherwise the clip proves nothing
    sought = read_video(path, 4)
    assert_same(sought, in_order(path, 4))
    assert was_sought == [True] and sought.total_num_frames == NUM_FRAMES - 50


def test_a_stream_that_changes_its_size_is_decoded_as_in_order(
    tmp_path: Path, in_order: Callable, was_sought: list[bool]
) -> None:
    small = write_clip(tmp_path / "small.ts", CONSTANT[:100], picture=moving, options=GOP)
    large = write_clip(tmp_path / "large.ts", CONSTANT[:100], picture=lambda i: moving(i).repeat(2, 0), options=GOP)
    both = joined([small, large, small], tmp_path / "both.ts", seconds=100 / 25)
    with av.open(str(both)) as container:
        assert {frame.height for frame in container.decode(video=0)} == {64, 128}
    with pytest.warns(UserWarning, match=r"changes from 96 × 64 to 96 × 128 pixels\. What it shows then is stretched"):
        sought = read_video(both, 5)
        in_order_too = in_order(both, 5)
    assert_same(sought, in_order_too)
    assert was_sought == [True] and sought.frames.shape[1:] == (64, 96, 3)


# -- less work --------------------------------------------------------------------------------------------------------


def test_the_work_grows_with_the_number_of_frames_and_not_with_the_length(tmp_path: Path, clip: Callable) -> None:
    short = clip("closed.mp4")
    long = joined([short] * 4, tmp_path / "long.mp4", seconds=NUM_FRAMES / 25)
    decoded = []
    for path in (short, long):
        steps: list[tuple] = []
        assert len(read_video(path, 4, lambda *step: steps.append(step)).frames) == 4  # noqa: B023  (called at once)
        steps = [step for step in steps if step[0] == "Decoding"]
        done, total = [step[1] for step in steps], steps[-1][2]
        assert done == list(range(1, total + 1))
        decoded.append(total)
    assert max(decoded) <= 4 * 42 < 4 * NUM_FRAMES


# -- nothing is taken on trust ----------------------------------------------------------------------------------------


def test_a_damaged_packet_that_is_read_gives_the_frames_of_decoding_in_order(
    clip: Callable, tmp_path: Path, in_order: Callable, was_sought: list[bool]
) -> None:
    broken = with_bad_packets(clip("closed.mp4"), tmp_path / "bad.mp4", [90])
    sought = read_video(broken, 4)
    assert_same(sought, in_order(broken, 4))
    assert was_sought == [False] and sought.lost == 1


def test_a_damaged_packet_that_is_not_read_is_not_counted(
    clip: Callable, tmp_path: Path, in_order: Callable, was_sought: list[bool]
) -> None:
    broken = with_bad_packets(clip("closed.mp4"), tmp_path / "bad.mp4", [30])
    sought, sound = read_video(broken, 4), in_order(clip("closed.mp4"), 4)
    assert was_sought == [True] and np.array_equal(sought.frames, sound.frames)
    assert (sought.lost, in_order(broken, 4).lost) == (0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda index: {"keys": np.arange(len(index.stamps))},
        lambda index: {"seek_to": index.seek_to + 10**7},
        lambda index: {"sizes": index.sizes + 1},
        lambda index: {"stamps": index.stamps + 1},
    ],
    ids=["not a key", "lands late", "another packet", "other times"],
)
def test_a_file_that_differs_from_its_index_is_not_sought(clip: Callable, wrong: Callable) -> None:
    path = str(clip("closed.mp4"))
    timeline, index = look_through(path, path, lambda *_: None)
    wanted = spread_over_time(timeline.stamps, 4)

    def sought(index: object) -> video_decoding.Decoded | None:
        return video_decoding.decode_sought(path, path, index, wanted, None, lambda *_: None)

    assert sought(index)
    assert sought(replace(index, **wrong(index))) is None


# -- in another size --------------------------------------------------------------------------------------------------


def smooth(number: int) -> np.ndarray:
    rows, columns = np.mgrid[0:64, 0:96]
    waves = [np.sin(rows / 9 + number), np.cos(columns / 7), np.sin((rows + columns) / 11)]
    return (127 + 90 * np.stack(waves, axis=-1)).astype(np.uint8)


@pytest.mark.parametrize("turn", [None, Image.Transpose.ROTATE_270])
def test_size_applies_to_the_upright_frames(tmp_path: Path, turn: Image.Transpose | None) -> None:
    matrix = (0, 1, 0, -1, 0, 0, 0, 0, 1) if turn else (1, 0, 0, 0, 1, 0, 0, 0, 1)
    path = write_clip(tmp_path / "clip.mp4", CONSTANT[:3], picture=smooth, display_matrix=matrix, options={"qp": "10"})
    small = read_video(path, 3, size=(24, 40))
    assert small.frames.shape == (3, 24, 40, 3) and (small.metadata["height"], small.metadata["width"]) == (24, 40)
    full = read_video(path, 3)
    assert full.frames.shape[1:3] == ((96, 64) if turn else (64, 96))
    for frame, whole in zip(small.frames, full.frames):
        expected = np.asarray(Image.fromarray(np.ascontiguousarray(whole)).resize((40, 24), Image.Resampling.BICUBIC))
        assert np.abs(frame.astype(int) - expected).mean() < 3
        assert np.abs(frame[::-1].astype(int) - expected).mean() > 20  # otherwise the clip proves nothing


def test_size_applies_with_and_without_seeking(clip: Callable, in_order: Callable) -> None:
    path = clip("turned.mp4")
    assert_same(read_video(path, 4, size=(50, 30)), in_order(path, 4, size=(50, 30)))
    assert_same(read_video(path, 4, size=(96, 64)), read_video(path, 4))  # the clip's own size
