"""A stream is played at its own speed, never queued, opened again when it breaks off, and left without a trace."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from test_chat import chat

from vidcom2.toys import DEMO_VIDEO
from vidcom2.video import live_source
from vidcom2.video.live_source import LiveSource
from vidcom2.video.reading import VideoError, read_video


class Clock:
    """Time that only passes when somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: LiveSource) -> None:
        self.now = 100.0
        monkeypatch.setattr("vidcom2.video.live_source.time.monotonic", lambda: self.now)
        monkeypatch.setattr(source._stopped, "wait", self.wait)

    def wait(self, seconds: float) -> bool:
        self.now += max(0.0, seconds)
        return False


def test_a_file_is_played_at_its_own_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LiveSource(str(DEMO_VIDEO), fps=4)  # that of the clip
    clock = Clock(monkeypatch, source)
    frames, times = [], []
    for frame, seconds in source:
        frames.append(frame)
        times.append((seconds, clock.now - 100))
    assert times == [(pytest.approx(number / 4), pytest.approx(number / 4)) for number in range(16)]
    assert np.array_equal(np.stack(frames), read_video(str(DEMO_VIDEO), 16).frames)


def test_fewer_frames_are_taken_of_a_fast_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LiveSource(str(DEMO_VIDEO), fps=1)
    Clock(monkeypatch, source)
    assert [seconds for _, seconds in source] == [0, 1, 2, 3] and source.dropped == 0


def test_frames_that_come_while_the_caller_is_busy_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LiveSource(str(DEMO_VIDEO), fps=4)
    clock = Clock(monkeypatch, source)
    times = []
    for _, seconds in source:
        times.append(seconds)
        if seconds == 0.5:
            clock.wait(2.0)
    assert times == [0, 0.25, 0.5, *np.arange(2.25, 4, 0.25)] and source.dropped == 6


def test_a_stream_that_is_decoded_too_slowly_still_gives_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LiveSource(str(DEMO_VIDEO), fps=4)
    clock = Clock(monkeypatch, source)
    timed = live_source._timed

    def slowly(*args: Any) -> Iterator[tuple[av.VideoFrame, float]]:
        for each in timed(*args):
            clock.wait(1.5)
            yield each

    monkeypatch.setattr(live_source, "_timed", slowly)
    assert 2 < len(list(source)) < 16 and source.dropped > 8


@pytest.fixture
def transport_stream(tmp_path: Path) -> bytes:
    path = tmp_path / "clip.ts"
    with av.open(str(path), "w", format="mpegts") as container:
        stream = container.add_stream("mpeg2video", rate=25, options={"g": "1"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(50):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 5 * number, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def test_a_stream_that_breaks_off_is_opened_again_and_its_time_goes_on(
    monkeypatch: pytest.MonkeyPatch, transport_stream: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(transport_stream)
            server.close()

        thread = threading.Thread(target=serve)
        thread.start()
        source = LiveSource(f"tcp://127.0.0.1:{server.getsockname()[1]}", fps=5)
        clock = Clock(monkeypatch, source)
        times = []
        for frame, seconds in source:
            assert frame.shape == (48, 64, 3)
            times.append(seconds)
            if len(times) == 16:  # of ten in each connection
                source.stop()
        thread.join()
    assert source.reopened == 1 and len(times) == 16
    assert (np.diff(times) >= 0.199).all()
    assert times[10] - times[9] >= 0.999 * live_source.PAUSES[0] and times[-1] == pytest.approx(
        clock.now - 100, abs=0.01
    )


def test_what_cannot_be_watched_is_one_error(tmp_path: Path) -> None:
    silent = tmp_path / "sound.wav"
    with av.open(str(silent), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    for name, message in [
        ("none.mp4", "there is no video file 'none.mp4'.*A stream may also be"),
        (str(tmp_path), "is a folder"),
        (str(silent), "no video stream"),
        ("tcp://127.0.0.1:9", "cannot open 'tcp://127.0.0.1:9' as a stream: .*refused"),
        ("camera:77", "cannot open 'camera:77' as a stream"),
    ]:
        with pytest.raises(VideoError, match=message):
            next(iter(LiveSource(name)))


def test_the_command_answers_about_a_stream_and_leaves_no_thread() -> None:
    code, said, errors = chat("What is the digit?\n\n/quit\nWhy?\n", "--stream", DEMO_VIDEO, "--max-new-tokens", 4)
    assert code == 0 and said.count(" tokens of ") == 1, (said, errors)
    assert not [thread for thread in threading.enumerate() if thread.name == "viewer"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([DEMO_VIDEO, "--stream", DEMO_VIDEO], "`--stream` is"),
        (["--stream", DEMO_VIDEO, "--retention-ratio", 0.5], "`--retention-ratio` is 0.5"),
        (["--stream", "none.mp4"], "there is no video file 'none.mp4'"),
        (["--stream", DEMO_VIDEO, "--max-video-tokens", 20], "`--max-video-tokens` is 20, but the last 4 frames"),
    ],
)
def test_the_command_refuses_what_does_not_go_with_a_stream(arguments: list[Any], message: str) -> None:
    code, _, errors = chat("What?\n", *arguments)
    assert code == 2 and message in " ".join(errors.split())
