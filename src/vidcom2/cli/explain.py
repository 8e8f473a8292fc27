"""`vidcom2 explain` draws what is kept of a video. `explaining/` does the work."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..asking.candidates import number_or_text
from ..checks import check_settings, new_output
from ..errors import OptionError, written_to
from ..explaining.drawing_file import check_drawing
from ..toys import shown_with
from .console import one_line_errors, out, print_line, status, takes_fields, takes_placement, takes_settings
from .loading import VideoOptions, announce_demo, load_with_video, print_lost

MOST_COMPARED = 4


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(VideoOptions):
    """The options of `vidcom2 explain`. The command has one option for each field, with its help text."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to draw: `.png` or `.html`. No file is overwritten.",
            show_default="VIDEO.png, or VIDEO-2.png; .html with --compare",
        ),
    ] = None
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="Draw this method or ratio too, beside the first, on a page (.html): `evs`, `0.1`, `evs:0.1` or "
            "`vidcom2:compression_scoring=released`. Repeatable, up to three times.",
            metavar="METHOD[:RATIO]",
            show_default=False,
        ),
    ] = None


@takes_settings
@partial(takes_placement, without=("attn_implementation", "cache_implementation"))
@takes_fields(ExplainOptions)
def explain_command(options: ExplainOptions) -> None:
    """Draw what is kept of a video: its frames, how the method scores each, how many tokens it keeps, and which.

    Only the video encoder runs.
    """
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        others = [compared(word) for word in options.compare or ()]
        if len(others) >= MOST_COMPARED:
            raise OptionError(
                f"`--compare` is given {len(others)} times, but a page shows {MOST_COMPARED} ways at most."
            )
        video = options.video or shown_with(options.model)[0].path
        output = new_output(options.output, video, ".html" if others else ".png")
        check_drawing(output, 1 + len(others))
        frames, checkpoint = load_with_video(options)
        from ..explaining.explain import Figure, clip_name
        from ..explaining.explanation import compare

        name = clip_name(video)
        with status("Encoding and drawing ..."), written_to(output):
            figure = Figure(compare(checkpoint, frames, [{}, *others], name))
            figure.save(output)
        announce_demo(options.model, options.video, "explain")
        out.print(repr(figure))
        print_line(f"Drawn to {escape(str(output))}")
        print_lost(frames.lost)


def compared(word: str) -> dict[str, Any]:
    """Return the settings that a value of `--compare` stands for, such as `evs`, `0.1` or `evs:0.1`."""
    settings: dict[str, Any] = {}
    parts = word.split(":")
    for i, part in enumerate(parts):
        name, _, value = part.rpartition("=")
        if not name:
            name = "compression_method" if i == 0 and not _is_number(value) else "retention_ratio"
        settings[name] = number_or_text(value)
    check_settings(settings, typed={"compression_method": "--compare", "retention_ratio": "--compare"})
    return settings


def _is_number(word: str) -> bool:
    return not isinstance(number_or_text(word), str)
