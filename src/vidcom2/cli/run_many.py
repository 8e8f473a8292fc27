"""`vidcom2 run` over many videos turns requests into a JSONL file of answers. An engine does the work: Transformers in
`answering/many_in_transformers.py`, vLLM in `many_in_vllm.py`. For Ray there is `run_on_ray.py`."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from ..answering.requests import HowToAnswer, VideoRequest, read_requests, requests_of_folder
from ..checks import check_settings
from ..errors import OptionError, how_to_install, option_name
from ..finding_checkpoints import Resolved, resolve
from ..records.fingerprints import check_loaded, identity_of
from ..records.provenance import commit, is_dirty
from ..records.run_record import AnswerFile, RunOutput, versions_of_answers
from .checking import REQUEST_KEYS, check_rows, rows_of_requests
from .console import INTERRUPTED, SOME_ERRORS, imported_files, one_line_errors, print_line, progress_bar
from .loading import announce_demo, import_libraries, json_option, template_arguments
from .run_options import DEFAULT_PROMPT, RunOptions


def requests_of(options: RunOptions) -> list[VideoRequest]:
    """Return what is asked, and print how many files of a folder are left out.

    Raises:
        OptionError: on a file or a folder without requests, or options that exclude each other.
    """
    if options.videos is not None and options.requests is not None:
        raise OptionError("`--videos` and `--requests` are both given. Pass one of them.")
    if options.requests is None:
        requests, left_out = requests_of_folder(options.videos or Path(), options.prompt or DEFAULT_PROMPT)
        if left_out:
            print_line(f"Left out: {len(left_out):,} files that hold no video. The first is {escape(left_out[0])}")
        return requests
    if options.prompt is not None:
        raise OptionError("`--prompt` is given, but each line of `--requests` has its own. Leave it out.")
    return read_requests(Path(options.requests))


def _check_some_can_be_asked(requests: Sequence[VideoRequest]) -> None:
    """Refuse requests of which none can be asked, before a model is loaded for nothing."""
    if all(request.problem is not None for request in requests):
        first = f"{requests[0].id}, {requests[0].problem}"
        raise OptionError(f"none of the {len(requests):,} requests can be asked. The first is {first} See --check.")


def answers_depend_on(options: RunOptions, model: Resolved) -> dict[str, Any]:
    """Return what must be the same when a run is continued, besides the requests."""
    of_vllm: dict[str, Any] = {}
    if runs_vllm(options):  # whose package for the CPU has another name
        of_vllm = {"engine_args": engine_arguments(options), "vllm": version(packages_distributions()["vllm"][0])}
    return {
        **identity_of(model.source),
        "engine": options.engine,
        **of_vllm,
        "imported": imported_files(),
        "num_frames": options.num_frames,
        "max_new_tokens": options.max_new_tokens,
        "chat_template_kwargs": template_arguments(options.chat_template_kwargs),
        "scale_while_reading": options.scale_while_reading,
        **options.placement.of_answers,
        "settings": options.settings,
        **versions_of_answers(),
    }


def how_to_answer(options: RunOptions) -> HowToAnswer:
    return HowToAnswer(
        num_frames=options.num_frames,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size or (64 if runs_vllm(options) else 8),
        workers=options.workers,
        scale_while_reading=options.scale_while_reading,
        chat_template_kwargs=template_arguments(options.chat_template_kwargs),
    )


@dataclass
class Counts:
    """How many requests there are, how many of them were answered before and now, and how many ended in an error."""

    requests: int
    before: int
    answers: int = 0
    errors: int = 0
    first_error: str | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row that was written."""
        error = row.get("error")
        if error is None:
            self.answers += 1
        else:
            self.errors += 1
            self.first_error = self.first_error or f"{row['id']}: {error}"


