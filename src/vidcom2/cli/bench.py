"""`vidcom2 bench` turns options into tables and plots. Functions that return data do the work."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..asking.candidates import Candidate, budget_in_words, candidates_of, others_in_words
from ..checks import check_given, check_settings, check_video_file, video_pixels
from ..configuration.compression_settings import COMPRESSION_METHODS, SETTING_NAMES
from ..errors import OptionError, option_name, written_to
from ..families.table import FAMILIES, Family
from ..loading.finding_checkpoints import Resolved, resolve
from ..loading.placement import Placement, check_machine
from ..measuring.asking_again import table_of_asking_again
from ..measuring.bench_tables import ceilings, failures, notes, terminal_tables
from ..measuring.figures import EAGER, of_setup
from ..measuring.results import new_file, read_results, write_results
from ..measuring.sizes import MODEL_SIZES, SMALL, ModelSize, size_named
from ..presets import NUM_FRAMES
from ..records.fingerprints import certificate_of
from ..records.provenance import birth_certificate, command_line, cpu_name, without_folder
from .console import (
    imported_files,
    imports_in_commands,
    one_line_errors,
    out,
    print_line,
    print_table,
    print_verdict,
    progress_of,
    status,
    takes_fields,
    takes_placement,
    takes_settings,
)
from .verdicts import verdict_of_bench

if TYPE_CHECKING:
    from ..loading.checkpoints import Checkpoint
    from ..measuring.bench import Series

METHODS = (*COMPRESSION_METHODS, "vidcom2:compression_scoring=released")
FOLDER = Path("vidcom2-bench")
REPEATABLE = ("num_frames", "batch_size")
RECORDED = ("max_new_tokens", "repeats", "method", "retention_ratio", "encode_once", "compiled", "seed")
# The values that `--quick` gives to options that the user left out.
QUICK: dict[str, Any] = {
    "model_size": [SMALL],
    "method": ["vidcom2", "random"],
    "retention_ratio": ["0.25"],
    "num_frames": [2, 4, 8],
    "repeats": 2,
    "max_new_tokens": 4,
    "video_size": "320x180",
    "dtype": "float32",
}
USUAL: dict[str, Any] = {
    "model_size": ["llava-onevision-0.5b"],
    "method": list(METHODS),
    "retention_ratio": ["0.25", "0.15"],
    "num_frames": [NUM_FRAMES],
    "repeats": 5,
    "max_new_tokens": 16,
    "video_size": "640x360",
    "dtype": "auto",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of `vidcom2 bench`. The command has one option for each field, with its help text.

    Attributes:
        settings: fields of `CompressionSettings`, for the methods that read them, and of the model's family.
        placement: device and revision. `bench` has options of its own for the dtype and for several kinds of attention.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    model_size: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Size of the model, as a released one has it; its weights are random. One of "
            f"{', '.join(MODEL_SIZES)}. Repeatable.",
            metavar="SIZE",
            show_default=USUAL["model_size"][0],
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="Measure a checkpoint instead, with its own weights: a Hub id or a folder.", show_default=False
        ),
    ] = None
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--compression-method",
            help="Method to compare. Its own settings follow a colon. Repeatable, or separated by commas.",
            show_default=", ".join(METHODS),
        ),
    ] = None
    retention_ratio: Annotated[
        list[str] | None,
        typer.Option(
            "--retention-ratio",
            "--ratio",
            help="Retention ratio to compare. Repeatable, or separated by commas. All tokens are always measured too.",
            show_default=",".join(USUAL["retention_ratio"]),
        ),
    ] = None
    num_frames: Annotated[
        list[int] | None,
        typer.Option(
            "--num-frames", "--frames", help="Frames sampled from the video. Repeatable.", min=1, show_default="32"
        ),
    ] = None
    batch_size: Annotated[
        list[int] | None,
        typer.Option(help="How many copies of the question one call holds. Repeatable.", min=1, show_default="1"),
    ] = None
    attn_implementation: Annotated[
        list[str] | None,
        typer.Option(
            help="`sdpa`, `eager` or `flash_attention_2`. Repeatable.", show_default="Transformers'", metavar="NAME"
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Length of each answer, in tokens.", min=2, show_default="16")
    ] = None
    repeats: Annotated[
        int | None,
        typer.Option(
            help="How often each contender is measured, after one turn that does not count.", min=1, show_default="5"
        ),
    ] = None
    encode_once: Annotated[
        bool,
        typer.Option(
            "--encode-once",
            help="Read and encode the video once a round, and count that time for each contender. This saves time on "
            "slow machines.",
        ),
    ] = False
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled",
            help="Also measure all of it with decoding on a static cache, whose steps Transformers compiles on a GPU. "
            "`--cache-implementation static` measures that alone.",
        ),
    ] = False
    ask_again: Annotated[
        bool,
        typer.Option(
            "--ask-again",
            help="Also measure further questions about one video with the first method and ratio: asked anew, and "
            "from the features and the KV cache that `vidcom2 watch` keeps.",
        ),
    ] = False
    video: Annotated[
        str | None,
        typer.Argument(help="Video file or http(s) URL.", show_default="a generated one, at 25 frames a second"),
    ] = None
    video_size: Annotated[
        str | None,
        typer.Option(help="Size of the generated video, in pixels.", metavar="WxH", show_default="640x360"),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="`float32`, `bfloat16` or `float16`.", show_default="the checkpoint's, or bfloat16"),
    ] = None
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1, show_default="PyTorch's")] = None
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder for the result files and plots. Nothing there is replaced."),
    ] = FOLDER
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Answer within a minute: a model of 37M parameters that nobody released, and few frames.",
        ),
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the content of the result files as a JSON list, and nothing else.")
    ] = False
    plot_only: Annotated[
        list[Path] | None,
        typer.Option(
            help="Measure nothing, but show tables and plots of this result file. Repeatable.", show_default=False
        ),
    ] = None

    def completed(self) -> "BenchOptions":
        """Return the options with defaults filled in, which depend on `--quick`."""
        usual = QUICK if self.quick else USUAL
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        if self.model is not None:
            missing.pop("model_size", None)
        missing |= {} if self.batch_size is not None else {"batch_size": [1]}
        return dataclasses.replace(self, **missing)

    def check(self) -> tuple[Resolved | None, list[Candidate]]:
        """Check the options, which must be complete. Return the model, if one is named, and the candidates.

        Raises:
            OptionError, CheckpointError: on what can be known to fail.
        """
        if self.model is not None and self.model_size is not None:
            raise OptionError(f"`--model` is {self.model!r} and `--model-size` {self.model_size}. Pass one of them.")
        for name in self.model_size or ():
            self._check_caches(FAMILIES[size_named(name).model_type])
        for name in ("model_size", "attn_implementation", *REPEATABLE):
            given = getattr(self, name) or []
            twice = [value for value in given if given.count(value) > 1]
            if twice:
                raise OptionError(f"`{option_name(name)}` has {twice[0]!r} twice. Name each once.")
        check_settings(self.settings)
        assert self.method is not None and self.retention_ratio is not None and self.dtype is not None
        named = ",".join(self.method), ",".join(self.retention_ratio), ("--method", "--retention-ratio")
        candidates = [self._with_settings(each) for each in candidates_of(*named, self.settings)]
        for name, value in (item for each in candidates for item in each.settings.items()):
            self.check_encoding(name, value)
        for placement in self.placements():
            placement.check(self.model)  # `resolve` checks one of them
        video_pixels(str(self.video_size))
        if self.video is not None:
            check_given("--video", self.video, "for a generated one")
            check_video_file(self.video)
        if self.model is None:
            return None, candidates
        resolved = resolve(self.model, self.placements()[0], self.family_settings())
        self._check_caches(resolved.family)
        return resolved, candidates

    def check_encoding(self, name: str, value: Any) -> None:
        """Check that a setting of the options or of the model goes with `--encode-once`. Raises an OptionError."""
        if self.encode_once and name.startswith("vision_") and (name, value) != ("vision_method", "full"):
            raise OptionError(
                f"`{name}` is {value!r}, but with `--encode-once` all contenders share the encoding of the stock model."
                " Leave `--encode-once` out."
            )

    def _check_caches(self, family: Family) -> None:
        """Check that static caches, `--compiled`'s too, change nothing of what a family's stock class computes."""
        for kind in (self.placement.cache_implementation, "static" if self.compiled else None):
            family.check_cache(kind)

    def placements(self) -> list[Placement]:
        """Return a placement for each kind of attention that is measured. The model is loaded with the first."""
        dtype = str(self.dtype)
        kinds = self.attn_implementation or [None]
        return [dataclasses.replace(self.placement, dtype=dtype, attn_implementation=each) for each in kinds]

    def _with_settings(self, candidate: Candidate) -> Candidate:
        """Return the candidate with those of the shared settings that its method reads. Its own settings win."""
        method = COMPRESSION_METHODS[candidate.settings["compression_method"]]
        # Methods that round differently keep different numbers of tokens, and would differ in time for that reason.
        shared = {"compression_rounding": "exact"} | self.settings
        shared = {name: value for name, value in shared.items() if name in SETTING_NAMES and method.reads(name)}
        return dataclasses.replace(candidate, settings={**shared, **candidate.settings})

    def family_settings(self) -> dict[str, Any]:
        """Return the settings that belong to the model's family and not to methods."""
        return {name: value for name, value in self.settings.items() if name not in SETTING_NAMES}

    def command(self, model: Resolved | None) -> str:
        """Return the command for the result file, in which files are called by their names alone."""
        names = {"video": without_folder(str(self.video)), "model": without_folder(str(self.model))}
        commit = None if model is None else model.source.commit
        return command_line(self, "bench", ("output", "as_json"), imports_in_commands(), commit, **names)


