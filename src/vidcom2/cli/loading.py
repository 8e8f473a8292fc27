"""What the commands that load a model share: the options that name the model and the video, the order in which they
check, import and load, and the notice that a demo is running."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel

from ..checks import check_given, check_video_file, is_watched, path_of_watched
from ..errors import OptionError
from ..loading.finding_checkpoints import Resolved, resolve
from ..loading.placement import Placement, check_machine
from ..presets import NUM_FRAMES
from ..records.fingerprints import identity_of, stamped
from ..records.jsonl import json_object
from ..records.run_record import versions_of_answers
from ..toys import shown_with, toy_of
from .console import check_not_given, err, imported_files, out, progress_of, status

if TYPE_CHECKING:
    from ..asking.watched import Watched
    from ..loading.checkpoints import Checkpoint
    from ..video.reading import Video

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint: a Hub id, `org/name`, or a folder. Stock checkpoints work as they are. Without this option, "
        "a toy that comes with vidcom2 answers, a LLaVA-OneVision that knows the videos of its benchmark and nothing "
        "else; `toy:qwen3_vl` is another.",
        show_default=False,
    ),
]
VideoArgument = Annotated[
    str | None,
    typer.Argument(
        help="Video file or http(s) URL. Without it, a short clip that comes with vidcom2.", show_default=False
    ),
]
MaybeWatchedArgument = Annotated[
    str | None,
    typer.Argument(
        help="Video file, http(s) URL, or what `vidcom2 watch` wrote. Without it, a short clip that comes with "
        "vidcom2.",
        show_default=False,
    ),
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        help="Values for the model's chat template as JSON, such as '{\"enable_thinking\": false}'.", show_default=False
    ),
]
SPARSE = 5  # seconds for each frame
NEEDS_FRAMES = ("num_frames", "scale_while_reading", "repeats", "against", "as_json")  # options
FramesOption = Annotated[
    int, typer.Option("--num-frames", "--frames", help="Frames sampled evenly from the video.", min=1)
]


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """The options of commands that load a model and show it one video.

    Attributes:
        settings: fields of `CompressionSettings` and of the model's family; the checkpoint's where not given.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    video: VideoArgument = None
    model: ModelOption = None
    num_frames: FramesOption = NUM_FRAMES


def json_option(name: str, text: str | None, example: str) -> dict[str, Any]:
    """Return the JSON object that an option holds, empty if it is not given. Raises an OptionError on anything else."""
    try:
        return json_object("{}" if text is None else text)
    except OptionError:
        raise OptionError(f"`{name}` is {text!r}, but must be a JSON object, such as '{example}'.") from None


def template_arguments(text: str | None) -> dict[str, Any]:
    """Return the values of `--chat-template-kwargs`. Raises an OptionError on what is no JSON object."""
    return json_option("chat_template_kwargs", text, '{"enable_thinking": false}')


def what_answers_depend_on(options: Any, model: Resolved) -> dict[str, Any]:
    """Return what must be the same when a run of these options is continued, in values that JSON can represent."""
    return {
        **identity_of(model.source),
        "imported": imported_files(),
        "num_frames": options.num_frames,
        "max_new_tokens": options.max_new_tokens,
        "chat_template_kwargs": template_arguments(options.chat_template_kwargs),
        **options.placement.of_answers,
        "settings": options.settings,
        **versions_of_answers(),
    }


def import_libraries(placement: Placement) -> None:
    """Check the device, import PyTorch, which knows more of it, and then Transformers, which takes longest. Raises what
    `check_machine` and `device_of` raise."""
    check_machine(placement)
    with status("Importing PyTorch ..."):
        from ..loading.devices import device_of
    device_of(placement)
    with status("Importing Transformers ..."):
        from transformers.utils.logging import disable_progress_bar

        from ..loading.checkpoints import load_resolved  # noqa: F401  (imported for the libraries that it imports)
    if not err.is_terminal:
        disable_progress_bar()


