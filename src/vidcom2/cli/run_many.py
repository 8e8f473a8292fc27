"""`vidcom2 run` over many videos turns requests into a JSONL file of answers. An engine does the work: Transformers in
`answering/many.py`, vLLM in `answering/many_in_vllm.py`. For Ray there is `run_on_ray.py`."""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from ..answering.requests import VideoRequest, read_requests, requests_of_folder
from ..checks import check_settings
from ..errors import OptionError, option_name, written_to
from ..finding_checkpoints import Resolved, resolve
from ..records.fingerprints import check_loaded, identity_of, video_changed, video_stamp
from ..records.jsonl import answered_rows, append_rows, complete_rows, rows_so_far
from ..records.provenance import commit, is_dirty
from ..records.run_record import AnswerFile, versions_of_answers
from .checking import REQUEST_KEYS, check_rows, rows_of_requests
from .console import INTERRUPTED, SOME_ERRORS, imported_files, one_line_errors, print_line, progress_bar
from .loading import announce_demo, import_libraries, json_option, template_arguments
from .run_options import DEFAULT_PROMPT, RunOptions

if TYPE_CHECKING:
    from ..answering.many import AnsweredRequest


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


def run_many(options: RunOptions) -> None:
    """Answer the requests that have no answer yet, and print how many were answered.

    Raises:
        typer.Exit: with code 3 if requests ended in an error, 2 on a mistake of the user, 130 after Ctrl-C.
    """
    started = time.perf_counter()
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
        try:
            with file.locked():
                before = _answer(options, model, arguments, requests, file)
        except KeyboardInterrupt:
            print_line(
                f"Stopped. The answers so far are in {escape(str(file.path))}. The same command continues there."
            )
            raise typer.Exit(INTERRUPTED) from None
        _report(requests, file, before, time.perf_counter() - started)


def _answer_file(path: Path) -> AnswerFile:
    if path.suffix != ".jsonl":
        raise OptionError(f"`--output` is {str(path)!r}, but must end in .jsonl.")
    if not path.parent.is_dir():
        raise OptionError(f"`--output` is {str(path)!r}, but there is no folder {str(path.parent)!r}.")
    return AnswerFile(path)


def _answer(
    options: RunOptions, model: Resolved, arguments: dict[str, Any], requests: Sequence[VideoRequest], file: AnswerFile
) -> int:
    """Answer the requests that are left. Returns how many had been answered before."""
    _check_same(requests, answered_rows(file.path), file)  # before anything is written
    with written_to(file.path):
        done = rows_so_far(file.path)
    left = [request for request in requests if request.id not in done]
    if not left:
        return len(requests)
    answers = (_in_vllm if options.engine == "vllm" else _in_transformers)(options, model, arguments, left)
    file.claim(arguments, commit() + " with uncommitted changes" * is_dirty())
    videos = {request.id: video_stamp(request.video) for request in left}  # before they are read
    with progress_bar() as progress, closing(answers):
        task = progress.add_task("Answering", total=len(left))
        for answer in answers:
            row = answer.row | {"video_file": videos[answer.request.id]}
            with written_to(file.path), file.path.open("a", encoding="utf-8", newline="\n") as opened:
                append_rows(opened, [row])
            progress.advance(task)
    return len(requests) - len(left)


def _in_transformers(
    options: RunOptions, model: Resolved, arguments: dict[str, Any], requests: Sequence[VideoRequest]
) -> "Generator[AnsweredRequest, None, None]":
    """Load the model, and return its answers."""
    import_libraries(options.placement)
    from ..answering.many import answer_many
    from ..checkpoints import load_resolved

    checkpoint = load_resolved(model)
    check_loaded(checkpoint.identity, arguments)
    return answer_many(
        requests,
        checkpoint.model,
        processor=checkpoint.processor,
        num_frames=options.num_frames,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size or 8,
        workers=options.workers,
        scale_while_reading=options.scale_while_reading,
        chat_template_kwargs=arguments["chat_template_kwargs"],
    )


def check_installed(package: str, name: str, option: str = "engine") -> None:
    """Raise an OptionError if the package of an engine, which is also the name of its extra, is missing."""
    if find_spec(package) is None:
        raise OptionError(
            f'`{option}` is {package!r}, but {name} is not installed: pip install "vidcom2[{package}]", best in an '
            f"environment of its own. Or leave {option_name(option)} out, so that Transformers answers."
        )


def runs_vllm(options: RunOptions) -> bool:
    """Tell whether vLLM answers, in this process or in workers."""
    return options.engine == "vllm" or (options.engine == "ray" and options.ray_engine == "vllm")


def engine_arguments(options: RunOptions) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` that the options name. Raises an OptionError on what is no JSON object."""
    given = json_option("engine_args", options.engine_args, '{"max_model_len": 8192}')
    return {**given, "tensor_parallel_size": options.tensor_parallel_size}


def _in_vllm(
    options: RunOptions, model: Resolved, arguments: dict[str, Any], requests: Sequence[VideoRequest]
) -> "Generator[AnsweredRequest, None, None]":
    """Start the engine, and return its answers."""
    from ..answering.many_in_vllm import answer_many_in_vllm

    answers = answer_many_in_vllm(
        requests,
        model,
        num_frames=options.num_frames,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size or 64,
        workers=options.workers,
        scale_while_reading=options.scale_while_reading,
        chat_template_kwargs=arguments["chat_template_kwargs"],
        engine_arguments=arguments["engine_args"],
    )
    check_loaded(identity_of(model.source), arguments)
    return answers


def _check_same(requests: Sequence[VideoRequest], done: dict[str, dict[str, Any]], file: AnswerFile) -> None:
    """Check that the file's answers are to the requests that are asked now."""
    for request in requests:
        if request.id in done and done[request.id].get("given") != request.given:
            raise OptionError(
                f"{str(file.path)!r} has the answer to another request of id {request.id!r}: it was "
                f"{done[request.id].get('given')!r}, and is {request.given!r}. Requests may be added at the end. For "
                "other requests name another --output."
            )
        before, now = done.get(request.id, {}).get("video_file"), video_stamp(request.video)
        if video_changed(before, now):
            raise OptionError(
                f"{str(file.path)!r} has the answer about another video of request {request.id!r}: {request.video!r} "
                f"was {before}, and is {now}. Name another --output."
            )


def _report(requests: Sequence[VideoRequest], file: AnswerFile, before: int, seconds: float) -> None:
    rows = {row["id"]: row for row in complete_rows(file.path)}
    errors = [rows[request.id] for request in requests if "error" in rows[request.id]]
    print_line(
        f"Answered: {len(requests) - len(errors):,} of {len(requests):,} requests ({before:,} before), "
        f"in {seconds:.1f} s. In {escape(str(file.path))}"
    )
    if errors:
        first = escape(f"{errors[0]['id']}: {errors[0]['error']}")
        print_line(f"[yellow]Errors:[/] {len(errors):,}, which the same command asks again. The first is {first}")
        raise typer.Exit(SOME_ERRORS)
