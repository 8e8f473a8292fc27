"""`vidcom2 run` over many videos turns requests into a JSONL file of answers. An engine does the work: Transformers in
`bulk/many_in_transformers.py`, vLLM in `many_in_vllm.py`. For Ray there is `run_on_ray.py`."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.markup import escape

from ..bulk.requests import HowToAnswer, VideoRequest, read_requests, requests_of_folder
from ..checks import check_settings
from ..errors import OptionError, how_to_install, one_line, option_name
from ..loading.finding_checkpoints import Resolved, resolve
from ..records.fingerprints import check_loaded
from ..records.provenance import commit_of_run
from ..records.run_record import AnswerFile, RunOutput
from ..shipping.installed_packages import packages_distributions
from .checking import REQUEST_KEYS, check_rows, rows_of_requests
from .console import exit_with, one_line_errors, print_line, progress_bar, stoppable
from .loading import announce_demo, import_libraries, json_option, template_arguments, what_answers_depend_on
from .run_options import DEFAULT_PROMPT, RunOptions


def requests_of(options: RunOptions) -> list[VideoRequest]:
    """Return what is asked, and print what is left out of a folder.

    Raises:
        OptionError: on a file or a folder without requests, or options that exclude each other.
    """
    if options.videos is not None and options.requests is not None:
        raise OptionError("`--videos` and `--requests` are both given. Pass one of them.")
    if options.requests is None:
        requests, left_out = requests_of_folder(options.videos or Path(), options.prompt or DEFAULT_PROMPT)
        for kind, names in left_out.items():
            print_line(f"Left out: {len(names):,} {kind}. The first is {escape(one_line(names[0]))}")
        return requests
    if options.prompt is not None:
        raise OptionError("`--prompt` is given, but each line of `--requests` has its own. Leave it out.")
    return read_requests(Path(options.requests))


def _check_some_can_be_asked(requests: Sequence[VideoRequest]) -> None:
    """Refuse to load a model if none of the requests can be asked."""
    if all(request.problem is not None for request in requests):
        first = f"{requests[0].id}, {requests[0].problem}"
        raise OptionError(f"none of the {len(requests):,} requests can be asked. The first is {first} See --check.")


def answers_depend_on(options: RunOptions, model: Resolved) -> dict[str, Any]:
    """Return what must be the same when a run is continued, besides the requests."""
    of_vllm: dict[str, Any] = {}
    if runs_vllm(options):  # whose package for the CPU has another name
        of_vllm = {"engine_args": engine_arguments(options), "vllm": version(packages_distributions()["vllm"][0])}
    of_run = {"engine": options.engine, **of_vllm, "scale_while_reading": options.scale_while_reading}
    return what_answers_depend_on(options, model) | of_run


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
    """How many requests there are, how many of them were answered before and now, which ended in an error, and which
    ids in the output are of none of these requests."""

    requests: int
    before: int
    others: Sequence[str] = ()
    answers: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row that was written."""
        error = row.get("error")
        if error is None:
            self.answers += 1
        else:
            self.errors.append(one_line(f"{row['id']}: {error}"))


def answer_into(output: RunOutput, answer: Callable[[], Counts]) -> None:
    """Answer requests while other runs are kept out, and print how many were answered.

    Raises:
        typer.Exit: with code 3 if requests ended in an error, 1 if one of these is a bug, 130 after Ctrl-C.
    """
    started = time.perf_counter()
    with stoppable(output.name), output.locked():
        counts = answer()
    print_line(
        f"Answered: {counts.before + counts.answers:,} of {counts.requests:,} requests ({counts.before:,} before), "
        f"in {time.perf_counter() - started:.1f} s. In {escape(output.name)}"
    )
    if counts.others:
        first = escape(one_line(counts.others[0]))
        print_line(f"Also there: {len(counts.others):,} answers to requests not asked now. The first is {first}")
    if counts.errors:
        number, first = f"{len(counts.errors):,}", escape(counts.errors[0])
        print_line(f"[yellow]Errors:[/] {number}, which the same command asks again. The first is {first}")
    exit_with(counts.errors)


def run_many(options: RunOptions) -> None:
    """Answer the requests that have no answer yet. Raises what `answer_into` raises, and `typer.Exit` with code 2 on a
    mistake of the user."""
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        if options.check:
            options.placement.check(options.model)
            check_settings(options.settings)
            template_arguments(options.chat_template_kwargs)
            check_rows(rows_of_requests(requests_of(options), options.settings), REQUEST_KEYS, "requests")
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
    file = AnswerFile(path)
    if not file.path.parent.is_dir():
        raise OptionError(f"`--output` is {str(path)!r}, but there is no folder {str(file.path.parent)!r}.")
    return file


def _answer(
    options: RunOptions, model: Resolved, arguments: dict[str, Any], requests: Sequence[VideoRequest], file: AnswerFile
) -> Counts:
    """Answer the requests that are left."""
    answered = file.answered()
    others = file.check_answers(answered, ((request.id, request.stamp) for request in requests))
    left = [request for request in requests if request.id not in answered]
    counts = Counts(len(requests), len(requests) - len(left), others)
    if not left:
        return counts
    if options.engine == "transformers":
        import_libraries(options.placement)
    from ..bulk.start_engine import start_engine

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


def check_installed(package: str, name: str, option: str = "engine") -> None:
    """Raise an OptionError if the package of an engine, which is also the name of its extra, is missing."""
    if find_spec(package) is None:
        raise OptionError(
            f"`{option}` is {package!r}, but {name} is not installed. {how_to_install(package)}, best in an "
            f"environment of its own. Or leave {option_name(option)} out, so that Transformers answers."
        )


# Arguments of `vllm.LLM` that options or the command itself set, and how.
OF_OPTIONS = {
    **{name: f"{option_name(name)} sets" for name in ("model", "revision", "dtype", "tensor_parallel_size")},
    "max_num_seqs": "--batch-size sets",
    "limit_mm_per_prompt": "is one video for each request",
}


def runs_vllm(options: RunOptions) -> bool:
    """Tell whether vLLM answers, in this process or in workers."""
    return options.engine == "vllm" or (options.engine == "ray" and options.ray_engine == "vllm")


def engine_arguments(options: RunOptions) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` that the options name. Raises an OptionError on what is no JSON object, and on
    arguments that have an option of their own."""
    given = json_option("engine_args", options.engine_args, '{"max_model_len": 8192}')
    for name in (each for each in OF_OPTIONS if each in given):
        raise OptionError(f"`--engine-args` holds `{name}`, which {OF_OPTIONS[name]}. Leave it out of `--engine-args`.")
    return {**given, "tensor_parallel_size": options.tensor_parallel_size}
