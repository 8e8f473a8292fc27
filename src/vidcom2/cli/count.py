"""`vidcom2 count` tells what a video costs a model before it is loaded. `asking/counting.py` does the work."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.filesize import decimal
from rich.table import Table

from ..checks import check_given, check_video_file
from ..loading.finding_checkpoints import resolve
from ..loading.placement import Placement
from ..presets import NUM_FRAMES
from ..toys import shown_with
from .console import one_line_errors, out, progress_of, status, takes_fields, takes_settings
from .loading import FramesOption, ModelOption, VideoArgument, announce_demo, print_lost, say_if_sparse

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class CountOptions:
    """The options of `vidcom2 count`. The command has one option for each field, with its help text."""

    settings: dict[str, Any] = field(default_factory=dict)
    video: VideoArgument = None
    model: ModelOption = None
    num_frames: FramesOption = NUM_FRAMES
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch.", show_default="main")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False


@takes_settings
@takes_fields(CountOptions)
def count_command(options: CountOptions) -> None:
    """Count the tokens of a video in a model's prompt, with and without compression, before the model is loaded.

    No weights are read or downloaded.
    """
    with one_line_errors():
        check_given("video", options.video, "for the bundled clip")
        resolved = resolve(options.model, Placement(revision=options.revision), options.settings)
        shown = options.video or str(shown_with(options.model)[0].path)
        check_video_file(shown)
        with status("Importing Transformers ..."):
            from ..asking.counting import QUESTION, count_of
            from ..video.reading import read_video
        with progress_of("Reading the video") as progress:
            video = read_video(shown, options.num_frames, progress)
        say_if_sparse(video, options.num_frames)
        with status("Counting ..."):
            counted = count_of(resolved, video)
        if options.as_json:
            print(json.dumps({"schema": SCHEMA} | dataclasses.asdict(counted), indent=2))
            return
        announce_demo(options.model, options.video, "count")
        table = Table(title=f"{counted.frames} frames of {counted.seconds:,.1f} seconds")
        for column in ("", "all tokens", "compressed"):
            table.add_column(column, justify="right" if column else "left")
        for name, full, kept in (
            ("tokens of the video", counted.full_video_tokens, counted.video_tokens),
            (f"tokens of a prompt, “{QUESTION}”", counted.full_prompt_tokens, counted.prompt_tokens),
        ):
            table.add_row(name, f"{full:,}", "depends on the video" if kept is None else f"{kept:,}")
        if counted.full_cache_bytes is not None:
            sizes = (counted.full_cache_bytes, counted.cache_bytes)
            table.add_row("its KV cache", *("" if each is None else decimal(each) for each in sizes))
        out.print(table)
        print_lost(video.lost)
