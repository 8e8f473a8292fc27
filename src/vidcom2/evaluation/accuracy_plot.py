"""The plot of `vidcom2 eval`: accuracy, or agreement, over the share of the video tokens that is kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..asking.candidates import method_in_words
from .plot_styles import STYLES, line_styles, save_png


def draw_results(results: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw a line for each method, with 95 % intervals, and one for all tokens, and save the plot as a PNG file.

    Args:
        results: what `report.summary` returns. Candidates that refused a question are left out, since theirs are other
            questions.
    """
    measure = "agreement" if results[0]["accuracy"] is None else "accuracy"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.0), facecolor="white", layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    whole, *others = results
    if measure == "accuracy":
        axes.axhspan(100 * whole["accuracy_low"], 100 * whole["accuracy_high"], color="0.93", zorder=0)
    of_all, (color, _) = f"all tokens: {100 * whole[measure]:.1f} %", STYLES["all tokens"]
    axes.axhline(100 * whole[measure], color=color, linestyle="--", label=of_all)
    drawn = [result for result in others if "refused" not in result]
    axes.set_xscale("log")
    ticks = sorted({round(100 * each["retention_ratio"], 6) for each in drawn})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    band = " and the grey band" if measure == "accuracy" else ""
    axes.set_xlabel(f"video tokens kept, % (log scale)\nBars{band}: 95 % intervals (Wilson's)")
    answers = "right answers" if measure == "accuracy" else "answers as with all tokens"
    axes.set_ylabel(f"{answers}, % (n = {whole[f'{measure}_n']:,} questions)")
    methods = list(dict.fromkeys(result["method"] for result in drawn))
    for i, (method, style) in enumerate(zip(methods, line_styles(methods))):
        points = sorted((each for each in drawn if each["method"] == method), key=lambda each: each["kept_share"])
        y = [100 * point[measure] for point in points]
        below = [max(0.0, value - 100 * point[f"{measure}_low"]) for value, point in zip(y, points)]
        above = [max(0.0, 100 * point[f"{measure}_high"] - value) for value, point in zip(y, points)]
        # Shift each method a little to the side, so that the intervals at one place do not cover each other.
        x = [100 * point["kept_share"] * 1.012 ** (i - (len(methods) - 1) / 2) for point in points]
        axes.errorbar(x, y, (below, above), **style, markersize=6, capsize=2.5, label=method_in_words(method))
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=3)  # inside it would cover intervals
    save_png(figure, path, [whole["method"], *methods])
