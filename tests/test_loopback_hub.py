"""The loopback Hub behaves to the real client as tests of publishing rely on."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    FileDuplicationError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from loopback_hub import LoopbackHub

WEIGHTS = bytes(range(256)) * 2000


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path / "hub") as hub, hub.online(tmp_path / "home"):
        yield hub
    assert constants.HF_HUB_OFFLINE
    assert not [thread for thread in threading.enumerate() if "loopback" in thread.name or "request" in thread.name]


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    return HfApi(endpoint=hub.url, token="hf_test")


@pytest.fixture
def base(hub: LoopbackHub, tmp_path: Path) -> str:
    folder = tmp_path / "base"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "config.json").write_text('{"base": true}')
    (folder / "sub" / "note.txt").write_text("note")
    return hub.seed("org/base", folder)


def copy(path: str, **kwargs: str) -> CommitOperationCopy:
    return CommitOperationCopy(path, path, src_repo_id="org/base", src_repo_type="model", **kwargs)


def add(path: str, content: bytes) -> CommitOperationAdd:
    return CommitOperationAdd(path, content)


def asked(hub: LoopbackHub, part: str) -> int:
    return sum(part in request.path for request in hub.requests)


def test_upload_and_download(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    assert api.create_repo("org/new", private=True).url == f"{hub.url}/org/new"
    first = hub.head("org/new")
    card = b"---\nlicense: mit\ntags: [video]\n---\nText.\n"
    operations = [add("README.md", card), add("model.safetensors", WEIGHTS)]
    info = api.create_commit("org/new", operations, commit_message="One", parent_commit=first)
    assert (info.oid, hub.read("org/new", "README.md")) == (hub.head("org/new"), card)
    assert hub.read("org/new", "model.safetensors") == WEIGHTS
    assert asked(hub, "xet-write-token") > 0
    folder = Path(api.snapshot_download("org/new", local_dir=tmp_path / "copy"))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "README.md").read_bytes() == card
    assert asked(hub, "xet-read-token") > 0
    info = api.model_info("org/new", files_metadata=True)
    assert (info.card_data.license, info.tags, info.private) == ("mit", ["video"], True)
    sizes = {file.rfilename: (file.size, file.lfs is not None) for file in info.siblings}
    assert sizes["model.safetensors"] == (len(WEIGHTS), True) and sizes["README.md"] == (len(card), False)
    assert [commit.title for commit in api.list_repo_commits("org/new")] == ["One", "initial commit"]


def test_a_copy_moves_no_weights(hub: LoopbackHub, api: HfApi, base: str) -> None:
    api.create_repo("ada/new")
    operations = [copy("model.safetensors", src_revision=base), copy("config.json"), add("code.py", b"pass\n")]
    api.create_commit("ada/new", operations, commit_message="Copy")
    assert hub.read("ada/new", "model.safetensors") == WEIGHTS
    assert hub.read("ada/new", "config.json") == b'{"base": true}'
    assert asked(hub, "xet-") == 0 and max(request.body_bytes for request in hub.requests) < 2000
    api.create_commit("ada/new", [CommitOperationDelete("code.py")], commit_message="Delete")
    assert set(hub.files("ada/new")) == {".gitattributes", "config.json", "model.safetensors"}


def test_listings(hub: LoopbackHub, api: HfApi, base: str) -> None:
    everything = {"sub", "sub/note.txt", "config.json", "model.safetensors", ".gitattributes"}
    assert {entry.path for entry in api.list_repo_tree("org/base", recursive=True)} == everything
    assert {entry.path for entry in api.list_repo_tree("org/base")} == everything - {"sub/note.txt"}
    (note,) = api.list_repo_tree("org/base", "sub", expand=True)
    assert (note.path, note.last_commit.oid) == ("sub/note.txt", base)
    (weights,) = api.get_paths_info("org/base", ["model.safetensors", "absent"])
    assert weights.lfs.size == len(WEIGHTS) and weights.xet_hash


def test_pull_requests_tags_and_branches(hub: LoopbackHub, api: HfApi, base: str) -> None:
    info = api.create_commit("org/base", [add("a.txt", b"a")], commit_message="PR", create_pr=True)
    assert (info.pr_num, info.pr_revision, hub.head("org/base")) == (1, "refs/pr/1", base)
    assert hub.read("org/base", "a.txt", "refs/pr/1") == b"a"
    api.create_tag("org/base", tag="v1", revision=info.oid)
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag("org/base", tag="v1")
    api.create_branch("org/base", branch="dev", revision="v1")
    refs = api.list_repo_refs("org/base", include_pull_requests=True)
    named = [*refs.branches, *refs.tags, *refs.pull_requests]
    assert [ref.name for ref in named] == ["main", "dev", "v1", "refs/pr/1"]
    assert api.model_info("org/base", revision="refs/pr/1").sha == api.model_info("org/base", revision="v1").sha
    api.delete_tag("org/base", tag="v1")
    with pytest.raises(RevisionNotFoundError):
        api.model_info("org/base", revision="v1")


def test_a_parent_that_moved(hub: LoopbackHub, api: HfApi, base: str) -> None:
    hub.fail("POST", "/commit/main", before=lambda: hub.commit("org/base", {"theirs.txt": b"theirs"}))
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit("org/base", [add("a.txt", b"a")], commit_message="Late", parent_commit=base)
    assert "theirs.txt" in hub.files("org/base") and "a.txt" not in hub.files("org/base")


def test_who_may_do_what(hub: LoopbackHub, base: str) -> None:
    hub.tokens["hf_eve"] = {"name": "eve", "orgs": []}
    hub.create("org/secret", private=True)
    anonymous, eve, unknown = (HfApi(hub.url, token=token) for token in (False, "hf_eve", "hf_unknown"))
    assert eve.whoami()["name"] == "eve"
    assert anonymous.model_info("org/base").sha == base
    cases = [(anonymous, 401, "org/base"), (eve, 403, "org/base"), (unknown, 401, "org/base"), (eve, 404, "org/secret")]
    for api, status, name in cases:
        with pytest.raises(HfHubHTTPError) as caught:
            api.create_commit(name, [add("a.txt", b"a")], commit_message="No")
        assert caught.value.response.status_code == status
    with pytest.raises(HfHubHTTPError, match="403"):
        eve.create_repo("org/other")
    with pytest.raises(RepositoryNotFoundError):
        eve.model_info("org/secret")
    with pytest.raises(EntryNotFoundError):
        anonymous.hf_hub_download("org/base", "absent.json", cache_dir=hub.store / "cache")
    assert eve.create_commit("org/base", [add("a.txt", b"a")], commit_message="May I", create_pr=True).pr_num == 1


def test_what_the_hub_refuses(hub: LoopbackHub, api: HfApi, base: str) -> None:
    api.create_repo("ada/new")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo("ada/new")
    api.create_repo("ada/new", exist_ok=True)
    for card in (b"---\nlicense: [mit\n---\n", b"---\ntags: video\n---\n"):
        with pytest.raises(ValueError, match="Invalid metadata"):
            api.create_commit("ada/new", [add("README.md", card)], commit_message="Card")
    hub.fail("POST", "lfs-files/duplicate", body={"failed": []})  # so that the object is not there
    with pytest.raises(BadRequestError, match="LFS pointer"):
        api.create_commit("ada/new", [copy("model.safetensors")], commit_message="No object")
    hub.fail("POST", "lfs-files/duplicate", body={"failed": [{"sha256": "0", "error": "storage region"}]})
    with pytest.raises(FileDuplicationError, match="storage region"):
        api.create_commit("ada/new", [copy("model.safetensors")], commit_message="Elsewhere")


def test_connections_that_break(hub: LoopbackHub, api: HfApi, base: str) -> None:
    before = hub.head("org/base")
    hub.fail("POST", "/commit/", drop=True, after_bytes=50)
    with pytest.raises(Exception, match="reset") as dropped:
        api.create_commit("org/base", [add("a.txt", b"a" * 900_000)], commit_message="Dropped")
    assert hub.head("org/base") == before and hub.requests[-1].status is None
    hub.fail("POST", "/commit/", answer_lost=True)
    with pytest.raises(type(dropped.value)):
        api.create_commit("org/base", [add("b.txt", b"b")], commit_message="Lost")
    assert hub.read("org/base", "b.txt") == b"b"  # it was carried out
    hub.fail("POST", "/preupload/", status=503, times=2)  # the client tries these again
    api.create_commit("org/base", [add("c.txt", b"c")], commit_message="Retried")
    hub.fail("POST", "/commit/")  # but not this
    with pytest.raises(HfHubHTTPError, match="500"):
        api.create_commit("org/base", [add("d.txt", b"d")], commit_message="Broken")


def test_the_log(hub: LoopbackHub, api: HfApi, base: str) -> None:
    api.create_commit("org/base", [add("a.txt", b"a secret")], commit_message="Log")
    assert "a secret" in hub.log_text() and "hf_test" not in hub.log_text()
    request = hub.requests[-1]
    assert (request.method, request.path, request.status) == ("POST", "/api/models/org/base/commit/main", 200)
    assert request.authorized


@pytest.mark.parametrize("with_xet", [True, False])
def test_a_process(hub: LoopbackHub, api: HfApi, base: str, tmp_path: Path, with_xet: bool) -> None:
    code = """
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
content = open(hf_hub_download("org/base", "more.bin"), "rb").read()
HfApi().create_commit("org/base", [CommitOperationAdd("twice.bin", content * 2)], commit_message="Process")
"""
    api.create_commit("org/base", [add("more.bin", WEIGHTS)], commit_message="Here")
    before = len(hub.requests)
    environment = {**hub.environment(tmp_path / "user"), "HF_HUB_DISABLE_XET": "01"[not with_xet]}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert hub.read("org/base", "twice.bin") == WEIGHTS * 2
    assert any("xet-" in request.path for request in hub.requests[before:]) == with_xet
    assert all(request.authorized for request in hub.requests[before:] if "/lfs/" not in request.path)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
