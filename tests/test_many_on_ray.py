"""`vidcom2 run --engine ray` gives the rows of one process, whatever dies on the way. Needs the extra `ray`."""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mixed_requests import BAD, mixed_requests, read_mood
from models import save_tiny
from test_cli import vidcom2

pytest.importorskip("ray", reason="Ray comes with the extra `ray`")
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from vidcom2.bulk.many_on_ray import (
    check_requests,
    connect,
    lines_of,
    request_of_line,
    requests_on_ray,
    workers_that_fit,
)
from vidcom2.errors import OptionError
from vidcom2.records.run_record import AnswerFile, RequestStamp, stamp_of

pytestmark = pytest.mark.slow
COUNT = 64


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start Ray on this machine, with CPUs for two workers and for reading, and with what Ray takes for a GPU."""
    ray.init(address="local", num_cpus=3, num_gpus=1, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model, clips and requests, in both formats."""
    home = tmp_path_factory.mktemp("home")
    save_tiny(home / "model")
    read_mood(home / "model")
    requests = mixed_requests(home, COUNT)
    (home / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    pq.write_table(pa.Table.from_pylist(requests, schema_of(requests)), home / "requests.parquet")
    return home


def schema_of(requests: list[dict[str, Any]]) -> pa.Schema:
    """Return columns for all keys. Parquet has no lists of mixed types, so `mine` is left out."""
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), dict: pa.struct([("mood", pa.string())])}
    known = {name: kinds[type(value)] for each in requests for name, value in each.items() if name != "mine"}
    return pa.schema(list((known | {"retention_ratio": pa.float64()}).items()))


def run(home: Path, source: str, output: str, *more: Any) -> tuple[int, str, str]:
    given = ["--num-frames", 6, "--max-new-tokens", 3, "--batch-size", 4, "--device", "cpu", "-o", home / output]
    return vidcom2("run", "--model", home / "model", "--requests", home / source, *given, *more)


def on_ray(home: Path, source: str, output: str, *more: Any) -> tuple[int, str, str]:
    return run(home, source, output, "--engine", "ray", "--ray-workers", 2, "--rows-per-part", 6, *more)


def rows(output: Path) -> dict[str, dict[str, Any]]:
    if output.is_file():
        found = [json.loads(line) for line in output.read_text().splitlines()]
    elif output.suffix == ".jsonl":
        found = [json.loads(line) for path in output.glob("part-*") for line in path.read_text().splitlines()]
    else:
        found = [{**row, "given": json.loads(row["given"])} for row in pq.read_table(output).to_pylist()]
    found = [{name: value for name, value in row.items() if value is not None} for row in found]
    assert len({row["id"] for row in found}) == len(found), "a row is there twice"
    return {row["id"]: row for row in found}