def answer_into(output: RunOutput, answer: Callable[[], Counts]) -> None:
    """Answer requests while other runs are kept out, and print how many were answered.

    Raises:
        typer.Exit: with code 3 if requests ended in an error, 130 after Ctrl-C.
    """
    started = time.perf_counter()
    try:
        with output.locked():
            counts = answer()
    except KeyboardInterrupt:
        print_line(f"Stopped. The answers so far are in {escape(output.name)}. The same command continues there.")
        raise typer.Exit(INTERRUPTED) from None
    print_line(
        f"Answered: {counts.before + counts.answers:,} of {counts.requests:,} requests ({counts.before:,} before), "
        f"in {time.perf_counter() - started:.1f} s. In {escape(output.name)}"
    )
    if counts.errors:
        first = escape(str(counts.first_error))
        print_line(f"[yellow]Errors:[/] {counts.errors:,}, which the same command asks again. The first is {first}")
        raise typer.Exit(SOME_ERRORS)


def run_many(options: RunOptions) -> None:
    """Answer the requests that have no answer yet. Raises what `answer_into` raises, and `typer.Exit` with code 2 on a
    mistake of the user."""
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        if options.check:
            options.placement.check(options.model)
            check_settings(options.settings)
            template_arguments(options.chat_template_kwargs)
            check_rows(rows_of_requests(requests_of(options)), REQUEST_KEYS, "requests")
            return
        if options.output is None:
            raise OptionError("`--output` is missing. Name the JSONL file for the answers, such as answers.jsonl.")
        requests = requests_of(options)
        _check_some_can_be_asked(requests)
        if options.engine == "vllm":
            check_installed("vllm", "vLLM")
            engine_arguments(options)
        model = resolve(options.model, options.placement, options.settings)
        file = _answer_file(Path(options.output))
        arguments = answers_depend_on(options, model)
        file.check(arguments)
        announce_demo(options.model)
        answer_into(file, lambda: _answer(options, model, arguments, requests, file))


def _answer_file(path: Path) -> AnswerFile:
    if path.suffix != ".jsonl":
        raise OptionError(f"`--output` is {str(path)!r}, but must end in .jsonl.")
    if not path.parent.is_dir():
        raise OptionError(f"`--output` is {str(path)!r}, but there is no folder {str(path.parent)!r}.")
    return AnswerFile(path)


def _answer(
    options: RunOptions, model: Resolved, arguments: dict[str, Any], requests: Sequence[VideoRequest], file: AnswerFile
) -> Counts:
    """Answer the requests that are left."""
    answered = file.answered()
    for request in requests:
        if request.id in answered:
            file.check_answer(request.id, answered[request.id], request.stamp)
    left = [request for request in requests if request.id not in answered]
    counts = Counts(len(requests), before=len(requests) - len(left))
    if not left:
        return counts
    if options.engine == "transformers":
        import_libraries(options.placement)
    from ..answering.start_engine import start_engine

    engine, identity = start_engine(options.engine, model, how_to_answer(options), arguments.get("engine_args", {}))
    with closing(engine), closing(engine.rows(left)) as rows, progress_bar() as progress:
        check_loaded(identity, arguments)
        file.claim(arguments, commit_of_run())
        file.rows_to_continue()
        task = progress.add_task("Answering", total=len(left))
        for row in rows:
            file.add([row])
            counts.add(row)
            progress.advance(task)
    return counts


def commit_of_run() -> str:
    """Return the commit of the code, as a run's record notes it."""
    return commit() + " with uncommitted changes" * is_dirty()


def check_installed(package: str, name: str, option: str = "engine") -> None:
    """Raise an OptionError if the package of an engine, which is also the name of its extra, is missing."""
    if find_spec(package) is None:
        raise OptionError(
            f"`{option}` is {package!r}, but {name} is not installed. {how_to_install(package)}, best in an "
            f"environment of its own. Or leave {option_name(option)} out, so that Transformers answers."
        )


def runs_vllm(options: RunOptions) -> bool:
    """Tell whether vLLM answers, in this process or in workers."""
    return options.engine == "vllm" or (options.engine == "ray" and options.ray_engine == "vllm")


def engine_arguments(options: RunOptions) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` that the options name. Raises an OptionError on what is no JSON object."""
    given = json_option("engine_args", options.engine_args, '{"max_model_len": 8192}')
    return {**given, "tensor_parallel_size": options.tensor_parallel_size}