@partial(takes_settings, without=("compression_method", "retention_ratio"))
@partial(takes_placement, without=("device_map", "dtype", "attn_implementation"))
@takes_fields(BenchOptions)
def bench_command(options: BenchOptions) -> None:
    """Measure how long each stage of an answer takes, with all tokens and with each method at each ratio.

    The models have the sizes of released ones but random weights, since time does not depend on them. The contenders
    take turns. For each model it writes a result file, which grows with each round, and plots beside it.
    `vidcom2 publish --results` takes the file.
    """
    remedy = "Take fewer frames (--num-frames) or a smaller --model-size, or use --dtype bfloat16."
    with one_line_errors(remedy):
        if options.plot_only:
            files = options.plot_only
            for path in files:
                read_results(path)
        else:
            files = _measured(options)
        _show(files, options.as_json)


def _measured(given: BenchOptions) -> list[Path]:
    """Measure, and return the result files."""
    check_machine(given.placement)  # before the methods, whose check imports PyTorch
    options = given.completed()
    model, candidates = options.check()
    if options.output.is_file():
        raise OptionError(f"`--output` is {str(options.output)!r}, but that is a file. Name a folder.")
    with status("Importing PyTorch ..."):
        import torch

        from ..loading.devices import device_of
    device, *_ = [device_of(each) for each in options.placements()]  # the same for each kind of attention
    from ..measuring.clip import make_video, num_frames_of

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    assert options.num_frames is not None
    files = []
    with ExitStack() as stack:
        source, about_video = options.video, {"video": options.video and Path(options.video).name}
        if source is None:
            width, height = video_pixels(str(options.video_size))
            num_frames = num_frames_of(max(options.num_frames))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            source = str(folder / "video.mp4")
            with status("Generating a video ..."):
                make_video(Path(source), width, height, num_frames)
            about_video = {"video": f"generated, H.264, {width}x{height}, {num_frames} frames at 25 a second"}
        for size in options.model_size or [None]:
            command = given.command(model)
            files.append(_measured_model(options, command, model, candidates, size, device, source, about_video))
    return files