@pytest.fixture(scope="module")
def alone(home: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of one process."""
    assert run(home, "requests.jsonl", "alone.jsonl")[0] == 3
    return rows(home / "alone.jsonl")


def test_a_killed_worker_loses_and_repeats_nothing_and_the_same_command_asks_only_errors_again(
    home: Path, alone: dict[str, dict[str, Any]]
) -> None:
    output, killed, ended = home / "killed.jsonl", [], threading.Event()

    def kill_a_worker() -> None:
        while not killed and not ended.wait(0.02):
            if len(list(output.glob("part-*"))) >= 2:
                for process in psutil.Process().children(recursive=True):
                    with suppress(psutil.Error):  # one that has ended meanwhile
                        if "MapWorker" in process.name() or "MapWorker" in " ".join(process.cmdline()):
                            process.kill()
                            killed.append(process.pid)
                            break

    killer = threading.Thread(target=kill_a_worker, daemon=True)
    killer.start()
    code, shown, error = on_ray(home, "requests.jsonl", "killed.jsonl")
    parts = len(list(output.glob("part-*")))
    ended.set()
    killer.join()
    assert code == 3 and killed and parts > 2, error
    assert f"Answered: {COUNT - len(BAD)} of {COUNT} requests (0 before)" in shown
    assert rows(output) == alone

    before = {path: path.stat().st_mtime_ns for path in output.glob("part-*") if b'"error"' not in path.read_bytes()}
    code, shown, _ = on_ray(home, "requests.jsonl", "killed.jsonl")
    assert code == 3 and f"({COUNT - len(BAD)} before)" in shown and f"Errors: {len(BAD)}" in shown
    assert rows(output) == alone and len(before) > 5
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing of these was computed again


def test_a_request_with_which_workers_die_gets_an_error_and_a_model_that_kills_them_ends_the_run(
    home: Path, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Ray itself would start a worker again without end."""
    module = tmp_path / f"deadly_{tmp_path.name}.py"
    module.write_text(
        "import os, vidcom2.bulk.engine as engine\n"
        "read = engine.read_video\n"
        "def reading(source, *args, **more):\n"
        "    if source.endswith('deadly.mp4'):\n"
        f"        open({str(tmp_path / 'deaths')!r}, 'a').write('x')\n"
        "        os._exit(1)\n"
        "    return read(source, *args, **more)\n"
        "engine.read_video = reading\n"
    )
    lines, one = (home / "requests.jsonl").read_text().splitlines()[:8], ("--ray-workers", 1)
    lines[3] = json.dumps({"id": "deadly", "video": "deadly.mp4", "prompt": "What?"})
    (home / "some.jsonl").write_text("\n".join(lines))
    (home / "deadly.mp4").touch()
    code, shown, error = on_ray(home, "some.jsonl", "some.out.jsonl", "--import", module, "--rows-per-part", 4, *one)
    found = rows(home / "some.out.jsonl")
    assert code == 3 and "Answered: 7 of 8 requests" in shown, error
    assert found.pop("deadly")["error"].startswith("2 workers died while they answered this request alone. ")
    assert found == {name: alone[name] for name in found} and len(found) == 7
    assert (tmp_path / "deaths").read_text() == "xxx"  # with its part, and twice alone

    module = tmp_path / f"deadly_model_{tmp_path.name}.py"
    module.write_text(f"import os\nif os.getpid() != {os.getpid()}: os._exit(1)\n")
    code, _, error = on_ray(home, "some.jsonl", "none.jsonl", "--import", module, *one)
    assert code == 2 and "Error: a worker died 2 times while it loaded the model. " in error
    module = tmp_path / f"bad_{tmp_path.name}.py"
    module.write_text(f"import os\nif os.getpid() != {os.getpid()}: raise ValueError('not here')\n")
    code, _, error = on_ray(home, "some.jsonl", "none.jsonl", "--import", module, *one)
    assert code == 2 and re.search(r"Error: `--import .*` failed: ValueError: not here", error)


def test_lines_end_at_line_breaks_alone_and_may_begin_with_a_mark_of_their_encoding(tmp_path: Path) -> None:
    given = {"id": "\x85é\u2028", "video": "a.mp4", "prompt": "a\u2029b 視"}
    text = json.dumps(given, ensure_ascii=False)
    (tmp_path / "r.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n\r\n".encode() + text.encode("latin-1", "replace"))
    requests, folder = requests_on_ray(str(tmp_path / "r.jsonl"))
    first, second = lines_of(requests.take_batch(9, batch_format="pyarrow"))
    assert request_of_line(first, folder).given == given
    with pytest.raises(OptionError, match="`id`"):  # which is no UTF-8
        request_of_line(second, folder)


def test_parquet_goes_in_and_comes_out_of_a_worker_that_ray_gives_a_gpu(
    home: Path, alone: dict[str, dict[str, Any]]
) -> None:
    assert on_ray(home, "requests.parquet", "out.parquet", "--ray-workers", 1, "--device", "auto")[0] == 3
    assert [pq.read_table(path).num_rows for path in (home / "out.parquet").glob("part-*")].count(6) >= COUNT // 6 - 1
    found = rows(home / "out.parquet")
    without_mine = {
        name: {**row, "given": {key: value for key, value in row["given"].items() if key != "mine"}}
        for name, row in alone.items()
    }
    assert found == without_mine


def test_mistakes_are_found_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*lines: dict[str, Any] | str, answered: dict[str, RequestStamp] | None = None) -> tuple[int, int]:
        text = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines)
        (tmp_path / "r.jsonl").write_text(text)
        output = AnswerFile(tmp_path / "out")
        return check_requests(*requests_on_ray(str(tmp_path / "r.jsonl")), answered or {}, output)

    good = {"id": "a", "video": "a.mp4", "prompt": "What?"}
    assert asked(good, {**good, "id": 2}, {"id": "x"}) == (3, [])
    for lines, message in (
        ([good, {"video": "a.mp4", "prompt": "What?"}], "no `id`"),
        ([good, "{"], "the line '{'"),
        ([good, good], "two requests have the id 'a'"),
        ([good | {"id": "\ud83d"}], "`id`"),
        ([{"id": "a", "prompt": "What?"}], "none of the 1 requests can be asked. The first is a, "),
    ):
        with pytest.raises(OptionError, match=message):
            asked(*lines)
    with pytest.raises(OptionError, match="the answer to another request of id 'a'"):
        asked(good, answered={"a": RequestStamp("another", None)})
    before = {"a": stamp_of(good, "")._replace(video_file="7 bytes of 2026")}
    # The video is gone, but its answer is there. That to a request which is asked no more is named.
    assert asked(good, answered=before | {"b": before["a"]}) == (1, ["b"])
    (tmp_path / "a.mp4").write_bytes(b"x" * 8)
    with pytest.raises(OptionError, match="another video of request 'a'"):
        asked(good, answered=before)
    assert "lie in no folder" in (request_of_line(json.dumps(good), None).problem or "")  # but at a URL
    with pytest.raises(OptionError, match=r"cannot read the requests .*no\.jsonl"):
        requests_on_ray(str(tmp_path / "no.jsonl"))
    misfits: list[tuple[tuple[Any, ...], str]] = [
        ((3, "cpu"), "`ray_workers` is 3, .* 3 CPUs"),
        ((2, "cuda"), "`ray_workers` is 2, .* 1 GPUs"),
        ((1, "cuda:1"), "`device`"),
    ]
    for given, message in misfits:
        with pytest.raises(OptionError, match=message):
            workers_that_fit(*given)
    assert (workers_that_fit(None, "auto"), workers_that_fit(None, "cpu")) == ((1, 1), (1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(ray, "init", lambda **_: (_ for _ in ()).throw(Exception("timed out")))  # Ray raises this class
        for address in ("127.0.0.1:1", ""):
            patch.setenv("RAY_ADDRESS", address)
            with pytest.raises(OptionError, match=f"{address}.*: timed out"):
                connect(1)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # of a cluster that may start nodes
    assert workers_that_fit(4, "cuda") == (4, 1)
    with pytest.raises(OptionError, match="`ray_workers` is 4"):
        workers_that_fit(4, "cpu")  # they would leave none for reading, which would wait forever


@pytest.mark.parametrize("missing", ["null", "nan"])
def test_floats_of_pandas_are_read_as_the_whole_numbers_that_they_stand_for(missing: str, tmp_path: Path) -> None:
    """A missing value makes all values of its column floats. pandas writes null for it, and others write NaN."""
    pandas = pytest.importorskip("pandas")
    known: list[dict[str, Any]] = [
        {"id": 1, "num_frames": 8, "compression_window": 3, "mine": 2.5},
        {"id": 2, "num_frames": None, "max_video_tokens": 64, "retention_ratio": 1.0},
        {"id": 3, "num_frames": 8.5},
    ]
    frame = pandas.DataFrame([{"video": "a.mp4", "prompt": "What?", **each} for each in known]).astype({"id": float})
    if missing == "null":
        frame.to_parquet(tmp_path / "r.parquet")
    else:
        pq.write_table(pa.table({name: frame[name].tolist() for name in frame}), tmp_path / "r.parquet")
    read = pq.read_table(tmp_path / "r.parquet")
    assert read.schema.field("num_frames").type == pa.float64() and missing in str(read["num_frames"])
    first, second, third = (request_of_line(line, str(tmp_path)) for line in lines_of(read))
    assert json.dumps(first.given, sort_keys=True) == (
        '{"compression_window": 3, "id": 1, "mine": 2.5, "num_frames": 8, "prompt": "What?", "video": "a.mp4"}'
    )
    assert (first.id, first.num_frames, first.problem) == ("1", 8, None)
    assert (second.id, second.num_frames) == ("2", None)
    assert second.settings == {"max_video_tokens": 64, "retention_ratio": 1.0}
    assert third.id == "3" and "`num_frames` is 8.5, but must be a whole number" in (third.problem or "")
