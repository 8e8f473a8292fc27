"""The loopback Hub behaves to the real client as tests of publishing rely on."""

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
    (tmp_path / "base" / "sub").mkdir(parents=True)
    for name, content in {"model.safetensors": WEIGHTS, "config.json": b"{}", "sub/note.txt": b"note"}.items():
        (tmp_path / "base" / name).write_bytes(content)
    return hub.seed("org/base", tmp_path / "base")


def copy(path: str, **kwargs: str) -> CommitOperationCopy:
    return CommitOperationCopy(path, path, src_repo_id="org/base", src_repo_type="model", **kwargs)


def add(path: str, content: bytes) -> CommitOperationAdd:
    return CommitOperationAdd(path, content)


def test_a_copy_moves_no_weights(hub: LoopbackHub, api: HfApi, base: str) -> None:
    api.create_repo("ada/new")
    operations = [copy("model.safetensors", src_revision=base), copy("config.json"), add("code.py", b"pass\n")]
    api.create_commit("ada/new", operations, commit_message="Copy")
    assert hub.read("ada/new", "model.safetensors") == WEIGHTS and hub.read("ada/new", "config.json") == b"{}"
    assert max(request.body_bytes for request in hub.requests) < 2000
    api.create_commit("ada/new", [CommitOperationDelete("code.py")], commit_message="Delete")
    assert set(hub.files("ada/new")) == {".gitattributes", "config.json", "model.safetensors"}
    hub.fail("POST", "lfs-files/duplicate", body={"failed": []})  # so that the object is not there
    api.create_repo("ada/other")
    with pytest.raises(BadRequestError, match="LFS pointer"):
        api.create_commit("ada/other", [copy("model.safetensors")], commit_message="No object")
    hub.fail("POST", "lfs-files/duplicate", body={"failed": [{"sha256": "0", "error": "storage region"}]})
    with pytest.raises(FileDuplicationError, match="storage region"):
        api.create_commit("ada/other", [copy("model.safetensors")], commit_message="Elsewhere")


def test_who_may_do_what(hub: LoopbackHub, base: str) -> None:
    hub.tokens["hf_eve"] = {"name": "eve", "orgs": []}
    hub.create("org/secret", private=True)
    anonymous, eve, unknown = (HfApi(hub.url, token=token) for token in (False, "hf_eve", "hf_unknown"))
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
    info = eve.create_commit("org/base", [add("a.txt", b"a")], commit_message="May I", create_pr=True)
    assert (info.pr_revision, hub.head("org/base")) == ("refs/pr/1", base)


def test_connections_that_break_and_a_parent_that_moved(hub: LoopbackHub, api: HfApi, base: str) -> None:
    hub.fail("POST", "/commit/", drop=True, after_bytes=50)
    with pytest.raises(Exception, match="reset") as dropped:
        api.create_commit("org/base", [add("a.txt", b"a" * 900_000)], commit_message="Dropped")
    assert hub.head("org/base") == base and hub.requests[-1].status is None
    hub.fail("POST", "/commit/", answer_lost=True)
    with pytest.raises(type(dropped.value)):
        api.create_commit("org/base", [add("b.txt", b"a secret")], commit_message="Lost")
    assert hub.read("org/base", "b.txt") == b"a secret"  # it was carried out
    assert "a secret" in hub.log_text() and "hf_test" not in hub.log_text() and hub.requests[-1].authorized
    hub.fail("POST", "/preupload/", status=503, times=2)  # the client tries these again
    api.create_commit("org/base", [add("c.txt", b"c")], commit_message="Retried")
    hub.fail("POST", "/commit/")  # but not this
    with pytest.raises(HfHubHTTPError, match="500"):
        api.create_commit("org/base", [add("d.txt", b"d")], commit_message="Broken")
    hub.fail("POST", "/commit/", before=lambda: hub.commit("org/base", {"theirs.txt": b"theirs"}))
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit("org/base", [add("e.txt", b"e")], commit_message="Late", parent_commit=hub.head("org/base"))
    assert "theirs.txt" in hub.files("org/base") and "e.txt" not in hub.files("org/base")
