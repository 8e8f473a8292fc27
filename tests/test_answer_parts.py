"""The parts that `vidcom2 run --engine ray` writes, and what it refuses. Ray itself runs in test_many_on_ray.py."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow comes with the extra `ray`")
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from vidcom2.errors import OptionError
from vidcom2.records.answer_parts import AnswerParts
from vidcom2.records.run_record import stamps_in

ROWS: list[dict[str, Any]] = [
    {"id": "é", "given": {"mine": [1, None]}, "answer": "x", "new_tokens": 3, "video_file": "7 bytes"},
    {"id": "2", "given": {}, "error": "bad"},
    {"id": "3", "given": {"a": 0.1}, "answer": "", "new_tokens": 1, "lost_frames": 0},
]
RUN = {"model_files": {}}


@pytest.fixture(params=["a.jsonl", "a.parquet"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> AnswerParts:
    return AnswerParts(str(tmp_path / request.param))


def test_parts_give_back_what_was_answered_once_and_drop_errors(parts: AnswerParts) -> None:
    assert parts.answered() == {}
    parts.claim(RUN, "c")
    parts.add(ROWS)
    parts.add(ROWS[::-1])  # work that is repeated, in another order
    parts.add([{"id": "4", "given": {}, "error": "bad"}])
    parts.add(ROWS[2:])  # from a worker that outlived its job
    files = {path.name for path in Path(parts.name).iterdir()}
    assert len(files) == 4 and "_run.json" in files
    answered = stamps_in([ROWS[0], ROWS[2]])
    assert {stamp.video_file for stamp in answered.values()} == {"7 bytes", None}
    assert parts.answered() == answered
    found = sorted(Path(parts.name).glob("part-*"))  # the part of errors alone is gone
    written = [path.read_bytes() for path in found]
    assert sorted(row["id"] for path in found for row in parts._rows(str(path))) == ["3", "é"]
    assert parts.answered() == answered and [path.read_bytes() for path in found] == written


class UnpickledScalar(pa.ExtensionScalar):
    def as_py(self, **_: Any) -> Any:
        return pickle.loads(self.value.as_py())


class UnpickledType(pa.ExtensionType):
    """Stands in for Ray's `ArrowPythonObjectType`, which is registered wherever Ray Data is imported."""

    def __init__(self) -> None:
        super().__init__(pa.large_binary(), "vidcom2.unpickled_by_a_test")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, *_: Any) -> "UnpickledType":
        return cls()

    def __arrow_ext_scalar_class__(self) -> type:
        return UnpickledScalar


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (open, (str(self.file), "w"))


@pytest.mark.parametrize("column", ["given", "answer", "more"])
def test_a_part_that_someone_else_wrote_is_not_unpickled(column: str, tmp_path: Path) -> None:
    parts = AnswerParts(str(tmp_path / "a.parquet"))
    parts.claim(RUN, "c")
    parts.add(ROWS[:1])
    (part,) = Path(parts.name).glob("part-*")
    pickled = pa.array([pickle.dumps(Runs(tmp_path / "ran"))], pa.large_binary())
    pa.register_extension_type(UnpickledType())
    try:
        table = pq.read_table(part)
        names = [name for name in table.column_names if name != column]
        pq.write_table(table.select(names).append_column(column, UnpickledType().wrap_array(pickled)), part)
        if column == "more":
            assert parts.answered() == stamps_in(ROWS[:1])
        else:
            with pytest.raises(OptionError, match="is no part that vidcom2 wrote"):
                parts.answered()
    finally:
        pa.unregister_extension_type("vidcom2.unpickled_by_a_test")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_parts_may_be_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server imitates S3 on this machine, and PyArrow finds it by the variable that AWS's own tools read."""
    server = pytest.importorskip("moto.server", reason='needs pip install "moto[server]"').ThreadedMotoServer(port=0)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    known = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    for name, value in {**known, "AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    fs.S3FileSystem(allow_bucket_creation=True, endpoint_override=address).create_dir("bucket")
    parts = AnswerParts("s3://bucket/a.parquet")
    assert parts.answered() == {} and not parts.is_local
    parts.claim(RUN, "c")
    parts.add(ROWS)
    parts.add([{"id": "4", "given": {}, "error": "bad"}])
    assert set(parts.answered()) == {"é", "3"} and len(parts._files()) == 2
    with pytest.raises(OptionError, match="`num_frames` was None and is 4"):
        parts.claim({**RUN, "num_frames": 4}, "c")
    with pytest.raises(OptionError, match=r"cannot write to `--output` 's3://missing/a\.jsonl': .*'missing' not found"):
        AnswerParts("s3://missing/a.jsonl").claim(RUN, "c")
    server.stop()


def test_only_the_same_run_continues_and_the_users_files_are_left_alone(
    parts: AnswerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.claim({**RUN, "num_frames": 4}, "c")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("os.replace", lambda *_: 1 / 0)  # as if killed while writing
        parts.add(ROWS)
    assert parts.answered() == {}
    parts.claim(RUN, "c")  # a record without a part keeps no other run out
    parts.add(ROWS)
    (part,) = Path(parts.name).glob("part-*")
    users = part.with_name(f"all{part.suffix}")
    users.write_bytes(part.read_bytes())
    assert set(parts.answered()) == {"é", "3"} and b"bad" not in part.read_bytes() and b"bad" in users.read_bytes()
    parts.claim(RUN, "d")
    assert json.loads((Path(parts.name) / "_run.json").read_text()) == {"arguments": RUN, "commits": ["c", "d"]}
    with pytest.raises(OptionError, match="`num_frames` was None and is 4"):
        parts.claim({**RUN, "num_frames": 4}, "c")
    (Path(parts.name) / f"part-{'0' * 32}{parts.suffix}").write_text("{")
    with pytest.raises(OptionError, match="is no part that vidcom2 wrote"):
        parts.answered()
    (Path(parts.name) / "_run.json").unlink()
    with pytest.raises(OptionError, match="is no output of `vidcom2 run --engine ray`"):
        parts.claim(RUN, "c")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("a.csv", "a.csv"),
        ("requests.jsonl", "which is a file"),
        ("nowhere://x/a.jsonl", "nowhere://x/a.jsonl"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(output: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").touch()
    with pytest.raises(OptionError, match=message):
        AnswerParts(output if "://" in output else str(tmp_path / output))
