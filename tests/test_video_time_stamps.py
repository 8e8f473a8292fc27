"""`read_video` gives every frame its time, also where the packets of a file say it badly."""

import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from make_clips import numbers, remuxed, write_clip, write_fields

from vidcom2.video.reading import read_video

IS_OLD = int(av.__version__.partition(".")[0]) < 18  # the newest on Python 3.10 is 17
OLD_FFMPEG = pytest.mark.skipif(IS_OLD, reason="this FFmpeg states 25 frames a second for such a file")

NUM_FRAMES = 60
CONSTANT = [i / 25 for i in range(NUM_FRAMES)]
X265 = "log-level=none:pools=none:frame-threads=1:keyint=20:bframes=3"
CODECS: dict[str, dict[str, Any]] = {
    "h264": {"options": {"g": "20", "bf": "0"}},
    "h264_with_b_frames": {"options": {"g": "20", "bf": "3"}},
    "h265": {"codec": "libx265", "options": {"preset": "ultrafast", "x265-params": X265}},
    "vp8": {"codec": "libvpx"},
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a clip of each codec."""
    folder = tmp_path_factory.mktemp("clips")
    for name, options in CODECS.items():
        write_clip(folder / f"{name}.mkv", CONSTANT, **options)
    return folder


def missing_stamps(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        found = [packet.pts for packet in container.demux(video=0) if packet.size]
    return [i for i, stamp in enumerate(found) if stamp is None]


# -- packets without time stamps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODECS)
def test_a_matroska_file_that_begins_before_time_0_gives_all_its_frames(clips: Path, tmp_path: Path, name: str) -> None:
    early = remuxed(clips / f"{name}.mkv", tmp_path / "early.mkv", -5 / 25, avoid_negative_ts="disabled")
    assert len(missing_stamps(early)) == 5  # otherwise the clip proves nothing
    video = read_video(early, NUM_FRAMES)
    assert numbers(video.frames) == list(range(NUM_FRAMES)) and video.lost == 0
    assert video.seconds.tolist() == CONSTANT and video.duration == NUM_FRAMES / 25
    assert numbers(read_video(early, 6).frames) == [0, 12, 24, 35, 47, 59]


@pytest.mark.parametrize(
    ("rate", "tick"),
    [
        (25, Fraction(1, 1000)),
        # The header states the rate of the clock, and a frame takes 33 or 34 ms.
        pytest.param(30, Fraction(1, 1000), marks=OLD_FFMPEG),
        (30, None),  # the header states the rate of the frames, which take 33 ms each
    ],
)
def test_a_matroska_file_that_lies_before_time_0_has_the_rate_of_its_frames(
    tmp_path: Path, rate: int, tick: Fraction | None
) -> None:
    times = [i / rate for i in range(NUM_FRAMES)]
    whole = write_clip(tmp_path / "whole.mp4", times, rate=rate, tick=tick, options={"bf": "0"})
    early = remuxed(whole, tmp_path / "early.mkv", -5, avoid_negative_ts="disabled")
    assert len(missing_stamps(early)) == NUM_FRAMES  # otherwise the clip proves nothing
    video = read_video(early, NUM_FRAMES)
    assert numbers(video.frames) == list(range(NUM_FRAMES)) and video.lost == 0
    assert video.fps == rate and video.duration == NUM_FRAMES / rate and video.seconds == pytest.approx(times)


def test_frames_before_time_0_are_as_far_apart_as_the_others_on_average(tmp_path: Path) -> None:
    times = np.array([-2, -1, 0, 0.5, 2, 3.5, 4])
    clip = write_clip(tmp_path / "clip.mkv", times + 2, codec="ffv1")
    early = remuxed(clip, tmp_path / "early.mkv", -2, avoid_negative_ts="disabled")
    assert read_video(early, 7).seconds == pytest.approx(times + 2)


@pytest.mark.parametrize(("name", "suffix"), [("h264", "mpg"), ("h264_with_b_frames", "ts"), ("h265", "ts")])
def test_frames_that_are_packed_together_have_their_own_times(
    clips: Path, tmp_path: Path, name: str, suffix: str
) -> None:
    """Several frames in a packet of a transport or program stream have one time stamp."""
    packed = tmp_path / f"packed.{suffix}"
    if suffix == "ts":
        remuxed(clips / f"{name}.mkv", packed, together=3)
    else:  # FFmpeg fills packets of 2048 bytes
        write_clip(packed, CONSTANT, **CODECS[name])
    assert len(missing_stamps(packed)) >= NUM_FRAMES / 2  # otherwise the clip proves nothing
    video = read_video(packed, NUM_FRAMES)
    assert numbers(video.frames) == list(range(NUM_FRAMES)) and video.lost == 0
    assert video.seconds == pytest.approx(CONSTANT, abs=1e-3)
    assert video.duration == pytest.approx(NUM_FRAMES / 25, abs=1e-3)


def test_frames_with_the_same_time_stamp_are_spread_until_the_next(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mkv", [0, 1, 1, 1.5, 2, 2], codec="ffv1")
    video = read_video(clip, 6)
    assert numbers(video.frames) == list(range(6))
    assert video.seconds == pytest.approx([0, 1, 1.25, 1.5, 2, 2.5])


@pytest.mark.parametrize("suffix", ["h264", "ts", "mpg", "mkv"])
def test_two_fields_are_one_frame(tmp_path: Path, suffix: str) -> None:
    """In a raw, transport or program stream, each field is a packet. The second may have no time stamp."""
    path = write_fields(tmp_path / "fields.h264", NUM_FRAMES)
    if suffix != "h264":
        path = tmp_path / f"fields.{suffix}"
        with av.open(str(tmp_path / "fields.h264")) as old, av.open(str(path), "w") as new:
            stream = new.add_stream_from_template(old.streams.video[0])
            fields = [packet for packet in old.demux(video=0) if packet.size]
            for i in range(NUM_FRAMES):
                packet = av.Packet(bytes(fields[2 * i]) + bytes(fields[2 * i + 1]))
                packet.time_base, packet.stream, packet.is_keyframe = Fraction(1, 25), stream, i == 0
                packet.pts = packet.dts = i
                new.mux(packet)
    with av.open(str(path)) as container:
        assert all(frame.interlaced_frame for frame in container.decode(video=0))
    video = read_video(path, NUM_FRAMES)
    assert numbers(video.frames) == list(range(NUM_FRAMES)) and video.lost == 0
    assert video.seconds == pytest.approx(CONSTANT) and video.duration == NUM_FRAMES / 25


# -- frames that need a missing key frame -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        *(("h264_with_b_frames", suffix) for suffix in ("ts", "mkv", "mp4", "avi", "h264")),
        ("h264", "mkv"),
        ("h265", "mp4"),
        ("vp8", "mkv"),
    ],
)
def test_frames_before_the_first_key_frame_are_counted_as_lost(
    clips: Path, tmp_path: Path, name: str, suffix: str
) -> None:
    source = clips / f"{name}.mkv"
    if suffix == "avi":
        source = write_clip(tmp_path / "whole.avi", CONSTANT, **CODECS[name], tick=None)
    late = remuxed(source, tmp_path / f"late.{suffix}", start=7)
    with av.open(str(late)) as container:
        shown = [not packet.is_discard for packet in container.demux(video=0) if packet.size]
    video = read_video(late, NUM_FRAMES)
    decoded = numbers(video.frames)
    assert decoded[0] > 7 and decoded == list(range(decoded[0], NUM_FRAMES))
    assert video.lost == sum(shown) - len(decoded) > 0
    # Times still count from the first frame of the file, and those after the key frame stay 1 / 25 seconds apart.
    assert np.diff(video.seconds) == pytest.approx(1 / 25, abs=1e-3) and video.seconds[0] >= video.lost / 25 - 1e-3
    assert video.seconds[-1] < video.duration
    assert read_video(late, 4).lost == video.lost


def test_leading_pictures_of_a_missing_key_frame_are_counted_as_lost(tmp_path: Path) -> None:
    """A recording may begin with a key frame that is followed by frames shown before it."""
    options = {"g": "20", "bf": "5", "x264-params": "open-gop=1:b-pyramid=normal:ref=4:scenecut=0"}
    whole = write_clip(tmp_path / "whole.mkv", CONSTANT, options=options)
    with av.open(str(whole)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    keys = [i for i, packet in enumerate(packets) if packet.is_keyframe]
    leading = sum(packet.pts < packets[keys[1]].pts for packet in packets[keys[1] :])
    assert leading  # otherwise the clip proves nothing
    video = read_video(remuxed(whole, tmp_path / "late.mkv", start=keys[1]), NUM_FRAMES)
    assert video.lost == leading and len(video.frames) == NUM_FRAMES - keys[1] - leading


# -- gaps -------------------------------------------------------------------------------------------------------------

HOUR = 3600.0
RECORDING = [i / 25 for i in range(50)]
# Times of frames, and those of them that are sampled
GAPS = {
    "last frame ten hours late": ([*RECORDING, 10 * HOUR], [0, 7, 14, 21, 28, 35, 42, 49, 50]),
    "first frame an hour early": ([0.0, *(HOUR + time for time in RECORDING)], [0, 1, 8, 15, 22, 29, 36, 43, 50]),
    "of two frame rates": ([*RECORDING, *(HOUR + i / 5 for i in range(10))], [0, 16, 31, 47, 50, 53, 56, 59]),
    "three recordings": (
        [hour * HOUR + time for hour in range(3) for time in RECORDING],
        [0, 16, 33, 49, 50, 66, 83, 99, 100, 116, 133, 149],
    ),
}


@pytest.mark.filterwarnings("ignore:the video")
@pytest.mark.parametrize("name", GAPS)
def test_a_gap_takes_no_frames_from_the_rest(tmp_path: Path, name: str) -> None:
    """It counts as long as the time between two sampled frames."""
    times, sampled = GAPS[name]
    path = write_clip(tmp_path / "clip.mkv", times, codec="ffv1")
    video = read_video(path, len(sampled))
    assert numbers(video.frames) == sampled
    assert video.seconds == pytest.approx([times[i] for i in sampled])


def test_a_gap_that_is_most_of_a_video_is_named_in_a_warning(tmp_path: Path) -> None:
    """Its time stamps may be wrong, and the model is told them."""
    path = write_clip(tmp_path / "clip.mkv", GAPS["last frame ten hours late"][0], codec="ffv1")
    with pytest.warns(UserWarning, match=r"clip\.mkv.* no frame between 2\.0 s and 36000\.0 s.* time stamps"):
        read_video(path, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_video(write_clip(tmp_path / "regular.mkv", RECORDING, codec="ffv1"), 8)
        read_video(write_clip(tmp_path / "three.mkv", GAPS["three recordings"][0], codec="ffv1"), 8)


@pytest.mark.parametrize(("name", "suffix"), [("h264", "mkv"), ("h264_with_b_frames", "ts"), ("vp8", "webm")])
def test_a_recording_whose_clock_starts_anew_follows_the_one_before(
    clips: Path, tmp_path: Path, name: str, suffix: str
) -> None:
    """Files that are joined byte by byte, as by `cat`, have each time twice."""
    one = remuxed(clips / f"{name}.mkv", tmp_path / f"one.{suffix}")
    both = tmp_path / f"both.{suffix}"
    both.write_bytes(2 * one.read_bytes())
    with av.open(str(both)) as container:
        stamps = [frame.pts for frame in container.decode(video=0)]
    assert len(set(stamps)) < len(stamps) == 2 * NUM_FRAMES  # otherwise the clip proves nothing
    video = read_video(both, 2 * NUM_FRAMES)
    assert numbers(video.frames) == 2 * list(range(NUM_FRAMES))
    assert video.seconds == pytest.approx(np.arange(2 * NUM_FRAMES) / 25)
    assert video.duration == pytest.approx(2 * NUM_FRAMES / 25)


def test_one_time_stamp_that_is_too_late_at_the_start_moves_no_frame(tmp_path: Path) -> None:
    first = write_clip(tmp_path / "first.mkv", [10 * HOUR], codec="ffv1")
    rest = write_clip(tmp_path / "rest.mkv", CONSTANT, codec="ffv1")
    first.write_bytes(first.read_bytes() + rest.read_bytes())
    video = read_video(first, NUM_FRAMES + 1)
    assert numbers(video.frames) == [0, *range(NUM_FRAMES)]
    assert video.seconds == pytest.approx([0, *(time + 1 / 25 for time in CONSTANT)])
