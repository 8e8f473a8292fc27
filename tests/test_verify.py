"""`vidcom2 verify` fails on each broken repo, and says where it is broken."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import change_json
from huggingface_hub import snapshot_download
from loopback_hub import LoopbackHub
from models import MODELS
from test_cli import shown_by, vidcom2
from transformers.quantizers import HfQuantizer

from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.hub_upload import verification_worker
from vidcom2.hub_upload.base_checkpoint import local_base
from vidcom2.hub_upload.model_card import CardOptions
from vidcom2.hub_upload.staging import StagedRepo, complete, stage
from vidcom2.hub_upload.verification import NotVidCom2Error, VerificationError, verify
from vidcom2.hub_upload.verification_worker import Failed, Repo, check_files
from vidcom2.loading.hub_calls import HubUnreachable
from vidcom2.repo_shape import listed_files


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> StagedRepo:
    folder = tmp_path_factory.mktemp("verify")
    for part in MODELS[0].build(**MODELS[0].build_arguments):
        part.save_pretrained(folder / "base")
    card = CardOptions("org/name", "vidcom2 publish")
    staged = stage(local_base(folder / "base"), folder / "staged", {}, card)
    complete(staged)
    return staged


@pytest.fixture
def repo(staged: StagedRepo, tmp_path: Path) -> Path:
    """Copy a whole repo, for a test to break."""
    return Path(shutil.copytree(staged.folder, tmp_path / "repo"))


def edit_code(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def with_stock_name_and_few_tokens(repo: Path) -> None:
    change_json(repo / "config.json", architectures=["LlavaOnevisionForConditionalGeneration"])
    given = "settings = self.config.compression_settings(**overrides"
    edit_code(repo / "video_features.py", given, f'{given} | {{"retention_ratio": 0.01}}')


def with_wrong_auto_map_other_ratio_and_weights(repo: Path) -> None:
    auto_map = json.loads((repo / "config.json").read_text())["auto_map"]
    auto_map["AutoModel"] = "modeling_vidcom2_llava_onevision.Nothing"
    del auto_map["AutoModelForMultimodalLM"]
    change_json(repo / "config.json", auto_map=auto_map, retention_ratio=0.5)
    weights = bytearray((repo / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (repo / "model.safetensors").write_bytes(weights)


def without_conversion_mapping(repo: Path) -> None:
    call = "register_checkpoint_conversion_mapping(model_class.__name__, mapping, overwrite=True)"
    edit_code(repo / "in_transformers.py", call, "pass")


def with_compression_off(repo: Path) -> None:
    path = repo / "prompt_compression.py"
    edit_code(path, 'return call.encode("kept", inputs | call.overrides)', "return None")
    (repo / "pytorch_model.bin").write_bytes(b"")


LOADING = {"AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM"}
BREAKAGES: dict[str, tuple[Callable[[Path], None], set[str], str]] = {
    "a file is missing": (
        lambda repo: (repo / "conversation_cache.py").unlink(),
        {"files", "card", *LOADING, "generate", "save and load"},
        "there is no conversation_cache.py",
    ),
    "auto_map is wrong, the ratio was edited, and a weight": (
        with_wrong_auto_map_other_ratio_and_weights,
        {"card", "AutoModel", "AutoModelForMultimodalLM"},
        "['config.json', 'model.safetensors'] do not have the sha256 that the card lists",
    ),
    "the architecture has the stock name, and too few tokens are kept": (
        with_stock_name_and_few_tokens,
        {"config", "card", "generate"},
        "silently uses the stock class",
    ),
    "the conversion mapping is not registered": (
        without_conversion_mapping,
        {"card", *LOADING},
        "loads with wrong keys",
    ),
    "compression is off and weights are pickled as well": (
        with_compression_off,
        {"files", "card", "generate", "pipeline any-to-any"},
        "can run code when they are loaded",
    ),
}


@pytest.mark.parametrize("rounding", ["exact", "ceil"])
def test_verify_and_the_card_count_the_same_files_of_code(rounding: str, staged: StagedRepo, tmp_path: Path) -> None:
    """With "ceil" no file of the repo names the processor's code, which is there all the same."""
    card = CardOptions("org/name", "vidcom2 publish")
    made = stage(staged.base, tmp_path / "made", {"compression_rounding": rounding}, card, ["evs"])
    complete(made)
    text = (made.folder / "README.md").read_text()
    (count,) = re.findall(r"runs these (\d+) Python files", text)
    assert int(count) == sum(name.endswith(".py") for name in listed_files(text))
    assert check_files(Repo(str(made.folder), "cpu")).startswith(f"{count} files of code, ")


def test_verify_misses_the_code_of_a_processor(repo: Path) -> None:
    (repo / "processing_short_prompts.py").unlink()
    with pytest.raises(Failed, match=r"there is no processing_short_prompts\.py in the repo"):
        check_files(Repo(str(repo), "cpu"))


@pytest.mark.slow  # Verifying loads the repo in a process for each of its ways, half a minute of CPU in all.
@pytest.mark.parametrize(("spoil", "expected", "reason"), BREAKAGES.values(), ids=BREAKAGES)
def test_verify_fails_on_a_broken_repo(
    spoil: Callable[[Path], None], expected: set[str], reason: str, repo: Path
) -> None:
    spoil(repo)
    code, out, error = vidcom2("verify", str(repo))
    assert code == 1, error
    for name in expected:
        assert any(name in line and "failed" in line for line in out.splitlines()), (name, out)
    words = "".join(character for character in out if character not in "│ \n")
    assert reason.replace(" ", "") in words, out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava_onevision", "internvl"])
