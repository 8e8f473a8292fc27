"""The picture of `vidcom2 explain -o x.png`: frames, heat maps, what the vision tower computed, bars of u_t, k_t and
the share of computed patches, and a strip for long videos."""

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from .drawing_file import DRAWN_BY
from .explanation import DIMMED, HEAT_COLORS, LIGHT, OUTLINE_COLOR, Explanation, with_minus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    DrawnAxes = Callable[[float, float, float, float], Axes]  # left, top, width, height in inches

MOST_FRAMES = 32  # all of these are drawn; of longer videos only CHOSEN_FRAMES, under a strip of all frames
CHOSEN_FRAMES = 16
FRAMES_PER_ROW = 8
U_COLOR, K_COLOR, TOWER_COLOR = "#b5367a", "#0e8fa3", "#e07b00"
MERGED_COLOR = "#cfe0ea"  # any pale colour
UNDRAWN_ALPHA = 0.35  # of the strip's bars for frames that are not drawn
DOTS_PER_INCH = 130

# The rest are in inches.
LEFT, RIGHT, GAP = 1.0, 0.25, 0.12  # LEFT has the names of the rows
WIDEST, NARROWEST = 15.0, 8.5
FRAME_HEIGHT, FRAME_HEIGHT_OF_FEW, FRAME_WIDTH = 2.5, 3.0, 4.6  # at most
LABEL, BARS, NUMBER = 0.42, 0.42, 0.24  # heights: a frame's two lines, bars, the numbers above them
BAR_WIDTH = 0.9  # at most, and at most half a frame's
STRIP, STRIP_TICKS, TICK_WIDTH = 0.8, 0.5, 0.6


@dataclass(frozen=True)
class Figures:
    """A figure of each frame, drawn as bars.

    Attributes:
        name: of the row.
        shares: (T,) in [0, 1], the lengths of the bars.
        numbers: (T,) what stands above them.
        ends: where the axis of the strip has which labels.
    """

    name: str
    color: str
    shares: np.ndarray
    numbers: list[str]
    ends: list[tuple[int, str]]


def draw_png(explanation: Explanation) -> bytes:
    """Draw up to 32 frames one by one, or a longer video's most telling ones and a strip of all."""
    buffer = io.BytesIO()
    drawing(explanation).savefig(
        buffer, dpi=DOTS_PER_INCH, format="png", metadata={"Software": DRAWN_BY, "Title": explanation.title}
    )
    return buffer.getvalue()


