"""The options of `vidcom2 run`, for one video and for many."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..placement import Placement
from .loading import FramesOption, ModelOption, VideoOption

DEFAULT_PROMPT = "What happens in the video?"
DEMO_AGAINST = "uniform_frames"
MANY = "Many videos"  # the panel in the help that shows the options for many videos
ONLY_ONE = ("video", "repeats", "baseline", "against", "as_json")  # options that work with one video only
ONLY_MANY = ("check", "output", "batch_size", "workers")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `vidcom2 run`. The command has one option for each field, with its help text.

    Attributes:
        settings: fields of `CompressionSettings` and of the model's family; the checkpoint's where not given.
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
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of the answer, in tokens.", min=1)] = 64
    scale_while_reading: Annotated[
        bool,
        typer.Option(
            "--scale-while-reading",
            help="Scale frames to the size that the model's processor wants while they are read, where that is "
            "smaller. This saves memory and time; pixels differ a little.",
        ),
    ] = False
    repeats: Annotated[int, typer.Option(help="How often each side is measured. The sides take turns.", min=1)] = 3
    baseline: Annotated[
        bool,
        typer.Option("--baseline/--no-baseline", help="Whether the full prompt runs too. It may not fit into memory."),
    ] = True
    against: Annotated[
        str | None,
        typer.Option(
            help="Another method to compare with. It answers with the same number of tokens.",
            metavar="METHOD",
            show_default=f"{DEMO_AGAINST} in the demo",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False
    videos: Annotated[
        Path | None,
        typer.Option(
            help="Folder of videos. --prompt is asked about each of them.", show_default=False, rich_help_panel=MANY
        ),
    ] = None
    requests: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file. Each line has `video` and `prompt`, and may have `id`, `max_new_tokens`, "
            "`retention_ratio` and so on.",
            show_default=False,
            rich_help_panel=MANY,
        ),
    ] = None
    check: Annotated[
        bool,
        typer.Option("--check", help="Only check all rows and videos, without a model.", rich_help_panel=MANY),
    ] = False
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="JSONL file for the answers.", show_default=False, rich_help_panel=MANY),
    ] = None
    batch_size: Annotated[
        int, typer.Option(help="How many requests one call of `generate` answers at most.", min=1, rich_help_panel=MANY)
    ] = 8
    workers: Annotated[
        int, typer.Option(help="How many videos are read at once while the model runs.", min=1, rich_help_panel=MANY)
    ] = 2
