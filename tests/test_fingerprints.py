"""A model is identified by its folder's path and contents, or by the commit of its Hub repo."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_cli import vidcom2
from test_cli_errors import mistake
from test_evaluation import write_lines

from vidcom2.bulk.requests import request_of
from vidcom2.errors import CheckpointError, OptionError
from vidcom2.loading.checkpoints import load_checkpoint
from vidcom2.loading.finding_checkpoints import resolve
from vidcom2.loading.placement import Placement
from vidcom2.records import fingerprints
from vidcom2.records.fingerprints import (
    HASHED_BYTES,
    code_digest,
    digest,
    folder_identity,
    identity_of,
    model_files,
    stamp_of_content,
    video_changed,
    video_stamp,
)
from vidcom2.records.run_record import AnswerFile
from vidcom2.toys import TOY

COMMIT, OTHER_COMMIT = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"


def model_identity(name: str | None, revision: str | None = None) -> dict[str, Any]:
    """Return what identifies a model that is not loaded."""
    return identity_of(resolve(name, Placement(revision=revision), {}).source)


def test_a_folder_is_identified_by_its_path_and_its_files(folder: Path, tmp_path: Path) -> None:
    identity = model_identity(str(folder))
    assert identity["model"] == str(folder) and identity["model_commit"] is None
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= model_files(folder).keys()
    assert identity["model_files"] == digest(model_files(folder)) and identity["model_times"] is None
    assert load_checkpoint(str(folder), device="cpu").identity == identity
    toy = model_identity(None)  # the same wherever the package is installed
    assert (toy["model"], toy["model_files"], toy["model_times"]) == (TOY.title, digest(model_files(TOY.folder)), None)
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert model_identity(str(moved)) == identity | {"model": str(moved)}
    (moved / "README.md").write_text("What nobody loads")
    (moved / "answers.run.json").write_text("{}")
    assert model_files(moved).keys() == model_files(folder).keys()
    (moved / "additional_chat_templates").mkdir()
    (moved / "additional_chat_templates" / "short.jinja").write_text("{{ messages }}")
    assert model_files(moved).keys() - model_files(folder).keys() == {"additional_chat_templates/short.jinja"}
    assert model_identity(str(moved))["model_files"] != identity["model_files"]


def test_a_large_file_is_identified_by_its_size_its_time_and_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "HASHED_BYTES", 1000)
    path, size = tmp_path / "model.safetensors", 3 * 2**20
    seen = set()

    def identity() -> tuple[str, str]:
        found = folder_identity(tmp_path)
        return found["model_files"], found["model_times"]

    for content, time in ((b"a" * size, 1), (b"a" * size, 2), (b"b" * size, 1), (b"a" * (size + 1), 1)):
        path.write_bytes(content)
        os.utime(path, (time, time))
        seen.add(identity())
    assert len(seen) == 4 and len({files for files, _ in seen}) == 3  # a copy changes the time, but not the digest
    for changed in (0, size):  # the samples reach both ends
        path.write_bytes(b"a" * changed + b"c" + b"a" * (size - changed))
        os.utime(path, (1, 1))
        seen.add(identity())
    assert len(seen) == 6


def test_a_hub_repo_is_identified_by_its_commit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "models--org--tiny"
    shutil.copytree(folder, repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for revision in (None, "main", COMMIT):
        identity = model_identity("org/tiny", revision)
        assert identity == {"model": "org/tiny", "model_commit": COMMIT, "model_files": None, "model_times": None}
        assert load_checkpoint("org/tiny", device="cpu", revision=revision).identity == identity
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE"):
        model_identity("org/tiny", "v1")

    output = tmp_path / "a.jsonl"
    requests = write_lines(tmp_path / "requests.jsonl", {"video": str(TOY.clips[0].path), "prompt": "What?"})
    small = ["--num-frames", 4, "--max-new-tokens", 1, "--device", "cpu"]
    arguments = ["run", "--model", "org/tiny", "--requests", requests, "-o", output, *small]
    assert [vidcom2(*arguments)[0] for _ in range(2)] == [0, 0]
    shutil.copytree(folder, repo / "snapshots" / OTHER_COMMIT)
    (repo / "refs" / "main").write_text(OTHER_COMMIT)
    assert f"`model_commit` was '{COMMIT}' and is '{OTHER_COMMIT}'" in mistake(*arguments)
    assert vidcom2(*arguments, "--revision", COMMIT)[0] == 0


# -- videos and functions ---------------------------------------------------------------------------------------------


def test_a_list_of_pictures_is_stamped_like_a_file(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for file in files:
        file.write_bytes(b"a picture")
        os.utime(file, (1, 1))
    names = [str(files[0]), files[1].as_uri(), str(files[2]), "https://x.org/3.png"]
    before = video_stamp(names)
    assert str(before).startswith("3 pictures, ") and video_stamp(tuple(names)) == before != video_stamp(names[:2])
    assert video_stamp(str(files[0])) == video_stamp(files[0]) == "9 bytes of 1970-01-01T00:00:01.000000+00:00"
    asked = request_of({"video": names, "fps": 1, "prompt": "What?"}, 1)
    answered = asked.stamp
    os.utime(files[1], (2, 1.5))
    assert video_stamp(names) not in (before, None)
    with pytest.raises(OptionError, match=r"another video of request '1': its file was 3 pictures, .* is 3 pictures, "):
        AnswerFile(tmp_path / "a.jsonl").check_answers({"1": answered}, [("1", asked.stamp)])
    files[1].unlink()  # what is gone has not changed
    assert video_stamp(names) is video_stamp(names[-1:]) is video_stamp([object()]) is None


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("is_list", [False, True])
def test_a_copy_of_a_video_is_known_by_its_content(
    is_list: bool, is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"{i}.mp4" for i in range(3 if is_list else 1)]
    content = os.urandom(HASHED_BYTES + 1 if is_large else 100)
    for file in files:
        file.write_bytes(content)
    source: Any = list(map(str, files)) if is_list else files[0]
    then = video_stamp(source)
    before = stamp_of_content(source, then)
    assert not video_changed(before, video_stamp(source)), "the times are the same, so nothing is read"
    os.utime(files[-1], (1, 1))
    now = video_stamp(source)
    assert video_changed(then, now, source) and video_changed(before, now), "without a digest or a path, times decide"
    assert not video_changed(before, now, source)
    assert stamp_of_content(source, then) == then, "it may have changed while it was read"
    files[-1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert video_changed(before, video_stamp(source), source)
    files[-1].write_bytes(content[:-1])
    assert video_changed(before, video_stamp(source), source)
    files[-1].unlink()
    assert not video_changed(before, video_stamp(source), source), "an answer about what is gone is still its answer"
    monkeypatch.setattr(fingerprints, "_content", lambda path: pytest.fail(f"{path} was read"))
    os.mkfifo(files[-1])
    assert stamp_of_content(source, then) == then and video_changed(before, video_stamp(source), source)
    files[-1].unlink()
    files[-1].symlink_to("/dev/zero")  # which would be read without end
    assert stamp_of_content(source, then) == then and video_changed(before, video_stamp(source), source)
    assert not any(video_changed(stranger, then, source) for stranger in (5, {}, None))  # type: ignore[arg-type]


def test_a_video_is_read_once_for_the_stamps_of_many_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = tmp_path / "clip.mp4", []
    monkeypatch.setattr(fingerprints, "_content", lambda path: read.append(path) or path.read_text())
    for content in ("some", "more"):
        file.write_text(content)
        os.utime(file, (len(read), len(read)))
        assert len({stamp_of_content(file, video_stamp(file)) for _ in range(3)}) == 1
    assert read == [file, file]


OFFSET = 1


def helped(value: int) -> int:
    return value + OFFSET


def read_one(source: str, num_frames: int) -> int:
    return next(helped(each) for each in range(num_frames))


class Reader:
    def __init__(self, size: int) -> None:
        self.size, self.seen = size, []

    def read(self, source: str, num_frames: int) -> int:
        self.seen.append(source)
        return self.size

    def __call__(self, source: str, num_frames: int) -> int:
        return self.read(source, num_frames)


def test_functions_are_the_same_if_they_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(size: int, seen: list[str]) -> Any:
        return lambda source, num_frames: seen.append(source) or size

    every = [read_one, helped, made(1, []), made(2, []), Reader(1).read, Reader(2).read, lambda source, n: 1]
    every += [partial(read_one, num_frames=1), partial(read_one, num_frames={"a": 2}), Reader, Reader(1), Reader(2)]
    every += [len, load_checkpoint]
    found = [code_digest(each) for each in every]
    assert len({*found}) == len(every)
    reader = Reader(1)
    reader.read("a", 1)
    assert code_digest(reader.read) == found[4] and code_digest(made(1, ["a"])) == found[2]
    assert code_digest(partial(read_one, num_frames=1)) == found[7]
    monkeypatch.setitem(globals(), "OFFSET", 2)  # which `read_one` reads through `helped`
    assert code_digest(read_one) != found[0] and code_digest(load_checkpoint) == found[-1]


CODE = """
import enum, re, torch
from functools import lru_cache, partial, wraps
from pathlib import Path

