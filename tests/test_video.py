"""`read_video` returns upright frames, evenly spaced in time, with the times that processors need."""

import itertools
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import make_clips
import numpy as np
import pytest
import torch
from make_clips import HEIGHT, WIDTH, joined, number_of, numbered, numbers, with_bad_packets, write_clip
from PIL import Image
from transformers.video_utils import VideoMetadata, load_video

from vidcom2.checks import check_video_file
from vidcom2.judging.questions import video_from
from vidcom2.records.fingerprints import video_stamp
from vidcom2.toys import DEMO_VIDEO
from vidcom2.video import decoding as video_decoding
from vidcom2.video import reading
from vidcom2.video.file import is_video
from vidcom2.video.live_source import LiveSource, played
from vidcom2.video.reading import Video, VideoError, check_video, read_video

CONSTANT = [i / 25 for i in range(60)]
# 60 frames with gaps between 0.02 and 1.00 s
VARIABLE = np.concatenate([[0.0], np.cumsum(np.random.default_rng(0).uniform(0.02, 1.0, 59))]).round(3)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_clip(folder / "constant.mp4", CONSTANT)
    write_clip(folder / "raw.h264", range(60), rate=10, tick=None)
    write_clip(folder / "raw.m4v", range(60), codec="mpeg4", rate=10, tick=None)
    for suffix in ("mp4", "mkv", "ts"):
        write_clip(folder / f"variable.{suffix}", VARIABLE)
    return folder


# -- upright ----------------------------------------------------------------------------------------------------------


