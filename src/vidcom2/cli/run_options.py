"""The options of `vidcom2 run`, for one video and for many."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .loading import MaybeWatchedArgument, TemplateOption, VideoOptions

DEFAULT_PROMPT = "What happens in the video?"
DEMO_AGAINST = "uniform_frames"
MANY = "Many videos"  # the panel in the help that shows the options for many videos
ONLY_ONE = ("video", "repeats", "baseline", "against", "as_json")  # options that work with one video only
ENGINES = ("transformers", "vllm", "ray")
RAY_ENGINES = ("transformers", "vllm")
OF_RAY = ("ray_engine", "ray_workers", "rows_per_part")
# The options that some engines do not take. vLLM itself chooses the device and the attention.
NOT_OF_ENGINE = {
    "transformers": ("tensor_parallel_size", "engine_args", *OF_RAY),
    "vllm": ("device", "device_map", "attn_implementation", "prepare_on", "cache_implementation", *OF_RAY),
    "ray": ("videos", "check", "device_map", "tensor_parallel_size"),
}
ONLY_MANY = (
    *("check", "output", "engine", "batch_size", "workers"),
    *("tensor_parallel_size", "engine_args", *OF_RAY),
)


@dataclass(frozen=True, kw_only=True)
class RunOptions(VideoOptions):
    """The options of `vidcom2 run`. The command has one option for each field, with its help text."""

    video: MaybeWatchedArgument = None
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "--question",
            help="Question about the video.",
            show_default=f"{DEFAULT_PROMPT}, or the question of the clip",
        ),
    ] = None
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of the answer, in tokens.", min=1)] = 64
    chat_template_kwargs: TemplateOption = None
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
            help="Another method to compare with. It keeps as many tokens, or the fewest that it can keep.",
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
        str | None,
        typer.Option(
            help="JSONL file. Each line has `video` (also a watched one) and `prompt`, and may have `id`, "
            "`max_new_tokens`, `retention_ratio` and so on. With --engine ray also a Parquet file, a folder, or a URL "
            "(s3://, http://).",
            show_default=False,
            rich_help_panel=MANY,
        ),
    ] = None
    check: Annotated[
        bool,
        typer.Option("--check", help="Only check all rows and videos, without a model.", rich_help_panel=MANY),
    ] = False
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="JSONL file for the answers. With --engine ray a folder or a URL that ends in .jsonl or .parquet.",
            show_default=False,
            rich_help_panel=MANY,
        ),
    ] = None
    engine: Annotated[
        str,
        typer.Option(
            help="What answers: `transformers`; `vllm`, its offline engine; or `ray`, either of them on a cluster.",
            rich_help_panel=MANY,
        ),
    ] = "transformers"
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="How many requests are answered together at most.",
            min=1,
            show_default="8, or 64 with vLLM",
            rich_help_panel=MANY,
        ),
    ] = None
    workers: Annotated[
        int, typer.Option(help="How many videos are read at once while the model runs.", min=1, rich_help_panel=MANY)
    ] = 2
    tensor_parallel_size: Annotated[
        int, typer.Option(help="GPUs that share each layer, with --engine vllm.", min=1, rich_help_panel=MANY)
    ] = 1
    engine_args: Annotated[
        str | None,
        typer.Option(
            help="Further arguments of `vllm.LLM` as JSON, such as '{\"max_model_len\": 8192}'.",
            show_default=False,
            rich_help_panel=MANY,
        ),
    ] = None
    ray_engine: Annotated[
        str,
        typer.Option(help="What Ray's workers hold: `transformers`, or `vllm`, its engine.", rich_help_panel=MANY),
    ] = "transformers"
    ray_workers: Annotated[
        int | None,
        typer.Option(
            help="How many workers load the model, with --engine ray.",
            min=1,
            show_default="one for each GPU of the cluster",
            rich_help_panel=MANY,
        ),
    ] = None
    rows_per_part: Annotated[
        int,
        typer.Option(
            help="Answers in a part of the output, with --engine ray. A part is written whole or not at all.",
            min=1,
            rich_help_panel=MANY,
        ),
    ] = 64
