"""A live source plays at its own speed and comes back after a breakdown; `vidcom2 chat --stream` answers about it."""

import os
import re
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from make_clips import number_of, numbered, remuxed, write_clip
from test_chat import chat
from test_cli_errors import mistake

from vidcom2.cli import chat_stream
from vidcom2.cli.app import app
from vidcom2.cli.chat_stream import StreamChat
from vidcom2.toys import TOY
from vidcom2.video import live_source
from vidcom2.video.file import VideoError
from vidcom2.video.live_source import LiveSource, played

FRAMES = 50  # of two seconds


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(live_source, "TIMEOUT", 2.0)
    monkeypatch.setattr(live_source, "FIRST_PAUSE", 0.02)
    yield
    until = monotonic() + 30  # on a busy machine
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("vidcom2")]:
        assert monotonic() < until, left
        sleep(0.01)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of 25 frames a second, which can be read while it arrives."""
    return write_clip(tmp_path_factory.mktemp("stream") / "clip.mkv", [i / 25 for i in range(FRAMES)])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only goes on when the source waits, once the last frame was taken. Returns when it woke up."""
    woke_up = [0.0]

    def wait(source: Any, seconds: float) -> None:
        while source._waiting is not None and not source._stopping.is_set():
            sleep(0.001)
        woke_up.append(woke_up[-1] + max(0.0, seconds))

    monkeypatch.setattr(live_source, "monotonic", lambda: 100 + woke_up[-1])
    monkeypatch.setattr(LiveSource, "_wait", wait)
    return woke_up


@contextmanager
def served(parts: Sequence[bytes | None]) -> Iterator[str]:
    """Serve over TCP, at each connection the next part, and then close it. The last one is sent again to all others,
    and these connections stay open. For None the connection is closed at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            for part in [*parts, *[parts[-1]] * 100]:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                connection.sendall(part or b"")
                if len(held) < len(parts) - 1:
                    connection.close()
                held.append(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


class Folder(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    """Serve HTTP on this machine, and yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.handle_error = True, lambda *_: None  # the other side may leave at any time
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_file_is_played_at_its_own_speed(clip: Path, clock: list[float]) -> None:
    with LiveSource(str(clip), fps=2) as source:
        shown = [(number_of(frame), seconds) for frame, seconds in source]
    assert shown == [(0, 0.0), (13, 0.52), (25, 1.0), (38, 1.52)]
    assert clock[1:] == pytest.approx([0.0, 0.52, 1.0, 1.52]) and source.dropped == 0


