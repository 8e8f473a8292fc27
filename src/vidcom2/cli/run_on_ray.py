"""`vidcom2 run --engine ray` answers requests on a cluster, and writes a folder of parts. `bulk/many_on_ray.py`
does the work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checks import check_given
from ..errors import OptionError
from ..loading.finding_checkpoints import Resolved, resolve
from ..records.fingerprints import certificate_of
from ..records.provenance import commit_of_run
from .console import imported_modules, one_line_errors, progress_bar
from .loading import announce_demo
from .run_many import (
    Counts,
    answer_into,
    answers_depend_on,
    check_installed,
    engine_arguments,
    how_to_answer,
    runs_vllm,
)
from .run_options import RAY_ENGINES, RunOptions


def run_on_ray(options: RunOptions) -> None:
    """Answer the requests that have no answer yet. Raises what `run_many` raises."""
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16."):
        check_installed("ray", "Ray")
        _check_ray_engine(options)
        source = options.requests
        if source is None or options.output is None:
            missing, what = ("requests", "the requests") if source is None else ("output", "the answers")
            raise OptionError(f"`--{missing}` is missing. Name the file or folder of {what}.")
        check_given("--requests", source, "for one video")
        model = resolve(options.model, options.placement, options.settings)
        arguments = answers_depend_on(options, model)
        from ..records.answer_parts import AnswerParts

        parts = AnswerParts(options.output)
        answer_into(parts, lambda: _answer(options, source, model, arguments, parts))


def _check_ray_engine(options: RunOptions) -> None:
    """Raise an OptionError if the engine of the workers is unknown or missing, or does not take an option."""
    if options.ray_engine not in RAY_ENGINES:
        raise OptionError(f"`ray_engine` is {options.ray_engine!r}, but must be one of {', '.join(RAY_ENGINES)}.")
    if not runs_vllm(options):
        if options.engine_args is not None:
            raise OptionError("`engine_args` is for vLLM. Leave it out, or add --ray-engine vllm.")
        return
    for name in ("attn_implementation", "prepare_on", "cache_implementation"):
        if name in options.placement.given:
            raise OptionError(f"`{name}` is not an option of --ray-engine vllm. Leave it out.")
    check_installed("vllm", "vLLM", "ray_engine")
    engine_arguments(options)


def _from_anywhere(path: str) -> str:
    """Return an absolute path: workers on an existing cluster run in another folder than this command."""
    return str(Path(path).absolute())


def _answer(options: RunOptions, source: str, model: Resolved, arguments: dict[str, Any], parts: Any) -> Counts:
    """Answer the requests that are left."""
    from ..bulk.many_on_ray import (
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
        from ..bulk.many_in_vllm import config_and_processor

        config_and_processor(model)  # before workers start
    announce_demo(options.model)
    answered = parts.answered()
    total, others = check_requests(requests, folder, answered, parts)
    before = len(answered) - len(others)
    parts.claim(arguments, commit_of_run())
    work = Work(
        model=_from_anywhere(options.model) if options.model and Path(options.model).is_dir() else options.model,
        placement=replace(options.placement, revision=arguments["model_commit"]),
        settings=options.settings,
        imported=tuple(_from_anywhere(each) if each.endswith(".py") else each for each in imported_modules()),
        certificate=certificate_of(arguments),
        folder=folder,
        output=parts.folder if parts.is_local else parts.name,
        engine=options.ray_engine,
        engine_arguments=arguments.get("engine_args", {}),
        how=how_to_answer(options),
    )
    counts = Counts(total, before, others)
    if before == total:
        return counts
    with progress_bar() as progress:
        task = progress.add_task("Answering", total=total, completed=before)
        for row in answered_on_ray(requests, work, answered, num_workers, gpus, options.rows_per_part):
            counts.add(row)
            progress.advance(task)
    return counts