def helper(x, by=1): return x * by

def scaled(by):
    def decorate(f):
        @wraps(f)
        def inner(x): return f(x) * by
        return inner
    return decorate

class Base:
    def __call__(self, x): return x * {base}
    def overridden(self, x): return x * {overridden}

class Derived(Base):
    def overridden(self, x): return super().overridden(x)

class Accessors:
    @staticmethod
    def one(x): return x * {static}
    @classmethod
    def two(cls, x): return x * {classmethod}
    @property
    def three(self): return {property}
    def __call__(self, x): return self.one(x) + self.two(x) + self.three

class Slotted:
    __slots__ = ("size",)
    def __init__(self, size): self.size = size
    def __call__(self, x): return self.size

class Settings:
    def __init__(self, size): self.size, self.inner, self.outer = size, None, self

class Level(enum.Enum):
    LOW = {enum_member}

class Holder:
    def __init__(self, **values): self.__dict__ = values
    def __call__(self, x): return x

SETTINGS, ROOT, PATTERN = Settings({global_object}), Path("{path}"), re.compile("{regex}")
PART = partial(helper, by={global_partial})
NESTED = Settings(1)
NESTED.inner = Settings({nested_object})

def keyword_only(x, *, by={keyword_only_default}): return x * by
@scaled({decorators_argument})
def decorated(x): return x
@lru_cache
def cached(x): return x * {under_lru_cache}
@torch.no_grad()
def without_gradients(x): return x * {under_no_grad}
def names(x): return x * SETTINGS.size, ROOT / x, PATTERN.search(x), PART(x), NESTED.inner.size, Level.LOW, cached(x)
def choose(a, b): return lambda x: a(a(x)) + b(b(x)) + a(b(x))
bound = SETTINGS, NESTED, keyword_only, decorated, without_gradients, names, Derived(), Accessors(), Slotted({slot})
every = lambda: bound, Holder(size=(1, {tuple_attribute})), Holder(read=Derived().overridden), Holder(part=PART)
every += partial(helper, by={partials_argument}), partial(helper, torch.float{partials_dtype})
every += choose(keyword_only, decorated if {which_function} == 16 else keyword_only),
every[2].read.__self__.again = every[2]
"""


class Places(dict[str, int]):
    """The number 16 at each place of `CODE`, but 32 at one. Notes the names of the places."""

    def __init__(self, changed: str) -> None:
        self.changed, self.names = changed, set[str]()

    def __missing__(self, name: str) -> int:
        self.names.add(name)
        return 32 if name == self.changed else 16


def test_whatever_changes_what_a_function_does_changes_its_digest() -> None:
    def digests(changed: str) -> tuple[set[str], list[str]]:
        places, module = Places(changed), {"__name__": "users"}
        exec(CODE.format_map(places), module)
        return places.names, [code_digest(each) for each in module["every"]]

    places, before = digests("")
    assert digests("")[1] == before and len(places) == 20
    assert [place for place in sorted(places) if digests(place)[1] == before] == []


def test_a_partial_is_described_whatever_keys_its_arguments_have() -> None:
    """JSON sorts no keys of several kinds, and takes no tuple for a key."""
    bound = [{1: "a", "b": 2}, {(1, 2): 3}, {None: 1, True: [2]}, {"a": {1, "b"}}, [1, [2]], [1, 2], [[1], 2], (1, 2)]
    found = [code_digest(partial(read_one, num_frames=each)) for each in [*bound, bound]]
    assert len({*found}) == len(found)
    assert code_digest(partial(read_one, num_frames={"b": 2, 1: "a"})) == found[0]


IN_A_PROCESS = """
import sys
from vidcom2.records.fingerprints import code_digest