def corners(_: int) -> np.ndarray:
    """Draw four colours, wider than high, so that every rotation and mirror image is another picture."""
    picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    picture[: HEIGHT // 2, : WIDTH // 2] = 255, 0, 0
    picture[: HEIGHT // 2, WIDTH // 2 :] = 0, 255, 0
    picture[HEIGHT // 2 :, : WIDTH // 2] = 0, 0, 255
    picture[HEIGHT // 2 :, WIDTH // 2 :] = 255, 255, 255
    return picture


# Their display matrices by ISO 14496-12, {a, b, u, c, d, v, x, y, w}: (x', y') = (a x + c y, b x + d y)
UPRIGHT = {
    None: (1, 0, 0, 0, 1, 0, 0, 0, 1),
    Image.Transpose.ROTATE_270: (0, 1, 0, -1, 0, 0, 0, 0, 1),  # a phone held upright; PIL rotates counterclockwise
    Image.Transpose.ROTATE_180: (-1, 0, 0, 0, -1, 0, 0, 0, 1),
    Image.Transpose.ROTATE_90: (0, -1, 0, 1, 0, 0, 0, 0, 1),
    Image.Transpose.FLIP_LEFT_RIGHT: (-1, 0, 0, 0, 1, 0, 0, 0, 1),  # a front camera
    Image.Transpose.FLIP_TOP_BOTTOM: (1, 0, 0, 0, -1, 0, 0, 0, 1),
    Image.Transpose.TRANSPOSE: (0, 1, 0, 1, 0, 0, 0, 0, 1),
    Image.Transpose.TRANSVERSE: (0, -1, 0, -1, 0, 0, 0, 0, 1),
}


@pytest.mark.parametrize("turn", UPRIGHT, ids=str)
def test_frames_are_turned_as_the_display_matrix_says(turn: Image.Transpose | None, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", CONSTANT[:3], picture=corners, display_matrix=UPRIGHT[turn])
    video = read_video(clip, 3)
    expected = Image.fromarray(corners(0))
    assert_shows(video.frames[0], expected if turn is None else expected.transpose(turn))
    assert (video.metadata["height"], video.metadata["width"]) == video.frames.shape[1:3]


def test_frames_are_turned_even_if_pyav_cannot_read_the_matrix() -> None:
    """Spatial videos of phones have side data that PyAV does not know. It then refuses to return any."""

    class Frame:
        def __init__(self, rotation: int):
            self.rotation = rotation

        @property
        def side_data(self) -> None:
            raise ValueError("31 is not a valid Type")

    for rotation, turn in ((-90, 3), (90, 1), (180, 2), (0, 0)):
        shown = video_decoding._upright(corners(0), *video_decoding._display_matrix(Frame(rotation)))
        assert np.array_equal(shown, np.rot90(corners(0), turn))  # counterclockwise


def write_anamorphic(path: Path, aspect: Fraction) -> Path:
    # FFmpeg cannot open some transport streams of fewer than five frames.
    return write_clip(path, range(12), picture=corners, tick=None, aspect=aspect)


def assert_shows(frame: np.ndarray, picture: Image.Image) -> None:
    expected = np.asarray(picture).astype(int)
    assert frame.shape == expected.shape
    assert np.median(np.abs(frame.astype(int) - expected).max(axis=2)) < 10  # but for the edges between the colours


@pytest.mark.parametrize(
    ("suffix", "aspect"),
    [("mp4", Fraction(4, 3)), ("mkv", Fraction(8, 9)), ("ts", Fraction(2)), ("avi", Fraction(4, 3))],
)
def test_pixels_that_are_not_square_are_shown_in_their_shape(tmp_path: Path, suffix: str, aspect: Fraction) -> None:
    clip = write_anamorphic(tmp_path / f"clip.{suffix}", aspect)
    wide = round(WIDTH * aspect)
    video = read_video(clip, 2)
    assert_shows(video.frames[0], Image.fromarray(corners(0)).resize((wide, HEIGHT)))
    assert (video.metadata["height"], video.metadata["width"]) == (HEIGHT, wide)
    shapes = []
    half = read_video(clip, 2, size=lambda _, *shape: shapes.append(shape) or (HEIGHT // 2, wide // 2))
    assert set(shapes) == {(HEIGHT, wide)}
    assert_shows(half.frames[0], Image.fromarray(corners(0)).resize((wide // 2, HEIGHT // 2)))


@pytest.mark.parametrize("aspect", [Fraction(1280, 1281), Fraction(9)], ids=str)
def test_pixels_that_are_almost_square_or_of_an_impossible_shape_stay_as_they_are(
    tmp_path: Path, aspect: Fraction
) -> None:
    assert_shows(read_video(write_anamorphic(tmp_path / "clip.mp4", aspect), 1).frames[0], Image.fromarray(corners(0)))


@pytest.mark.parametrize("aspect", [1, 2])
def test_a_turned_video_is_stretched_along_the_side_that_was_its_width(tmp_path: Path, aspect: int) -> None:
    """The pixels may be stretched by their aspect ratio, or by the display matrix itself."""
    turned = (0, 2, 0, -1, 0, 0, 0, 0, 1) if aspect == 1 else (0, 1, 0, -1, 0, 0, 0, 0, 1)
    clip = write_anamorphic(tmp_path / "clip.mp4", Fraction(aspect))
    make_clips.set_display_matrix(clip, turned)
    expected = Image.fromarray(corners(0)).resize((2 * WIDTH, HEIGHT)).transpose(Image.Transpose.ROTATE_270)
    assert_shows(read_video(clip, 1).frames[0], expected)


# -- evenly in time ---------------------------------------------------------------------------------------------------


SHOWN = {"constant.mp4": CONSTANT, "raw.h264": np.arange(60) / 10, "raw.m4v": np.arange(60) / 10}


@pytest.mark.parametrize("num_frames", [1, 8, 61])
@pytest.mark.parametrize("name", ["constant.mp4", "variable.mp4", "variable.mkv", "variable.ts", "raw.h264", "raw.m4v"])
def test_frames_are_sampled_evenly_in_time_and_the_metadata_holds_their_true_seconds(
    clips: Path, name: str, num_frames: int
) -> None:
    video, shown = read_video(clips / name, num_frames), np.array(SHOWN.get(name, VARIABLE))
    even = np.linspace(0, shown[-1], min(num_frames, 60))
    found = numbers(video.frames)
    if num_frames == 61:
        assert found == list(range(60))
    else:
        assert np.abs(shown[found] - even) == pytest.approx(np.abs(shown[:, None] - even).min(axis=0), abs=1e-9)
    metadata = VideoMetadata(**video.metadata)
    assert all(type(index) is int for index in metadata.frames_indices)
    assert metadata.timestamps == video.seconds.tolist() == pytest.approx(shown[found], abs=1e-4)
    assert metadata.total_num_frames / metadata.fps == metadata.duration > metadata.timestamps[-1]


def test_h264_in_avi_keeps_every_frame_although_its_time_stamps_are_out_of_order(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.avi", range(60), tick=None, options={"bf": "2"})
    with av.open(str(clip)) as container:
        stamps = [frame.pts for frame in container.decode(video=0)]
    assert stamps != sorted(stamps)  # otherwise the clip proves nothing
    video = read_video(clip, 60)
    assert numbers(video.frames) == list(range(60))
    assert video.seconds == pytest.approx(np.arange(60) / 25)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip.webm", {"codec": "libvpx-vp9"}),
        ("clip.webm", {"codec": "libvpx"}),
        ("clip.gif", {"codec": "gif", "pixels": "rgb8", "tick": None}),
        ("clip.avi", {"codec": "mpeg4", "tick": None, "options": {"bf": "2", "b": "4M"}}),
        ("ten_bit.mp4", {"pixels": "yuv420p10le"}),
        ("grey.mkv", {"codec": "ffv1", "pixels": "gray"}),
        ("odd.mp4", {"pixels": "yuv444p", "picture": lambda i: numbered(i, 63, 97)}),
        ("ntsc.mkv", {"rate": Fraction(30000, 1001)}),  # times are rounded to milliseconds
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("codec", "libx264"),
)
def test_every_common_format_can_be_read(name: str, options: dict, tmp_path: Path) -> None:
    rate = options.get("rate", 25)
    video = read_video(write_clip(tmp_path / name, [float(i / rate) for i in range(40)], **options), 4)
    assert numbers(video.frames) == [0, 13, 26, 39]
    assert video.seconds == pytest.approx([i / float(rate) for i in (0, 13, 26, 39)])
    assert video.fps == pytest.approx(float(rate)) and video.total_num_frames == 40 and video.lost == 0


def test_a_video_may_have_one_frame(tmp_path: Path) -> None:
    video = read_video(write_clip(tmp_path / "one.mp4", [0.0]), 4)
    assert numbers(video.frames) == [0] and video.seconds.tolist() == [0.0] and video.duration > 0
    Image.fromarray(numbered(7)).save(tmp_path / "picture.png")
    assert numbers(read_video(tmp_path / "picture.png", 4).frames) == [7]


# -- what processors need ---------------------------------------------------------------------------------------------


def test_metadata_of_a_constant_rate_equals_that_of_transformers(clips: Path) -> None:
    frames, metadata = load_video(str(clips / "constant.mp4"), sample_indices_fn=lambda metadata: [0, 20, 39, 59])
    video = read_video(clips / "constant.mp4", 4)
    assert np.array_equal(video.frames, frames)
    assert VideoMetadata(**video.metadata) == metadata
    video.metadata["frames_indices"].append(99)  # as Qwen3-VL's processor does, to make their number even
    assert video.metadata["frames_indices"] == [0, 20, 39, 59]


# -- where they lie ---------------------------------------------------------------------------------------------------


def test_a_file_url_and_the_home_folder_lead_to_a_file(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = tmp_path / "a clip, 100% true.mp4"
    clip.write_bytes((clips / "constant.mp4").read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    url = clip.as_uri()
    assert "%20" in url  # otherwise the name proves nothing
    for name in (url, url.replace("file://", "FILE://localhost"), url.replace("file://", "File:"), f"~/{clip.name}"):
        check_video(name)
        check_video_file(name)
        assert video_stamp(name) == video_stamp(str(clip)) is not None
        assert video_from(name, Path("elsewhere")) == str(clip)
        assert numbers(read_video(name, 4).frames) == [0, 20, 39, 59]
    for missing in ("file:///missing.mp4", "file://another.machine/clip.mp4", "~/missing.mp4", "~nobody.mp4"):
        with pytest.raises(VideoError, match=re.escape(f"there is no video file {missing!r}")):
            read_video(missing, 4)
    for read in (read_video, check_video):
        with pytest.raises(
            VideoError, match=r"'rtsp://host/x' is a URL of the scheme 'rtsp', but it must be http, https"
        ):
            read("rtsp://host/x")


def test_a_colon_in_a_name_names_no_protocol(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("12:30.mov", "data:text.mp4", "file:clip.mp4"):
        Path(name).write_bytes((clips / "constant.mp4").read_bytes())
        check_video(name)
        assert is_video(name)
        assert numbers(read_video(name, 4).frames) == [0, 20, 39, 59]
        assert number_of(next(played(name, 1))[0]) == 0
        with LiveSource(name, fps=1) as source:
            assert number_of(next(source)[0]) == 0


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"frame {i}.png" for i in range(30)]
    for i, path in enumerate(paths):
        Image.fromarray(numbered(i)).save(path)
    return paths


def test_a_list_of_pictures_is_a_video(pictures: list[Path]) -> None:
    video = read_video(pictures, 4, fps=2)
    assert numbers(video.frames) == [0, 10, 19, 29]
    assert video.seconds.tolist() == [0, 5, 9.5, 14.5] and video.duration == 15 and video.fps == 2
    times = [i * i / 10 for i in range(30)]
    video = read_video([str(pictures[0]), *(path.as_uri() for path in pictures[1:])], 4, times=times, size=(32, 48))
    nearest = [int(np.abs(np.array(times) - time).argmin()) for time in np.linspace(0, times[-1], 4)]
    assert numbers(video.frames) == nearest and video.frames.shape == (4, 32, 48, 3)
    assert video.seconds == pytest.approx([times[i] for i in nearest])
    assert np.array_equal(Video.from_frames(pictures, fps=2).frames, read_video(pictures, 30, fps=2).frames)


def test_a_list_of_pictures_is_refused_by_what_is_wrong_with_it(pictures: list[Path], tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    Image.fromarray(numbered(0, 32, 32)).save(tmp_path / "small.png")
    for wrong, message in (
        ({}, "`fps=2`"),
        ({"fps": 2, "source": [*pictures, tmp_path / "missing.png"]}, "there is no picture '.*missing.png'"),
        ({"fps": 2, "source": [*pictures, tmp_path / "text.png"]}, "cannot read the picture '.*text.png'"),
        (
            {"fps": 2, "source": [*pictures, tmp_path / "small.png"]},
            r"small.png' has 32 × 32 pixels, but those before it have 96 × 64. Bring .* the `size` of `read_video`",
        ),
        ({"times": [*range(29), 1e13]}, r"`times` reaches 1e\+13 s, .* divide milliseconds by 1e3"),
        ({"fps": 2, "source": str(DEMO_VIDEO)}, "`fps` is for a list of pictures"),
        ({"times": [1, 2]}, "`times` holds 2 seconds, but there are 30 frames"),
    ):
        with pytest.raises(VideoError, match=message):
            read_video(**{"source": pictures, "num_frames": 40, **wrong})


def test_pictures_of_different_sizes_are_scaled_one_after_the_other(
    pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(numbered(1, 128, 96)).save(pictures[1])
    steps: list[str] = []

    def seen(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **rest: (steps.append(name), function(*arguments, **rest))[1]

    monkeypatch.setattr(reading, "rgb_frames", seen("read", reading.rgb_frames))
    monkeypatch.setattr(Image.Image, "resize", seen("scale", Image.Image.resize))
    video = read_video(pictures[:3], fps=1, size=(32, 48))
    assert numbers(video.frames) == [0, 1, 2] and video.frames.shape == (3, 32, 48, 3)
    assert steps == ["read", "scale"] * 3


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bad", "suffix"), [(30, "mp4"), (58, "mkv"), (59, "mp4")])
def test_one_bad_packet_loses_one_frame_of_60(clips: Path, tmp_path: Path, suffix: str, bad: int) -> None:
    broken = with_bad_packets(clips / "constant.mp4", tmp_path / f"bad.{suffix}", [bad])
    video = read_video(broken, 60)
    assert video.lost == 1 and len(video.frames) == 59
    assert read_video(clips / "constant.mp4", 60).lost == 0
    few = read_video(broken, 4)
    assert few.lost == 1 and len(few.frames) == 4 and few.seconds[0] == 0 and few.seconds[-1] >= 2.3


def test_a_bad_key_frame_loses_all_frames_that_depend_on_it(clips: Path, tmp_path: Path) -> None:
    video = read_video(with_bad_packets(clips / "constant.mp4", tmp_path / "bad.mp4", [0]), 60)
    assert video.lost == 60 - len(video.frames) > 1
    first = numbers(video.frames)[0]
    assert first > 0 and video.seconds[0] == first / 25  # times still count from the file's first frame


def test_a_file_without_a_single_good_frame_raises_an_error(clips: Path, tmp_path: Path) -> None:
    broken = with_bad_packets(clips / "constant.mp4", tmp_path / "bad.mp4", range(60))
    with pytest.raises(VideoError, match=r"none of its 60 frames decodes .*Is the file damaged"):
        read_video(broken, 4)


def test_any_damage_ends_in_frames_or_a_video_error(clips: Path, tmp_path: Path) -> None:
    """Random bytes and cuts: nothing else is raised, and what is returned holds together."""
    random = np.random.default_rng(0)
    outcomes = set()
    for source, kind in itertools.product(["constant.mp4", "variable.mkv", "variable.ts", "raw.h264"], range(6)):
        data = bytearray((clips / source).read_bytes())
        if kind < 2:
            data = data[: random.integers(1, len(data))]
        else:
            at = random.integers(len(data))
            data[at : at + 300] = random.bytes(len(data[at : at + 300]))
        path = tmp_path / f"damaged{Path(source).suffix}"
        path.write_bytes(data)
        try:
            video = read_video(path, 6)
        except VideoError:
            outcomes.add("error")
            continue
        outcomes.add("lost" if video.lost else "read")
        assert 1 <= len(video.frames) == len(video.seconds) <= 6
        assert (np.diff(video.seconds) > 0).all() and video.duration >= video.seconds[-1]
    assert outcomes == {"error", "lost", "read"}


# -- shown otherwise than it was filmed -------------------------------------------------------------------------------


@pytest.mark.parametrize(("transfer", "name"), [(16, "PQ"), (18, "HLG"), (1, None)])
def test_a_warning_says_that_hdr_comes_out_pale(tmp_path: Path, transfer: int, name: str | None) -> None:
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p10le"
        stream.codec_context.color_trc = transfer
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(numbered(number)).reformat(format="yuv420p10le")
            frame.color_trc = transfer
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for read in (lambda: read_video(path, 3), lambda: list(played(str(path), 25))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(getattr(found := read(), "frames", found)) == 3
        assert len(caught) == (name is not None)
        assert all(f"clip.mp4' is HDR ({name})" in str(warning.message) for warning in caught)


def test_a_warning_says_that_a_turned_picture_is_stretched(tmp_path: Path) -> None:
    """Another size of the same shape is only scaled."""
    shapes = {"landscape": (64, 96), "large": (128, 192), "portrait": (96, 64)}
    parts = {
        name: write_clip(tmp_path / f"{name}.ts", CONSTANT[:10], picture=lambda i, shape=shape: numbered(i, *shape))
        for name, shape in shapes.items()
    }
    turned = joined([parts["landscape"], parts["portrait"]], tmp_path / "turned.ts", seconds=10 / 25)
    larger = joined([parts["landscape"], parts["large"]], tmp_path / "larger.ts", seconds=10 / 25)
    for read in (lambda path: read_video(path, 20), lambda path: list(played(str(path), 25))):
        with pytest.warns(UserWarning, match=r"turned\.ts' changes from 96 × 64 to 64 × 96 pixels"):
            read(turned)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(larger)


# -- refused ----------------------------------------------------------------------------------------------------------


def write_sound(path: Path, cover: bool) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        if cover:
            picture = container.add_stream("mjpeg", rate=1)
            picture.height, picture.width, picture.pix_fmt = HEIGHT, WIDTH, "yuvj420p"
            picture.disposition = av.stream.Disposition.attached_pic
            shown = av.VideoFrame.from_ndarray(numbered(0), format="rgb24").reformat(format="yuvj420p")
            container.mux(picture.encode(shown))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("cover", [False, True])
def test_a_song_is_refused_even_with_a_cover_picture(tmp_path: Path, cover: bool) -> None:
    path = write_sound(tmp_path / "song.mp4", cover)
    with av.open(str(path)) as container:
        assert bool(container.streams.video) is cover
    with pytest.raises(VideoError, match="holds no video stream, only"):
        read_video(path, 4)


@pytest.mark.parametrize("codec", ["mjpeg", "png", "libx264"])
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mov"])
def test_a_cover_picture_that_is_not_marked_as_one_is_no_video(tmp_path: Path, name: str, codec: str) -> None:
    with av.open(str(tmp_path / name), "w") as container:
        cover, stream = container.add_stream(codec, rate=1), container.add_stream("libx264", rate=25)
        cover.height, cover.width = 4 * HEIGHT, 4 * WIDTH
        cover.pix_fmt = {"mjpeg": "yuvj420p", "png": "rgb24", "libx264": "yuv420p"}[codec]
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        shown = av.VideoFrame.from_ndarray(numbered(99, 4 * HEIGHT, 4 * WIDTH)).reformat(format=cover.pix_fmt)
        container.mux([*cover.encode(shown), *cover.encode(None)])
        for number in range(20):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(numbered(number))))
        container.mux(stream.encode(None))
    video = read_video(tmp_path / name, 20)
    assert numbers(video.frames) == list(range(20)) and video.seconds == pytest.approx(np.arange(20) / 25)


def test_what_is_no_video_is_refused_with_what_to_pass_instead(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "folder.mp4").mkdir()
    Image.fromarray(numbered(0)).save(tmp_path / "picture.mp4", format="PNG")
    for name, message in (
        ("empty.mp4", "'.*empty.mp4' is empty"),
        ("text.mp4", "'.*text.mp4': .* complete"),
        ("folder.mp4", "'.*folder.mp4' is a folder"),
        ("picture.mp4", "'.*picture.mp4' is named like a video, but is a picture of the format 'png'"),
    ):
        for read in (lambda path: read_video(path, 4), check_video):
            with pytest.raises(VideoError, match=message):
                read(str(tmp_path / name))
    with pytest.raises(VideoError, match=r"the pictures of one video, but '.*digit\.mp4' is named like a video"):
        read_video([DEMO_VIDEO, DEMO_VIDEO], fps=2)


def test_an_animated_webp_is_refused_by_its_name(tmp_path: Path) -> None:
    frames = [Image.fromarray(numbered(i)) for i in range(4)]
    frames[0].save(tmp_path / "moves.webp", save_all=True, append_images=frames[1:], duration=100)
    frames[3].save(tmp_path / "still.webp")
    assert numbers(read_video(tmp_path / "still.webp", 4).frames) == [3]
    for read in (lambda path: read_video(path, 4), lambda path: check_video(str(path))):
        with pytest.raises(VideoError, match=r"is an animated WebP, and FFmpeg \S+ has no decoder for it. Convert it"):
            read(tmp_path / "moves.webp")


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        *(({"num_frames": wrong}, "a whole number, at least 1") for wrong in (0, "4", 4.0, True, None)),
        *(({"size": wrong}, "height and width in pixels") for wrong in ("84", 84, (84,), (84, 0), (84.0, 84))),
        *(({"source": wrong}, "a path or an http(s) URL") for wrong in (3, None, b"clip.mp4", [3], [])),
    ],
    ids=str,
)
def test_an_argument_of_the_wrong_kind_is_refused_by_name(arguments: dict[str, Any], accepted: str) -> None:
    ((name, value),) = arguments.items()
    with pytest.raises(VideoError, match=re.escape(f"`{name}` is {value!r}, but must be {accepted}")):
        read_video(**{"source": DEMO_VIDEO, "num_frames": 4} | arguments)


def test_frames_that_are_decoded_already_are_refused_with_what_takes_them() -> None:
    array = np.zeros((2, 8, 8, 3), np.uint8)
    frames: Any
    for frames in (array, list(array), [Image.fromarray(array[0])], torch.from_numpy(array)):
        with pytest.raises(VideoError, match=r"`source` is of the type .* already, call `vidcom2.Video.from_frames`"):
            read_video(frames)


@pytest.mark.parametrize("size", [(16384, 16384), lambda *_: (16384, 16384)], ids=["numbers", "a function"])
def test_a_size_that_no_frame_can_have_is_refused_by_name(
    size: Any, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on pixels comes first, and then that of FFmpeg."""
    for arguments in ({"source": DEMO_VIDEO}, {"source": pictures, "fps": 1}):
        with pytest.raises(
            VideoError, match=r"`size` .*\(16384, 16384\), .* 268,435,456 pixels.*VIDCOM2_MAX_FRAME_PIXELS"
        ):
            read_video(**arguments, num_frames=1, size=size)
    monkeypatch.setenv("VIDCOM2_MAX_FRAME_PIXELS", str(10**9))
    with pytest.raises(VideoError, match=r"FFmpeg cannot scale .* a height of 16384 .* Pass a smaller `size`"):
        read_video(DEMO_VIDEO, 1, size=size)


@pytest.mark.parametrize("wrong", [84, (84,), (84, 0), "84"])
def test_a_function_that_returns_no_size_is_named(wrong: Any, clips: Path) -> None:
    message = f"for frames 64 pixels high and 96 wide, the function `size` returned {wrong!r}, but must return height"
    with pytest.raises(VideoError, match=re.escape(message)):
        read_video(clips / "constant.mp4", 4, size=lambda *_: wrong)


@pytest.mark.parametrize("fps", [float("nan"), float("inf"), 0, -1.0, "2", None])
def test_a_video_has_a_frame_rate(fps: Any) -> None:
    with pytest.raises(VideoError, match=re.escape(f"`fps` is {fps!r}, but must be a finite number above 0")):
        Video(np.zeros((1, 8, 8, 3), np.uint8), np.arange(1), fps, 1)