def _measured_model(
    options: BenchOptions,
    command: str,
    model: Resolved | None,
    candidates: Sequence[Candidate],
    size: str | None,
    device: Any,
    video: str,
    about_video: Mapping[str, Any],
) -> Path:
    import torch

    from ..asking.comparison import environment, steady_threads
    from ..measuring.asking_again import ask_again
    from ..measuring.bench import bench

    checkpoint, certified, title = _model(options, model, size, device)
    assert options.num_frames is not None and options.batch_size is not None
    assert options.max_new_tokens is not None and options.repeats is not None
    with steady_threads(checkpoint.model) if options.threads is None else ExitStack():
        where = environment(checkpoint.model)
        if device.type == "cpu":
            where["device"] = f"{cpu_name()}, {where['threads']} threads"
        certificate = birth_certificate(
            certified,
            command,
            **where,
            cpu=cpu_name(),
            cpu_cores=os.cpu_count(),
            load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            parameters=sum(each.numel() for each in checkpoint.model.parameters()),
            weights="the checkpoint's" if size is None else f"random, seed {options.seed}",
            **certificate_of(checkpoint.identity),
            **about_video,
            options={name: getattr(options, name) for name in (*REPEATABLE, *RECORDED)},
            settings=options.settings,
            imported=imported_files(),
            memory="allocated by PyTorch" if device.type == "cuda" else "of the process (VmHWM)",
            statistic="medians of turns",
        )
        with written_to(options.output):
            path = new_file(options.output, size or certified)

        again: list[dict[str, Any]] = []

        def save(every: "list[Series]", complete: bool = False) -> None:
            with written_to(path):
                write_results(path, title, certificate, [series.as_json() for series in every], complete, again)

        save([])
        with progress_of("Measuring") as progress:
            every = bench(
                checkpoint,
                candidates,
                video,
                num_frames=options.num_frames,
                batch_sizes=options.batch_size,
                attn_implementations=options.attn_implementation or [None],
                max_new_tokens=options.max_new_tokens,
                repeats=options.repeats,
                encode_once=options.encode_once,
                compiled=options.compiled,
                save=save,
                progress=progress,
            )
        if options.ask_again:
            frames = max(options.num_frames)
            with status("Asking again ..."):
                again = ask_again(checkpoint, candidates[0], video, frames, options.max_new_tokens, options.repeats)
        save(every, complete=True)
    del checkpoint
    if device.type == "cuda":
        torch.cuda.empty_cache()  # for the next model
    return path


