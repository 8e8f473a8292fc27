"""`vidcom2 explain` draws what is kept of a video. `explain/explanation.py` does the work."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import written_to
from ..explain.drawing_file import check_drawing
from ..placement import Placement
from .console import err, one_line_errors, out, takes_fields, takes_placement, takes_settings
from .loading import FramesOption, ModelOption, VideoOption, announce_demo, load_with_video, print_lost


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """The options of `vidcom2 explain`. The command has one option for each field, with its help text."""

    settings: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to draw: `.png` or `.html`.")]
    model: ModelOption = None
    video: VideoOption = None
    num_frames: FramesOption = 16


@takes_settings
@partial(takes_placement, without=("attn_implementation",))
@takes_fields(ExplainOptions)
def explain_command(options: ExplainOptions) -> None:
    """Draw what is kept of a video: its frames, how unique each of them is, how many tokens it keeps, and which.

    Only the video encoder runs.
    """
    output = options.output
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        check_drawing(output)
        frames, checkpoint = load_with_video(
            options.model, options.video, options.num_frames, options.placement, options.settings
        )
        from ..explain.explanation import draw_html, draw_png, explain

        with err.status("Encoding and drawing ..."), written_to(output):
            explanation = explain(checkpoint, frames)
            (draw_png if output.suffix == ".png" else draw_html)(explanation, str(output))
        announce_demo(options.model, options.video)
        out.print(explanation.title)
        out.print(f"Drawn to {escape(str(output))}", highlight=False, soft_wrap=True)
        print_lost(frames.lost)
