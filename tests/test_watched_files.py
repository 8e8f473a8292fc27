"""A `.watched` file may be a stranger's. Whatever is in it, and however right its checksums are, it is refused with one
error, or answers as the file that was written."""

import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import GenerationConfig, GenerationMixin

import vidcom2
from vidcom2.errors import OptionError

Tensors = dict[str, torch.Tensor]
Change = Callable[[dict[str, Any], Tensors], Any]  # of the header and the tensors; a text that it returns is the header
ONE = only(lambda family: family.name == "llava_onevision")
SOME = only(lambda family: family.name in ("llava_video", "qwen3_vl", "video_llama_3"))
SECONDS = 5  # of the processor, for each file; on the machine where this was written none takes more than 0.2

NESTED: Any = []
for _ in range(500):
    NESTED = [NESTED]
VALUES = [
    *(None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, -0.5, float("nan"), float("inf")),
    *("", "x" * 9999, "\ud800", "../../etc/passwd"),
    *([], [1], [[1], [2]], [1e308, "x"], {}, {"custom_generate": "a/b"}, NESTED),
]
ARGUMENTS = {*GenerationConfig().to_dict(), *inspect.signature(vars(GenerationMixin)["generate"]).parameters}
FORMER = ("inputs", "prepared", "layers", "model", "layout", "class", "transformers", "compression", "sha256")
TEXTS = ["", "null", "[]", '"x"', "[" * 30_000, '{"a":' * 5000, '{"format": 3', '{"format": 2}', '{"format": 4}', "NaN"]


@pytest.fixture(scope="module")
def video() -> vidcom2.Video:
    frames = np.random.default_rng(0).integers(0, 256, (8, 112, 112, 3)).astype(np.uint8)
    return vidcom2.Video.from_frames(frames, fps=2)


def parts(path: Path) -> tuple[dict[str, Any], Tensors]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["vidcom2"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(path: Path, header: Any, tensors: Tensors) -> None:
    """Write a file with checksums that are right."""
    if isinstance(header, dict) and "tensors" in header and header["tensors"] == parts(path)[0]["tensors"]:
        total = hashlib.sha256()
        for name in sorted(tensors):
            total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
            total.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
        header = header | {"tensors": total.hexdigest()}
    text = header if isinstance(header, str) else json.dumps(header)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path, {"vidcom2": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})


class Opened:
    """A file that a model has written, and what becomes of it once it is changed."""

    def __init__(self, family: Family, video: vidcom2.Video, folder: Path) -> None:
        self.family, self.path = family, folder / "clip.watched"
        vidcom2.watch(video, family.model, processor=family.processor).save(self.path)
        self.whole, (self.header, self.tensors) = self.path.read_bytes(), parts(self.path)
        self.answer = self.ask()
        self.outcomes = {"refused": 0, "the same": 0}

    def ask(self) -> str:
        watched = vidcom2.load_watched(self.path, self.family.model, processor=self.family.processor)
        return watched.ask("Who?", max_new_tokens=4, min_new_tokens=4)

    def changed(self, change: Change) -> None:
        self.path.write_bytes(self.whole)
        header, tensors = json.loads(json.dumps(self.header)), dict(self.tensors)
        text = change(header, tensors)
        write(self.path, header if text is None else text, tensors)

    def check(self, what: str, may_answer: bool = True) -> None:
        """Check that the file as it is now is refused or, if it may, answers as before."""
        start = time.process_time()
        try:
            assert self.ask() == self.answer and may_answer, what
            self.outcomes["the same"] += 1
        except OptionError as error:
            said = str(error)
            assert said.startswith(repr(str(self.path))) and "atch the video again" in said and len(said) < 700, what
            self.outcomes["refused"] += 1
        assert time.process_time() - start < SECONDS, what


