"""Answering questions about many videos on a cluster: Ray Data reads the requests, and workers with the model answer.

Ray restarts workers that die, repeats their work, holds back reading while all are busy, and spreads them over nodes.
What is here is exact beyond that: a worker writes its answers as one part, whole or not at all, under a name that
follows from the ids in it. So work that Ray repeats replaces its part, and a request is never answered twice. Ray would
repeat work without end; here a request that kills its workers is found, and gets an error.
"""
# Ray and PyArrow come with the extra `ray`:
# pyright: reportMissingImports=false

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data

from ..checks import local_path
from ..configuration.compression_settings import CompressionSettings
from ..errors import CheckpointError, OptionError, one_line, sentence
from ..judging.questions import id_of
from ..loading.finding_checkpoints import resolve
from ..loading.placement import Placement
from ..records.answer_parts import AnswerParts
from ..records.fingerprints import certificate_of
from ..records.jsonl import json_object
from ..records.run_record import RequestStamp, RunOutput
from .engine import Engine
from .requests import AnsweredRequest, HowToAnswer, VideoRequest, request_of
from .start_engine import start_engine

CPUS_OF_READING = 1  # that workers must leave free
MOST_DEATHS = 2  # of workers with one request alone, or of one that loads the model, before that is given up
SEE_LOGS = "Perhaps memory ran out. Ray's logs may say more."
# Ray ends a line of a text at U+2028 and U+0085 too, which JSON may hold. In this encoding no byte is one of these.
BYTES_AS_TEXT = "cp437"
WHOLE_NUMBERS = {
    *("id", "num_frames", "max_new_tokens"),
    *(each.name for each in fields(CompressionSettings) if each.type == int | None),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a worker needs to know.

    Attributes:
        folder: the folder that paths of videos are relative to; None if they cannot be relative.
        imported: the modules of `--import`, which must be at the same place on each node.
        certificate: the `certificate_of` the model, so that no node answers with other files.
        engine, engine_arguments: as in `start_engine`.
    """

    model: str | None
    placement: Placement
    settings: Mapping[str, Any]
    imported: tuple[str, ...]
    certificate: Mapping[str, Any]
    folder: str | None
    output: str
    engine: str
    engine_arguments: Mapping[str, Any]
    how: HowToAnswer


def connect(num_workers: int | None) -> None:
    """Connect to the cluster that `RAY_ADDRESS` names, or start one on this machine, with a CPU for each worker and one
    for reading.

    Raises:
        OptionError: if Ray does not answer at that address, or does not start.
    """
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    address = os.environ.get("RAY_ADDRESS")  # which Ray reads too
    cpus = max(os.cpu_count() or 1, (num_workers or 1) + CPUS_OF_READING)
    start: dict[str, Any] = {} if address else {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    try:
        ray.init(logging_level=logging.ERROR, ignore_reinit_error=True, **start)
    except Exception as error:  # Ray raises this very class if it does not start in time
        what = f"`RAY_ADDRESS` is {address!r}, but Ray does not answer there" if address else "Ray does not start"
        raise OptionError(f"{what}: {sentence(one_line(error))}") from error


def workers_that_fit(num_workers: int | None, device: str) -> tuple[int, int]:
    """Return how many workers there will be, and how many GPUs each has.

    At `RAY_ADDRESS`, workers that are named with `device="cuda"` wait for GPUs, since a cluster may start nodes as they
    are asked for.

    Raises:
        OptionError: if the cluster has too few CPUs or GPUs, or the workers would share a device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise OptionError(
            f"`device` is {device!r}, but each worker has a device of its own. With --engine ray it must be auto, cpu "
            "or cuda."
        )
    has = ray.cluster_resources()
    gpus, cpus = int(has.get("GPU", 0)), int(has.get("CPU", 0))
    on_gpu = device == "cuda" or (device == "auto" and gpus > 0)
    wanted = num_workers or (gpus if on_gpu else 1)
    may_grow = num_workers is not None and device == "cuda" and bool(os.environ.get("RAY_ADDRESS"))
    if on_gpu and not may_grow and not 1 <= wanted <= gpus:
        raise OptionError(
            f"`ray_workers` is {wanted}, but the cluster has {gpus} GPUs. Take fewer, or --device cpu; for a cluster "
            "that starts nodes as they are asked for, name --ray-workers and --device cuda."
        )
    if not on_gpu and wanted + CPUS_OF_READING > cpus:
        raise OptionError(
            f"`ray_workers` is {wanted}, but the cluster has {cpus} CPUs. Each worker takes one, and reading another. "
            "Take fewer workers, or start Ray with more (`ray start --head --num-cpus 8`)."
        )
    return wanted, int(on_gpu)


def requests_on_ray(source: str) -> tuple[Any, str | None]:
    """Return a file or folder of requests as a dataset, and the folder that paths in it are relative to.

    Raises:
        OptionError: if there is no such file.
    """
    is_local = "://" not in source
    place = str(Path(source).absolute()) if is_local else source
    folder = (place if Path(place).is_dir() else str(Path(place).parent)) if is_local else None
    try:
        is_parquet = place.rstrip("/").endswith(".parquet") or (is_local and any(Path(place).glob("*.parquet")))
        if is_parquet:
            return ray.data.read_parquet(place), folder
        return ray.data.read_text(place, encoding=BYTES_AS_TEXT), folder
    except (OSError, ValueError, ImportError) as error:
        raise OptionError(f"cannot read the requests {source!r}: {sentence(one_line(error))}") from None


def lines_of(table: pa.Table) -> list[str]:
    """Return rows as lines of JSON. Those of JSONL files are such lines, in the column `text`. In those of Parquet
    files, a null or a NaN means that the key is not given."""
    if table.column_names == ["text"]:
        lines = (line.encode(BYTES_AS_TEXT) for line in table["text"].to_pylist())
        return [line.decode("utf-8-sig", errors="surrogateescape") for line in lines]
    rows = ({name: _as_meant(name, value) for name, value in row.items()} for row in table.to_pylist())
    given = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return [json.dumps(row, default=str) for row in given]


def _as_meant(key: str, value: Any) -> Any:
    """Return a value of a Parquet table as a line of JSON would have it. Where a value of a column of whole numbers is
    missing, pandas makes all of them floats, and the missing one NaN."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    is_exact = value.is_integer() and abs(value) < 2**53  # larger floats may have been rounded
    return int(value) if key in WHOLE_NUMBERS and is_exact else value


def request_of_line(line: str, folder: str | None) -> VideoRequest:
    """Return the request in a line. Raises an OptionError on a line without an `id`, which only its text could name."""
    try:
        given = json_object(line)
    except OptionError as error:
        raise OptionError(f"the line {line[:80]!r} holds no request: {sentence(error)}") from None
    if given.get("id") is None:
        raise OptionError(
            f"the request {line[:80]!r} has no `id`. Ray reads lines in any order, so they have no numbers. Give each "
            "an id of its own."
        )
    name = id_of(given, 0)
    if name.encode(errors="ignore").decode() != name:  # JSON may hold halves of characters
        raise OptionError(f"`id` is {name!r}, which UTF-8 cannot write. Give the request another.")
    video = given.get("video")
    names = video if isinstance(video, list) else [video]
    paths = [local_path(name) for name in names if isinstance(name, str)]
    if folder is None and any(path is not None and not Path(path).is_absolute() for path in paths):
        problem = f"`video` is {video!r}, but the requests lie in no folder. Give an absolute path or an http(s) URL."
        return VideoRequest(name, given=given, problem=problem)
    return request_of(given, 0, Path(folder or "/"))


def described(table: pa.Table, folder: str | None) -> pa.Table:
    """Return for each line its id, the fields of its `RequestStamp`, and what is wrong with it. The id is null if the
    line has none."""
    rows = []
    for line in lines_of(table):
        try:
            request = request_of_line(line, folder)
            stamp = request.stamp._replace(video=json.dumps(request.video))  # a path, or a list of them
            rows.append({"id": request.id, **stamp._asdict(), "problem": request.problem})
        except OptionError as error:
            rows.append({"problem": str(error)})
    return pa.Table.from_pylist(
        rows, pa.schema([(name, pa.string()) for name in ("id", *RequestStamp._fields, "problem")])
    )


def check_requests(
    requests: Any, folder: str | None, answered: Mapping[str, RequestStamp], output: RunOutput
) -> tuple[int, list[str]]:
    """Look at all requests before a model is loaded. Returns how many there are, and the ids of the answers that belong
    to none of them.

    Args:
        answered: what was asked, for each id in the output.

    Raises:
        OptionError: on a request without an id, an id that two have, one whose answer belongs to another request, and
            if there are none or none can be asked.
    """
    first, total, askable = None, 0, 0

    def asked() -> Iterator[tuple[str, RequestStamp]]:
        nonlocal first, total, askable
        for row in requests.map_batches(described, fn_args=(folder,), batch_format="pyarrow").iter_rows():
            name, problem = row["id"], row["problem"]
            if name is None:
                raise OptionError(problem)
            first, total = first or (problem and f"{name}, {problem}"), total + 1
            askable += problem is None
            yield name, RequestStamp(row["given"], row["video_file"], json.loads(row["video"]))

    others = output.check_answers(answered, asked())
    if not total:
        raise OptionError("there is no request. Write one JSON object with `id`, `video` and `prompt` a line.")
    if not askable:
        raise OptionError(f"none of the {total:,} requests can be asked. The first is {first}")
    return total, others


def answered_on_ray(
    requests: Any, work: Work, answered: Mapping[str, RequestStamp], num_workers: int, gpus: int, rows_per_part: int
) -> Iterator[dict[str, Any]]:
    """Answer what is not answered, and yield `id` and `error` of each row that is written. `error` is None after an
    answer. Raises an OptionError if a worker cannot load the model, or cannot write."""
    deaths = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Deaths).remote()
    # Nothing may stand before `repartition`: Ray would fuse it with the worker, and give a whole file to one of them.
    parts = requests.repartition(target_num_rows_per_block=rows_per_part).map_batches(
        Worker,
        fn_constructor_args=(work, ray.put(frozenset(answered)), deaths),
        batch_size=rows_per_part,  # which Ray wants to be told where workers have GPUs
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=num_workers),
        num_cpus=0 if gpus else 1,  # reading never waits for workers with a GPU
        num_gpus=gpus,
    )
    for row in parts.iter_rows():
        if row["id"] is None:
            raise OptionError(row["error"])
        yield row


class Deaths:
    """A process that counts how often work was begun but not ended, which is how often workers died doing it."""

    def __init__(self) -> None:
        self.begun: Counter[Hashable] = Counter()

    def begin(self, work: Hashable) -> int:
        """Note that work begins. Returns how often workers died doing it."""
        self.begun[work] += 1
        return self.begun[work] - 1

    def end(self, work: Hashable) -> None:
        del self.begun[work]


class Worker:
    """A process with the model, which turns requests into a part of the output.

    Args:
        answered: refers to the ids that are left out.
        deaths: refers to the `Deaths` of all workers.
    """

    def __init__(self, work: Work, answered: Any, deaths: Any) -> None:
        self.work, self.deaths = work, deaths
        self.answered = ray.get(answered) if isinstance(answered, ray.ObjectRef) else answered

    @cached_property
    def engine(self) -> Engine:
        """The engine with the model, which is loaded for the first part. Raises an OptionError or a CheckpointError."""
        from ..checks import import_methods

        work, worker = self.work, ray.get_runtime_context().get_actor_id()  # which it keeps when it is started again
        if ray.get(self.deaths.begin.remote(worker)) >= MOST_DEATHS:
            raise OptionError(f"a worker died {MOST_DEATHS} times while it loaded the model. {SEE_LOGS}")
        for module in work.imported:
            import_methods(module)
        model = resolve(work.model, work.placement, work.settings)
        engine, identity = start_engine(work.engine, model, work.how, work.engine_arguments)
        if certificate_of(identity) != work.certificate:
            raise OptionError(f"the model {work.model!r} has other files on this node than where the run was started.")
        ray.get(self.deaths.end.remote(worker))
        return engine

    def __call__(self, table: pa.Table) -> pa.Table:
        try:
            requests = [request_of_line(line, self.work.folder) for line in lines_of(table)]
            requests = [request for request in requests if request.id not in self.answered]
            rows = self.rows(requests) if requests else []
            if rows:
                AnswerParts(self.work.output).add(rows)
        except (OptionError, CheckpointError) as error:  # which concerns the whole run
            rows = [{"id": None, "error": str(error)}]
        return pa.Table.from_pylist([{"id": row["id"], "error": row.get("error")} for row in rows], DONE)

    def rows(self, requests: Sequence[VideoRequest]) -> list[dict[str, Any]]:
        """Return the rows of requests. After a worker died with them, each is asked alone. A request that kills its
        workers gets an error."""
        engine, work = self.engine, tuple(request.id for request in requests)
        died = ray.get(self.deaths.begin.remote(work))
        if died < (MOST_DEATHS if len(requests) == 1 else 1):
            rows = list(engine.rows(requests))
        elif len(requests) == 1:
            error = f"{MOST_DEATHS} workers died while they answered this request alone. {SEE_LOGS}"
            rows = [AnsweredRequest(requests[0], error=error).row]
        else:
            rows = [row for request in requests for row in self.rows([request])]
        ray.get(self.deaths.end.remote(work))
        return rows


DONE = pa.schema([("id", pa.string()), ("error", pa.string())])