def load_with_video(options: VideoOptions, scale_while_reading: bool = False) -> "tuple[Video, Checkpoint]":
    """Read the frames and load the model. Options are checked before the slow imports, which precede the decoding.

    With `scale_while_reading` the model is loaded first, because its processor says how large the frames should be.
    """
    video = options.video
    check_given("video", video, "for the bundled clip")
    check_machine(options.placement)  # before settings, whose check imports PyTorch where they name a method
    resolved = resolve(options.model, options.placement, options.settings)
    shown = video or str(shown_with(options.model)[0].path)
    check_video_file(shown)
    if video is not None:
        from ..video.reading import check_video

        check_video(video)
    if not err.is_terminal:  # on one, spinners say so; the imports take longer than loading the toy
        err.print(f"Loading {options.model or 'the toy'} ...", highlight=False, markup=False, soft_wrap=True)
    import_libraries(options.placement)
    from ..loading.checkpoints import load_resolved
    from ..video.reading import read_video

    loaded, size = None, None
    if scale_while_reading:
        from ..asking.frame_size import size_of_frames

        loaded = load_resolved(resolved)
        size = size_of_frames(loaded.processor)
    with progress_of("Reading the video") as progress:
        frames = read_video(shown, options.num_frames, progress, size=size)
    say_if_sparse(frames, options.num_frames)
    # Transformers shows its own progress bars while it downloads files and loads weights.
    return frames, loaded or load_resolved(resolved)


def watched_video(context: typer.Context, options: VideoOptions) -> "Watched":
    """Load the model and let it watch the video, or load what it has watched before."""
    video = options.video
    if video is not None and is_watched(video):
        check_not_given(context, NEEDS_FRAMES, "needs the frames of a video, but a watched one has none left")
        path = path_of_watched(video)
        check_video_file(video)
        resolved = resolve(options.model, options.placement, options.settings)
        import_libraries(options.placement)
        from ..asking.watched import load_watched_file
        from ..asking.watched_file import read_header
        from ..loading.checkpoints import load_resolved

        header = read_header(path)  # refuses a damaged file before the model is loaded
        return load_watched_file(path, header, load_resolved(resolved), options.settings)
    source = stamped(video)
    frames, checkpoint = load_with_video(options)
    from ..asking.watched import watch_frames

    with status("Encoding the video ..."):
        return watch_frames(checkpoint, frames, {}, source)


def announce_demo(model: str | None, video: str | None = "", command: str = "run") -> None:
    """Say that the toy answers, and what it knows, or that the clip of vidcom2 is shown, where no other was named."""
    lines, toy = [], toy_of(model)
    if toy is not None:
        lines.append(
            f"The model is {toy.title} of a million parameters. It knows the videos of the needle benchmark, and "
            f"questions such as “{toy.clips[0].question}” about these digits on moving backgrounds. About any other "
            "video its answer means nothing. For a real model, pass its name on the Hub as `--model`."
        )
    if video is None:
        lines.append(f"The video is the clip that comes with vidcom2. For another: `vidcom2 {command} FILE`.")
    if lines:
        out.print(Panel("\n".join(lines), title="Demo", border_style="yellow", expand=False, width=min(100, out.width)))


def say_if_sparse(video: "Video", num_frames: int) -> None:
    """Say if so many frames were asked for that much may happen between two of them, unless there are no others."""
    apart = video.duration / len(video.frames)
    if apart >= SPARSE and len(video.frames) == num_frames:
        err.print(
            f"{len(video.frames)} frames of {video.duration:,.0f} seconds are one in {apart:.0f} seconds. For details, "
            "take more (--num-frames).",
            highlight=False,
            soft_wrap=True,
        )


def print_lost(lost: int) -> None:
    if lost:
        out.print(f"[yellow]Damaged:[/] {lost} frames of the video could not be decoded. The others were used.")