def test_frames_that_nobody_takes_are_dropped_and_counted(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = threading.Semaphore(0)  # how many more frames the clock lets through

    def wait(source: Any, seconds: float) -> None:
        while not source._stopping.is_set() and not shown.acquire(timeout=0.01):
            pass

    monkeypatch.setattr(LiveSource, "_wait", wait)
    with LiveSource(str(clip), fps=100) as source:
        shown.release()
        sleep(0.1)  # a file waits until the first frame is asked for
        assert source._started is None and number_of(next(source)[0]) == 0
        shown.release(15)
        until = monotonic() + 60
        while source.dropped < 14 and monotonic() < until:
            sleep(0.001)
        assert number_of(next(source)[0]) == 15 and source.dropped == 14


def test_a_connection_that_breaks_off_is_opened_again(
    clip: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time goes on meanwhile, and is the time since the first frame."""
    data, opening = clip.read_bytes(), LiveSource._open
    monkeypatch.setattr(LiveSource, "_open", lambda source: (clock.append(clock[-1] + 0.5), opening(source))[1])
    shown: list[tuple[int, float]] = []
    with served([data[: len(data) // 2], None, data]) as url, LiveSource(url, fps=5) as source:
        while not source.reopened or shown[-1][0] < 20:
            frame, seconds = next(source)
            shown.append((number_of(frame), seconds))
    numbers, times = zip(*shown)
    again = numbers.index(0, 1)  # where the video begins anew
    before = numbers[:again]
    assert source.reopened == 1 and source.dropped == 0 and again > 1
    assert times[:again] == pytest.approx([number / 25 for number in before])
    assert times[again:] == pytest.approx([times[again - 1] + 1 + number / 25 for number in numbers[again:]])


def test_a_connection_that_hangs_can_be_closed(clip: Path) -> None:
    with served([clip.read_bytes()]) as url:
        with LiveSource(url, fps=25) as source:
            sleep(0.2)
            with source._changed:  # no frame comes in between
                next(source)
                assert source.dropped == 0  # nobody had asked for the frames before
            sleep(2)  # all that was sent has been shown
        assert list(source) == []
    with served([b""]) as url, pytest.raises(VideoError, match=r"sent nothing in 2 s\. Does the address lead to"):
        LiveSource(url)


@pytest.fixture
def arrivals(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the frames of a source arrive, by the test's clock. To be filled in."""
    times: list[float] = []
    stamped = live_source._stamped

    def arriving(*arguments: Any) -> Iterator[Any]:
        for time, frame in zip(times, stamped(*arguments)):
            clock.append(max(clock[-1], time))
            yield frame

    monkeypatch.setattr(live_source, "_stamped", arriving)
    return times


def shown_until(source: LiveSource, last: int) -> list[tuple[int, float]]:
    """Return the numbers and times of the frames that are shown, up to a number."""
    shown: list[tuple[int, float]] = []
    given_up = threading.Timer(30, source._stop)  # if that number never comes
    given_up.start()
    for frame, seconds in source:
        shown.append((number_of(frame), seconds))
        if shown[-1][0] >= last:
            break
    given_up.cancel()
    return shown


def test_what_a_server_sends_at_once_in_the_beginning_is_no_delay_later(tmp_path: Path, arrivals: list[float]) -> None:
    """The first 8 s of 12 arrive at once, and the others when they are filmed."""
    path = write_clip(tmp_path / "clip.ts", [i / 10 for i in range(120)], rate=10, tick=None, options={"bf": "0"})
    arrivals += [0.0] * 80 + [i / 10 for i in range(1, 41)]
    with served([path.read_bytes(), b""]) as url, LiveSource(url, fps=2) as source:
        shown = shown_until(source, 114)
    assert shown[0] == (0, 0.0)
    assert shown[1:] == [(number, pytest.approx((number - 79) / 10)) for number in range(84, 115, 5)]


def test_a_late_frame_has_its_own_time(tmp_path: Path, arrivals: list[float]) -> None:
    """Frames that a slow network holds back do not move the clock."""
    path = write_clip(tmp_path / "clip.ts", [i / 10 for i in range(40)], rate=10, tick=None, options={"bf": "0"})
    arrivals += [i / 10 + (1.5 if 10 <= i < 20 else 0.05 * (i % 2)) for i in range(40)]
    with served([path.read_bytes(), b""]) as url, LiveSource(url, fps=2) as source:
        shown = shown_until(source, 35)
    assert shown == [(number, pytest.approx(number / 10)) for number in range(0, 40, 5)]


def test_the_segments_of_a_playlist_are_played_at_their_own_speed(
    tmp_path: Path, arrivals: list[float], clock: list[float]
) -> None:
    path = write_clip(tmp_path / "part.ts", [i / 10 for i in range(40)], rate=10, tick=None, options={"bf": "0"})
    parts = "".join(f"#EXTINF:4,\n{path.name}\n" for _ in range(2))
    (tmp_path / "live.m3u8").write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n{parts}")  # to which more may be added
    arrivals += [0.0] * 40
    with serving(partial(Folder, directory=str(tmp_path))) as url, LiveSource(f"{url}/live.m3u8", fps=2) as source:
        shown = shown_until(source, 35)
    assert shown == [(number, pytest.approx(number / 10)) for number in range(0, 40, 5)]
    assert clock[-1] == pytest.approx(3.5)


@pytest.mark.parametrize("name", ["live.mkv", "clip.ts", "clip.h264"])
def test_a_file_at_a_url_is_played_at_its_own_speed_without_a_known_duration(
    name: str, tmp_path: Path, clock: list[float]
) -> None:
    """The server states its length."""
    tick = None if name == "clip.h264" else Fraction(1, 1000)
    path = write_clip(tmp_path / f"whole-{name}", [i / 25 for i in range(FRAMES)], tick=tick, options={"bf": "0"})
    if name == "live.mkv":
        path = remuxed(path, tmp_path / name, live="1")
    with serving(partial(Folder, directory=str(tmp_path))) as url, LiveSource(f"{url}/{path.name}", fps=2) as source:
        shown = shown_until(source, 38)
    assert shown == [(number, pytest.approx(number / 25, abs=1e-3)) for number in (0, 13, 25, 38)]
    assert source.reopened == source.dropped == 0


def test_a_warning_says_that_a_file_without_a_length_counts_as_live(tmp_path: Path, clock: list[float]) -> None:
    path = write_clip(tmp_path / "clip.ts", [i / 25 for i in range(FRAMES)], options={"bf": "0"})
    warned = pytest.warns(
        UserWarning, match=r"sends its video at once and ends, as a file does.*If it is a file, download"
    )
    with served([path.read_bytes()] * 3) as url, warned as found, LiveSource(url, fps=25) as source:
        until = monotonic() + 30
        while source.reopened < 2 and monotonic() < until:
            assert source.reopened or not found.list  # A stream may begin with what was filmed before.
            source._waiting = None  # as if the frame was taken
            sleep(0.01)


def test_a_source_that_does_not_come_back_says_why(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again, and shown once it is there again."""
    monkeypatch.setattr(live_source, "LONGEST_PAUSE", 0.05)
    data, gone, asked = clip.read_bytes(), threading.Event(), []

    class Server(Folder):
        def do_GET(self) -> None:
            asked.append(gone.is_set())
            self.send_response(404 if gone.is_set() else 200)
            self.send_header("Content-Length", "0" if gone.is_set() else str(len(data)))
            self.end_headers()
            self.wfile.write(b"" if gone.is_set() else data)

    with serving(Server) as url, LiveSource(f"{url}/clip.mkv", fps=1) as source:
        next(source)
        with pytest.warns(UserWarning, match=r"clip.mkv' broke off and has not come back: .*404 Not Found") as warned:
            gone.set()
            until = monotonic() + 30
            while asked.count(True) < 6 and monotonic() < until:
                sleep(0.01)
        assert "404" in str(source.last_error) and len(warned) == 1
        source._waiting = None
        gone.clear()
        next(source)
        assert source.last_error is None and source.reopened


@pytest.mark.parametrize(("shape", "is_stretched"), [((48, 96), True), ((128, 192), False)])
def test_a_source_that_comes_back_in_another_shape_is_stretched_with_one_warning(
    shape: tuple[int, int], is_stretched: bool, clip: Path, tmp_path: Path, clock: list[float]
) -> None:
    times = [i / 25 for i in range(FRAMES)]
    other = write_clip(tmp_path / "other.mkv", times, picture=lambda i: numbered(i, *shape))
    parts = [clip.read_bytes(), *[other.read_bytes()] * 3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with served(parts) as url, LiveSource(url, fps=2) as source:
            while source.reopened < 2:
                assert next(source)[0].shape == (64, 96, 3)
    messages = [str(each.message) for each in caught]
    assert len(messages) == is_stretched
    assert all("came back with 96 × 48 pixels instead of 96 × 64" in message for message in messages)


CAMERAS_WITHOUT_TIMES = {
    "h264": ("libx264", "yuv420p", {"bf": "0", "tune": "zerolatency"}),
    "mjpeg": ("mjpeg", "yuvj420p", {}),
}


@pytest.mark.parametrize("pause", [0.02, 1.0])
@pytest.mark.parametrize("name", CAMERAS_WITHOUT_TIMES)
def test_a_frame_without_a_time_is_shown_when_it_arrives(
    name: str, pause: float, tmp_path: Path, arrivals: list[float]
) -> None:
    """Also from a camera that sends 50 a second, or one."""
    codec, pixels, options = CAMERAS_WITHOUT_TIMES[name]
    path = write_clip(tmp_path / f"clip.{name}", range(100), codec, pixels, tick=None, options=options)
    arrivals += [i * pause for i in range(100)]
    with served([path.read_bytes(), b""]) as url, LiveSource(url, fps=1) as source:
        shown = shown_until(source, 49)
    every = max(1, round(1 / pause))
    assert shown == [(number, pytest.approx(number * pause)) for number in range(0, 50 + every, every)][: len(shown)]
    assert len(shown) == (50 if pause == 1 else 2)


def test_chat_answers_about_all_that_was_streamed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    toy, ended = TOY.clips[0], threading.Event()
    said = chat_stream.print_line
    monkeypatch.setattr(chat_stream, "print_line", lambda *line: (said(*line), ended.set()))
    reading, writing = os.pipe()

    def ask() -> None:
        with open(writing, "w") as lines:
            lines.write("A <video>?\nWhat is it?\n")
            lines.flush()
            ended.wait(60)
            lines.write(f"{toy.question}\n{toy.question}\n/quit\n")

    asking = threading.Thread(target=ask)
    asking.start()
    with open(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        app(["chat", "--stream", str(toy.path), "--fps", "4"], standalone_mode=False)
    asking.join()
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines.count(toy.answer) >= 2 and printed.err.count("contains '<video>'") == 1
    assert lines.count("(the video has ended at 0:03: questions are about all of it)") == 1
    assert lines[-4:] == [toy.answer, "(at 0:03, 400 of 400 scored tokens remembered)"] * 2


def test_what_a_live_video_cannot_remember_ends_the_chat() -> None:
    code, _, error = chat("What?\nWhat?\n", "--stream", TOY.clips[0].path, "--max-video-tokens", 10)
    assert code == 2 and error.count("`--max-video-tokens` is 10, but the last 4 frames alone have 100 tokens") == 1


MISTAKES = {
    "no file": (["none.mp4"], r"no video file 'none.mp4'. Pass a file, a URL .* rtsp, .* or `camera`"),
    "an unknown scheme": (["gopher://host/x"], "no video file 'gopher://host/x'"),
    "no server": (["tcp://127.0.0.1:1"], "cannot open the live video .*Connection refused. Does the address"),
    "no number of a camera": (["camera:x"], r"no camera 'camera:x'. The first .* `camera` .* the second `camera:1`"),
    "a camera in upper case": (["Camera"], "no camera 'Camera'.* in lower case"),
    "no camera": (["camera:99"], "cannot open the live video 'camera:99'.* plugged in"),
    "no video": ([__file__], "cannot read the video .*Is it a video file"),
    "no frame rate": (["none.mp4", "--fps", 0], "`--fps` is 0.0, but must be"),
    "nothing": ([" "], "`--stream` is ' ': empty"),
    "a video too": (["none.mp4", "clip.mp4"], "`video` does not apply to a live video, which --stream names"),
    "a number of frames": (["none.mp4", "--num-frames", 8], "`--num-frames` does not apply to a live"),
    "a way to encode": (["none.mp4", "--vision-method", "full"], "none.mp4"),  # which it takes
    "a ratio": (["none.mp4", "--retention-ratio", 0.5], "`--retention-ratio` does not apply to a live"),
    "recommended settings": (["none.mp4", "--recommended"], "`--recommended` does not apply to a live"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_chat_refuses_a_stream_that_it_cannot_watch(name: str) -> None:
    arguments, reason = MISTAKES[name]
    assert re.search(reason, mistake("chat", "--stream", *arguments))


def test_frames_without_times_are_played_at_the_rate_of_the_stream(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "raw.h264", range(40), tick=None, options={"g": "5", "bf": "0"})
    assert [seconds for _, seconds in played(str(path), 5)] == pytest.approx(np.arange(0, 1.6, 0.2))


@pytest.mark.parametrize(
    ("name", "rate", "options"),
    [("clip.mkv", 25, {}), ("clip.mkv", 30, {}), ("clip.avi", 25, {"bf": "0"}), ("clip.avi", 25, {"bf": "2"})],
)
def test_at_the_rate_of_a_file_all_its_frames_are_shown(
    name: str, rate: int, options: dict[str, str], tmp_path: Path
) -> None:
    """Times are rounded, and AVI says when a frame is stored, which B-frames are not shown in the order of."""
    tick = Fraction(1, 1000) if name == "clip.mkv" else None
    path = write_clip(tmp_path / name, [i / rate for i in range(60)], rate=rate, tick=tick, options=options)
    shown = [(number_of(frame), seconds) for frame, seconds in played(str(path), rate)]
    assert shown == [(number, pytest.approx(number / rate, abs=6e-4)) for number in range(60)]


def test_a_file_is_played_on_where_its_time_stamps_jump_ahead(tmp_path: Path) -> None:
    """All from the 25th frame on, or that of the last frame."""
    right = [i / 25 for i in range(FRAMES)]
    for name, first, message in (
        ("all.mkv", 25, "from 1.0 s to 95443.0 s"),
        ("last.mkv", FRAMES - 1, "from 1.9 s to 95444.0 s"),
        ("all.mp4", 25, "from 1.0 s to 95443.0 s"),
    ):
        times = [second + 95_442 * (i >= first) for i, second in enumerate(right)]
        path = write_clip(tmp_path / name, times, options={"bf": "0"})
        with pytest.warns(UserWarning, match=rf"{name}' jump {message}") as warned:
            shown = [seconds for _, seconds in played(str(path), 25)]
        assert len(warned) == 1 and shown == pytest.approx(right, abs=2e-3)


@pytest.mark.parametrize("times", [[0.0, 0.04, 2.0, 24.0, 25.0], [0.0, 12.0, 14.0, 16.0], [0.0, 3000.0]], ids=str)
def test_stills_of_a_file_keep_their_times(times: list[float], tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mkv", times, options={"bf": "0"})
    assert [seconds for _, seconds in played(str(path), 25)] == pytest.approx(times, abs=2e-3)


@pytest.mark.parametrize(("size", "is_file"), [(10**6, True), (0, False), (2**31 - 1, False), (10**12 - 1, False)])
def test_a_length_that_a_server_makes_up_makes_no_file(size: int, is_file: bool) -> None:
    container: Any = SimpleNamespace(duration=None, size=size, format=SimpleNamespace(name="mpegts"))
    assert live_source._is_file(container) is is_file


@pytest.mark.parametrize("fps", ["2", None, 0, -1, float("inf"), float("nan"), True])
def test_a_frame_rate_that_is_no_positive_number_is_refused(fps: Any, clip: Path) -> None:
    for play in (lambda: LiveSource(clip, fps), lambda: list(played(str(clip), fps))):
        with pytest.raises(VideoError, match=re.escape(f"`fps` is {fps!r}, but must be a finite number above 0")):
            play()


def test_a_source_may_be_a_path_and_nothing_else_than_a_text(clip: Path) -> None:
    with LiveSource(clip) as source:
        assert source.is_file and number_of(next(source)[0]) == 0
    wrong: Any
    for wrong in (3, None, b"clip.mkv"):
        with pytest.raises(
            VideoError, match=re.escape(f"`source` is {wrong!r}, but must be a path, a URL or `camera`")
        ):
            LiveSource(wrong)


class OneFrame(list):
    def close(self) -> None:
        pass


def test_leaving_ends_a_thread_that_waits_for_an_interrupted_answer() -> None:
    live: Any = SimpleNamespace(num_frames=1, add=lambda *_: None)
    source: Any = OneFrame([(None, 0.0)])
    waiting = StreamChat(live, source, {})
    waiting._answering = True  # as Ctrl-C may leave it
    with waiting:
        sleep(0.05)
    assert not waiting._thread.is_alive()
