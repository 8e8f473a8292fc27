"""The command line: `vidcom2 run`, `explain` and `convert-llava-video`. `many_command.py` has `run` over many videos,
`bench_command.py`, `eval_command.py` and `hub_commands.py` have the other commands."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from ..options import (
    OptionError,
    check_drawing,
    check_given,
    check_placement,
    check_revision,
    check_settings,
    check_video_file,
    find_checkpoint,
    written_to,
)
from ..tiny.toy import DEMO_VIDEO, toy_clips
from .bench import bench_command
from .console import (
    err,
    import_for_command,
    imported_files,
    one_line_errors,
    out,
    progress_bar,
    takes_settings,
    versions,
)
from .eval import eval_command
from .publish import publish_command, verify_command
from .run_many import ManyOptions, run_many

if TYPE_CHECKING:
    from ..answering.comparison import Measured, Run
    from ..checkpoints import Checkpoint
    from ..video.reading import Video

DEFAULT_PROMPT = "What happens in the video?"
DEMO_AGAINST = "uniform_frames"
BAR_WIDTH = 24
MANY = "Many videos"  # the panel of its options in the help
ONLY_ONE = ("video", "repeats", "baseline", "against", "as_json")  # options of `run` that ask about one video
ONLY_MANY = ("output", "batch_size", "workers")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Video LLMs that keep only the distinctive video tokens (VidCom²).",
)

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint: a Hub id such as `llava-hf/llava-onevision-qwen2-0.5b-ov-hf`, or a folder. Stock checkpoints "
        "work as they are. Without it, a toy that comes along: it knows the videos of its benchmark, and nothing else.",
        show_default=False,
    ),
]
RevisionOption = Annotated[
    str | None, typer.Option(help="Commit, tag or branch of the model's Hub repo.", show_default="main")
]
VideoOption = Annotated[
    str | None,
    typer.Option(help="Video file or http(s) URL. Without it, a short clip that comes along.", show_default=False),
]
FramesOption = Annotated[int, typer.Option(help="Frames sampled evenly from the video.", min=1)]
DeviceOption = Annotated[str, typer.Option(help="`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.")]
DeviceMapOption = Annotated[
    str | None,
    typer.Option(
        help="Spread the model over devices instead: `auto`, `balanced`, `balanced_low_0` or `sequential`, as "
        "accelerate does it.",
        show_default=False,
    ),
]
DtypeOption = Annotated[str, typer.Option(help="`auto` (the checkpoint's), `float32`, `bfloat16` or `float16`.")]
AttentionOption = Annotated[
    str | None,
    typer.Option(help="`sdpa`, `eager` or `flash_attention_2` (extra `flash-attn`).", show_default="Transformers'"),
]


def _print_versions(wanted: bool) -> None:
    if wanted:
        out.print(versions(), highlight=False, soft_wrap=True)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print what is installed.", callback=_print_versions, is_eager=True),
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            help="Python module, or file, of yours that registers compression methods; repeatable.",
            metavar="MODULE",
            show_default=False,
        ),
    ] = None,
) -> None:
    with one_line_errors():
        import_for_command(modules or [])


@app.command("run")
@takes_settings
def run_command(
    context: typer.Context,
    settings: dict[str, Any],
    model: ModelOption = None,
    video: VideoOption = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Question about the video.", show_default=f"{DEFAULT_PROMPT}, or the question of the clip"),
    ] = None,
    num_frames: FramesOption = 32,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)] = 64,
    repeats: Annotated[int, typer.Option(help="How often each side is measured, in turns.", min=1)] = 3,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline", help="Without the baseline, the full prompt does not run: it may not fit."
        ),
    ] = True,
    against: Annotated[
        str | None,
        typer.Option(
            help="Another method, which answers with the same share of the tokens.",
            metavar="METHOD",
            show_default=f"{DEMO_AGAINST} in the demo",
        ),
    ] = None,
    device: DeviceOption = "auto",
    device_map: DeviceMapOption = None,
    dtype: DtypeOption = "auto",
    attn_implementation: AttentionOption = None,
    revision: RevisionOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    videos: Annotated[
        Path | None,
        typer.Option(help="Folder: ask --prompt about each video in it.", show_default=False, rich_help_panel=MANY),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file: `video`, `prompt`, where wanted `id`, `max_new_tokens`, `retention_ratio`, ... a line.",
            show_default=False,
            rich_help_panel=MANY,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="JSONL file for the answers.", show_default=False, rich_help_panel=MANY),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Most requests in one call of `generate`.", min=1, rich_help_panel=MANY)
    ] = 8,
    workers: Annotated[
        int, typer.Option(help="Videos that are read at a time while the model runs.", min=1, rich_help_panel=MANY)
    ] = 2,
) -> None:
    """Ask a question about a video, with and without compression, and measure both; or ask about many videos.

    Prints the answers, the tokens in the language model's prompt (counted there), the seconds of its prefill and of
    the whole of `generate` (medians), and the tokens that each frame was granted. Without arguments it runs a demo: a
    toy model answers a question about a clip, also by another method that keeps as many tokens.

    With --videos or --requests it answers about many videos with compression alone, in batches, and writes each answer
    to --output as it comes. Started again, it goes on where it was. Exit code 3: some requests ended in an error.
    """
    if videos is not None or requests is not None:
        with one_line_errors():
            _check_not_given(context, ONLY_ONE, "asks about one video, and --videos or --requests about many")
            check_given("--prompt", prompt, f"for {DEFAULT_PROMPT!r}")
        options = ManyOptions(
            settings=settings,
            model=model,
            videos=videos,
            requests=requests,
            prompt=prompt,
            output=output,
            num_frames=num_frames,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            workers=workers,
            device=device,
            device_map=device_map,
            dtype=dtype,
            attn_implementation=attn_implementation,
            revision=revision,
            imported=imported_files(),
        )
        run_many(options, DEFAULT_PROMPT)
        return
    remedy = "Take fewer frames (--num-frames), leave the full prompt out (--no-baseline), --dtype bfloat16, or spread "
    with one_line_errors(remedy + "the model over devices (--device-map auto)."):
        _check_not_given(context, ONLY_MANY, "is for many videos, which --videos or --requests names")
        check_given("--prompt", prompt, "for the question of the demo")
        if against is not None:
            check_settings({"compression_method": against})
        clip = toy_clips()[0] if video is None else None
        is_demo = clip is not None and model is None and prompt is None
        if is_demo and against is None:
            against = DEMO_AGAINST
        frames, checkpoint = _load(
            model, video, num_frames, settings, device, dtype, attn_implementation, device_map, revision
        )
        from ..answering.comparison import run

        with progress_bar() as progress:
            task = progress.add_task("Answering", total=None)
            result = run(
                checkpoint,
                frames,
                prompt or (clip.question if clip else DEFAULT_PROMPT),
                max_new_tokens,
                repeats,
                baseline,
                lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
                against,
            )
        if as_json:
            print(json.dumps(_as_json(result), indent=2))
        else:
            _announce_demo(model, video)
            _print_run(result, clip.answer if clip and is_demo else None)


@app.command("explain")
@takes_settings
def explain_command(
    settings: dict[str, Any],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to draw: `.png` or `.html`.")],
    model: ModelOption = None,
    video: VideoOption = None,
    num_frames: FramesOption = 16,
    device: DeviceOption = "auto",
    device_map: DeviceMapOption = None,
    dtype: DtypeOption = "auto",
    revision: RevisionOption = None,
) -> None:
    """Draw what is kept of a video: its frames, how unique each is, its budget, and which tokens were dropped.

    Runs the video encoder only.
    """
    remedy = "Take fewer frames (--num-frames), --dtype bfloat16, or --device-map auto."
    with one_line_errors(remedy):
        check_drawing(output)
        frames, checkpoint = _load(model, video, num_frames, settings, device, dtype, None, device_map, revision)
        from ..explain.explanation import draw_html, draw_png, explain

        with err.status("Encoding and drawing ..."), written_to(output):
            explanation = explain(checkpoint, frames)
            (draw_png if output.suffix == ".png" else draw_html)(explanation, str(output))
        _announce_demo(model, video)
        out.print(explanation.title)
        out.print(f"Drawn to {escape(str(output))}", highlight=False, soft_wrap=True)
        _print_lost(frames.lost)


@app.command("convert-llava-video")
def convert_command(
    source: Annotated[Path, typer.Argument(help="Folder of an original checkpoint, as `hf download` leaves it.")],
    destination: Annotated[Path, typer.Argument(help="Folder to make.")],
    spatial_pool_mode: Annotated[
        str, typer.Option(help="`average` (the paper's 182 tokens a frame), `max` or `bilinear` (210).")
    ] = "average",
) -> None:
    """Convert an original checkpoint of LLaVA-Video (`lmms-lab/LLaVA-Video-7B-Qwen2` or 72B) to this project's class.

    Weights are copied shard by shard: memory does not grow with the model. The destination appears when it is whole.
    """
    with one_line_errors():
        with err.status("Importing Transformers ..."):
            from ..configuration.vidcom2_llava_video_pooling import SPATIAL_POOL_MODES
            from ..llava_video.converter import convert_llava_video
        if spatial_pool_mode not in SPATIAL_POOL_MODES:
            accepted = ", ".join(SPATIAL_POOL_MODES)
            raise OptionError(f"`--spatial-pool-mode` is {spatial_pool_mode!r}, but must be one of {accepted}.")
        with progress_bar() as progress, written_to(destination):
            task = progress.add_task("Checking the source", total=None)
            done = convert_llava_video(
                str(source),
                str(destination),
                spatial_pool_mode,
                lambda what, part, total: progress.update(task, description=what, completed=part, total=total),
            )
    out.print(
        f"{done.num_tensors:,} tensors, {done.num_bytes / 1e9:.2f} GB of {done.dtype}, "
        f"spatial_pool_mode {done.spatial_pool_mode!r}: {escape(done.destination)}",
        highlight=False,
        soft_wrap=True,
    )
    for note in done.notes:
        out.print(f"Note: {escape(note)}", highlight=False, soft_wrap=True)


def _check_not_given(context: typer.Context, names: Sequence[str], reason: str) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise OptionError(f"`{parameter.opts[0]}` {reason}. Leave it out.")


def _load(
    model: str | None,
    video: str | None,
    num_frames: int,
    settings: dict[str, Any],
    device: str,
    dtype: str,
    attn_implementation: str | None,
    device_map: str | None,
    revision: str | None,
) -> "tuple[Video, Checkpoint]":
    """The frames and the model; what can be known to fail fails before the imports, and these before the decoding."""
    check_given("--model", model, "for the toy that comes along")
    check_given("--video", video, "for the clip that comes along")
    check_given("--revision", revision, "for the main branch")
    check_revision(model, revision)
    check_settings(settings)
    check_placement(device, dtype, attn_implementation, device_map)
    check_video_file(video or str(DEMO_VIDEO))
    if model is not None:
        find_checkpoint(model, revision)
    with err.status("Importing PyTorch ..."):
        from ..devices import check_device
    check_device(device, device_map)
    with err.status("Importing Transformers ..."):
        from ..checkpoints import load_checkpoint
    from ..video.reading import read_video

    with progress_bar() as progress:
        task = progress.add_task("Reading the video", total=None)
        frames = read_video(
            video or str(DEMO_VIDEO),
            num_frames,
            lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )
    # Transformers shows its own progress bars for files that are downloaded and weights that are loaded.
    checkpoint = load_checkpoint(
        model,
        device=device,
        dtype=dtype,
        attn_implementation=attn_implementation,
        device_map=device_map,
        revision=revision,
        **settings,
    )
    return frames, checkpoint


def _announce_demo(model: str | None, video: str | None) -> None:
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


def _as_json(result: "Run") -> dict[str, Any]:
    return dataclasses.asdict(result) | {"beyond_max_position_embeddings": list(result.too_long())}


def _print_run(result: "Run", true_answer: str | None = None) -> None:
    short, full = result.compressed, result.uncompressed
    out.print(f"[bold]Model[/]   {escape(result.model)}", highlight=False)
    out.print(f"[bold]Prompt[/]  {escape(result.prompt)}", highlight=False)
    if true_answer is not None:
        out.print(f"[bold]Truth[/]   {escape(true_answer)}", highlight=False)
    for name, measured in result.sides.items():
        if measured is not None:
            tokens = f"{measured.video_tokens:,} video tokens, {measured.new_tokens:,} new ones"
            out.print(f"[bold]Answer of {escape(name)}[/] ({tokens})", highlight=False)
            out.print(_printable(measured.answer), markup=False, highlight=False)

    table = Table(title=None)
    for column in ("", "all tokens", f"retention_ratio={result.retention_ratio}", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for name, before, after in (
        ("prompt tokens", result.full_prompt_tokens, short.prompt_tokens),
        ("video tokens", result.full_video_tokens, short.video_tokens),
    ):
        table.add_row(name, f"{before:,}", f"{after:,}", _times(before, after))
    for name, which in (("prefill, seconds", "prefill_seconds"), ("generate, seconds", "total_seconds")):
        before, after = getattr(full, which, 0.0), getattr(short, which)
        shown = [_seconds(measured, which) for measured in (full, short)]
        # Answers of different lengths take different times for that reason alone.
        comparable = full is not None and (which == "prefill_seconds" or full.new_tokens == short.new_tokens)
        table.add_row(name, *shown, _times(before, after) if comparable else "")
    table.add_row("new tokens", "" if full is None else f"{full.new_tokens:,}", f"{short.new_tokens:,}", "")
    out.print(table)
    repeats = len(short.total_seconds_each)
    if repeats > 1:
        out.print(f"Times are medians of {repeats} (least–most); prefill is the language model's.", style="dim")
    for name, measured in result.too_long().items():
        out.print(
            f"[yellow]Too long:[/] {name} has {measured.prompt_tokens:,} prompt tokens and positions up to "
            f"{measured.num_positions - 1:,}, but the model was made for {result.max_position_embeddings:,} "
            "(max_position_embeddings and its scaling). Its answer may be wrong: take fewer frames.",
            highlight=False,
            soft_wrap=True,
        )

    largest = max(result.frame_budgets)
    video_share = short.video_tokens / result.full_video_tokens
    newlines = "" if f"{result.kept_share:.1%}" == f"{video_share:.1%}" else f", {video_share:.1%} of the whole video"
    out.print(f"Kept: {result.kept_share:.1%} of the scored tokens{newlines}")
    budgets = Table(title=f"Tokens kept per frame, of {result.tokens_per_frame}")
    u_t = result.frame_uniqueness  # which not every method has
    for column in ("frame", "second", *([] if u_t is None else ["u_t"]), "k_t"):
        budgets.add_column(column, justify="right")
    budgets.add_column("")
    for i, (second, k) in enumerate(zip(result.frame_seconds, result.frame_budgets, strict=True)):
        unique = [] if u_t is None else [f"{u_t[i]:.4f}"]
        budgets.add_row(str(i), f"{second:.2f}", *unique, str(k), "█" * round(BAR_WIDTH * k / largest))
    out.print(budgets)
    _print_lost(result.lost_frames)
    out.print(", ".join(f"{name} {value}" for name, value in result.environment.items()), style="dim")


def _times(before: float, after: float) -> str:
    return f"{before / max(after, 1e-9):.2f}×"


def _seconds(measured: "Measured | None", which: str) -> str:
    """The median, and the spread if there is one."""
    if measured is None:
        return "not run"
    each = getattr(measured, f"{which}_each")
    spread = f" ({min(each):.3f}–{max(each):.3f})" if len(each) > 1 else ""
    return f"{getattr(measured, which):.3f}{spread}"


def _print_lost(lost: int) -> None:
    if lost:
        out.print(f"[yellow]Damaged:[/] {lost} frames of the video could not be decoded; the others were used.")


def _printable(text: str) -> str:
    """Without the control characters that a random model may utter."""
    shown = "".join(letter if letter.isprintable() or letter == "\n" else "·" for letter in text).strip()
    return shown or "(nothing printable)"


app.command("bench")(bench_command)
app.command("eval")(eval_command)
app.command("publish")(publish_command)
app.command("verify")(verify_command)


def main() -> None:
    """Entry point of the `vidcom2` command."""
    if "--json" in sys.argv:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()


if __name__ == "__main__":
    main()