def test_a_repo_passes_where_only_the_model_can_say_how_many_tokens_stay(name: str, tmp_path: Path) -> None:
    """Its processor is the stock one or, where that passes frames as images, one of ours that writes all."""
    case = next(each for each in MODELS if each.name == name)
    for part in case.build(**case.build_arguments):
        part.save_pretrained(tmp_path / "base")
    names = ("--base", tmp_path / "base", "--repo", "org/name", "--dry-run", "--output", tmp_path / "repo")
    out = shown_by("publish", *names, "--compression-rounding", "ceil")
    assert "failed" not in out and out.count("passed") >= 11, out


@pytest.mark.slow
@pytest.mark.usefixtures("methods_restored")
def test_a_users_method_is_published_with_the_repo_and_verified(staged: StagedRepo, tmp_path: Path) -> None:
    COMPRESSION_METHODS.pop("whole_frames", None)  # another test may have registered another module's
    method = ("--import", Path(__file__).with_name("methods_of_users") / "whole_frames.py")
    names = ("--base", staged.base.folder, "--repo", "org/name", "--dry-run", "--output", tmp_path / "repo")
    settings = ("--compression-method", "whole_frames", "--retention-ratio", 0.31)  # keeps 2 of 8 frames
    out = shown_by(*method, "publish", *names, *settings)
    assert out.count("passed") == 13, out
    assert "\nvidcom2 --import whole_frames publish --base" in (tmp_path / "repo" / "README.md").read_text()
    assert (tmp_path / "repo" / "whole_frames.py").is_file()


def test_a_folder_that_is_no_vidcom2_repo_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name, reason in (
        ("model.safetensors", "holds no config.json, so it is not a checkpoint"),
        ("config.json", "does not name VidCom²"),
    ):
        (tmp_path / name).write_text("{}")
        with pytest.raises(NotVidCom2Error, match=reason):
            verify(str(tmp_path))


def test_a_repo_without_a_config_is_refused_everywhere(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty := tmp_path / "empty").mkdir()
    (empty / "README.md").write_text("nothing")
    monkeypatch.chdir(repo)
    with LoopbackHub(tmp_path / "hub") as hub, hub.online(tmp_path / "home"):
        hub.seed("org/name", empty)
        with pytest.raises(NotVidCom2Error, match=r"the repo 'org/name' holds no config\.json"):
            verify("org/name")


@pytest.mark.slow
def test_a_repo_saved_by_the_stock_class_fails_with_that_reason(repo: Path) -> None:
    for path in repo.glob("*.py"):
        path.unlink()
    (repo / "LICENSE-vidcom2").unlink()
    files = next(check for check in verify(str(repo)) if check.name == "files")
    assert files.status == "failed" and "Was it saved by the stock class, which leaves the code behind?" in files.detail


def test_pickled_weights_on_the_hub_are_refused_before_any_weights_are_fetched(repo: Path, tmp_path: Path) -> None:
    (repo / "pytorch_model.bin").write_bytes(b"")
    with LoopbackHub(tmp_path / "hub") as hub, hub.online(tmp_path / "home"):
        commit = hub.seed("org/name", repo)
        first, refusal = verify("org/name")
    assert commit in first.detail and (refusal.name, refusal.status) == ("files", "failed")
    assert "['pytorch_model.bin'] can run code" in refusal.detail
    fetched = {request.path.rpartition("/")[2] for request in hub.requests if "/resolve/" in request.path}
    assert fetched == {"config.json"}


def test_a_cached_commit_does_not_stand_in_for_a_hub_that_does_not_answer(repo: Path, tmp_path: Path) -> None:
    with LoopbackHub(tmp_path / "hub") as hub, hub.online(tmp_path / "home"):
        cached = f"snapshots/{hub.seed('org/name', repo)}"
        snapshot_download("org/name")
        hub.fail("GET", "/api/models/", status=503, times=99)
        with pytest.raises(HubUnreachable, match=f"the Hub answered 503.* name its folder: .*{cached}$"):
            verify("org/name")


class Quantizer(HfQuantizer):
    """Stands in for those of Transformers, some of which can save the weights that they quantized."""

    is_trainable = False
    quantization_config = SimpleNamespace(quant_method="of_the_test")

    def __init__(self, serializable: bool):
        self.serializable = serializable

    def is_serializable(self) -> bool:
        return self.serializable


def test_quantized_weights_are_verified_as_far_as_transformers_can(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it can read them, it need not be able to dequantize or to write them."""
    model_class = MODELS[0].model_class
    monkeypatch.setattr(Repo, "load", lambda self, *_, folder=None: model_class.from_pretrained(folder))

    def as_of_torchao(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("transformers.modeling_utils.revert_weight_conversion", as_of_torchao)

    def check(quantizer: Quantizer | None) -> str:
        under_test = Repo(str(repo), "cpu")
        under_test.model = model_class.from_pretrained(repo)
        under_test.model.hf_quantizer = quantizer
        return verification_worker.check_save(under_test)

    with pytest.raises(NotImplementedError):
        check(None)
    assert check(Quantizer(serializable=True)) == "loads again, same tokens"
    with pytest.raises(verification_worker.Skipped, match="does not save weights that are quantized so"):
        check(Quantizer(serializable=False))


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_a_repo_that_ends_the_process_causes_an_error(code: int, repo: Path) -> None:
    path = repo / "configuration_vidcom2_llava_onevision.py"
    path.write_text(path.read_text() + f"\nimport os\nos._exit({code})\n")
    with pytest.raises(VerificationError, match=f"ended with code {code}"):
        verify(str(repo))