def _model(
    options: BenchOptions, model: Resolved | None, size: str | None, device: Any
) -> "tuple[Checkpoint, str, str]":
    """Return the model, the name under which its figures are stored, and a title for them."""
    import torch

    from ..loading.checkpoints import load_resolved
    from ..measuring.models import random_checkpoint

    placement = options.placements()[0]
    shared = "".join(f", {each}" for each in (*budget_in_words(options.settings), *others_in_words(options.settings)))
    if model is not None:
        checkpoint = load_resolved(model)
        options.check_encoding("vision_method", checkpoint.model.config.vision_method)
        return checkpoint, model.name_in_results, f"Time of {model.name_in_results}{shared}"
    assert size is not None  # `check` wants one of the two
    row: ModelSize = size_named(size)
    with status(f"Making {size} of random weights ..."):
        checkpoint = random_checkpoint(
            size,
            row,
            device,
            torch.bfloat16 if placement.dtype == "auto" else getattr(torch, placement.dtype),
            placement.attn_implementation,
            options.seed,
            **options.family_settings(),
        )
    checkpoint = dataclasses.replace(checkpoint, prepare_on=placement.prepare_on)
    placement.set_cache(checkpoint.model)
    # The result names the checkpoint of this size, so that `vidcom2 publish` puts it on cards of models made from it.
    return (
        checkpoint,
        row.checkpoint or size,
        f"Time of a model of the size of {row.checkpoint or size}, random weights{shared}",
    )


def _show(files: Sequence[Path], as_json: bool) -> None:
    """Print the tables of result files and draw their plots."""
    contents = []
    for path in files:
        content, rows = read_results(path)
        contents.append(content)
        plots = []
        if find_spec("matplotlib") is not None:
            from ..measuring.bench_plot import draw_all

            with written_to(path):
                plots = draw_all(rows, content["title"], path)
        if as_json:
            continue
        certificate = content["birth_certificate"]
        print_line(f"[bold]{escape(content['title'])}[/]")
        where = ", ".join(str(certificate[name]) for name in ("device", "dtype", "video"))
        print_line(
            escape(f"{where}; torch {certificate['torch']}, transformers {certificate['transformers']}"), style="dim"
        )
        shown: Sequence[Sequence[Sequence[str]]] = ()
        for setup in dict.fromkeys(map(of_setup, rows)):
            frames, batch_size, attention, steps = setup
            how = "" if steps == EAGER else f", {steps}"
            print_line(f"[bold]{frames} frames, batches of {batch_size}, {attention}{how}[/]")
            shown = terminal_tables([row for row in rows if of_setup(row) == setup])
            for cells in shown:
                print_table(cells)
        if "ask_again" in content:
            again = content["ask_again"]
            kept = f"{again[0]['method']} at {again[0]['retention_ratio']:.0%}"
            print_line(f"[bold]Further questions about {again[0]['frames']} frames, {kept}, {again[0]['attention']}[/]")
            print_table(table_of_asking_again(again))
        for line in failures(rows):
            print_line(f"[yellow]Not measured:[/] {escape(line)}")
        if not content["complete"]:
            print_line("[yellow]Stopped early:[/] some contenders had fewer turns than were asked for.")
        out.print(escape(notes(shown, rows)), highlight=False, style="dim")
        if bound := ceilings(rows):
            out.print(bound, highlight=False)
        print_line(escape(f"In {path.parent}: {', '.join(each.name for each in (path, *plots))}"))
        print_verdict(verdict_of_bench(rows))
    if as_json:
        print(json.dumps(contents, indent=1, ensure_ascii=False))
