"""What a stranger's video or picture cannot do: show other files, start programs, or take memory and time without
bounds."""

import gzip
import os
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import sleep
from typing import Any

import av
import pytest
from make_clips import joined, number_of, numbered, write_clip
from PIL import EpsImagePlugin, Image
from test_stream import Folder, served, serving

from vidcom2.toys import TOY
from vidcom2.video import live_source
from vidcom2.video.file import VideoError, is_video
from vidcom2.video.frames import rgb_frames
from vidcom2.video.live_source import LiveSource, played
from vidcom2.video.reading import check_video, read_video

READERS: dict[str, Callable[[str], Any]] = {
    "read_video": lambda path: read_video(path, 4),
    "check_video": check_video,
    "LiveSource": lambda path: LiveSource(path).close(),
    "played": lambda path: next(played(path, 2)),
}


def hls(name: str) -> str:
    return f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{name}\n#EXT-X-ENDLIST\n"


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video that its owner showed to nobody."""
    return write_clip(tmp_path_factory.mktemp("private") / "secret.ts", [i / 25 for i in range(50)], tick=None)


# -- other files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_names_other_files_is_refused(tmp_path: Path, secret: Path, reader: str) -> None:
    beside = tmp_path / "beside.ts"
    beside.write_bytes(secret.read_bytes())
    for number in range(3):
        Image.fromarray(numbered(number)).save(tmp_path / f"beside{number}.png")
    for name, text in (
        ("clip.m3u8", hls(str(secret))),
        ("clip.m3u", hls(secret.as_uri())),
        ("clip.mp4", "ffconcat version 1.0\nfile beside.ts\n"),
        ("clip.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 33\n"),
        ("beside%d.png", "a pattern that FFmpeg fills in"),
    ):
        path = tmp_path / name
        path.write_text(text)
        assert not is_video(str(path)), name
        with pytest.raises(VideoError, match="names other files, as playlists do, or is no video"):
            READERS[reader](str(path))


def test_a_live_source_follows_a_playlist_to_its_server_and_to_no_file_of_this_machine(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_source, "TIMEOUT", 2.0)
    (tmp_path / "part.ts").write_bytes(secret.read_bytes())
    (tmp_path / "clip.m3u8").write_text(hls("part.ts"))
    (tmp_path / "list").write_text("ffconcat version 1.0\nfile part.ts\n")
    with serving(partial(Folder, directory=str(tmp_path))) as url:
        with LiveSource(f"{url}/clip.m3u8") as source:
            assert number_of(next(source)[0]) == 0
        with pytest.raises(VideoError, match="cannot open the live video"):
            LiveSource(f"{url}/list")
    with served([hls(secret.as_uri()).encode()]) as url, pytest.raises(VideoError, match="cannot open the live video"):
        LiveSource(f"{url}/clip.m3u8")


# -- programs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def postscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A picture that holds PostScript, on a machine where Ghostscript leaves a trace."""
    tools, trace = tmp_path / "tools", tmp_path / "ghostscript ran"
    tools.mkdir()
    (tools / "gs").write_text(f"#!/bin/sh\ntouch '{trace}'\n")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # where PIL remembers what it found
    path = tmp_path / "a.jpg"
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\nshowpage\n%%EOF\n")
    yield path
    assert not trace.exists()


def test_no_picture_starts_a_program(postscript: Path) -> None:
    with pytest.raises(VideoError, match=r"cannot read the picture .*a\.jpg"):
        read_video([postscript], fps=1)
    with pytest.raises(VideoError, match=r"cannot read the picture .*a\.jpg"):
        rgb_frames([str(postscript)])


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clip.mp4", "clip.ts", "clip.mkv"])
def test_frames_of_too_many_pixels_are_refused_before_they_are_decoded(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_clip(tmp_path / name, [i / 25 for i in range(10)], picture=lambda i: numbered(i, 96, 128)))
    monkeypatch.setenv("VIDCOM2_MAX_FRAME_PIXELS", str(96 * 128 - 1))
    for read in READERS.values():
        with pytest.raises(VideoError, match=r"128 × 96 pixels.* 12,287.*VIDCOM2_MAX_FRAME_PIXELS"):
            read(path)
    monkeypatch.setenv("VIDCOM2_MAX_FRAME_PIXELS", str(96 * 128))
    for read in READERS.values():
        read(path)


