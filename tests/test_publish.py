"""Publishing to a Hub on loopback: what is staged, what is sent, and what each failure leaves behind."""

import errno
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard
from loopback_hub import Blob, LoopbackHub
from models import MODELS, ModelCase

from vidcom2.checkpoints import CheckpointError
from vidcom2.configuration.compression_settings import SETTING_NAMES
from vidcom2.hub_upload import hub_calls
from vidcom2.hub_upload.base_checkpoint import Base, hub_base, local_base
from vidcom2.hub_upload.hub_calls import PublishError
from vidcom2.hub_upload.model_card import (
    CUSTOM_GENERATE_MARKER,
    MODEL_MARKER,
    CardOptions,
    ResultsError,
    listed_files,
    read_result,
)
from vidcom2.hub_upload.publishing import (
    Published,
    check_deletions,
    check_login,
    check_target,
    plan,
    publish,
    remote_state,
)
from vidcom2.hub_upload.staging import StagedRepo, StagingError, complete, stage, stage_custom_generate
from vidcom2.shipped_code import LICENSE, code_of, code_of_custom_generate, fields_of

TOKEN = "hf_test"
BASE, REPO = "org/base", "org/vidcom2-model"
BASE_CARD = "---\nlicense: other\nlicense_name: some-license\nlanguage:\n- en\n---\n# Base\n"


