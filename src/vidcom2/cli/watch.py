"""`vidcom2 watch` keeps what a model has seen of a video in a file. `asking/watched.py` does the work."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape

from ..checks import FAMILY_SETTINGS, WATCHED, check_watched_target, compressed_already, is_watched, new_output
from ..errors import OptionError
from ..records.provenance import command_line
from ..toys import shown_with
from .console import (
    imported_modules,
    one_line_errors,
    print_line,
    status,
    takes_fields,
    takes_placement,
    takes_settings,
)
from .loading import VideoOptions, announce_demo, print_lost, watched_video


@dataclass(frozen=True, kw_only=True)
class WatchOptions(VideoOptions):
    """The options of `vidcom2 watch`. The command has one option for each field, with its help text."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write, whose name ends in `.watched`. No file is overwritten.",
            show_default="VIDEO.watched, or VIDEO-2.watched",
        ),
    ] = None


@takes_settings
@partial(takes_placement, without=("cache_implementation",))
@takes_fields(WatchOptions)
def watch_command(context: typer.Context, options: WatchOptions) -> None:
    """Watch a video once, and keep its tokens in a file, to ask about it many times.

    The file holds the features of the kept tokens and no frame. `vidcom2 chat clip.watched` and
    `vidcom2.load_watched` answer from it with the same model.
    """
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        if is_watched(options.video):
            raise OptionError(compressed_already(options.video))
        output = new_output(options.output, options.video or shown_with(options.model)[0].path, WATCHED)
        check_watched_target(output)
        watched = watched_video(context, options)
        with status("Writing ..."):
            watched.save(output)
        announce_demo(options.model, options.video, "watch")
        print_lost(watched.lost_frames)
        print_line(f"Kept {escape(watched.summary)}, in {escape(str(output))} ({decimal(output.stat().st_size)})")
        of_family = {name: value for name, value in options.settings.items() if name in FAMILY_SETTINGS}
        asking = replace(options, video=str(output), settings=of_family)
        next_step = command_line(asking, "chat", ("output", "num_frames"), imported_modules())
        print_line(f"Ask about it: {escape(next_step)}")
