"""`vidcom2 plan` says which GPUs a load of videos needs. `planning/` does the work."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..checks import check_given, video_pixels
from ..configuration.compression_settings import checked_setting
from ..errors import OptionError
from ..measuring.sizes import MODEL_SIZES, size_named
from ..planning.gpus import GPUS, Gpu, gpu_named
from .console import err, one_line_errors, print_line, print_table, takes_fields

if TYPE_CHECKING:
    from ..planning.plan import Load, Plan

SCHEMA = 1
RATIOS = (0.25, 0.15)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `vidcom2 plan`. The command has one option for each field, with its help text."""

    model_size: Annotated[
        str | None,
        typer.Option(help=f"Size of a released model. One of {', '.join(MODEL_SIZES)}.", metavar="SIZE"),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="Plan for a checkpoint instead: a Hub id or a folder. Its weights are not read."),
    ] = None
    gpu: Annotated[
        list[str] | None,
        typer.Option(help=f"GPU: {', '.join(GPUS)}. Repeatable.", metavar="NAME", show_default="all"),
    ] = None
    retention_ratio: Annotated[
        list[float] | None,
        typer.Option(help="Retention ratio. Repeatable. All tokens are always shown too.", show_default="0.25, 0.15"),
    ] = None
    max_video_tokens: Annotated[
        int | None,
        typer.Option(help="Budget: the most tokens that a video keeps at ratios below 1.", min=1, show_default=False),
    ] = None
    num_frames: Annotated[int, typer.Option(help="Frames sampled from each video.", min=1)] = 32
    video_size: Annotated[str, typer.Option(help="Size of the videos, in pixels.", metavar="WxH")] = "640x360"
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of the prompt besides the video's.", min=1)] = 100
    new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 128
    concurrency: Annotated[int, typer.Option(help="Requests that run at once.", min=1)] = 16
    videos_per_minute: Annotated[
        float | None,
        typer.Option(help="How many videos must be answered about. Adds the number of GPUs.", show_default=False),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON, and nothing else.")] = False

    def check(self) -> tuple[list[Gpu], list[float]]:
        """Check the options, and return the GPUs and the ratios.

        Raises:
            OptionError: on what can be known to fail.
        """
        if (self.model is None) == (self.model_size is None):
            raise OptionError("name one model: `--model-size qwen3-vl-8b`, or `--model` with a Hub id or a folder.")
        check_given("--model", self.model, "and name a --model-size")
        if self.model_size is not None:
            size_named(self.model_size)
        video_pixels(self.video_size)
        if self.videos_per_minute is not None and not 0 < self.videos_per_minute < float("inf"):
            raise OptionError(f"`--videos-per-minute` is {self.videos_per_minute:g}, but must be more than 0.")
        try:
            ratios = [checked_setting("retention_ratio", each) for each in self.retention_ratio or RATIOS]
        except ValueError as error:
            raise OptionError(str(error)) from None
        return [gpu_named(name) for name in self.gpu or GPUS], list(dict.fromkeys([1.0, *ratios]))


@takes_fields(PlanOptions)
def plan_command(options: PlanOptions) -> None:
    """Compute which GPUs a load of videos needs, with all tokens and at each retention ratio.

    The figures follow from the sizes of the model and of the GPUs; nothing is measured. They are for bfloat16 weights
    in an engine that batches continuously, as vLLM.
    """
    with one_line_errors("Take fewer frames (--num-frames)."):
        gpus, ratios = options.check()
        with err.status("Counting the model's weights ..."):
            about, load, found = _plans(options, gpus, ratios)
    if options.as_json:
        print(json.dumps({"schema": SCHEMA, **about, "plans": [each.as_json() for each in found]}, indent=2))
        return
    from ..planning.tables import notes, plan_table, too_long

    print_line(
        f"{escape(about['model'])}: {about['parameters'] / 1e9:.1f}B weights, {2 * about['parameters'] / 1e9:.1f} GB. "
        f"A video of {options.num_frames} frames of {options.video_size} has {about['video_tokens']:,} tokens."
    )
    print_table(plan_table(found, load))
    if (line := too_long(found, load, about["positions"])) is not None:
        print_line(line)
    for note in notes(load):
        print_line(note, style="dim")


def _plans(options: PlanOptions, gpus: list[Gpu], ratios: list[float]) -> "tuple[dict[str, Any], Load, list[Plan]]":
    from ..checkpoints import read_config_and_processor
    from ..measuring.models import config_and_processor
    from ..modeling.prompt.conversation_cache import positions_made_for
    from ..planning.plan import Load, plan
    from ..planning.sizes import model_costs, video_size

    if options.model is not None:
        config, processor = read_config_and_processor(options.model, None, {})
    else:
        assert options.model_size is not None
        config, processor = config_and_processor(size_named(options.model_size), {})
    costs = model_costs(config)
    video = video_size(config, processor, options.num_frames, *video_pixels(options.video_size))
    if options.max_video_tokens is not None and options.max_video_tokens < video.num_frames:
        raise OptionError(
            f"`--max-video-tokens` is {options.max_video_tokens}, but must be {video.num_frames} or more: a token of "
            f"each of the {video.num_frames} frames that the model makes of {options.num_frames}."
        )
    load = Load(
        options.prompt_tokens,
        options.new_tokens,
        options.concurrency,
        options.videos_per_minute,
        options.max_video_tokens,
    )
    about = {
        "model": options.model or options.model_size,
        "positions": positions_made_for(config.get_text_config()),
        "parameters": costs.weights,
        "video_tokens": video.num_frames * video.tokens_per_frame + video.structure,
        "tower_flops": costs.tower_flops(video),
    }
    return about, load, [plan(costs, video, load, gpu, ratio) for gpu in gpus for ratio in ratios]