@pytest.fixture(scope="module", params=MODELS, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> ModelCase:
    return request.param


@pytest.fixture(scope="module")
def base_folder(case: ModelCase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    for part in case.build(**case.build_arguments):
        part.save_pretrained(folder)
    (folder / "README.md").write_text(BASE_CARD)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": "/home/me/run-7"}))
    return folder


@pytest.fixture(scope="module")
def onevision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onevision")
    for part in MODELS[0].build(**MODELS[0].build_arguments):
        part.save_pretrained(folder)
    (folder / "README.md").write_text(BASE_CARD)
    return folder


@pytest.fixture
def figure(tmp_path: Path) -> Path:
    path = tmp_path / "figure.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    return path


@pytest.fixture
def card(figure: Path) -> CardOptions:
    return CardOptions(REPO, "vidcom2 publish ...", figure, "A caption.", base_model=BASE)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    monkeypatch.setattr(hub_calls, "FIRST_PAUSE", 0.0)
    with LoopbackHub(tmp_path / "hub") as hub, hub.online(tmp_path / "home"):
        yield hub


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    return HfApi(endpoint=hub.url, token=TOKEN)


@pytest.fixture
def staged(hub: LoopbackHub, api: HfApi, onevision_folder: Path, card: CardOptions, tmp_path: Path) -> StagedRepo:
    """A model repo made of a base on the Hub, not sent yet."""
    hub.seed(BASE, onevision_folder)
    return stage(hub_base(api, BASE, None), tmp_path / "staged", {"retention_ratio": 0.4}, card)


def send(api: HfApi, staged: StagedRepo, repo: str = REPO, force: bool = False, **options: Any) -> Published:
    """As `vidcom2 publish` does it."""
    flags = {"private": False, "tag": None, "pull_request": False} | options
    remote = remote_state(api, repo)
    marker = CUSTOM_GENERATE_MARKER if staged.base is None else MODEL_MARKER
    check_target(repo, remote, marker, force=force, **flags)
    check_login(api, repo, remote)
    check_deletions(repo, plan(staged, remote), remote, force=force or flags["pull_request"])
    return publish(api, repo, staged, remote, **flags)


def contents(hub: LoopbackHub, repo: str, revision: str = "main") -> dict[str, bytes]:
    return {path: hub.read(repo, path, revision) for path in hub.files(repo, revision) if path != ".gitattributes"}


def uploads(hub: LoopbackHub) -> list[str]:
    return [request.path for request in hub.requests if "xet-write-token" in request.path]


# -- staging ----------------------------------------------------------------------------------------------------------


def test_a_staged_repo_holds_the_code_byte_by_byte_and_the_base_unchanged(
    case: ModelCase, base_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in base_folder.iterdir()}
    staged = stage(local_base(base_folder), tmp_path / "staged", {"retention_ratio": 0.4}, card)
    folder = staged.folder
    for name, content in code_of(case.model_class).items():
        assert (folder / name).read_bytes() == content
    unchanged = set(before) - {"config.json", "README.md", "model.safetensors"}
    assert unchanged >= {"tokenizer.json", "tokenizer_config.json", "processor_config.json", "chat_template.jinja"}
    assert all((folder / name).read_bytes() == before[name] for name in unchanged)
    assert [file.path for file in staged.base.weights] == ["model.safetensors"]
    assert staged.base.weights[0].sha256 == hashlib.sha256(before["model.safetensors"]).hexdigest()

    config, stock = (json.loads(text) for text in ((folder / "config.json").read_text(), before["config.json"]))
    fields = fields_of(case.model_class)
    assert {name: config[name] for name in fields} == fields
    assert config["retention_ratio"] == 0.4 and config["compression_window"] is None
    assert "_name_or_path" not in config
    added = {*fields, *SETTING_NAMES}
    assert {name: value for name, value in config.items() if name not in added} == {
        name: value for name, value in stock.items() if name not in {*added, "_name_or_path"}
    }
    assert case.config_class.from_pretrained(folder).retention_ratio == 0.4
    assert {path.name: path.read_bytes() for path in base_folder.iterdir()} == before


def test_staging_is_a_function_of_its_input(base_folder: Path, card: CardOptions, tmp_path: Path) -> None:
    first, again = (stage(local_base(base_folder), tmp_path / name, {}, card).folder for name in ("a", "b"))
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in again.iterdir()}


def test_settings_of_a_tuned_base_stay_unless_replaced(base_folder: Path, card: CardOptions, tmp_path: Path) -> None:
    folder = shutil.copytree(base_folder, tmp_path / "tuned")
    config = json.loads((folder / "config.json").read_text())
    tuned = config | {"retention_ratio": 0.6, "compression_rounding": "exact"}
    (folder / "config.json").write_text(json.dumps(tuned))
    for i, (settings, expected) in enumerate((({}, 0.6), ({"retention_ratio": 0.1}, 0.1))):
        staged = stage(local_base(folder), tmp_path / f"staged{i}", settings, card)
        config = json.loads((staged.folder / "config.json").read_text())
        assert (config["retention_ratio"], config["compression_rounding"]) == (expected, "exact")


def test_sharded_weights_come_with_their_index_and_foreign_files_stay_behind(
    onevision_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    folder = shutil.copytree(onevision_folder, tmp_path / "sharded")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"two")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "LICENSE").write_text("terms")
    foreign = ["pytorch_model.bin", "modeling_other.py", "consolidated.safetensors", "demo.png", "onnx/model.onnx"]
    foreign += ["api_token.txt", "wandb-metadata.json", "trainer_state.json", "requirements.txt"]
    for name in foreign:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"?")
    base = local_base(folder)
    assert [file.path for file in base.weights] == sorted(set(index["weight_map"].values()))
    assert sorted(base.left_out) == sorted(foreign)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    assert local_base(folder) == base
    staged = stage(base, tmp_path / "staged", {}, card)
    assert {"LICENSE", "model.safetensors.index.json"} <= set(staged.files)
    assert not set(foreign) & set(staged.files)
    shutil.copyfile(onevision_folder / "model.safetensors", folder / "model.safetensors")  # which is read first
    assert [file.path for file in local_base(folder).weights] == ["model.safetensors"]
    assert "model.safetensors.index.json" in local_base(folder).left_out
    (folder / "model.safetensors").unlink()
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks the weights \['model-00002-of-00002.safetensors'\]"):
        local_base(folder)


