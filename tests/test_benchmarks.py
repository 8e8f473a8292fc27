"""The scripts of benchmarks/: what choosing the tokens costs, and clips in which more or less repeats."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.benchmark_compress import Size, measure, measured_methods
from benchmarks.clips import CLIPS, encoded_clip
from benchmarks.methods import METHODS, register
from benchmarks.pages import ROOT
from vidcom2 import read_video
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS

TINY = Size(num_frames=8, grid=(3, 4), dim=8)


@pytest.mark.usefixtures("methods_restored")
def test_every_method_is_measured_with_each_scoring_that_it_reads() -> None:
    register()
    assert {"vidcom2", "coverage", *METHODS} <= set(measured_methods())
    rows = measure("tiny", TINY, "float32", "cpu", repeats=3, methods=measured_methods())
    measured = {(row["method"], row["scoring"]) for row in rows}
    expected = set()
    for name in measured_methods():
        reads = COMPRESSION_METHODS[name].reads("compression_scoring")
        expected |= {(name, scoring) for scoring in (("paper", "released") if reads else (None,))}
    assert measured == expected and len(rows) == len(expected)
    for row in rows:
        first, last = row["quartiles_ms"]
        assert 0 < row["fastest_ms"] <= first <= row["ms"] <= last <= row["slowest_ms"]
        assert ("speedup" in row) == (row["method"] == "vidcom2")  # the baseline is VidCom²'s


def test_clips_repeat_as_much_as_their_names_say(tmp_path: Path) -> None:
    """Counted in squares of 28 pixels that change by less than noise from one frame to the next."""
    shares = {}
    for kind in CLIPS:
        (tmp_path / "clip.mp4").write_bytes(encoded_clip(kind, 8, 224, 18))
        frames = read_video(tmp_path / "clip.mp4", 8).frames.astype(float) / 127.5
        squares = frames.reshape(8, 8, 28, 8, 28, 3)
        changes = np.sqrt(((squares[1:] - squares[:-1]) ** 2).mean(axis=(2, 4, 5)))
        shares[kind] = (changes < 0.05).mean()
    assert shares["lecture"] > 0.8 and shares["fixed camera"] > 0.5
    assert shares["cuts"] < 0.8 and shares["handheld"] < 0.1


def run_steps(folder: Path, *steps: str, **limit: str) -> tuple[int, list[str], str]:
    """Rehearse `on_a_gpu.sh`, and return its exit code, the lines of its summary, and what it says on stderr."""
    environment = {"REHEARSAL": "1", "PYTHON": sys.executable, "OUT": str(folder), "OMP_NUM_THREADS": "1"}
    command = ["bash", "benchmarks/on_a_gpu.sh", *steps]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment | limit, capture_output=True, text=True)
    summary = folder / "summary.txt"
    return done.returncode, summary.read_text().splitlines() if summary.exists() else [], done.stderr


def test_a_gpu_step_that_there_is_not_is_refused_with_the_accepted_names(tmp_path: Path) -> None:
    code, summary, error = run_steps(tmp_path, "compress", "lectures")
    assert code == 2 and not summary
    assert "There is no step lectures. Name some of these" in error and " lecture vision_tower" in error


@pytest.mark.slow
def test_a_gpu_step_that_reads_the_lecture_makes_it(tmp_path: Path) -> None:
    step = "vision_tower_llava-onevision-0.5b"
    _, summary, error = run_steps(tmp_path, step, LIMIT="1")  # even if there is no time for it
    assert [line.split(":")[0] for line in summary] == ["lecture", step, "all steps"], error


@pytest.mark.slow
def test_no_gpu_step_begins_after_the_budget_is_spent_and_what_is_there_is_archived(tmp_path: Path) -> None:
    code, summary, error = run_steps(tmp_path, "compress", "lecture", BUDGET="2")
    assert code == 0, error
    assert summary[:2] == [f"{name}: not begun, all 2 s are spent" for name in ("compress", "lecture")]
    with tarfile.open(tmp_path / "on_a_gpu.tar.gz") as archive:
        assert "./summary.txt" in archive.getnames()


def test_a_checkout_that_is_not_installed_says_which_version_it_is(tmp_path: Path) -> None:
    """Python starts without site packages, so that it finds no metadata of the package."""
    found = f"import sys; sys.path[:0] = [{str(ROOT / 'src' / 'vidcom2')!r}]; import own_version; "
    command = [sys.executable, "-S", "-c", found + "print(own_version.own_version())"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.strip()
    assert shown == re.search('^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]


@pytest.mark.first
@pytest.mark.slow
def test_every_step_of_the_gpu_quarter_hour_runs_on_a_cpu_with_a_small_model(tmp_path: Path) -> None:
    code, summary, error = run_steps(tmp_path)
    assert code == 0, error
    steps = dict(line.split(": ", 1) for line in summary if not line.startswith((" ", "all steps")))
    left_out = [name for name, outcome in steps.items() if outcome.startswith("skipped")]
    assert left_out in ([], ["flash_attention"])
    assert all(steps[name].startswith("done") for name in steps if name not in left_out) and len(steps) == 13, steps
    assert any(line.startswith("    vidcom2 at 25%, 4 frames: LLM −") for line in summary)
    assert any(line.startswith("    vidcom2 at 25%, 4 frames, static cache: LLM −") for line in summary)
    assert any("tokens, ours: " in line for line in summary)
