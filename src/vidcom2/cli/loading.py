"""What the commands that load a model have in common: the options that name it and its video, the order in which they
check, import and load, and what `run` and `explain` say of the demo."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel

from ..checks import check_given, check_settings, check_video_file
from ..finding_checkpoints import find_checkpoint
from ..placement import Placement
from ..tiny.toy import DEMO_VIDEO
from .console import err, out, progress_bar

if TYPE_CHECKING:
    from ..checkpoints import Checkpoint
    from ..video.reading import Video

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint: a Hub id such as `llava-hf/llava-onevision-qwen2-0.5b-ov-hf`, or a folder. Stock checkpoints "
        "work as they are. Without it, a toy that comes along: it knows the videos of its benchmark, and nothing else.",
        show_default=False,
    ),
]
VideoOption = Annotated[
    str | None,
    typer.Option(help="Video file or http(s) URL. Without it, a short clip that comes along.", show_default=False),
]
FramesOption = Annotated[int, typer.Option(help="Frames sampled evenly from the video.", min=1)]


def check_model_options(model: str | None, placement: Placement, settings: Mapping[str, Any]) -> None:
    """What a command was given for its model, before the model is looked for.

    Raises:
        OptionError: on an empty name, an unknown one, or options that do not go together.
    """
    check_given("--model", model, "for the toy that comes along")
    check_given("--revision", placement.revision, "for the main branch")
    placement.check(model)
    check_settings(dict(settings))


def import_libraries(placement: Placement) -> None:
    """Import PyTorch, look for the device, and then import Transformers, which takes longest.

    Raises:
        OptionError: if this machine has no such device.
    """
    with err.status("Importing PyTorch ..."):
        from ..devices import check_device
    check_device(placement)
    with err.status("Importing Transformers ..."):
        from ..checkpoints import load_placed  # noqa: F401  (for all that it imports)


def load_with_video(
    model: str | None, video: str | None, num_frames: int, placement: Placement, settings: Mapping[str, Any]
) -> "tuple[Video, Checkpoint]":
    """The frames and the model; what can be known to fail fails before the imports, and these before the decoding."""
    check_given("--video", video, "for the clip that comes along")
    check_model_options(model, placement, settings)
    check_video_file(video or str(DEMO_VIDEO))
    if model is not None:
        find_checkpoint(model, placement.revision)
    import_libraries(placement)
    from ..checkpoints import load_placed
    from ..video.reading import read_video

    with progress_bar() as progress:
        task = progress.add_task("Reading the video", total=None)
        frames = read_video(
            video or str(DEMO_VIDEO),
            num_frames,
            lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )
    # Transformers shows its own progress bars for files that are downloaded and weights that are loaded.
    return frames, load_placed(model, placement, settings)


def announce_demo(model: str | None, video: str | None) -> None:
    lines = []
    if model is None:
        lines.append(
            "The model is a toy of a million parameters: it answers questions like this one about clips like this one, "
            "and knows nothing else. Pass `--model` for a real one, by its name on the Hub."
        )
    if video is None:
        lines.append("The video is the clip that comes with vidcom2. Pass `--video` for another.")
    if lines:
        out.print(Panel("\n".join(lines), title="Demo", border_style="yellow", expand=False, width=min(100, out.width)))


def print_lost(lost: int) -> None:
    if lost:
        out.print(f"[yellow]Damaged:[/] {lost} frames of the video could not be decoded; the others were used.")
