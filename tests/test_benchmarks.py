"""The scripts of benchmarks/: what choosing the tokens costs, and clips in which more or less repeats."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.benchmark_compress import Size, measure, measured_methods
from benchmarks.clips import CLIPS, encoded_clip
from benchmarks.methods import METHODS, register
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