def test_what_is_no_base_is_refused(onevision_folder: Path, card: CardOptions, tmp_path: Path) -> None:
    folder = shutil.copytree(onevision_folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))
    with pytest.raises(CheckpointError, match="is of type 'llava', but VidCom² has classes for 'llava_onevision'"):
        local_base(folder)
    with pytest.raises(ValueError, match="`retention_ratio` is 2"):
        stage(local_base(onevision_folder), tmp_path / "staged", {"retention_ratio": 2}, card)
    assert not (tmp_path / "staged").exists()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is a PEFT adapter\. Merge it first"):
        local_base(folder)
    (folder / "adapter_config.json").unlink()
    for broken, reason in (
        ("{", r"config\.json of the base is no JSON"),
        ("[]", "holds a list, but must hold an object"),
    ):
        (folder / "config.json").write_text(broken)
        with pytest.raises(CheckpointError, match=reason):
            local_base(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="Only safetensors are published"):
        local_base(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        local_base(folder)


def test_staging_never_writes_over_files_and_leaves_nothing_half_done(
    onevision_folder: Path, card: CardOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(StagingError, match="is not an empty folder"):
        stage(local_base(onevision_folder), tmp_path / "mine", {}, card)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"

    copies = []

    def copyfile(source: Path, target: Path) -> None:
        copies.append(target)
        if len(copies) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(StagingError, match=r"cannot write .*: No space left"):
        stage(local_base(onevision_folder), tmp_path / "staged", {}, card)
    assert len(copies) == 5 and not (tmp_path / "staged").exists()


def test_staging_again_replaces_the_earlier_staging_and_nothing_else(
    onevision_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    folder, base = tmp_path / "staged", local_base(onevision_folder)
    assert complete(stage(base, folder, {"retention_ratio": 0.4}, card)).startswith("It loads as it is")
    fresh = stage(base, tmp_path / "fresh", {"retention_ratio": 0.3}, card)
    complete(fresh)
    again = stage(base, folder, {"retention_ratio": 0.3}, card)
    assert again.files == fresh.files  # without the links and the list
    complete(again)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        p.name: p.read_bytes() for p in fresh.folder.iterdir()
    }
    assert (folder / "model.safetensors").is_symlink()
    assert MODELS[0].model_class.from_pretrained(folder).config.retention_ratio == 0.3

    (folder / "README.md").write_text("my own card")
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(StagingError, match=r"README\.md, thesis\.txt in it is yours, or was changed since"):
        stage(base, folder, {}, card)
    assert (folder / "README.md").read_text() == "my own card" and (folder / "config.json").is_file()
    (folder / ".vidcom2-staged.json").write_text("no JSON")
    with pytest.raises(StagingError, match="is not an empty folder"):
        stage(base, folder, {}, card)


def test_weights_that_are_not_here_are_missed_with_the_command_that_fetches_them(
    hub: LoopbackHub, staged: StagedRepo
) -> None:
    sentence = complete(staged)
    command = f"`hf download {BASE} model.safetensors --revision {hub.head(BASE)} --local-dir {staged.folder}`"
    assert sentence.startswith("It lacks the weights") and command in sentence
    assert (staged.folder / "WEIGHTS-ARE-MISSING.txt").read_text() == sentence + "\n"


# -- the card ---------------------------------------------------------------------------------------------------------


def test_the_card_says_what_is_there(case: ModelCase, base_folder: Path, figure: Path, tmp_path: Path) -> None:
    options = CardOptions(REPO, "vidcom2 publish --x", figure, "CAPTION", tag="v1", base_model="some/base")
    staged = stage(local_base(base_folder), tmp_path / "staged", {"retention_ratio": 0.4}, options)
    card = ModelCard.load(staged.folder / "README.md")
    assert card.data.to_dict() == {
        "base_model": "some/base",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "license": "other",
        "license_name": "some-license",
        "language": ["en"],
        "pipeline_tag": "video-text-to-text",
        "tags": ["vidcom2", "video", "token-compression", "custom_code"],
    }
    text = card.text
    for shown in (
        MODEL_MARKER,
        f'repo, revision = "{REPO}", "v1"',
        "40 % of the video tokens",
        "CAPTION",
        "how_it_works.png",
    ):
        assert shown in text, shown
    assert ("the stock model loads" in text) == case.native == ("Without it nothing loads" not in text)
    listed = listed_files(text)
    assert listed.keys() == {*staged.files, "model.safetensors"} - {"README.md", "how_it_works.png"}
    for name, sha in listed.items():
        folder = base_folder if name == "model.safetensors" else staged.folder
        assert sha == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert "derived from [some/base](https://huggingface.co/some/base)" in text and "of the folder that this" in text
    assert "that of the base, some-license. The code is Apache-2.0" in text
    for name in SETTING_NAMES:
        assert f"| `{name}` |" in text
    assert "| `retention_ratio` | `0.4` |" in text and "Nothing has been measured" in text
    assert "{{" not in text and "{%" not in text and "Undefined" not in text
    blocks = text.split("```python\n")[1:]
    for block in blocks:
        compile(block.split("```")[0], "card", "exec")
    assert len(blocks) == 2
    for link in ("https://arxiv.org/abs/2505.14454", "https://github.com/xuyang-liu16/VidCom2"):
        assert f"]({link})" in text
    assert 'pip install "transformers>=' in text and " av\n" in text and "`pip install .` in a checkout" in text
    folded = "".join(part.split("</details>")[0] for part in text.split("<details>")[1:])
    assert listed_files(folded) == listed and text.count("<details>") == text.count("\n\n</details>\n") == 2


CERTIFICATE = {
    "model": BASE,
    "date": "2026-01-02",
    "command": "bench --all",
    "device": "some GPU",
    "torch": "2.15",
    "transformers": "5.23",
    "vidcom2_commit": "c0ffee",
    "vidcom2_dirty": True,
}


def test_measured_tables_come_with_their_provenance(onevision_folder: Path, figure: Path, tmp_path: Path) -> None:
    path = tmp_path / "prefill.json"
    rows = [{"frames": 32, "speedup": 3.14159, "shape": [2, 3], "detail": {"x": 1}}, {"frames": 64, "speedup": 4.0}]
    path.write_text(json.dumps({"birth_certificate": CERTIFICATE, "rows": rows}))
    options = CardOptions(REPO, "c", figure, "", base_model=BASE, results=[read_result(path, [BASE])])
    text = (stage(local_base(onevision_folder), tmp_path / "staged", {}, options).folder / "README.md").read_text()
    assert "| frames | speedup | shape |" in text and "| 32 | 3.142 | 2 × 3 |" in text
    assert "`bench --all` on some GPU, 2026-01-02; torch 2.15" in text and "with uncommitted changes" in text
    assert "Nothing has been measured" not in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("no JSON", "is no result file"),
        (json.dumps({"rows": [{"a": 1}]}), "is no result file"),
        (json.dumps({"birth_certificate": CERTIFICATE, "rows": []}), "is no result file"),
        (
            json.dumps({"birth_certificate": CERTIFICATE | {"device": ""}, "rows": [{"a": 1}]}),
            "does not say its device",
        ),
        (json.dumps({"birth_certificate": {}, "rows": [{"a": 1}]}), "does not say its model, date, command, device"),
        (
            json.dumps({"birth_certificate": CERTIFICATE | {"model": "x/y"}, "rows": [{"a": 1}]}),
            "was measured on 'x/y', but the card is about org/base",
        ),
    ],
)
def test_figures_without_provenance_are_refused(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ResultsError, match=reason):
        read_result(path, [BASE])


