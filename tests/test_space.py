"""`vidcom2 publish --space` sends a Space to a Hub on loopback, and the Space serves the demo from its own files."""

import hashlib
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import pytest
from huggingface_hub import HfApi, SpaceCard
from loopback_hub import LoopbackHub
from test_cli import mistake, shown_by

from vidcom2.demo.answerer import Answerer
from vidcom2.demo.space import lent_gpu
from vidcom2.demo.turns import asked
from vidcom2.errors import OptionError
from vidcom2.hub_upload.publish_options import PublishOptions
from vidcom2.hub_upload.publish_repo import prepare
from vidcom2.hub_upload.publishing import Published, publish
from vidcom2.loading.checkpoints import load_checkpoint
from vidcom2.loading.hub_calls import PublishError
from vidcom2.repo_shape import listed_files
from vidcom2.toys import TOY

gradio = pytest.importorskip("gradio")

SPACE, MODEL = "org/vidcom2-demo", "org/toy-vidcom2"
ON_HUB = f"spaces/{SPACE}"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path / "hub") as hub, hub.online(tmp_path / "home"):
        hub.seed(MODEL, TOY.folder)
        yield hub


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    return HfApi(endpoint=hub.url, token="hf_test")


def send(api: HfApi, folder: Path, **given: Any) -> Published:
    options = PublishOptions(space=SPACE, model=MODEL, **given)
    prepared = prepare(api, options, folder)
    return publish(api, options, prepared.staged, prepared.remote, prepared.operations)