for text in sys.argv[1:]:
    space = {"__name__": "users"}
    exec(text, space)
    print(code_digest(space["Read"]), code_digest(space["read"]))
"""
A_CLASS = """
class Read:
    def __init__(self):
        self.one, self.two, self.three, self.four, self.five = 1, 2, 3, 4, 5

def read():
    class Inner:
        size = 5
        def __init__(self):
            self.one, self.two, self.three, self.four, self.five = 1, 2, 3, 4, 5
    return Inner
"""


def test_where_a_class_stands_in_its_file_does_not_matter() -> None:
    """Python 3.13 keeps the line of a class, and the names of its attributes in an order that differs by process."""
    changed = [A_CLASS.replace("size = 5", "size = 6"), A_CLASS.replace("= 1,", "= 0,")]
    found = []
    for seed, texts in enumerate([[A_CLASS], [A_CLASS, "\n" * 300 + A_CLASS, *changed]]):
        command = [sys.executable, "-c", IN_A_PROCESS, *texts]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": str(seed)})
        assert done.returncode == 0, done.stderr
        found += map(str.split, done.stdout.splitlines())
    first, again, moved, size, start = found
    assert first == again == moved
    assert size[0] == first[0] and size[1] != first[1] and start[0] != first[0] and start[1] != first[1]
