"""benchmarks/benchmark_compress.py: what choosing the tokens costs."""

import pytest
import typer

from benchmarks.benchmark_compress import SIZES, Size, checked, measure, measured_methods
from benchmarks.methods import METHODS, register
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


def test_an_unknown_size_is_refused_with_those_there_are() -> None:
    with pytest.raises(typer.BadParameter, match=r"'llava' is unknown; choose from llava-onevision-7b, "):
        checked(["llava"], SIZES, "--size")