def test_a_space_is_published_in_one_commit_with_what_it_needs(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    done = send(api, tmp_path / "staged", tag="v1", hardware="l4x1", revision="main")
    assert done.url == f"{hub.url}/spaces/{SPACE}" and done.commit == hub.head(ON_HUB) == hub.head(ON_HUB, "v1")
    assert [commit.title for commit in hub.repos[ON_HUB].commits.values()] == ["initial commit", "Publish with vidcom2"]
    files = set(hub.files(ON_HUB)) - {".gitattributes"}
    assert {"app.py", "requirements.txt", "README.md", "vidcom2/LICENSE-vidcom2", "vidcom2/__init__.py"} <= files
    assert {"vidcom2/modeling/methods/compression.py", "vidcom2/demo/page.css", "vidcom2/py.typed"} <= files
    assert not [path for path in files if "__pycache__" in path]
    assert 'serve_space("org/toy-vidcom2", revision="main")' in hub.read(ON_HUB, "app.py").decode()
    needs = hub.read(ON_HUB, "requirements.txt").decode().splitlines()
    assert any(need.startswith("transformers") for need in needs) and not [need for need in needs if "gradio" in need]

    text = hub.read(ON_HUB, "README.md").decode()
    card = SpaceCard(text).data
    assert (card.sdk, card.sdk_version, card.app_file) == ("gradio", gradio.__version__, "app.py")
    assert card.models == [MODEL] and card.to_dict()["suggested_hardware"] == "l4x1" and "{{" not in text
    command = f"vidcom2 publish --revision main --space {SPACE} --model {MODEL} --hardware l4x1 --tag v1"
    shown = re.search(r"Made by `(.*)`", text)
    assert shown is not None and sorted(shown[1].split()) == sorted(command.split())
    listed = listed_files(text)
    assert listed.keys() == files - {"README.md"}
    assert all(hashlib.sha256(hub.read(ON_HUB, path)).hexdigest() == sha for path, sha in listed.items())


def test_publishing_again_changes_nothing_and_deletes_earlier_files(
    hub: LoopbackHub, api: HfApi, tmp_path: Path
) -> None:
    send(api, tmp_path / "first")
    before = hub.head(ON_HUB)
    assert send(api, tmp_path / "second").commit is None and hub.head(ON_HUB) == before
    hub.commit(ON_HUB, {"theirs.txt": b"theirs", "adapter_config.json": b"{}"})
    card = hub.read(ON_HUB, "README.md").decode()
    old = f"| `old.py` | `{hashlib.sha256(b'old').hexdigest()}` |\n"
    hub.commit(ON_HUB, {"old.py": b"old", "README.md": card.replace("|---|---|\n", f"|---|---|\n{old}").encode()})
    send(api, tmp_path / "third")
    assert {"theirs.txt", "adapter_config.json"} <= hub.files(ON_HUB).keys() and "old.py" not in hub.files(ON_HUB)


@pytest.mark.parametrize("card", [b"# Mine\n", None])
def test_a_space_of_others_is_refused_and_stays(
    card: bytes | None, hub: LoopbackHub, api: HfApi, tmp_path: Path
) -> None:
    hub.create(ON_HUB)
    hub.commit(ON_HUB, {"README.md": card} if card else {"app.py": b"print('mine')"})
    before = hub.head(ON_HUB)
    with pytest.raises(PublishError, match="did not write"):
        send(api, tmp_path / "staged")
    assert hub.head(ON_HUB) == before


def test_a_space_that_the_hub_just_made_counts_as_new(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    hub.create(ON_HUB)
    hub.create(SPACE)
    before = hub.head(SPACE)
    assert send(api, tmp_path / "staged").commit == hub.head(ON_HUB) and hub.head(SPACE) == before


def test_a_space_requires_what_its_models_family_needs(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    (tmp_path / "smolvlm").mkdir()
    (tmp_path / "smolvlm" / "config.json").write_text('{"model_type": "smolvlm"}')
    hub.seed("org/smolvlm", tmp_path / "smolvlm")
    prepare(api, PublishOptions(space=SPACE, model="org/smolvlm", dry_run=True), tmp_path / "staged")
    assert "num2words" in (tmp_path / "staged" / "requirements.txt").read_text().splitlines()


def test_a_model_that_the_hub_does_not_have_is_refused(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="no such repo as 'org/nothing'"):
        prepare(api, PublishOptions(space=SPACE, model="org/nothing"), tmp_path / "staged")
    assert ON_HUB not in hub.repos


def test_options_that_do_not_go_together_are_refused() -> None:
    for given, problem in (
        ({}, "`--model` is None"),
        ({"model": "./folder/"}, "`--model` is './folder/'"),
        ({"model": MODEL, "base": "org/base", "repo": "org/x"}, "--base, --repo cannot go with it"),
        ({"model": MODEL, "settings": {"retention_ratio": 0.1}}, "--retention-ratio cannot go with it"),
        ({"model": MODEL, "hardware": "abacus"}, "`--hardware` is 'abacus', but must be one of cpu-basic"),
    ):
        with pytest.raises(OptionError, match=problem):
            PublishOptions(space=SPACE, **given).check()
    assert "`--model` is 'org/x', but only a Space has one" in mistake("publish", "--model", "org/x")


def test_a_dry_run_shows_what_it_would_send(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = shown_by("publish", "--space", SPACE, "--model", MODEL, "--dry-run")
    assert f"One commit in a new repo {SPACE}" in shown and "Staged in vidcom2-demo-staged" in shown
    assert ON_HUB not in hub.repos and (tmp_path / "vidcom2-demo-staged" / "app.py").is_file()


# -- how it runs ------------------------------------------------------------------------------------------------------


def test_calls_of_the_model_can_be_sent_to_another_process() -> None:
    """ZeroGPU does this. Arguments and results are pickled."""

    def sent(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = function(*pickle.loads(pickle.dumps(arguments)))
            if not hasattr(result, "__next__"):
                return pickle.loads(pickle.dumps(result))
            return (pickle.loads(pickle.dumps(each)) for each in result)

        return call

    clip, checkpoint = TOY.clips[1], load_checkpoint(device="cpu")
    for on_device in (sent, lambda function: function):
        answerer = Answerer(checkpoint, on_device)
        *_, (turn,) = asked(answerer, answerer.clip(str(clip.path), 8), clip.question, {}, 8)
        assert [reply.text for reply in turn.replies.values()] == [clip.answer] * 2, turn


def test_the_gpu_of_zerogpu_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def works() -> int:
        return 7

    lend, device = lent_gpu()
    assert lend(works)() == 7 and device == "auto"
    spaces = ModuleType("spaces")
    spaces.__spec__ = type(sys.__spec__)("spaces", None)  # type: ignore[arg-type]
    spaces.GPU = lambda duration: lambda function: lambda: (duration, function())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    lend, device = lent_gpu()
    assert lend(works)() == (120, 7) and device == "cuda"


@pytest.mark.slow
def test_a_space_runs_from_its_own_files(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    prepare(api, PublishOptions(space=SPACE, model=MODEL, dry_run=True), tmp_path / "staged")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = hub.environment(tmp_path / "home") | {"GRADIO_SERVER_PORT": str(port)}
    environment.pop("PYTHONPATH", None)
    started = subprocess.Popen(
        [sys.executable, "app.py"], cwd=tmp_path / "staged", env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert line.startswith(f"Serving {MODEL} at http"), line
        with urlopen(f"http://127.0.0.1:{port}/") as page:
            assert "VidCom² demo" in page.read().decode()
    finally:
        started.terminate()
        started.wait(30)
