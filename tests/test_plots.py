"""Plots agree with each other, and the committed ones with their sources."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from test_bench import series, turn

import vidcom2
from benchmarks import bench_tables
from benchmarks.needle import tables as needle_tables
from benchmarks.pages import ROOT
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, CompressionSettings
from vidcom2.evaluation import accuracy_plot
from vidcom2.evaluation.plot_styles import STYLES
from vidcom2.measuring import bench_plot
from vidcom2.measuring.figures import figures
from vidcom2.toys import DEMO_VIDEO

# What draws each committed picture: a function that draws it anew from its result file into a folder.
PLOTS: dict[str, Callable[[Path], None]] = {
    "docs/bench.png": bench_tables.draw_plots,
    "docs/bench_frames.png": bench_tables.draw_plots,
    "docs/bench_ratios.png": bench_tables.draw_plots,
    "docs/needle.png": needle_tables.draw_plot,
}
DRAWINGS = ("docs/explain.png", "hub_upload/how_it_works.png")  # by `vidcom2 explain` without options
SCREENSHOT = "docs/demo.png"  # of `vidcom2 demo`, which shows the default method


def text_of(path: Path, name: str) -> str:
    with Image.open(path) as picture:
        return picture.info[name]


def test_every_committed_picture_has_a_source() -> None:
    folders = ("docs", "hub_upload", "benchmarks", "src", "tests")
    found = {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.png")}
    assert found == {*PLOTS, *DRAWINGS, SCREENSHOT}


@pytest.mark.parametrize("name", PLOTS)
def test_a_committed_plot_shows_what_its_result_file_gives_and_no_method_that_is_gone(
    name: str, tmp_path: Path
) -> None:
    PLOTS[name](tmp_path)
    shown = text_of(ROOT / name, "Methods").split(", ")
    assert shown == text_of(tmp_path / Path(name).name, "Methods").split(", ")
    gone = {method.split(":")[0] for method in shown} - {"all tokens", *COMPRESSION_METHODS}
    assert not gone


@pytest.fixture(scope="module")
def title() -> str:
    with pytest.warns(UserWarning, match="toy"):
        return vidcom2.explain(DEMO_VIDEO).ways[0].title


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_committed_drawing_of_explain_has_the_title_of_today(name: str, title: str) -> None:
    assert text_of(ROOT / name, "Title") == title
    assert title.startswith(f"{CompressionSettings().compression_method} at ")  # so does the demo's


def colours(figure: Figure) -> dict[str, Any]:
    """Return the colour of each method's lines, and check that no two methods share one."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            line = handle if hasattr(handle, "get_color") else handle[0]
            method = label.replace("(", " ").split(":")[0].split(" ")[0].replace("all", "all tokens")
            assert found.setdefault(method, line.get_color()) == line.get_color()
    assert len({*found.values()}) == len(found)
    return found


def test_a_method_has_one_colour_in_all_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever methods stand beside it. Its settings and ratios share the colour, and differ in markers and dashes."""
    drawn: list[Figure] = []
    for module in (accuracy_plot, bench_plot):
        monkeypatch.setattr(module, "save_png", lambda figure, path, methods: drawn.append(figure))
    share = {"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6, "accuracy_n": 10}
    for methods in (["random", "mine", "vidcom2", "vidcom2:compression_scoring=released"], [*STYLES][:0:-1]):
        rows = [
            share | {"method": method, "retention_ratio": ratio, "kept_share": ratio}
            for method in ["all tokens", *methods]
            for ratio in (0.25, 0.5)
        ]
        accuracy_plot.draw_results(rows[1:], "t", tmp_path / "a.png")
        every = [
            series(method, turn(4.0), ratio=1.0 if method == "all tokens" else 0.25, frames=frames)
            for frames in (8, 16)
            for method in ["all tokens", *reversed(methods)]
        ]
        bench_plot.draw_over_frames(figures(every), "t", tmp_path / "b.png")
    first, second, third, fourth = map(colours, drawn)
    assert first == second and third == fourth and {*third} == {*STYLES}
    assert {*first} == {"all tokens", "random", "mine", "vidcom2"}
    assert first == {method: third.get(method, first["mine"]) for method in first}
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in drawn[1].axes[0].lines}
    assert len(looks) == 5
