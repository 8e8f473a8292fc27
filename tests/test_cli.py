"""`vidcom2 run` and `vidcom2 explain` as a user types them."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import Family
from PIL import Image
from transformers import AutoConfig
from typer.testing import CliRunner

from vidcom2.checkpoints import load_checkpoint
from vidcom2.cli import DEMO_VIDEO, app
from vidcom2.explain import DIMMED, explain
from vidcom2.video import VideoError, read_video

FAST = ["--num-frames", "6", "--max-new-tokens", "2"]


def vidcom2(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def write_video(path: Path, num_frames: int, size: tuple[int, int] = (96, 64), codec: str = "libx264") -> Path:
    """Frame i is of one grey, 10·i."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=5)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for i in range(num_frames):
            frame = np.full((size[1], size[0], 3), 10 * i % 256, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def folder_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("served")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# -- run --------------------------------------------------------------------------------------------------------------


def test_without_arguments_run_is_a_demo_and_says_so() -> None:
    code, shown, _ = vidcom2("run", *FAST)
    assert code == 0
    assert "Demo" in shown and "random weights" in shown and "clip that comes with vidcom2" in " ".join(shown.split())
    for part in ("prompt tokens", "video tokens", "language model prefill", "whole generate", "k_t", "Answer at 0.25"):
        assert part in shown


def test_json_holds_measured_figures_that_fit_together() -> None:
    code, shown, _ = vidcom2("run", "--num-frames", 8, "--max-new-tokens", 3, "--retention-ratio", 0.5, "--json")
    assert code == 0
    run = json.loads(shown)
    full, short = run["uncompressed"], run["compressed"]
    assert full["video_tokens"] == 8 * run["tokens_per_frame"] + 1
    assert short["video_tokens"] == sum(run["frame_budgets"]) + 1
    assert full["prompt_tokens"] - short["prompt_tokens"] == full["video_tokens"] - short["video_tokens"]
    assert run["kept_share"] == pytest.approx(sum(run["frame_budgets"]) / (8 * run["tokens_per_frame"]))
    assert len(run["frame_budgets"]) == len(run["frame_seconds"]) == len(run["frame_uniqueness"]) == 8
    for measured in (full, short):
        assert 0 < measured["prefill_seconds"] < measured["total_seconds"] and 1 <= measured["new_tokens"] <= 3
    assert run["retention_ratio"] == 0.5 and {"torch", "transformers", "device"} <= run["environment"].keys()


def test_the_interruption_in_the_demo_video_gets_the_largest_budgets() -> None:
    run = json.loads(vidcom2("run", "--num-frames", 32, "--max-new-tokens", 1, "--json")[1])
    flash = {i for i, second in enumerate(run["frame_seconds"]) if 5.0 <= second < 5.5}
    largest = max(run["frame_budgets"])
    assert flash and {i for i, budget in enumerate(run["frame_budgets"]) if budget == largest} == flash


def test_run_takes_a_checkpoint_a_video_and_a_prompt(family: Family, tmp_path: Path) -> None:
    video = write_video(tmp_path / "v.mp4", 12)
    arguments = ["--model", family.folder, "--video", video, "--prompt", "Grey [or] what?", "--dtype", "bfloat16"]
    code, shown, _ = vidcom2("run", *arguments, "--attn-implementation", "eager", "--device", "cpu", *FAST)
    assert code == 0 and "Demo" not in shown
    assert "Grey [or] what?" in shown and str(family.folder)[:20] in shown and "bfloat16" in shown


def test_a_video_may_be_a_url(folder_url: tuple[Path, str]) -> None:
    folder, url = folder_url
    write_video(folder / "v.mp4", 12)
    code, shown, _ = vidcom2("run", "--video", f"{url}/v.mp4", *FAST, "--json")
    assert code == 0 and len(json.loads(shown)["frame_budgets"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--video", "missing.mp4"], "there is no video file 'missing.mp4'"),
        (["--video", "http://127.0.0.1:9/v.mp4"], "cannot download"),
        (["--retention-ratio", "0"], "`retention_ratio` is 0.0, but must be"),
        (["--retention-ratio", "nan"], "`retention_ratio` is nan, but must be"),
        (["--model", "no/such/folder"], "cannot load the model 'no/such/folder'"),
        (["--device", "cuda:77"], "`device` is 'cuda:77'"),
        (["--device", "toaster"], "`device` is 'toaster'"),
        (["--dtype", "int8"], "`dtype` is 'int8', but must be one of"),
        (["--attn-implementation", "flash_attention_2", "--device", "cpu"], "FlashAttention2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    code, shown, error = vidcom2("run", *arguments, *FAST)
    assert code == 2 and not shown
    lines = [line for line in error.splitlines() if line.startswith("Error")]
    assert len(lines) == 1 and message in lines[0] and "Traceback" not in error


def test_an_unreadable_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    with av.open(str(tmp_path / "sound.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    for name, message in (
        ("text.mp4", "cannot read the video"),
        ("sound.wav", "no video stream"),
        ("", "no video file"),
    ):
        code, _, error = vidcom2("run", "--video", tmp_path / name, *FAST)
        assert code == 2 and message in error and "Traceback" not in error


def test_a_model_of_another_family_is_refused_by_its_type(tmp_path: Path) -> None:
    AutoConfig.for_model("gpt2").save_pretrained(tmp_path)
    code, _, error = vidcom2("run", "--model", tmp_path, *FAST)
    assert code == 2 and "'gpt2'" in error and "'llava_onevision'" in error


def test_the_installed_command_runs_and_a_mistake_has_no_traceback() -> None:
    command = [sys.executable, "-m", "vidcom2.cli"]
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120)
    assert helped.returncode == 0 and "run" in helped.stdout and "explain" in helped.stdout
    failed = subprocess.run([*command, "run", "--video", "missing.mp4"], capture_output=True, text=True, timeout=120)
    assert failed.returncode == 2 and failed.stderr.strip().count("\n") == 0 and "missing.mp4" in failed.stderr


# -- video ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "wanted", "expected"), [(21, 5, [0, 5, 10, 15, 20]), (3, 8, [0, 1, 2]), (7, 1, [0])])
def test_frames_are_sampled_evenly_from_first_to_last(
    tmp_path: Path, total: int, wanted: int, expected: list[int]
) -> None:
    video = read_video(str(write_video(tmp_path / "v.mp4", total)), wanted)
    assert video.frames.shape == (len(expected), 64, 96, 3) and video.frames.dtype == np.uint8
    assert [round(float(frame.mean()) / 10) for frame in video.frames] == expected
    assert video.seconds.tolist() == pytest.approx([i / 5 for i in expected])


def test_a_file_that_ends_early_gives_the_frames_it_has(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "v.ts", 30).read_bytes()
    (tmp_path / "cut.ts").write_bytes(whole[: len(whole) * 2 // 3])
    video = read_video(str(tmp_path / "cut.ts"), 4)
    assert 1 <= len(video.frames) <= 4
    with pytest.raises(VideoError):
        (tmp_path / "empty.ts").write_bytes(b"")
        read_video(str(tmp_path / "empty.ts"), 4)


def test_progress_is_reported_while_frames_decode(tmp_path: Path) -> None:
    steps = []
    read_video(str(write_video(tmp_path / "v.mp4", 10)), 4, lambda *step: steps.append(step))
    assert [step for step in steps if step[0] == "Decoding"][-1] == ("Decoding", 10, 10)


# -- explain ----------------------------------------------------------------------------------------------------------


def test_explain_draws_a_png_and_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, shown, _ = vidcom2("explain", "--num-frames", 10, "-o", tmp_path / "out.png")
    assert code == 0 and "video tokens" in shown
    image = np.asarray(Image.open(tmp_path / "out.png").convert("L"))
    assert image.shape[0] > 500 and image.shape[1] > 900 and image.std() > 30

    assert vidcom2("explain", "--num-frames", 10, "-o", tmp_path / "out.html")[0] == 0
    page = (tmp_path / "out.html").read_text()
    sources, open_tags = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list) -> None:
            sources.extend(value for name, value in attributes if name in ("src", "href"))
            if tag not in ("img", "meta"):
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Reader().feed(page)
    assert not open_tags and len(sources) == 20 and all(s.startswith("data:image/jpeg;base64,") for s in sources)


def test_the_drawn_numbers_are_the_models(family: Family, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(family.folder), 0.25, device="cpu")
    video = read_video(str(DEMO_VIDEO), 8)
    explanation = explain(checkpoint, video)
    assert explanation.kept.shape[0] == len(explanation.frames) == family.case.scored_frames(8)
    assert explanation.kept[0].size == family.case.tokens_per_frame
    assert explanation.kept.sum(axis=(1, 2)).tolist() == explanation.frame_budgets.tolist()
    bright = explanation.frames.astype(float).sum(axis=-1)
    ratio = explanation.dimmed_frames().astype(float).sum(axis=-1)[bright > 60] / bright[bright > 60]
    assert set(np.round(ratio, 1)) <= {round(DIMMED, 1), 1.0}
    first = explanation.dimmed_frames()[0, :80, :80], explanation.frames[0, :80, :80]
    assert np.array_equal(*first) == bool(explanation.kept[0, 0, 0])


@pytest.mark.parametrize("output", ["out.txt", "no/such/folder/out.png"])
def test_an_output_that_cannot_be_drawn_is_refused_before_anything_runs(output: str) -> None:
    code, _, error = vidcom2("explain", "-o", output)
    assert code == 2 and "`--output`" in error
