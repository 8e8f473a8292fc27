"""The command line: `vidcom2 run`, `explain` and `convert-llava-video`; `hub_commands.py` has the others."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from .console import DEMO_VIDEO, err, one_line_errors, out, progress_bar
from .hub_commands import publish_command, verify_command

if TYPE_CHECKING:
    from .checkpoints import Checkpoint
    from .run import Run
    from .video import Video

DEFAULT_PROMPT = "What happens in the video?"
BAR_WIDTH = 24

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Video LLMs that keep only the distinctive video tokens (VidCom²).",
)

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint: a Hub id such as `llava-hf/llava-onevision-qwen2-0.5b-ov-hf`, or a folder. Stock checkpoints "
        "work as they are. Without it, a tiny random model is built on the spot.",
        show_default=False,
    ),
]
VideoOption = Annotated[
    str | None,
    typer.Option(help="Video file or http(s) URL. Without it, a short clip that comes along.", show_default=False),
]
RatioOption = Annotated[float, typer.Option(help="Fraction of the video tokens to keep, in (0, 1].")]
FramesOption = Annotated[int, typer.Option(help="Frames sampled evenly from the video.", min=1)]
DeviceOption = Annotated[str, typer.Option(help="`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.")]
DtypeOption = Annotated[str, typer.Option(help="`auto` (the checkpoint's), `float32`, `bfloat16` or `float16`.")]
AttentionOption = Annotated[
    str | None,
    typer.Option(help="`sdpa`, `eager` or `flash_attention_2` (extra `flash-attn`).", show_default="Transformers'"),
]


@app.command("run")
def run_command(
    model: ModelOption = None,
    video: VideoOption = None,
    prompt: Annotated[str, typer.Option(help="Question about the video.")] = DEFAULT_PROMPT,
    retention_ratio: RatioOption = 0.25,
    num_frames: FramesOption = 32,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)] = 64,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    attn_implementation: AttentionOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
) -> None:
    """Ask a question about a video, with and without compression, and measure both.

    Prints the answers, the tokens in the language model's prompt (counted there), the seconds of its prefill and of
    the whole of `generate`, and the tokens that each frame was granted. Without arguments it runs a demo.
    """
    with one_line_errors():
        frames, checkpoint = _load(model, video, num_frames, retention_ratio, device, dtype, attn_implementation)
        from .run import run

        with err.status("Answering twice, with and without compression ..."):
            result = run(checkpoint, frames, prompt, max_new_tokens)
    if as_json:
        print(json.dumps(dataclasses.asdict(result), indent=2))
    else:
        _announce_demo(model, video)
        _print_run(result)


@app.command("explain")
def explain_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to draw: `.png` or `.html`.")],
    model: ModelOption = None,
    video: VideoOption = None,
    retention_ratio: RatioOption = 0.25,
    num_frames: FramesOption = 16,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Draw what is kept of a video: its frames, how unique each is, its budget, and the dropped tokens dimmed.

    Runs the video encoder only. PNG needs matplotlib: `pip install "vidcom2[explain]"`.
    """
    with one_line_errors():
        if output.suffix not in (".png", ".html"):
            raise ValueError(f"`--output` is {str(output)!r}, but must end in .png or .html.")
        if not output.parent.is_dir():
            raise ValueError(f"`--output` is {str(output)!r}, but there is no folder {str(output.parent)!r}.")
        frames, checkpoint = _load(model, video, num_frames, retention_ratio, device, dtype, None)
        from .explain import draw_html, draw_png, explain

        with err.status("Encoding and drawing ..."):
            explanation = explain(checkpoint, frames)
            (draw_png if output.suffix == ".png" else draw_html)(explanation, str(output))
    _announce_demo(model, video)
    out.print(explanation.title)
    out.print(f"Drawn to {escape(str(output))}", highlight=False, soft_wrap=True)


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
            from .convert_llava_video import convert_llava_video
        with progress_bar() as progress:
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


