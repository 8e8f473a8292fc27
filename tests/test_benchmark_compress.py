"""benchmarks/benchmark_compress.py: what choosing the tokens costs."""

import pytest
import torch
import typer

from benchmarks.benchmark_compress import SIZES, Size, checked, measure, own_methods, with_needs
from vidcom2.configuration.method_tables import COMPRESSION_METHODS, NEEDS

TINY = Size(num_frames=8, grid=(3, 4), dim=8, tower_grid=(6, 8), tower_dim=5)


def test_every_method_of_this_project_is_measured_with_each_scoring_that_it_reads() -> None:
    rows = measure("tiny", TINY, "float32", "cpu", repeats=3, methods=own_methods())
    measured = {(row["method"], row["scoring"]) for row in rows}
    expected = set()
    for name in own_methods():
        reads = COMPRESSION_METHODS[name].reads("compression_scoring")
        expected |= {(name, scoring) for scoring in (("paper", "released") if reads else (None,))}
    assert measured == expected and len(rows) == len(expected)
    for row in rows:
        first, last = row["quartiles_ms"]
        assert 0 < row["fastest_ms"] <= first <= row["ms"] <= last <= row["slowest_ms"]
        assert ("speedup" in row) == (row["method"] == "vidcom2")  # the baseline is VidCom²'s


def test_a_video_has_what_methods_need_of_the_tower() -> None:
    video = with_needs(torch.zeros(TINY.shape), TINY, NEEDS)
    assert video.grid == (3, 4) and video.tower_grid == (6, 8)
    assert all(getattr(video, name) is not None for name in NEEDS)
    assert video.tower_states.shape == (8, 48, 5)  # (T, P, V)
    assert with_needs(torch.zeros(TINY.shape), TINY, ("grid",)).tower_grid is None


def test_an_unknown_size_is_refused_with_those_there_are() -> None:
    with pytest.raises(typer.BadParameter, match=r"'llava' is unknown; choose from llava-onevision-7b, "):
        checked(["llava"], SIZES, "--size")
