"""The options of `vidcom2 run`, about one video and about many."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..placement import Placement
from .loading import FramesOption, ModelOption, VideoOption

DEFAULT_PROMPT = "What happens in the video?"
DEMO_AGAINST = "uniform_frames"
MANY = "Many videos"  # the panel of its options in the help
ONLY_ONE = ("video", "repeats", "baseline", "against", "as_json")  # options of `run` that ask about one video
ONLY_MANY = ("output", "batch_size", "workers")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `vidcom2 run`: the command has one for each field, with its text of help.

    Attributes:
        settings: of `CompressionSettings` and of the model's family; what is not given stays the checkpoint's.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    model: ModelOption = None
    video: VideoOption = None
    prompt: Annotated[
        str | None,
        typer.Option(help="Question about the video.", show_default=f"{DEFAULT_PROMPT}, or the question of the clip"),
    ] = None
    num_frames: FramesOption = 32
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)] = 64
    repeats: Annotated[int, typer.Option(help="How often each side is measured, in turns.", min=1)] = 3
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline", help="Without the baseline, the full prompt does not run: it may not fit."
        ),
    ] = True
    against: Annotated[
        str | None,
        typer.Option(
            help="Another method, which answers with the same share of the tokens.",
            metavar="METHOD",
            show_default=f"{DEMO_AGAINST} in the demo",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False
    videos: Annotated[
        Path | None,
        typer.Option(help="Folder: ask --prompt about each video in it.", show_default=False, rich_help_panel=MANY),
    ] = None
    requests: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file: `video`, `prompt`, where wanted `id`, `max_new_tokens`, `retention_ratio`, ... a line.",
            show_default=False,
            rich_help_panel=MANY,
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="JSONL file for the answers.", show_default=False, rich_help_panel=MANY),
    ] = None
    batch_size: Annotated[
        int, typer.Option(help="Most requests in one call of `generate`.", min=1, rich_help_panel=MANY)
    ] = 8
    workers: Annotated[
        int, typer.Option(help="Videos that are read at a time while the model runs.", min=1, rich_help_panel=MANY)
    ] = 2
