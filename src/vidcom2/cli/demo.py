"""`vidcom2 demo` serves a page in the browser. `demo/demo_page.py` lays it out, and `demo/answerer.py` answers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..checks import check_given, check_video_file, is_watched, local_path
from ..demo.serving import check_address, check_gradio, import_gradio, serve
from ..errors import OptionError
from ..loading.finding_checkpoints import resolve
from ..loading.placement import Placement, check_machine
from ..presets import NUM_FRAMES
from ..toys import shown_with
from .console import one_line_errors, print_line, progress_of, status, takes_fields, takes_placement, takes_settings
from .loading import FramesOption, ModelOption, import_libraries, say_if_sparse


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of `vidcom2 demo`. The command has one option for each field, with its help text."""

    settings: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    video: Annotated[
        str | None,
        typer.Argument(help="Video file that the page begins with. Without it, the first sample.", show_default=False),
    ] = None
    model: ModelOption = None
    host: Annotated[str, typer.Option(help="Address to serve at. `0.0.0.0` lets other machines reach the page.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(help="Port to serve at.", min=1, max=65535)] = 7860
    num_frames: FramesOption = NUM_FRAMES
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of an answer, in tokens.", min=1)] = 128


@takes_settings
@takes_placement
@takes_fields(DemoOptions)
def demo_command(options: DemoOptions) -> None:
    """Serve a page that answers questions about clips with few tokens and with all, side by side, and shows which
    tokens of each frame are kept.

    The page begins with the settings, frames and length of answers given here, and its users can change them.
    Everything stays on this machine: Gradio sends no telemetry, and the page loads nothing from elsewhere.
    """
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        check_gradio()
        clip = _clip_of(options.video)
        check_address(options.host, options.port)
        check_machine(options.placement)
        resolved = resolve(options.model, options.placement, options.settings)
        if clip is not None:
            from ..video.reading import check_video

            check_video(clip)
        import_libraries(options.placement)
        if clip is not None:  # a file that cannot be read ends the command, rather than greet the user on the page
            from ..video.reading import read_video

            with progress_of("Reading the video") as progress:
                say_if_sparse(read_video(clip, options.num_frames, progress), options.num_frames)
        with status("Importing Gradio ..."):
            import_gradio()
            from ..demo.answerer import Answerer
            from ..demo.demo_page import build_page
            from ..loading.checkpoints import load_resolved
        answerer = Answerer(load_resolved(resolved))
        with status("Answering once to prepare the model ..."):
            answerer.warm_up(str(shown_with(options.model)[0].path), options.num_frames)
        page = build_page(answerer, options.num_frames, options.max_new_tokens, clip)
        address = serve(page, clip, server_name=options.host, server_port=options.port)
        print_line(f"Open {escape(address)} in a browser. Ctrl+C ends the demo.")
        page.block_thread()


def _clip_of(video: str | None) -> str | None:
    """Return the path of the clip that the page begins with, or None for the first sample.

    Raises:
        OptionError: on what is no video file of this machine.
    """
    check_given("video", video, "for the first sample")
    if video is None:
        return None
    path = local_path(video)
    if path is None:
        raise OptionError(f"{video!r} is a video on the web. Download it, and pass its path, or upload it on the page.")
    if is_watched(video):
        raise OptionError(f"{video!r} is a watched video, whose frames are gone. Pass the video itself.")
    check_video_file(video)
    return str(Path(path).resolve())
