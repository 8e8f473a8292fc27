"""`vidcom2 run --engine ray` answers requests on a cluster, and writes a folder of parts. `answering/many_on_ray.py`
does the work."""

import time
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from ..checks import check_given
from ..errors import OptionError
from ..finding_checkpoints import Resolved, resolve
from ..records.fingerprints import certificate_of
from ..records.provenance import commit, is_dirty
from .console import INTERRUPTED, SOME_ERRORS, imported_modules, one_line_errors, print_line, progress_bar
from .loading import announce_demo
from .run_many import answers_depend_on, check_installed, engine_arguments, runs_vllm
from .run_options import RAY_ENGINES, RunOptions


def run_on_ray(options: RunOptions) -> None:
    """Answer the requests that have no answer yet, and print how many were answered.

    Raises:
        typer.Exit: with code 3 if requests ended in an error, 2 on a mistake of the user, 130 after Ctrl-C.
    """
    started = time.perf_counter()
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16."):
        check_installed("ray", "Ray")
        _check_ray_engine(options)
        if options.requests is None or options.output is None:
            missing, what = ("requests", "the requests") if options.requests is None else ("output", "the answers")
            raise OptionError(f"`--{missing}` is missing. Name the file or folder of {what}.")
        check_given("--requests", options.requests, "for one video")
        model = resolve(options.model, options.placement, options.settings)
        arguments = answers_depend_on(options, model)
        from ..records.answer_parts import AnswerParts

        parts = AnswerParts(options.output)
        try:
            with parts.locked():
                counts = _answer(options, options.requests, model, arguments, parts)
        except KeyboardInterrupt:
            print_line(f"Stopped. The parts so far are in {escape(parts.name)}. The same command continues there.")
            raise typer.Exit(INTERRUPTED) from None
        print_line(
            f"Answered: {counts['before'] + counts['answers']:,} of {counts['requests']:,} requests "
            f"({counts['before']:,} before), in {time.perf_counter() - started:.1f} s. In {escape(parts.name)}"
        )
        if counts["errors"]:
            first = escape(counts["first_error"])
            print_line(
                f"[yellow]Errors:[/] {counts['errors']:,}, which the same command asks again. The first is {first}"
            )
            raise typer.Exit(SOME_ERRORS)


def _check_ray_engine(options: RunOptions) -> None:
    """Raise an OptionError if the engine of the workers is unknown or missing, or does not take an option."""
    if options.ray_engine not in RAY_ENGINES:
        raise OptionError(f"`ray_engine` is {options.ray_engine!r}, but must be one of {', '.join(RAY_ENGINES)}.")
    if not runs_vllm(options):
        if options.engine_args is not None:
            raise OptionError("`engine_args` is for vLLM. Leave it out, or add --ray-engine vllm.")
        return
    if options.placement.attn_implementation is not None:
        raise OptionError("`attn_implementation` is not an option of --ray-engine vllm. Leave it out.")
    check_installed("vllm", "vLLM", "ray_engine")
    engine_arguments(options)


def _from_anywhere(path: str) -> str:
    """Return an absolute path: workers on an existing cluster run in another folder than this command."""
    return str(Path(path).absolute())


def _answer(options: RunOptions, source: str, model: Resolved, arguments: dict[str, Any], parts: Any) -> dict[str, Any]:
    """Answer what is left, and return the numbers of `requests`, of answers `before`, of new `answers` and `errors`,
    and the `first_error`."""
    from ..answering.many_on_ray import (
        Work,
        answered_on_ray,
        check_requests,
        connect,
        requests_on_ray,
        workers_that_fit,
    )

    connect(options.ray_workers)
    num_workers, gpus = workers_that_fit(options.ray_workers, options.placement.device)
    requests, folder = requests_on_ray(source)
    parts.check(arguments)
    if runs_vllm(options):
        from ..answering.many_in_vllm import config_and_processor

        config_and_processor(model)  # before workers start
    announce_demo(options.model)
    answered = parts.answered()
    total, before = check_requests(requests, folder, answered, parts.name)
    parts.claim(arguments, commit() + " with uncommitted changes" * is_dirty())
    work = Work(
        model=_from_anywhere(options.model) if options.model and Path(options.model).is_dir() else options.model,
        placement=options.placement.at_commit(arguments["model_commit"]),
        settings=options.settings,
        imported=tuple(_from_anywhere(each) if each.endswith(".py") else each for each in imported_modules()),
        certificate=certificate_of(arguments),
        folder=folder,
        output=parts.folder if parts.is_local else parts.name,
        answering={
            "num_frames": options.num_frames,
            "max_new_tokens": options.max_new_tokens,
            "batch_size": options.batch_size or (64 if runs_vllm(options) else 8),
            "workers": options.workers,
            "scale_while_reading": options.scale_while_reading,
            "chat_template_kwargs": arguments["chat_template_kwargs"],
        },
        engine_arguments=arguments["engine_args"] if runs_vllm(options) else None,
    )
    counts: dict[str, Any] = {"requests": total, "before": before, "answers": 0, "errors": 0, "first_error": ""}
    if before == total:
        return counts
    with progress_bar() as progress:
        task = progress.add_task("Answering", total=total, completed=before)
        for part in answered_on_ray(requests, work, answered, num_workers, gpus, options.rows_per_part):
            counts["answers"] += part["answers"]
            counts["errors"] += part["errors"]
            counts["first_error"] = counts["first_error"] or part["first_error"] or ""
            progress.advance(task, part["answers"] + part["errors"])
    return counts
