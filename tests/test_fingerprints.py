"""A model is identified by its folder's path and contents, or by the commit of its Hub repo."""

import os
import shutil
from pathlib import Path

import pytest
from test_cli import save_tiny, vidcom2
from test_evaluation import write_lines

from vidcom2.checkpoints import load_checkpoint
from vidcom2.errors import CheckpointError
from vidcom2.records import fingerprints
from vidcom2.records.fingerprints import digest, folder_identity, model_files, model_identity
from vidcom2.toys import TOY

COMMIT, OTHER_COMMIT = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny-model")


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
    code, _, error = vidcom2(*arguments)
    assert code == 2 and f"`model_commit` was '{COMMIT}' and is '{OTHER_COMMIT}'" in error
    assert vidcom2(*arguments, "--revision", COMMIT)[0] == 0
