"""Results and cards hold the command that made them, which gives the same again to whoever has the files it names."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import change_json
from make_clips import write_clip
from test_cli import SECONDS, shown_by

from vidcom2.configuration.compression_settings import COMPRESSION_METHODS

ROOT = Path(__file__).parents[1]
METHOD, MODULE = "first_of_all", "method_of_a_stranger"
SOURCE = f"""
from vidcom2 import VideoTokens, register_score_method


@register_score_method("{METHOD}")
def first_of_all(video: VideoTokens):
    return -video.tokens.float().norm(dim=-1)
"""
FEW = ("--num-frames", 4, "--max-new-tokens", 2, "--device", "cpu")
# What a user types after `vidcom2 --import FILE`. The values of `--model` and the like are in another folder.
TYPED = {
    "eval": (
        *("eval", "--data", "my questions.jsonl", "--model", "tiny-model", "--methods", f"{METHOD},random", *FEW),
        *("--ratios", "0.5", "--limit", 1, "--no-letters", "--batch-size", 2, "--compression-rounding", "exact"),
        *("--attn-implementation", "eager", "--dtype", "float32", "--chat-template-kwargs", "{}"),
    ),
    "eval of a toy": ("eval", "--data", "my questions.jsonl", "--model", "toy:qwen3_vl", "--ratios", "0.5", *FEW),
    "bench": (
        *("bench", "clip.mp4", "--model", "tiny-model", "--method", f"{METHOD},random", "--retention-ratio", 0.5, *FEW),
        *("--repeats", 1, "--batch-size", 1, "--batch-size", 2, "--encode-once", "--dtype", "float32"),
    ),
    "publish": (
        *("publish", "--base", "tiny-model", "--repo", "org/name", "--compression-method", METHOD, "--no-verify"),
        *("--methods", "evs", "--retention-ratio", 0.4, "--results", "measured.json"),
    ),
    "publish of a base with a method": ("publish", "--base", "own-model", "--repo", "org/name", "--no-verify"),
    "publish of a toy": ("publish", "--base", "toy:qwen3_vl", "--repo", "org/name", "--methods", METHOD, "--no-verify"),
}


def of_eval(output: Path) -> tuple[str, Any]:
    certificate = json.loads((output / "results.json").read_text())["birth_certificate"]
    rows = [json.loads(line) for line in (output / "answers.jsonl").read_text().splitlines()]
    return certificate["command"], [certificate["arguments"], [row["given"] for row in rows], texts(rows)]


def texts(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{label: answer["text"] for label, answer in row["answers"].items()} for row in rows]


def of_bench(output: Path) -> tuple[str, Any]:
    (path,) = output.glob("*.json")
    content = json.loads(path.read_text())
    names = ("model", "model_commit", "model_files", "imported", "weights", "video", "dtype", "options", "settings")
    rows = [(row["method"], row["figures"]["settings"], row["figures"]["batch_size"]) for row in content["rows"]]
    return content["birth_certificate"]["command"], [[content["birth_certificate"][name] for name in names], rows]


def of_publish(output: Path) -> tuple[str, Any]:
    (command,) = re.findall(r"^vidcom2 .*publish .*$", (output / "README.md").read_text(), re.M)
    return command, {path.name: sha256(path.read_bytes()).hexdigest() for path in output.iterdir()}


READ: dict[str, Callable[[Path], tuple[str, Any]]] = {"eval": of_eval, "bench": of_bench, "publish": of_publish}


@pytest.mark.usefixtures("methods_restored")
@pytest.mark.parametrize("name", TYPED)
def test_a_recorded_command_gives_the_same(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(folder, home / "tiny-model")
    shutil.copytree(folder, home / "own-model")
    change_json(home / "own-model" / "config.json", compression_method=METHOD)
    write_clip(home / "clip.mp4", SECONDS)
    (home / "my questions.jsonl").write_text('{"video": "clip.mp4", "question": "What?", "answer": "5"}\n' * 2)
    (home / f"{MODULE}.py").write_text(SOURCE)
    certificate = {"model": "tiny-model", "date": "2026-01-02", "command": "c", "device": "d", "torch": "2"}
    certificate |= {"transformers": "5", "vidcom2_commit": "c0ffee"}
    (home / "measured.json").write_text(json.dumps({"birth_certificate": certificate, "rows": [{"figure": 1}]}))

    sys.modules.pop(MODULE, None)  # that of another case, in another folder
    command, read = TYPED[name][0], READ[TYPED[name][0]]
    more = ("--dry-run",) if command == "publish" else ()
    typed = [home / word if (home / str(word)).exists() else word for word in TYPED[name]]
    shown_by("--import", home / f"{MODULE}.py", *typed, *more, "-o", tmp_path / "first")
    recorded, first = read(tmp_path / "first")
    assert str(tmp_path) not in recorded

    del sys.modules[MODULE]
    COMPRESSION_METHODS.pop(METHOD)
    monkeypatch.chdir(home)
    program, *words = shlex.split(recorded)
    assert program == "vidcom2"
    shown_by(*words, *more, "-o", tmp_path / "second")
    assert read(tmp_path / "second") == (recorded, first)


@pytest.mark.parametrize(("name", "revision"), [("eval", ()), ("bench", ("--revision", "main"))])
def test_a_recorded_command_names_the_commit_of_a_hub_repo_and_gives_the_same_after_the_repo_moved(
    name: str, revision: tuple[str, ...], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub" / "models--org--tiny"
    (cached / "refs").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cached.parent))

    def move_to(commit: str, **settings: Any) -> None:
        shutil.copytree(folder, cached / "snapshots" / commit)
        change_json(cached / "snapshots" / commit / "config.json", **settings)
        (cached / "refs" / "main").write_text(commit)

    write_clip(tmp_path / "clip.mp4", SECONDS)
    (tmp_path / "questions.jsonl").write_text('{"video": "clip.mp4", "question": "What?", "answer": "5"}\n')
    monkeypatch.chdir(tmp_path)
    typed = {
        "eval": ("eval", "--data", "questions.jsonl", "--methods", "random", "--ratios", "0.5", *FEW),
        "bench": ("bench", "clip.mp4", "--method", "random", "--retention-ratio", 0.5, "--repeats", 1, *FEW),
    }[name]
    move_to("1" * 40, compression_scoring="released")
    shown_by(*typed, "--model", "org/tiny", *revision, "-o", tmp_path / "first")
    recorded, first = READ[name](tmp_path / "first")
    words = shlex.split(recorded)
    assert words.count("--revision") == 1 and words[words.index("--revision") + 1] == "1" * 40
    assert words[words.index("--model") + 1] == "org/tiny"
    move_to("2" * 40)
    shown_by(*words[1:], "-o", tmp_path / "second")
    assert READ[name](tmp_path / "second") == (recorded, first)


def test_every_subcommand_that_records_its_command_is_run_again_above() -> None:
    sources = (path.read_text() for room in ("src/vidcom2", "hub_upload") for path in (ROOT / room).rglob("*.py"))
    records = {found for source in sources for found in re.findall(r'command_line\(\w+, "([\w-]+)"', source)}
    records.remove("chat")  # what `watch` suggests, which tests/test_chat.py runs
    assert records == {words[0] for words in TYPED.values()} == READ.keys()
