"""The plot of `vidcom2 eval`: accuracy, or agreement, over the share of the video tokens that is kept; which ratio is
enough; and how methods differ from one of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..asking.candidates import method_in_words
from .plot_styles import STYLES, line_styles, save_png
from .references import reference_in_words
from .which_ratio import enough, percent


def draw_results(results: Sequence[Mapping[str, Any]], title: str, path: Path, margin: float | None = None) -> None:
    """Draw a line for each method, with 95 % intervals, and one for all tokens, and save the plot as a PNG file.

    Args:
        results: what `report.summary` returns. Candidates that refused a question are left out, since theirs are other
            questions.
        margin: the loss of right answers that is accepted, in points. With it, a second panel shows which ratio is
            enough, if right answers are known; and a third the differences to the reference, if there is one.
    """
    from matplotlib.figure import Figure

    whole, *others = results
    drawn = [result for result in others if "refused" not in result]
    panels: list[Callable[[Any], None]] = [lambda axes: _draw_shares(axes, whole, drawn)]
    if margin is not None and any(each["difference_low"] is not None for each in drawn):
        panels.append(lambda axes: _draw_enough(axes, results, drawn, margin))
        if any(each.get("over_reference_low") is not None for each in drawn):
            panels.append(lambda axes: _draw_over_reference(axes, drawn))
    figure = Figure(
        figsize=(7.5 if len(panels) == 1 else 6.5 * len(panels), 5.0), facecolor="white", layout="constrained"
    )
    parts: Any = [figure] if len(panels) == 1 else figure.subfigures(1, len(panels))
    for part, draw in zip(parts, panels):
        axes: Any = part.add_subplot()
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xscale("log")
        ticks = sorted({round(100 * each["retention_ratio"], 6) for each in drawn})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        draw(axes)
        part.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=3)  # inside it would cover intervals
    figure.axes[0].set_title(title, fontsize=11)
    save_png(figure, path, [whole["method"], *dict.fromkeys(result["method"] for result in drawn)])


def _draw_shares(axes: Any, whole: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]]) -> None:
    """Draw the right answers, or the agreement where they are not known, over the share that is kept."""
    measure = "agreement" if whole["accuracy"] is None else "accuracy"
    if measure == "accuracy":
        axes.axhspan(100 * whole["accuracy_low"], 100 * whole["accuracy_high"], color="0.93", zorder=0)
    of_all, (color, _) = f"all tokens: {100 * whole[measure]:.1f} %", STYLES["all tokens"]
    axes.axhline(100 * whole[measure], color=color, linestyle="--", label=of_all)
    band = " and the grey band" if measure == "accuracy" else ""
    axes.set_xlabel(f"video tokens kept, % (log scale)\nBars{band}: 95 % intervals (Wilson's)")
    answers = "right answers" if measure == "accuracy" else "answers as with all tokens"
    axes.set_ylabel(f"{answers}, % (n = {whole[f'{measure}_n']:,} questions)")
    _draw_lines(axes, drawn, measure, method_in_words)


def _draw_enough(
    axes: Any, results: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]], margin: float
) -> None:
    """Draw the differences to all tokens, and a ring around the smallest ratio of each method that is enough."""
    found = enough(results, margin)
    axes.axhspan(-margin, 0, color="#e5f3ec", zorder=0)
    axes.axhline(0, color=STYLES["all tokens"][0], linestyle="--")
    axes.axhline(-margin, color="#009e73", linewidth=1)
    axes.set_title(f"Which ratio is enough for a loss of at most {margin:g} points?", fontsize=11)
    axes.set_xlabel(
        "video tokens kept, % (log scale)\nRings: the smallest ratio whose interval, and all to the right, "
        "lie above the green line"
    )
    axes.set_ylabel("right answers minus those of all tokens, points")

    def label(method: str) -> str:
        ratio = found[method]
        return f"{method_in_words(method)}: {'none' if ratio is None else percent(ratio)}"

    for (x, y), point in _draw_lines(axes, drawn, "difference", label):
        if point["retention_ratio"] == found[point["method"]]:
            axes.plot(x, y, marker="o", markersize=15, markerfacecolor="none", markeredgecolor="0.2", linestyle="none")


def _draw_over_reference(axes: Any, drawn: Sequence[Mapping[str, Any]]) -> None:
    """Draw the differences to the reference."""
    name = reference_in_words(drawn[0]["reference"])
    axes.axhline(0, color="0.2", linestyle="--")
    axes.set_title(f"Minus {name}, on the same questions", fontsize=11)
    axes.set_xlabel("video tokens kept, % (log scale)\nBars: 95 % intervals (paired)")
    axes.set_ylabel(f"right answers minus those of {name}, points")
    known = [each for each in drawn if each["over_reference_low"] is not None]
    _draw_lines(axes, known, "over_reference", method_in_words, [each["method"] for each in drawn])


def _draw_lines(
    axes: Any,
    drawn: Sequence[Mapping[str, Any]],
    measure: str,
    label: Callable[[str], str],
    all_methods: Sequence[str] = (),
) -> list[tuple[tuple[float, float], Mapping[str, Any]]]:
    """Draw a line of each method, and return where its points are.

    Args:
        all_methods: those of the other panels, in which each method looks the same.
    """
    methods = list(dict.fromkeys([*all_methods, *(result["method"] for result in drawn)]))
    places = []
    for i, (method, style) in enumerate(zip(methods, line_styles(methods))):
        of_method = [each for each in drawn if each["method"] == method and each[measure] is not None]
        points = sorted(of_method, key=lambda each: each["kept_share"])
        if not points:
            continue
        y = [100 * point[measure] for point in points]
        below = [max(0.0, value - 100 * point[f"{measure}_low"]) for value, point in zip(y, points)]
        above = [max(0.0, 100 * point[f"{measure}_high"] - value) for value, point in zip(y, points)]
        # Shift each method a little to the side, so that the intervals at one place do not cover each other.
        x = [100 * point["kept_share"] * 1.012 ** (i - (len(methods) - 1) / 2) for point in points]
        axes.errorbar(x, y, (below, above), **style, markersize=6, capsize=2.5, label=label(method))
        places += zip(zip(x, y), points)
    return places