def test_figures_about_no_model_are_refused() -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "results" / "compress_cpu.json"
    with pytest.raises(ResultsError, match="does not say its model"):
        read_result(path, [BASE])


# -- the commit -------------------------------------------------------------------------------------------------------


def test_publishing_is_one_commit_whose_weights_are_copied_on_the_server(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, onevision_folder: Path
) -> None:
    done = send(api, staged, tag="v1")
    expected = {path: (staged.folder / path).read_bytes() for path in staged.files}
    expected["model.safetensors"] = (onevision_folder / "model.safetensors").read_bytes()
    assert contents(hub, REPO) == expected == contents(hub, REPO, "v1")
    commits = [request for request in hub.requests if "/commit/" in request.path]
    assert len(commits) == 1 and commits[0].status == 200 and done.commit == hub.head(REPO)
    moved = sum(request.body_bytes for request in hub.requests)
    assert moved < len(expected["model.safetensors"])  # which travels in no request
    assert hub.files(REPO)["model.safetensors"].sha256 == hub.files(BASE)["model.safetensors"].sha256


def test_the_weights_are_those_of_the_pinned_commit(
    hub: LoopbackHub, api: HfApi, onevision_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    first = hub.seed(BASE, onevision_folder)
    changed = shutil.copytree(onevision_folder, tmp_path / "changed")
    weights = bytearray((changed / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (changed / "model.safetensors").write_bytes(weights)
    hub.seed(BASE, changed)
    base = hub_base(api, BASE, first)
    assert base.revision == first != hub.head(BASE)
    send(api, stage(base, tmp_path / "staged", {}, card))
    assert hub.read(REPO, "model.safetensors") == (onevision_folder / "model.safetensors").read_bytes()
    assert first in hub.read(REPO, "README.md").decode()


def test_publishing_again_sends_what_changed_and_removes_what_is_stale(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, card: CardOptions, tmp_path: Path
) -> None:
    send(api, staged)
    before = hub.head(REPO)
    assert send(api, staged, tag="v1") == Published(f"{hub.url}/{REPO}", None, before)
    assert hub.head(REPO) == before == hub.head(REPO, "v1")

    # As an older version of the code would have it: a file more, which the card lists.
    old = {"modeling_old.py": b"old", "README.md": hub.read(REPO, "README.md") + _row("modeling_old.py", b"old")}
    kept = {"notes.txt": b"mine", "eval.py": b"mine", "training_args.bin": b"mine", "eval.png": b"mine"}
    hub.commit(REPO, old | kept, "by hand")
    changed = stage(staged.base, tmp_path / "again", {"retention_ratio": 0.3}, card)
    operations = {(op.action, op.path) for op in plan(changed, remote_state(api, REPO))}
    assert operations == {("add", "README.md"), ("add", "config.json"), ("delete", "modeling_old.py")}
    send(api, changed)
    assert hub.files(REPO).keys() == {".gitattributes", *staged.files, "model.safetensors", *kept}
    assert json.loads(hub.read(REPO, "config.json"))["retention_ratio"] == 0.3


def _row(path: str, content: bytes) -> bytes:
    return f"\n| `{path}` | `{hashlib.sha256(content).hexdigest()}` |\n".encode()


def test_trained_weights_are_not_replaced_by_the_base(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, tmp_path: Path
) -> None:
    send(api, staged)
    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "model.safetensors").write_bytes(b"trained for weeks")
    api.upload_folder(repo_id=REPO, folder_path=trained)
    before = hub.head(REPO)
    with pytest.raises(PublishError, match=r"other weights since it was published, \['model.safetensors'\]"):
        send(api, staged)
    assert hub.head(REPO) == before
    send(api, staged, force=True)
    assert hub.read(REPO, "model.safetensors") != b"trained for weeks"


def test_files_that_would_be_loaded_beside_the_new_ones_are_not_deleted_unasked(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    send(api, staged)
    hub.commit(REPO, {"adapter_config.json": b"{}", "chat_template.json": b"{}"}, "by hand")
    with pytest.raises(
        PublishError, match=r"holds \['adapter_config.json', 'chat_template.json'\], which would change"
    ):
        send(api, staged)
    send(api, staged, force=True)
    assert not {"adapter_config.json", "chat_template.json"} & hub.files(REPO).keys()


def test_a_model_repo_does_not_become_a_custom_generate_repo_nor_the_other_way(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, tmp_path: Path
) -> None:
    generating = stage_custom_generate(tmp_path / "generate", REPO, "")
    for first, then, repo in ((staged, generating, REPO), (generating, staged, "org/other")):
        send(api, first, repo)
        for options in ({}, {"force": True}, {"pull_request": True}):
            with pytest.raises(PublishError, match="is a repo of the other kind"):
                send(api, then, repo, **options)


def test_a_local_base_is_uploaded(
    hub: LoopbackHub, api: HfApi, case: ModelCase, base_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    send(api, stage(local_base(base_folder), tmp_path / "staged", {}, card))
    assert hub.read(REPO, "model.safetensors") == (base_folder / "model.safetensors").read_bytes()
    assert uploads(hub)


@pytest.mark.parametrize("refusal", ["no xet hash", "another region", "not allowed"])
def test_weights_that_the_server_cannot_copy_are_uploaded(
    refusal: str, hub: LoopbackHub, api: HfApi, onevision_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    hub.seed(BASE, onevision_folder)
    weights = (onevision_folder / "model.safetensors").read_bytes()
    sha256 = hashlib.sha256(weights).hexdigest()
    if refusal == "no xet hash":
        blob = Blob.lfs(sha256, len(weights), None, weights)
        hub.repos[BASE].objects[sha256] = blob
        hub.commit(BASE, {"model.safetensors": blob}, "an old LFS file")
    elif refusal == "another region":
        hub.fail("POST", "lfs-files/duplicate", status=200, body={"failed": [{"sha256": sha256, "error": "region"}]})
    else:
        hub.fail("POST", "lfs-files/duplicate", status=404)
    staged = stage(hub_base(api, BASE, None), tmp_path / "staged", {}, card)
    copies = [op.path for op in plan(staged, remote_state(api, REPO)) if op.action == "copy"]
    assert copies == ([] if refusal == "no xet hash" else ["model.safetensors"])
    send(api, staged)
    assert hub.read(REPO, "model.safetensors") == weights
    assert json.loads(hub.read(REPO, "config.json"))["retention_ratio"] == 0.25


def test_a_custom_generate_repo_is_code_and_card(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    staged = stage_custom_generate(tmp_path / "staged", "org/generate", "vidcom2 publish ...")
    send(api, staged, "org/generate")
    sent = contents(hub, "org/generate")
    code = code_of_custom_generate()
    assert sent.keys() == {"README.md", LICENSE, *code} and "custom_generate/generate.py" in code
    assert all(sent[name] == content for name, content in code.items())
    card = ModelCard(sent["README.md"].decode())
    assert {"custom_generate", "vidcom2"} <= set(card.data.tags) and card.data.license == "apache-2.0"
    assert 'custom_generate="org/generate"' in card.text and "{{" not in card.text
    folded = card.text.split("<details>")[1].split("\n\n</details>\n")[0]
    assert listed_files(folded).keys() == {LICENSE, *code} and "https://arxiv.org/abs/2505.14454" in card.text


def test_a_pull_request_leaves_main_alone(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.create(REPO)
    hub.commit(REPO, {"theirs.txt": b"theirs"}, "theirs")
    before = hub.head(REPO)
    done = send(api, staged, pull_request=True)
    assert done.pull_request.endswith("/discussions/1") and hub.head(REPO) == before
    assert {"config.json", "theirs.txt", "model.safetensors"} <= hub.files(REPO, "refs/pr/1").keys()


def test_a_private_repo_is_private(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    send(api, staged, private=True)
    assert remote_state(api, REPO).private
    assert remote_state(HfApi(endpoint=hub.url, token=False), REPO).head is None


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, r"holds 2 files that `vidcom2 publish` did not write \(\.gitattributes, theirs\.txt"),
        ({"private": True}, "exists and is public"),
        ({"tag": "v1"}, "has a tag 'v1'"),
        ({"tag": "v2", "pull_request": True}, "`--tag` names a commit"),
        ({"tag": "my tag"}, "'my tag' cannot be a tag"),
        ({"tag": "v1..v2"}, "cannot be a tag"),
    ],
)
def test_a_repo_of_others_is_refused_and_stays_as_it_is(
    options: dict, reason: str, hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    hub.create(REPO)
    hub.commit(REPO, {"theirs.txt": b"theirs"}, "theirs")
    api.create_tag(REPO, tag="v1")
    before = hub.head(REPO)
    with pytest.raises(PublishError, match=reason):
        send(api, staged, **options)
    assert hub.head(REPO) == before


def test_force_writes_beside_what_others_wrote(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.create(REPO)
    hub.commit(REPO, {"theirs.txt": b"theirs", "config.json": b"{}"}, "theirs")
    send(api, staged, force=True)
    assert hub.read(REPO, "theirs.txt") == b"theirs"
    assert hub.read(REPO, "config.json") == (staged.folder / "config.json").read_bytes()


def test_a_pull_request_needs_a_repo(api: HfApi, staged: StagedRepo) -> None:
    with pytest.raises(PublishError, match="there is no repo 'org/vidcom2-model'"):
        send(api, staged, pull_request=True)


def test_a_base_that_cannot_be_read_is_named(hub: LoopbackHub, api: HfApi, onevision_folder: Path) -> None:
    with pytest.raises(PublishError, match="the Hub has no 'org/nothing'"):
        hub_base(api, "org/nothing", None)
    hub.seed(BASE, onevision_folder)
    hub.fail("GET", f"api/models/{BASE}", status=403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(PublishError, match=r"'org/base' is gated\. Accept its terms"):
        hub_base(api, BASE, None)


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "Log in with `hf auth login`"),
        (403, "the Hub forbids this in 'org/vidcom2-model'"),
        (404, "the Hub has no 'org/vidcom2-model'"),
        (409, "changed while this was being published"),
        (412, "changed while this was being published"),
        (422, "the Hub refused 'org/vidcom2-model' with 422"),
    ],
)
@pytest.mark.parametrize("route", ["/commit/", "/preupload/"])
def test_a_refusal_says_what_to_do_and_leaves_the_repo_as_it_was(
    status: int, reason: str, route: str, hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    hub.create(REPO)
    before = hub.head(REPO)
    hub.fail("POST", f"{REPO}{route}", status=status)
    with pytest.raises(PublishError, match=reason):
        send(api, staged)
    assert hub.head(REPO) == before
    assert send(api, staged).commit == hub.head(REPO)


def test_an_unknown_and_an_unauthorised_token_are_refused(hub: LoopbackHub, staged: StagedRepo) -> None:
    hub.tokens["hf_eve"] = {"name": "eve", "orgs": []}
    reasons = (("hf_eve", "is not in a namespace of yours: eve"), ("hf_unknown", "Log in with"), (None, "Log in with"))
    for token, reason in reasons:
        with pytest.raises(PublishError, match=reason) as error:
            send(HfApi(endpoint=hub.url, token=token), staged)
        assert "hf_" not in str(error.value)
    assert REPO not in hub.repos


@pytest.mark.parametrize(
    "route", ["/repos/create", "/preupload/", "/commit/", "lfs-files/duplicate", "/tag/", "/paths-info/"]
)
@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 503}, {"status": 429}, {"drop": True, "after_bytes": 20}]
)
def test_a_hub_that_stumbles_is_asked_again(
    route: str, fault: dict, hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    hub.fail("POST", route, times=2, **fault)
    done = send(api, staged, tag="v1")
    assert done.commit == hub.head(REPO) == hub.head(REPO, "v1")
    assert contents(hub, REPO).keys() == {*staged.files, "model.safetensors"}


@pytest.mark.parametrize("route", ["/repos/create", "/preupload/", "/commit/", "lfs-files/duplicate", "/tag/"])
def test_a_hub_that_is_down_leaves_the_repo_as_it_was_and_running_again_finishes(
    route: str, hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    hub.fail("POST", route, status=503, times=100)
    reason = "but the Hub did not tag it 'v1'" if route == "/tag/" else "the Hub answered 503 again and again"
    with pytest.raises(PublishError, match=reason):
        send(api, staged, tag="v1")
    assert len([request for request in hub.requests if route in request.path]) < 8
    if route != "/tag/":
        assert REPO not in hub.repos or hub.files(REPO).keys() == {".gitattributes"}
    hub.mend()
    done = send(api, staged, tag="v1")
    assert hub.head(REPO, "v1") == hub.head(REPO) == done.head
    assert contents(hub, REPO).keys() == {*staged.files, "model.safetensors"}


@pytest.mark.parametrize("route", ["/repos/create", "/commit/", "/tag/"])
def test_a_lost_answer_is_not_done_twice(route: str, hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.fail("POST", route, answer_lost=True)
    done = send(api, staged, tag="v1")
    assert done.commit == hub.head(REPO) == hub.head(REPO, "v1")
    commits = [request for request in hub.requests if "/commit/" in request.path]
    assert len(commits) == 1


def test_a_lost_answer_to_a_pull_request_is_not_repeated(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.create(REPO)
    hub.fail("POST", "/commit/", answer_lost=True)
    with pytest.raises(PublishError, match="a pull request may have been opened"):
        send(api, staged, pull_request=True)
    assert "refs/pr/1" in hub.repos[REPO].refs and "refs/pr/2" not in hub.repos[REPO].refs


def test_an_upload_that_breaks_leaves_the_repo_as_it_was(
    hub: LoopbackHub, api: HfApi, onevision_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    staged = stage(local_base(onevision_folder), tmp_path / "staged", {}, card)
    hub.create(REPO)
    before = hub.head(REPO)
    hub.fail("GET", "xet-write-token", drop=True, times=100)
    with pytest.raises(PublishError, match="could not be reached"):
        send(api, staged)
    assert hub.head(REPO) == before
    hub.mend()
    send(api, staged)
    assert hub.read(REPO, "model.safetensors") == (onevision_folder / "model.safetensors").read_bytes()


def test_a_repo_that_moves_meanwhile_is_not_written_over(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.create(REPO)
    hub.fail("POST", "/commit/", before=lambda: hub.commit(REPO, {"theirs.txt": b"theirs"}, "in between"))
    with pytest.raises(PublishError, match="changed while this was being published"):
        send(api, staged)
    assert hub.files(REPO).keys() == {".gitattributes", "theirs.txt"}


def test_of_two_publications_at_once_one_wins_whole(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, card: CardOptions, tmp_path: Path
) -> None:
    other = stage(staged.base, tmp_path / "other", {"retention_ratio": 0.9}, card)
    results: dict[str, object] = {}
    ready = threading.Barrier(2, timeout=60)
    hub.fail("POST", "/commit/", times=2, before=ready.wait)  # both commits arrive before either is made

    def run(name: str, what: StagedRepo) -> None:
        try:
            results[name] = send(HfApi(endpoint=hub.url, token=TOKEN), what)
        except PublishError as error:
            results[name] = error

    threads = [threading.Thread(target=run, args=pair) for pair in (("first", staged), ("other", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    lost = [name for name, result in results.items() if isinstance(result, PublishError)]
    assert len(results) == 2 and len(lost) == 1, results
    assert "changed while" in str(results[lost[0]])
    winner = other if lost == ["first"] else staged
    assert hub.read(REPO, "config.json") == (winner.folder / "config.json").read_bytes()
    assert hub.read(REPO, "README.md") == (winner.folder / "README.md").read_bytes()


def test_an_invalid_card_is_refused_before_anything_is_sent(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    path = staged.folder / "README.md"
    path.write_text(path.read_text().replace("pipeline_tag: video-text-to-text", "pipeline_tag: [unclosed"))
    with pytest.raises(ValueError, match=r"Invalid metadata in README\.md"):
        send(api, staged)
    assert hub.files(REPO).keys() == {".gitattributes"}


def test_the_token_is_nowhere_to_be_read(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hub.fail("POST", "/commit/", status=403)
    with pytest.raises(PublishError) as error:
        send(api, staged)
    send(api, staged)
    printed = "".join(capfd.readouterr())
    written = "".join(path.read_text(errors="replace") for path in staged.folder.iterdir())
    for text in (printed, caplog.text, written, repr(error.value), hub.log_text()):
        assert TOKEN not in text


def test_bases_are_plain_data(onevision_folder: Path) -> None:
    base = local_base(onevision_folder)
    assert isinstance(base, Base) and base.revision is None and not any(file.on_server for file in base.files)