def _load(
    model: str | None,
    video: str | None,
    num_frames: int,
    retention_ratio: float,
    device: str,
    dtype: str,
    attn_implementation: str | None,
) -> "tuple[Video, Checkpoint]":
    from .compression_settings import checked_setting

    checked_setting("retention_ratio", retention_ratio)  # before anything takes long
    from .video import read_video

    with progress_bar() as progress:
        task = progress.add_task("Reading the video", total=None)
        frames = read_video(
            video or str(DEMO_VIDEO),
            num_frames,
            lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )
    with err.status("Importing Transformers ..."):
        from .checkpoints import load_checkpoint
    # Transformers shows its own progress bars for files that are downloaded and weights that are loaded.
    return frames, load_checkpoint(model, retention_ratio, device, dtype, attn_implementation)


def _announce_demo(model: str | None, video: str | None) -> None:
    lines = []
    if model is None:
        lines.append(
            "The model is a tiny one with random weights: its answers are noise, and its timings are not those of a "
            "real model. Pass `--model` for one."
        )
    if video is None:
        lines.append("The video is the clip that comes with vidcom2. Pass `--video` for another.")
    if lines:
        out.print(Panel("\n".join(lines), title="Demo", border_style="yellow", expand=False, width=min(100, out.width)))


def _print_run(result: "Run") -> None:
    before, after = result.uncompressed, result.compressed
    out.print(f"[bold]Model[/]   {escape(result.model)}", highlight=False)
    out.print(f"[bold]Prompt[/]  {escape(result.prompt)}", highlight=False)
    for name, measured in ((f"Answer at {result.retention_ratio}", after), ("Answer at 1.0", before)):
        out.print(f"[bold]{name}[/] ({measured.new_tokens} tokens)")
        out.print(_printable(measured.answer), markup=False, highlight=False)

    table = Table(title=None)
    for column in ("", "all tokens", f"retention_ratio={result.retention_ratio}", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for name, full, short, unit in (
        ("prompt tokens", before.prompt_tokens, after.prompt_tokens, ""),
        ("video tokens", before.video_tokens, after.video_tokens, ""),
        ("language model prefill", before.prefill_seconds, after.prefill_seconds, " s"),
        ("whole generate", before.total_seconds, after.total_seconds, " s"),
    ):
        shown = [f"{value:.3f}{unit}" if unit else f"{value:,}" for value in (full, short)]
        table.add_row(name, *shown, f"{full / max(short, 1e-9):.2f}×")
    out.print(table)

    largest = max(result.frame_budgets)
    video_share = after.video_tokens / before.video_tokens
    out.print(f"Kept: {result.kept_share:.1%} of the scored tokens, {video_share:.1%} of the video with its newlines")
    budgets = Table(title=f"Tokens kept per frame, of {result.tokens_per_frame}")
    for column, justify in (("frame", "right"), ("second", "right"), ("u_t", "right"), ("k_t", "right"), ("", "left")):
        budgets.add_column(column, justify=justify)
    rows = zip(result.frame_seconds, result.frame_uniqueness, result.frame_budgets, strict=True)
    for i, (second, u, k) in enumerate(rows):
        budgets.add_row(str(i), f"{second:.2f}", f"{u:.4f}", str(k), "█" * round(BAR_WIDTH * k / largest))
    out.print(budgets)
    out.print(", ".join(f"{name} {value}" for name, value in result.environment.items()), style="dim")


def _printable(text: str) -> str:
    """Without the control characters that a random model may utter."""
    shown = "".join(letter if letter.isprintable() or letter == "\n" else "·" for letter in text).strip()
    return shown or "(nothing printable)"


app.command("publish")(publish_command)
app.command("verify")(verify_command)


def main() -> None:
    """Entry point of the `vidcom2` command."""
    if "--json" in sys.argv:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()


if __name__ == "__main__":
    main()