def drawing(explanation: Explanation) -> "Figure":
    """Return the drawing as Matplotlib's figure."""
    from matplotlib.figure import Figure

    number = len(explanation.frames)
    is_long = number > MOST_FRAMES
    drawn = explanation.chosen_frames(CHOSEN_FRAMES if is_long else number)
    columns = min(len(drawn), FRAMES_PER_ROW)
    rows = -(-len(drawn) // columns)
    columns = -(-len(drawn) // rows)  # rows of equal length
    width, height = _frame_size(explanation, columns)
    figure_width = max(LEFT + columns * (width + GAP) - GAP + RIGHT, NARROWEST)

    figures = _figures(explanation)
    header = _header(explanation, figure_width, is_long)
    header_height = 0.2 + 0.27 * len(header[0]) + 0.2 * len(header[1]) + 0.35
    strip_height = (STRIP + 0.12) * len(figures) + STRIP_TICKS if is_long else 0.0
    num_lower = len(_lower_pictures(explanation))
    row_height = LABEL + height + num_lower * (height + 0.06) + len(figures) * (NUMBER + BARS) + 0.25
    figure_height = header_height + strip_height + rows * row_height
    figure = Figure(figsize=(figure_width, figure_height), facecolor="white")

    def axes(left: float, top: float, wide: float, high: float) -> "Axes":
        """Add axes at `left` and `top`, in inches from the figure's upper left corner."""
        bottom = 1 - (top + high) / figure_height
        return figure.add_axes((left / figure_width, bottom, wide / figure_width, high / figure_height))

    _draw_header(explanation, figure, axes, header)
    top = header_height
    if is_long:
        _draw_strip(explanation, axes, top, figure_width - LEFT - RIGHT, drawn)
        top += strip_height
    for row in range(rows):
        _draw_row(explanation, axes, top + row * row_height, drawn[row * columns :][:columns], columns, width, height)
    return figure


def _figures(explanation: Explanation) -> list[Figures]:
    """Return what is drawn as bars below the frames, from top to bottom."""
    u, k, figures = explanation.frame_uniqueness, explanation.frame_budgets, []
    if u is not None:
        finite = u[np.isfinite(u)]
        ends = [] if not finite.size else [(1, with_minus(f"{finite.max():.2f}"))]
        numbers = [with_minus(f"{value:.4f}") for value in u]
        figures.append(Figures("frame's\n$u_t$", U_COLOR, explanation.shares_of_uniqueness(), numbers, ends))
    ends = [(0, "0"), (1, str(k.max()))]
    figures.append(Figures("tokens\nkept $k_t$", K_COLOR, explanation.shares_of_budget(), [*map(str, k)], ends))
    if explanation.computed is not None:
        shares = explanation.shares_of_patches()
        numbers, ends = [f"{share:.1%}" for share in shares], [(0, "0%"), (1, "100%")]
        figures.append(Figures("patches\ncomputed", TOWER_COLOR, shares, numbers, ends))
    return figures


def _lower_pictures(explanation: Explanation) -> list[tuple[str, Callable[[int], np.ndarray]]]:
    """Return the pictures that are drawn below the frames, from top to bottom: names, and what makes them."""
    pictures = []
    if explanation.token_uniqueness is not None:
        pictures.append(("tokens'\n$u$", explanation.heat_map))
    if explanation.computed is not None:
        pictures.append(("vision\ntower", explanation.computed_picture))
    return pictures


def _frame_size(explanation: Explanation, columns: int) -> tuple[float, float]:
    """Return the width and height at which a frame is drawn, in the frame's proportions."""
    pixels_high, pixels_wide = explanation.frames.shape[1:3]
    width = min((WIDEST - LEFT - RIGHT + GAP) / columns - GAP, FRAME_WIDTH)
    height = min(width * pixels_high / pixels_wide, FRAME_HEIGHT_OF_FEW if columns <= 4 else FRAME_HEIGHT)
    return height * pixels_wide / pixels_high, height


def _header(explanation: Explanation, width: float, is_long: bool) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the notes under it, each short enough for the figure."""
    notes = [explanation.subtitle]
    if explanation.frame_uniqueness is not None and len(explanation.frames) > 1:
        notes.append("bars of u start just below the lowest")
    if explanation.computed is not None:
        notes.append("what the tower computed is in colour with orange outlines, what it left out is grey")
    if is_long:
        notes.append(
            f"{CHOSEN_FRAMES} of {len(explanation.frames)} pictures are drawn: from each stretch of the video the one "
            "with the largest budget (dark in the strip)"
        )
    letters = (width - 2 * RIGHT) * 72 / 0.56  # how many fit in a line at a size of one point, on average
    return textwrap.wrap(explanation.title, int(letters / 14)), textwrap.wrap(" · ".join(notes), int(letters / 9.5))


def _draw_header(
    explanation: Explanation, figure: "Figure", axes: "DrawnAxes", header: tuple[list[str], list[str]]
) -> None:
    from matplotlib.patches import Patch

    with_merged = explanation.merged is not None
    width, height = figure.get_size_inches()
    top = 0.2
    for lines, size, step, color in zip(header, (14, 9.5), (0.27, 0.2), ("black", "#555555")):
        for line in lines:
            figure.text(RIGHT / width, 1 - top / height, line, fontsize=size, color=color, va="top")
            top += step
    grey = (LIGHT * (1 - DIMMED) + 128 * DIMMED) / 255
    red, green, blue = (value / 255 for value in OUTLINE_COLOR)
    handles = [
        Patch(facecolor="white", edgecolor=(red, green, blue), linewidth=2, label="kept"),
        Patch(facecolor=(grey, grey, grey), label="dropped (grey)"),
    ]
    if with_merged:
        handles.insert(1, Patch(facecolor=MERGED_COLOR, label="merged (pale)"))
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(RIGHT / width, 1 - (top + 0.02) / height),
        ncols=len(handles),
        frameon=False,
        fontsize=9.5,
        borderpad=0,
        borderaxespad=0.2,
        handlelength=1.4,
        columnspacing=1.5,
    )
    ends = None if explanation.token_uniqueness is None else explanation.ends_of_heat()
    if ends is not None:
        left = 5.3 if with_merged else 4.0  # beside the legend and the lower end
        scale = axes(left, top + 0.05, 1.2, 0.13)
        scale.imshow(np.linspace(0, 1, 64)[None], aspect="auto", cmap=HEAT_COLORS)
        scale.axis("off")
        middle = 1 - (top + 0.11) / height
        figure.text((left - 0.1) / width, middle, f"tokens' u: {ends[0]}", fontsize=9.5, ha="right", va="center")
        figure.text((left + 1.3) / width, middle, f"{ends[1]} in all frames", fontsize=9.5, va="center")


def _draw_row(
    explanation: Explanation,
    axes: "DrawnAxes",
    top: float,
    indices: np.ndarray,
    columns: int,
    width: float,
    height: float,
) -> None:
    """Draw frames side by side, with their other pictures and their figures below them."""
    lower_pictures = _lower_pictures(explanation)
    for column, index in enumerate(indices):
        left = LEFT + column * (width + GAP)
        frame = axes(left, top + LABEL, width, height)
        frame.imshow(explanation.kept_picture(index), aspect="auto", interpolation="antialiased")
        frame.set_title(f"{explanation.label(index)}\n{explanation.seconds[index]:.2f} s", fontsize=8.5, pad=3)
        frame.axis("off")
        for number, (name, picture) in enumerate(lower_pictures, start=1):
            lower = axes(left, top + LABEL + number * (height + 0.06), width, height)
            lower.imshow(picture(index), aspect="auto", interpolation="antialiased")
            lower.axis("off")
            if column == 0:
                _name(lower, name)
    top += LABEL + height + len(lower_pictures) * (height + 0.06)
    for figures in _figures(explanation):
        shares = figures.shares[indices]
        # The axes are wider than the frames by half a gap on each side, so that bar i stands under frame i.
        bars = axes(LEFT - GAP / 2, top + NUMBER, columns * (width + GAP), BARS)
        bars.bar(range(len(indices)), shares, color=figures.color, width=min(0.5, BAR_WIDTH / (width + GAP)))
        for x, index in enumerate(indices):
            bars.text(x, shares[x] + 0.06, figures.numbers[index], ha="center", va="bottom", fontsize=8.5)
        bars.set(xlim=(-0.5, columns - 0.5), ylim=(0, 1), xticks=[], yticks=[])
        bars.spines[["top", "right", "left"]].set_visible(False)
        bars.spines["bottom"].set_color("#999999")
        _name(bars, figures.name)
        top += NUMBER + BARS


def _draw_strip(explanation: Explanation, axes: "DrawnAxes", top: float, width: float, drawn: np.ndarray) -> None:
    """Draw the figures of all frames over time. The frames that are drawn below are darker, and have their number."""
    everything = np.arange(len(explanation.frames))
    strips = []
    for figures in _figures(explanation):
        strip, values, color = axes(LEFT, top, width, STRIP), figures.shares, figures.color
        is_drawn = np.isin(everything, drawn)
        strip.bar(everything[~is_drawn], values[~is_drawn], color=color, alpha=UNDRAWN_ALPHA, width=0.85)
        strip.bar(everything[is_drawn], values[is_drawn], color=color, width=0.85)
        strip.set(xlim=(-0.7, len(everything) - 0.3), ylim=(0, 1.05), xticks=[])
        strip.set_yticks([at for at, _ in figures.ends], [text for _, text in figures.ends], fontsize=8)
        strip.spines[["top", "right", "left"]].set_visible(False)
        strip.spines["bottom"].set_color("#999999")
        _name(strip, figures.name)
        strips.append(strip)
        top += STRIP + 0.12
    ticks: list[int] = []
    for i in drawn.tolist():  # labels that are too close would overlap
        if not ticks or (i - ticks[-1]) * width / len(everything) >= TICK_WIDTH:
            ticks.append(i)
    labels = [f"{explanation.label(i).split()[1]}\n{explanation.seconds[i]:.1f} s" for i in ticks]
    strips[-1].set_xticks(ticks, labels, fontsize=7.5)
    strips[-1].tick_params(length=2)


def _name(axes: "Axes", text: str) -> None:
    """Write the name of a row into the figure's left margin."""
    figure, box = cast("Figure", axes.figure), axes.get_position()
    left = RIGHT / figure.get_size_inches()[0]
    figure.text(left, (box.y0 + box.y1) / 2, text, va="center", fontsize=8.5)
