"""The plots of `vidcom2 bench`: where the time goes, and how time and memory grow with the frames and the ratio."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..evaluation.plot_styles import line_styles, save_png
from .bench_tables import method_name, rounds
from .figures import ALL_TOKENS, EAGER, fitted_exponent, of_setup

Row = Mapping[str, Any]
SHOWN_STAGES = ("read", "preprocess", "vision", "compression", "prompt", "prefill", "decode")
STAGE_COLORS = ("0.55", "0.75", "#0072b2", "#d55e00", "#f0e442", "#009e73", "#56b4e9")
MEASURES: dict[str, Callable[[Row], float | None]] = {
    "prefill, s": lambda row: row["seconds"]["prefill"],
    "model generation, s": lambda row: row["seconds"]["model_generation"],
    "peak memory, GB": lambda row: None if row["peak_bytes"] is None else row["peak_bytes"] / 1e9,
}


def draw_all(rows: Sequence[Row], title: str, path: Path) -> list[Path]:
    """Draw each plot that there is enough data for, and return the PNG files, which are named after a result file.

    Args:
        rows: as `figures.figures` returns them.
        path: the result file.
    """
    measured = [row for row in rows if row["seconds"]]
    drawn = []
    for name, draw in (("stages", draw_stages), ("frames", draw_over_frames), ("ratios", draw_over_ratios)):
        target = path.with_name(f"{path.stem}-{name}.png")
        if draw(measured, title, target):
            drawn.append(target)
    return drawn


def draw_stages(rows: Sequence[Row], title: str, path: Path) -> bool:
    """Draw a bar of stages for each method and ratio, in the setup with the most frames; False if there is nothing."""
    from matplotlib.figure import Figure

    if not rows:
        return False
    setup = max(map(of_setup, rows))
    chosen = [row for row in rows if of_setup(row) == setup]
    figure = Figure(figsize=(8.5, 1.6 + 0.36 * len(chosen)), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(chosen)
    for stage, color in zip(SHOWN_STAGES, STAGE_COLORS, strict=True):
        widths = [row["seconds"][stage] for row in chosen]
        axes.barh(range(len(chosen)), widths, left=left, color=color, label=stage)
        left = [before + width for before, width in zip(left, widths)]
    axes.set_yticks(range(len(chosen)), [_way(row) for row in chosen])
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds of each stage, medians of {rounds(chosen)}")
    frames, batch_size, attention, steps = setup
    how = attention if steps == EAGER else f"{attention}, {steps}"
    axes.set_title(f"{title}\n{frames} frames, batches of {batch_size}, {how}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=len(SHOWN_STAGES))
    save_png(figure, path, (row["method"] for row in chosen))
    return True


def draw_over_frames(rows: Sequence[Row], title: str, path: Path) -> bool:
    """Draw time and memory over the number of frames, for all tokens and for each method and ratio."""
    lines = _lines(rows, lambda row: row["num_frames"], _way)
    return _draw_lines(lines, "frames", "frames (log scale)", title, path)


def draw_over_ratios(rows: Sequence[Row], title: str, path: Path) -> bool:
    """Draw the same over the share of tokens kept. The last point of each method is that of all tokens."""
    measured = [row for row in rows if row["method"] != ALL_TOKENS]
    if not measured:
        return False
    setup = max(map(of_setup, measured))
    whole = [row for row in rows if row["method"] == ALL_TOKENS and of_setup(row) == setup]
    chosen = [row for row in measured if of_setup(row) == setup]
    lines = _lines(chosen, lambda row: 100 * row["kept_share"], method_name)
    for name in lines:
        lines[name] += [(100.0, row) for row in whole]
    return _draw_lines(lines, "tokens", "video tokens kept, % (log scale)", title, path)


def _lines(
    rows: Sequence[Row], x: Callable[[Row], float], name: Callable[[Row], str]
) -> dict[str, list[tuple[float, Row]]]:
    lines: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        more = ", ".join(str(part) for part in _unlike(rows, row))
        lines.setdefault(f"{name(row)}{' ' if more else ''}{more}", []).append((x(row), row))
    return lines


def _unlike(rows: Sequence[Row], row: Row) -> list[Any]:
    """Return the row's batch size, attention and steps, each only if it differs between the rows."""
    return [row[key] for key in ("batch_size", "attn_implementation", "steps") if len({each[key] for each in rows}) > 1]


def _draw_lines(
    lines: Mapping[str, list[tuple[float, Row]]], doubled: str, x_label: str, title: str, path: Path
) -> bool:
    """Draw a panel for each measure; False if no line has two points.

    Args:
        doubled: what x is, for the legends of times. They say how much longer it takes when there is twice as much of
            it, by a power law. Memory follows none, since the weights are a part of it that does not grow.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    lines = {name: points for name, points in lines.items() if len({x for x, _ in points}) > 1}
    if not lines:
        return False
    figure = Figure(figsize=(15, 5.2), facecolor="white", layout="constrained")
    measured = rounds([row for points in lines.values() for _, row in points])
    figure.suptitle(f"{title}\nmedians of {measured}", fontsize=11)
    methods = [points[0][1]["method"] for points in lines.values()]
    for axes, (label, measure) in zip(figure.subplots(1, len(MEASURES)), MEASURES.items(), strict=True):
        is_time = label.endswith(", s")
        for style, (name, points) in zip(line_styles(methods), lines.items()):
            known = sorted((x, value) for x, row in points if (value := measure(row)) is not None)
            if len(known) < 2:
                continue
            x, y = zip(*known)
            fit = fitted_exponent(x, y) if is_time else None
            shown = name if fit is None else f"{name}: {2 ** fit[0]:.2f}× for twice the {doubled}"
            axes.plot(x, y, **style, markersize=5, label=shown)
        axes.set_xscale("log")
        if is_time:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        else:
            axes.set_ylim(
                0, 1.2 * max((y for line in axes.lines for y in line.get_ydata()), default=1)
            )  # for the legend
        ticks = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8, loc="best")
    save_png(figure, path, (row["method"] for points in lines.values() for _, row in points))
    return True


def _way(row: Row) -> str:
    """Name the row's method with its ratio, if it drops anything."""
    name = method_name(row)
    return name if row["method"] == ALL_TOKENS else f"{name} {100 * row['retention_ratio']:g} %"