def test_frames_that_become_too_large_in_mid_video_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        write_clip(
            tmp_path / f"{side}.ts", [i / 25 for i in range(25)], picture=lambda i, side=side: numbered(i, side, 64)
        )
        for side in (48, 96)
    ]
    path = joined(parts, tmp_path / "clip.ts", seconds=1)
    monkeypatch.setenv("VIDCOM2_MAX_FRAME_PIXELS", str(64 * 48))
    video = read_video(path, 50)
    assert video.lost == 25 and [number_of(frame) for frame in video.frames] == list(range(25))


def test_pixels_that_are_shown_wide_count_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.codec_context.sample_aspect_ratio = 3
        container.mux([*stream.encode(av.VideoFrame.from_ndarray(numbered(0, 48, 64))), *stream.encode(None)])
    assert read_video(path, 1).frames.shape == (1, 48, 192, 3)
    monkeypatch.setenv("VIDCOM2_MAX_FRAME_PIXELS", str(64 * 48))
    with pytest.raises(VideoError, match="192 × 48 pixels"):
        read_video(path, 1)
    assert read_video(path, 1, size=(24, 96)).frames.shape == (1, 24, 96, 3)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "picture.png"
    Image.fromarray(numbered(3, 96, 128)).save(path)
    path.write_bytes(path.read_bytes()[:60])  # which says the size, and holds no pixel
    monkeypatch.setenv("VIDCOM2_MAX_FRAME_PIXELS", str(96 * 128 - 1))
    with pytest.raises(VideoError, match=r"128 × 96 pixels.* 12,287.*VIDCOM2_MAX_FRAME_PIXELS"):
        read_video([path], fps=1)


@pytest.mark.parametrize("value", ["0", "many", "-1", "1.5", ""])
def test_a_bound_that_is_no_number_is_refused_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDCOM2_MAX_FRAME_PIXELS", value)
    with pytest.raises(VideoError, match=f"`VIDCOM2_MAX_FRAME_PIXELS` is '?{value}'?, but must be a whole number"):
        read_video(TOY.clips[0].path, 2)


class Stranger(BaseHTTPRequestHandler):
    """A server that never comes to an end, in a way that the address names."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        way = self.path.strip("/")
        if way == "redirects":
            self.send_response(302)
            self.send_header("Location", "/redirects")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if way == "slow-header":
            self.drip(b"HTTP/1.1 200 OK\r\nX: ", b"x")
        self.send_response(200)
        if way == "bomb":
            self.send_header("Content-Encoding", "gzip")
            content = gzip.compress(bytes(20_000_000))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        if way == "announced":
            self.send_header("Content-Length", str(10**15))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if way == "slow-body":
            self.drip(b"", b"x")
        self.drip(b"", bytes(1000), pause=0.0)

    def drip(self, beginning: bytes, drop: bytes, pause: float = 0.05) -> None:
        self.wfile.write(beginning)
        while True:  # until the other side leaves
            self.wfile.write(drop)
            sleep(pause)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("endless", r"too many bytes.* 100,000 .*VIDCOM2_MAX_DOWNLOAD_BYTES"),
        ("announced", r"too many bytes.* 100,000 .*VIDCOM2_MAX_DOWNLOAD_BYTES"),
        ("bomb", r"too many bytes.* 100,000 .*VIDCOM2_MAX_DOWNLOAD_BYTES"),
        ("slow-body", r"too many seconds.* 1 .*VIDCOM2_MAX_DOWNLOAD_SECONDS"),
        ("slow-header", r"too many seconds.* 1 .*VIDCOM2_MAX_DOWNLOAD_SECONDS"),
        ("redirects", "redirects"),
    ],
)
def test_a_download_ends(way: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIDCOM2_MAX_DOWNLOAD_BYTES", "100000")
    monkeypatch.setenv("VIDCOM2_MAX_DOWNLOAD_SECONDS", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with serving(Stranger) as url, pytest.raises(VideoError, match=f"cannot download '{url}/{way}'.*{reason}"):
        read_video(f"{url}/{way}", 2)
    assert list(tmp_path.iterdir()) == []
