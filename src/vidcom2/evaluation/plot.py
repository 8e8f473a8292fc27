"""The plots of `vidcom2 eval`: accuracy, or agreement, over the share of the video tokens that is kept; and accuracy
over the number of frames.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..records.whole_files import growing_file

# The methods differ in colour and in shape, also for readers without colour vision (the colours of Okabe and Ito).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LEGEND_INSIDE = 6  # with this many methods or more, a legend inside the axes would cover their lines
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw_results(results: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw a line for each method, with 95 % intervals, and one for all tokens, and save the plot as a PNG file.

    Args:
        results: what `report.summary` returns. Candidates that refused are left out.
    """
    measure = "agreement" if results[0]["accuracy"] is None else "accuracy"
    figure, axes = _empty_plot(title)
    whole, *others = results
    if measure == "accuracy":
        axes.axhspan(100 * whole["accuracy_low"], 100 * whole["accuracy_high"], color="0.93", zorder=0)
    axes.axhline(100 * whole[measure], color="0.4", linestyle="--", label=f"all tokens: {100 * whole[measure]:.1f} %")
    drawn = [result for result in others if "refused" not in result]
    axes.set_xscale("log")
    ticks = sorted({round(100 * each["retention_ratio"], 6) for each in drawn})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("video tokens kept, % (log scale)")
    axes.set_ylabel("right answers, %" if measure == "accuracy" else "answers as with all tokens, %")
    num_methods = _draw_methods(axes, drawn, measure, lambda each: 100 * each["kept_share"])
    _add_legend(figure, axes, num_methods)
    save_png(figure, path)


def draw_frame_counts(results: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw accuracy over the number of frames, a line for each method, with 95 % intervals, and save it as a PNG file.

    Args:
        results: what `report.summary` returns for candidates with their own number of frames. Those that refused are
            left out.
    """
    figure, axes = _empty_plot(title)
    drawn = [result for result in results if "refused" not in result and result["accuracy"] is not None]
    counts = sorted({each["num_frames"] for each in results})
    whole = [each for each in drawn if each["num_frames"] == counts[0] and each["kept_share"] == 1.0]
    if whole:
        right = 100 * whole[0]["accuracy"]
        label = f"all tokens of {counts[0]} frames: {right:.1f} %"
        axes.axhline(right, color="0.4", linestyle="--", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [_frames_and_share(count, drawn) for count in counts])
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)
    axes.minorticks_off()
    axes.set_xlabel("frames, and the share of their video tokens that is kept")
    axes.set_ylabel("right answers, %")
    num_methods = _draw_methods(axes, drawn, "accuracy", lambda each: each["num_frames"])
    _add_legend(figure, axes, num_methods)
    save_png(figure, path)


def _frames_and_share(count: int, drawn: Sequence[Mapping[str, Any]]) -> str:
    """Return the label of a number of frames. Below it stands the share that methods within a budget keep."""
    budgets = [each["kept_share"] for each in drawn if each["num_frames"] == count and each["token_budget"] is not None]
    return f"{count}\n{100 * sum(budgets) / len(budgets):.3g} %" if budgets else str(count)


def _empty_plot(title: str) -> tuple[Any, Any]:
    """Return a figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.0), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _draw_methods(
    axes: Any, drawn: Sequence[Mapping[str, Any]], measure: str, place: Callable[[Mapping[str, Any]], float]
) -> int:
    """Draw a line for each method over `place` of its rows, and return how many there are."""
    methods = list(dict.fromkeys(result["method"] for result in drawn))
    for i, method in enumerate(methods):
        points = sorted((each for each in drawn if each["method"] == method), key=place)
        y = [100 * point[measure] for point in points]
        below = [max(0.0, value - 100 * point[f"{measure}_low"]) for value, point in zip(y, points)]
        above = [max(0.0, 100 * point[f"{measure}_high"] - value) for value, point in zip(y, points)]
        # Shift each method a little to the side, so that the intervals at one place do not cover each other.
        x = [place(point) * 1.012 ** (i - (len(methods) - 1) / 2) for point in points]
        color, marker = COLORS[i % len(COLORS)], MARKERS[(i + i // len(COLORS)) % len(MARKERS)]
        axes.errorbar(x, y, (below, above), color=color, marker=marker, markersize=6, capsize=2.5, label=method)
    return len(methods)


def _add_legend(figure: Any, axes: Any, num_methods: int) -> None:
    if num_methods < LEGEND_INSIDE:
        axes.legend(frameon=False, fontsize=9, loc="best")
    else:
        figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=3)


def save_png(figure: Any, path: Path) -> None:
    """Save a matplotlib figure to a file that is complete or, after an error, unchanged."""
    with growing_file(path) as part:
        figure.savefig(part, dpi=150, format="png")
