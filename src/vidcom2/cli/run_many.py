"""`vidcom2 run` over many videos turns requests into a JSONL file of answers. `answering/many.py` does the work."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from ..answering.requests import VideoRequest, read_requests, requests_of_folder
from ..errors import OptionError, written_to
from ..finding_checkpoints import find_checkpoint
from ..records.answer_file import AnswerFile
from ..records.fingerprints import check_loaded, model_identity, video_changed, video_stamp
from ..records.jsonl import append_rows, complete_rows
from ..records.processes import Process
from ..records.provenance import commit, is_dirty
from ..records.run_record import versions_of_answers
from .checking import REQUEST_KEYS, check_rows, rows_of_requests
from .console import INTERRUPTED, SOME_ERRORS, err, imported_files, one_line_errors, out, progress_bar
from .loading import announce_demo, check_model_options, import_libraries
from .run_options import DEFAULT_PROMPT, RunOptions


def requests_of(options: RunOptions) -> list[VideoRequest]:
    """Return what is asked.

    Raises:
        OptionError: on a file or a folder without requests, or options that exclude each other.
    """
    if options.videos is not None and options.requests is not None:
        raise OptionError("`--videos` and `--requests` are both given. Pass one of them.")
    if options.requests is None:
        return requests_of_folder(options.videos or Path(), options.prompt or DEFAULT_PROMPT)
    if options.prompt is not None:
        raise OptionError("`--prompt` is given, but each line of `--requests` has its own. Leave it out.")
    return read_requests(options.requests)


def _check_some_can_be_asked(requests: Sequence[VideoRequest]) -> None:
    """Refuse requests of which none can be asked, before a model is loaded for nothing."""
    if all(request.problem is not None for request in requests):
        first = f"{requests[0].id}, {requests[0].problem}"
        raise OptionError(f"none of the {len(requests):,} requests can be asked. The first is {first} See --check.")


def answers_depend_on(options: RunOptions) -> dict[str, Any]:
    """Return what must be the same when a run is continued, besides the requests."""
    return {
        **model_identity(options.model, options.placement.revision),
        "imported": imported_files(),
        "num_frames": options.num_frames,
        "max_new_tokens": options.max_new_tokens,
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
            check_model_options(options.model, options.placement, options.settings)
            check_rows(rows_of_requests(requests_of(options)), REQUEST_KEYS, "requests")
            return
        process = Process.this()
        if options.output is None:
            raise OptionError("`--output` is missing. Name the JSONL file for the answers, such as answers.jsonl.")
        requests = requests_of(options)
        _check_some_can_be_asked(requests)
        check_model_options(options.model, options.placement, options.settings)
        process.check_placement(options.placement)
        if options.model is not None:
            find_checkpoint(options.model, options.placement.revision)
        file = AnswerFile(options.output)
        arguments = answers_depend_on(options)
        if process.is_first:  # on other machines the same weight files may have other modification times
            file.check(arguments)
            announce_demo(options.model)
        try:
            with file.locked() if process.is_first else nullcontext():
                before = _answer(options, arguments, requests, file, process)
        except KeyboardInterrupt:
            if process.is_first:
                _print(
                    f"Stopped. The answers so far are in {escape(str(file.path))}. The same command continues there."
                )
            raise typer.Exit(INTERRUPTED) from None
        if process.is_first:
            _report(requests, file, before, time.perf_counter() - started)


def _answer(
    options: RunOptions,
    arguments: dict[str, Any],
    requests: Sequence[VideoRequest],
    file: AnswerFile,
    process: Process,
) -> int:
    """Answer this process's share of the requests. Returns how many had been answered before."""
    if process.is_first:
        _check_same(requests, file.rows(with_errors=False), file)  # before anything is written
        file.gather(with_errors=False)
    process.wait_for_others()
    done = {row["id"] for row in complete_rows(file.path)}
    left = [request for request in requests if request.id not in done]
    if not left:
        return len(requests)
    # Requests are shared out by their place among all of them, so that processes need not agree on what is left.
    mine = [each for each in requests[process.rank :: process.count] if each.id not in done]
    with err.status("Importing PyTorch ..."):
        placement = process.placed(options.placement)
    import_libraries(placement)
    from ..answering.many import answer_many
    from ..checkpoints import load_placed

    checkpoint = load_placed(options.model, placement.at_commit(arguments["model_commit"]), options.settings)
    check_loaded(checkpoint.identity, arguments)
    if process.is_first:
        file.claim(arguments, commit() + " with uncommitted changes" * is_dirty())
    process.wait_for_others()
    videos = {request.id: video_stamp(request.video) for request in mine}  # before they are read
    answers = answer_many(
        mine,
        checkpoint.model,
        processor=checkpoint.processor,
        num_frames=options.num_frames,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size,
        workers=options.workers,
        scale_while_reading=options.scale_while_reading,
    )
    path = file.path if process.count == 1 else file.part(process.rank)
    with progress_bar() as progress, closing(answers):
        task = progress.add_task("Answering", total=len(mine), visible=process.is_first)
        for answer in answers:
            row = answer.row | {"video_file": videos[answer.request.id]}
            with written_to(path), path.open("a", encoding="utf-8", newline="\n") as opened:
                append_rows(opened, [row])
            progress.advance(task)
    process.wait_for_others()
    if process.is_first and process.count > 1:
        file.gather(with_errors=True)
    return len(requests) - len(left)


def _check_same(requests: Sequence[VideoRequest], done: dict[str, dict[str, Any]], file: AnswerFile) -> None:
    """Check that the file's answers are to the requests that are asked now."""
    for request in requests:
        if request.id in done and done[request.id].get("given") != request.given:
            raise OptionError(
                f"{str(file.path)!r} has the answer to another request of id {request.id!r}: it was "
                f"{done[request.id].get('given')!r}, and is {request.given!r}. Requests may be added at the end. For "
                "other requests name another --output."
            )
        if request.id in done and video_changed(request.video, done[request.id]):
            raise OptionError(
                f"{str(file.path)!r} has the answer about another video of request {request.id!r}: {request.video!r} "
                f"was {done[request.id]['video_file']}, and is {video_stamp(request.video)}. Name another --output."
            )


def _report(requests: Sequence[VideoRequest], file: AnswerFile, before: int, seconds: float) -> None:
    rows = {row["id"]: row for row in complete_rows(file.path)}
    errors = [rows[request.id] for request in requests if "error" in rows[request.id]]
    _print(
        f"Answered: {len(requests) - len(errors):,} of {len(requests):,} requests ({before:,} before), "
        f"in {seconds:.1f} s. In {escape(str(file.path))}"
    )
    if errors:
        first = escape(f"{errors[0]['id']}: {errors[0]['error']}")
        _print(f"[yellow]Errors:[/] {len(errors):,}, which the same command asks again. The first is {first}")
        raise typer.Exit(SOME_ERRORS)


def _print(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True)