def of_the_header(header: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    """Yield changes of each entry, of those inside it, and entries that a header does not have."""

    def put(value: Any, *places: str) -> Change:
        return lambda header, tensors: within(header, places).update({places[-1]: value})

    def drop(*places: str) -> Change:
        def change(header: dict[str, Any], tensors: Tensors) -> None:
            del within(header, places)[places[-1]]

        return change

    def within(header: dict[str, Any], places: tuple[str, ...]) -> dict[str, Any]:
        return header if len(places) == 1 else header[places[0]]

    places = [(name,) for name in header] + [("settings", name) for name in header["settings"]]
    for place in places:
        yield f"without {place}", drop(*place)
        for value in VALUES if len(place) == 1 else VALUES[::5]:
            yield f"{place} is {str(value)[:50]}", put(value, *place)
    for number, name in enumerate(sorted({*ARGUMENTS, *FORMER})):
        place = ("settings", name) if number % 2 else (name,)
        yield f"with {place}", put(1, *place)
    for text in TEXTS:
        yield f"the text {text[:20]!r}", lambda header, tensors, text=text: text
    yield "a long header", lambda header, tensors: json.dumps(header) + " " * 2**21


def of_the_tensors(tensors: Tensors) -> Iterator[tuple[str, Change]]:
    """Yield changes of each tensor's existence, dtype, shape and values."""

    def put(name: str, value: torch.Tensor) -> Change:
        return lambda header, tensors: tensors.update({name: value})

    def drop(name: str) -> Change:
        def change(header: dict[str, Any], tensors: Tensors) -> None:
            del tensors[name]

        return change

    for name, each in tensors.items():
        yield f"without {name}", drop(name)
        for dtype in (torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool):
            if dtype != each.dtype:
                yield f"{name} in {dtype}", put(name, each.to(dtype))
        longer = torch.cat([each, each[-1:]])
        for value in (longer, each[:-1], each[:0], each[None], each.flatten()[0], each.flip(0)[:, None], each * 0):
            if value.shape != each.shape or not torch.equal(value, each):
                yield f"{name} of {tuple(value.shape)}", put(name, value)
        odd = [torch.nan, torch.inf, 1e38] if each.is_floating_point() else [-1, -(2**63), 2**63 - 1, 0]
        for value in odd if each.dtype != torch.bool else ():
            for place in (0, -1):
                number = each.clone()
                number.view(-1)[place] = value
                yield f"{name} with {value} at {place}", put(name, number)
    for name in ("indices", "frames_indices"):
        yield f"{name} the other way round", put(name, tensors[name].flip(0))
        yield f"many {name}", put(name, torch.arange(2**20 + 1))
    yield "many frames", put("frames_indices", torch.arange(2**14 + 1))
    for name in ("inputs.custom_generate", "deepstack.7", "cache.0.keys.0", "prefix", "memory.positions", "merge"):
        yield f"with {name}", put(name, torch.zeros(1))


@ONE
def test_no_header_makes_a_file_do_more_than_answer(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    file = Opened(family, video, tmp_path)
    changes = list(of_the_header(file.header))
    for what, change in changes:
        file.changed(change)
        file.check(what, may_answer=" is " in what)  # another number of lost frames, say
    assert file.outcomes["refused"] > 300, file.outcomes


@SOME
def test_no_tensors_make_a_file_do_more_than_answer(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    file = Opened(family, video, tmp_path)
    for what, change in of_the_tensors(file.tensors):
        file.changed(change)
        if " with 1e+38" not in what and "features of" not in what:  # other finite features are another video
            file.check(what)
    assert file.outcomes["refused"] > 40, file.outcomes


@ONE
def test_a_flipped_bit_is_noticed(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    file, random = Opened(family, video, tmp_path), np.random.default_rng(0)
    border = 8 + int.from_bytes(file.whole[:8], "little")
    places = [*random.integers(0, border, 100), *random.integers(border, len(file.whole), 100)]
    for place in places:
        flipped = bytearray(file.whole)
        flipped[place] ^= 1 << int(random.integers(8))
        file.path.write_bytes(flipped)
        file.check(f"a bit of byte {place}")
    assert file.outcomes["refused"] >= 199, file.outcomes


@only(lambda family: family.name == "glm4v")
def test_a_size_that_would_fill_the_memory_with_placeholders_is_refused_before_they_are_written(
    family: Family, video: vidcom2.Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Opened(family, video, tmp_path)
    monkeypatch.setattr(type(family.processor), "replace_video_token", None)
    for alone in (True, False):
        file.changed(lambda header, tensors, alone=alone: header.update(height=2**15, width=2**15, scaled_alone=alone))
        with pytest.raises(OptionError, match=r"the processor writes \d+ placeholders for the video, but its features"):
            file.ask()
        file.check("large frames")


@ONE
def test_of_the_video_that_a_file_names_only_a_local_file_is_looked_at(
    family: Family, video: vidcom2.Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a share would log in there. Nothing is fetched or opened, so a pipe does not keep anyone waiting."""
    file, seen, is_file = Opened(family, video, tmp_path), [], Path.is_file
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "is_file", lambda path: seen.append(str(path)) or is_file(path))
    remote = ["//evil/share/a.mp4", "\\\\evil\\share\\a.mp4", "https://evil/a.mp4", "file://evil/a.mp4"]
    remote += ["a.mp4", "~/a.mp4"]
    local = [str(tmp_path), str(tmp_path / "pipe"), str(tmp_path / "none")]
    for source in (*remote, *local, "/dev/zero", "/a\0b", "/\ud800"):
        file.changed(lambda header, tensors, source=source: header.update(source=[source], stamp="1 bytes of 2026"))
        assert file.ask() == file.answer, source
    assert not {*seen} & {*remote, *(str(Path(each)) for each in remote)} and "/dev/zero" in seen
    (tmp_path / "a.mp4").touch()
    file.changed(lambda header, tensors: header.update(source=[str(tmp_path / "a.mp4")], stamp="1 bytes"))
    with pytest.raises(OptionError, match=r"a\.mp4' has changed since"):
        file.ask()
    os.mkfifo(tmp_path / "pipe.watched")
    with pytest.raises(OptionError, match="there is no file"):
        vidcom2.load_watched(tmp_path / "pipe.watched", family.model, processor=family.processor)
