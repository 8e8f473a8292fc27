"""How a method looks in every plot: its colour and its marker; and how a plot is saved.

`method_in_words` in `asking/candidates.py` gives its name, in plots as in all reports.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..records.whole_files import growing_file

# The colours are those of Okabe and Ito, and each method has its own marker, also for readers without colour vision.
STYLES = {
    "all tokens": ("#666666", "h"),
    "vidcom2": ("#0072b2", "o"),
    "coverage": ("#d55e00", "X"),
    "vcast": ("#009e73", "^"),
    "evs": ("#cc79a7", "D"),
    "dycoke": ("#e69f00", "v"),
    "uniform_frames": ("#56b4e9", "P"),
    "random": ("#000000", "s"),
}
OTHER_STYLES = (("#882255", "<"), ("#999933", ">"), ("#332288", "p"), ("#44aa99", "*"), ("#a6761d", "d"))
DASHES = ("-", "--", ":", "-.")


def line_styles(labels: Sequence[str]) -> list[dict[str, str]]:
    """Return how the line of each label is drawn. A method of ours has its colour in every plot, and others take turns.

    Args:
        labels: methods, with their settings behind a colon. Lines of one method differ in their markers and dashes.
    """
    methods = [label.split(":")[0] for label in labels]
    others = [method for method in dict.fromkeys(methods) if method not in STYLES]
    markers = [marker for _, marker in (*STYLES.values(), *OTHER_STYLES)]
    drawn: Counter[str] = Counter()
    styles = []
    for method in methods:
        known = STYLES.get(method)
        color, marker = known or OTHER_STYLES[others.index(method) % len(OTHER_STYLES)]
        place = markers.index(marker) + drawn[method]
        dashes = DASHES[drawn[method] % len(DASHES)]
        styles.append({"color": color, "marker": markers[place % len(markers)], "linestyle": dashes})
        drawn[method] += 1
    return styles


def save_png(figure: Any, path: Path, methods: Iterable[str]) -> None:
    """Save a matplotlib figure to a file that is complete or, after an error, unchanged.

    Args:
        methods: what the figure shows. The file says it in its text `Methods`.
    """
    told = {"Methods": ", ".join(dict.fromkeys(methods))}
    with growing_file(path) as part:
        figure.savefig(part, dpi=150, format="png", metadata=told)
