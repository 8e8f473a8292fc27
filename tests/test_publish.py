"""Publishing to a Hub on loopback: what is staged, what is sent, and what each failure leaves behind."""

import dataclasses
import errno
import hashlib
import html
import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import change_json
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import yaml_dump
from loopback_hub import Blob, LoopbackHub
from make_clips import write_clip
from markdown_it import MarkdownIt
from models import EACH_MODEL, MODELS, ModelCase, chat_prompt, make_video
from test_cli import SECONDS, mistake, shown_by
from test_cosmos3_edge import as_released
from test_load import rename_processor
from transformers import AutoProcessor, LlavaOnevisionProcessor

from vidcom2 import PAPER
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, SETTING_NAMES
from vidcom2.errors import OptionError
from vidcom2.evaluation.accuracy_tables import BY_LETTER, NOTES, as_text, pipes
from vidcom2.families.table import FAMILIES
from vidcom2.hub_upload.base_checkpoint import Base, hub_base, local_base
from vidcom2.hub_upload.model_card import (
    MODEL_MARKER,
    TAGS,
    CardOptions,
    ResultsError,
    model_card,
    purpose,
    read_result,
)
from vidcom2.hub_upload.publish_options import PublishOptions
from vidcom2.hub_upload.publish_repo import prepare
from vidcom2.hub_upload.publishing import (
    Published,
    check_deletions,
    check_login,
    check_target,
    plan,
    publish,
    remote_state,
)
from vidcom2.hub_upload.staging import StagedRepo, complete, stage
from vidcom2.loading.checkpoints import CheckpointError
from vidcom2.loading.hub_calls import PublishError
from vidcom2.repo_shape import listed_files
from vidcom2.shipping.shipped_code import code_of, fields_of
from vidcom2.toys import TOY, TOYS
from vidcom2.vllm_plugin import SERVED

ROOT = Path(__file__).parents[1]
TOKEN = "hf_test"
BASE, REPO = "org/base", "org/vidcom2-model"
BASE_CARD = "---\nlicense: other\nlicense_name: some-license\nlanguage:\n- en\n---\n# Base\n"


def save_base(case: ModelCase, folder: Path) -> Path:
    for part in case.build(**case.build_arguments):
        part.save_pretrained(folder)
    (folder / "README.md").write_text(BASE_CARD)
    change_json(folder / "config.json", _name_or_path="/home/me/run-7")
    return folder


@pytest.fixture(scope="module", params=EACH_MODEL)
def case(request: pytest.FixtureRequest) -> ModelCase:
    return request.param


@pytest.fixture(scope="module")
def base_folder(case: ModelCase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(case, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def onevision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(MODELS[0], tmp_path_factory.mktemp("onevision"))


@pytest.fixture(scope="module")
def onevision(onevision_folder: Path) -> Base:
    return local_base(onevision_folder)


@pytest.fixture(scope="module")
def card() -> CardOptions:
    return CardOptions(REPO, "vidcom2 publish --x", base_model=BASE)


def card_of(base: Base, options: CardOptions, **settings: Any) -> str:
    """Return the text of the card that a repo of this base would have, without its list of files of code."""
    return model_card(base, base.config | base.settings(settings), [], {}, options).text


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path / "hub") as hub, hub.online(tmp_path / "home"):
        yield hub


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    return HfApi(endpoint=hub.url, token=TOKEN)


@pytest.fixture(scope="module")
def staged_once(
    onevision_folder: Path, card: CardOptions, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StagedRepo]:
    folder = tmp_path_factory.mktemp("staged")
    with LoopbackHub(folder / "hub") as hub, hub.online(folder / "home"):
        hub.seed(BASE, onevision_folder)
        base = hub_base(HfApi(endpoint=hub.url, token=TOKEN), BASE, None)
        repo = stage(base, folder / "staged", {"retention_ratio": 0.4}, card)
    before = files_of(repo.folder)
    yield repo
    assert files_of(repo.folder) == before


@pytest.fixture
def staged(hub: LoopbackHub, onevision_folder: Path, staged_once: StagedRepo) -> StagedRepo:
    """Return a model repo that was made from a base on the Hub, and not sent. Tests must not change it."""
    assert hub.seed(BASE, onevision_folder) == staged_once.base.revision  # as on the Hub where it was made
    return staged_once


def send(api: HfApi, staged: StagedRepo, repo: str = REPO, **flags: Any) -> Published:
    """Send as `vidcom2 publish` does, without drawing and verifying again."""
    options = PublishOptions(base=staged.base.name, repo=repo, **flags)
    options.check()
    remote = remote_state(api, repo)
    check_target(options, remote)
    check_login(api, repo, remote)
    operations = plan(staged, remote)
    check_deletions(options, operations, remote)
    return publish(api, options, staged, remote, operations)


def contents(hub: LoopbackHub, repo: str, revision: str = "main") -> dict[str, bytes]:
    return {path: hub.read(repo, path, revision) for path in hub.files(repo, revision) if path != ".gitattributes"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- staging ----------------------------------------------------------------------------------------------------------


def test_a_staged_repo_holds_the_code_and_the_base(
    case: ModelCase, base_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    before = files_of(base_folder)
    staged = stage(local_base(base_folder), tmp_path / "staged", {"retention_ratio": 0.4}, card)
    found = files_of(staged.folder)
    assert found.items() >= code_of(case.model_class).items()
    unchanged = set(before) - {"config.json", "processor_config.json", "README.md", "model.safetensors"}
    assert unchanged >= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert all(found[name] == before[name] for name in unchanged)
    weights = {file.path: file.sha256 for file in staged.base.weights}
    assert weights == {"model.safetensors": hashlib.sha256(before["model.safetensors"]).hexdigest()}

    config, stock = json.loads(found["config.json"]), json.loads(before["config.json"])
    fields = fields_of(case.model_class, code_of(case.model_class))
    assert {name: config[name] for name in fields} == fields
    assert config["retention_ratio"] == 0.4 and config["compression_window"] is None
    of_base, of_repo = (json.loads(files["processor_config.json"]) for files in (before, found))
    own = {"retention_ratio": 0.4, "compression_method": "vidcom2", "max_video_tokens": None, "writes_all": False}
    assert of_repo == of_base | own | {"auto_map": {"AutoProcessor": case.family.processor}}
    added = {*fields, *SETTING_NAMES, "_name_or_path"}
    assert "_name_or_path" not in config
    assert {k: v for k, v in config.items() if k not in added} == {k: v for k, v in stock.items() if k not in added}
    assert case.config_class.from_pretrained(staged.folder).retention_ratio == 0.4
    assert files_of(base_folder) == before
    again = stage(local_base(base_folder), tmp_path / "again", {"retention_ratio": 0.4}, card)
    assert files_of(again.folder) == found


@pytest.mark.parametrize("where", ["processor_config.json", "video_preprocessor_config.json"])
def test_a_staged_processor_returns_what_the_model_needs(where: str, card: CardOptions, tmp_path: Path) -> None:
    case = next(case for case in MODELS if case.name == "cosmos3_edge")
    if not case.loads_here:
        pytest.skip("its class needs a later Transformers")
    base, staged = save_base(case, tmp_path / "base"), tmp_path / "staged"
    released = as_released(AutoProcessor.from_pretrained(base), base)
    if where == "video_preprocessor_config.json":  # as older checkpoints have it
        fields = json.loads((base / "processor_config.json").read_text())
        (base / where).write_text(json.dumps(fields.pop("video_processor")))
        (base / "processor_config.json").write_text(json.dumps(fields))
    before = files_of(base)
    asked = {"text": chat_prompt(released, "?", 1, 0), "videos": [make_video(0)], "return_tensors": "pt"}
    expected = released(**asked, return_metadata=True, return_mm_token_type_ids=True)
    repo = stage(local_base(base), staged, {}, card)
    inputs = AutoProcessor.from_pretrained(staged)(**asked)
    assert inputs.keys() == expected.keys() - {"video_metadata"}
    assert all(torch.equal(inputs[name], expected[name]) for name in inputs)
    assert files_of(base) == before
    changed = {name for name, content in files_of(staged).items() if before.get(name, content) != content}
    assert changed == {"config.json", "README.md", "tokenizer_config.json", "processor_config.json", where}
    assert repo.base is not None and not changed & {file.path for file in repo.base.files}
    assert changed - {"README.md"} <= listed_files((staged / "README.md").read_text()).keys()


def test_a_staged_processor_is_of_the_familys_class(card: CardOptions, onevision_folder: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(onevision_folder, tmp_path / "base"))
    rename_processor(base)
    stage(local_base(base), tmp_path / "staged", {}, card)
    assert type(AutoProcessor.from_pretrained(tmp_path / "staged")) is LlavaOnevisionProcessor
    rename_processor(base, "Qwen2VLProcessor")
    with pytest.raises(CheckpointError, match="names a Qwen2VLProcessor, which belongs to another family"):
        stage(local_base(base), tmp_path / "other", {}, card)


def test_sharded_weights_are_staged_with_their_index(onevision_folder: Path, card: CardOptions, tmp_path: Path) -> None:
    folder = shutil.copytree(onevision_folder, tmp_path / "sharded")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"two")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "LICENSE").write_text("terms")
    foreign = ["pytorch_model.bin", "modeling_other.py", "consolidated.safetensors", "demo.png", "onnx/model.onnx"]
    foreign += ["api_token.txt", "wandb-metadata.json", "trainer_state.json", "requirements.txt"]
    for name in [*foreign, ".git/config"]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"?")
    base = local_base(folder)
    assert [file.path for file in base.weights] == sorted(index["weight_map"].values())
    assert sorted(base.left_out) == sorted(foreign)  # .git need not be mentioned
    staged = stage(base, tmp_path / "staged", {}, card)
    assert {"LICENSE", "model.safetensors.index.json"} <= set(staged.files)
    assert not {*foreign, ".git/config"} & set(staged.files)
    shutil.copyfile(onevision_folder / "model.safetensors", folder / "model.safetensors")  # it would be read first
    assert [file.path for file in local_base(folder).weights] == ["model.safetensors"]
    assert "model.safetensors.index.json" in local_base(folder).left_out
    (folder / "model.safetensors").unlink()
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks the weights \['model-00002-of-00002.safetensors'\]"):
        local_base(folder)


def test_a_toy_can_be_the_base_of_a_dry_run(hub: LoopbackHub, tmp_path: Path) -> None:
    rest = ("--repo", "org/toy", "--dry-run", "--no-verify", "--output", tmp_path / "repo")
    assert "the toys are" in mistake("publish", "--base", "toy:qwen", *rest)
    assert "has none" in mistake("publish", "--base", "toy", "--revision", "v1", *rest)
    shown_by("publish", "--base", "toy:qwen3_vl", *rest)
    assert "vidcom2 publish --base toy:qwen3_vl --repo org/toy --no-verify" in (tmp_path / "repo/README.md").read_text()
    weights = (tmp_path / "repo/model.safetensors").read_bytes()
    assert weights == (TOYS["qwen3_vl"].folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", '{"model_type": "llava"}', "'llava'"),
        ("config.json", "{}", "model_type"),
        ("config.json", "{", "config.json is not valid"),
        ("config.json", "[]", "holds a list"),
        ("config.json", None, r"has no config\.json"),
        ("adapter_config.json", "{}", "PEFT adapter"),
        ("model.safetensors", None, "Only safetensors are published"),
    ],
)
def test_a_folder_that_is_no_base_is_refused(
    name: str, content: str | None, reason: str, onevision_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(onevision_folder, tmp_path / "base"))
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=reason):
        local_base(folder)


def test_staging_never_overwrites_files_and_leaves_nothing_half_done(
    onevision: Base, card: CardOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(OptionError, match=r"mine' exists already\. Name a new folder, or remove it"):
        stage(onevision, tmp_path / "mine", {}, card)
    assert files_of(tmp_path / "mine") == {"thesis.txt": b"years of work"}

    def full_disk(*_: Any) -> None:
        assert any(tmp_path.glob(".staged.*/config.json"))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ModelCard, "save", full_disk)
    with pytest.raises(OptionError, match=r"cannot write .*: No space left"):
        stage(onevision, tmp_path / "staged", {}, card)
    assert not list(tmp_path.glob("*staged*"))


def test_a_staged_folder_loads_by_links_to_the_weights_or_says_how_to_fetch_them(
    hub: LoopbackHub, staged: StagedRepo, onevision: Base, card: CardOptions, tmp_path: Path
) -> None:
    local = stage(onevision, tmp_path / "local", {"retention_ratio": 0.4}, card)
    assert complete(local).startswith("It loads as it is") and "model.safetensors" not in local.files
    assert (local.folder / "model.safetensors").is_symlink()
    assert MODELS[0].model_class.from_pretrained(local.folder).config.retention_ratio == 0.4
    command = f"`hf download {BASE} model.safetensors --revision {hub.head(BASE)} --local-dir {staged.folder}`"
    assert command in complete(staged)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_repo_tells_users_code_from_ours_and_names_the_methods_that_it_holds(
    onevision: Base, card: CardOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """from vidcom2 import VideoTokens, register_score_method


@register_score_method("undescribed")
def undescribed(video: VideoTokens):
    return video.tokens.float().norm(dim=-1)
"""
    (tmp_path / "undescribed_scores.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import_module("undescribed_scores")
    try:
        stage(onevision, tmp_path / "staged", {}, card, ["undescribed", "evs"])
        options = PublishOptions(base="b", repo=REPO, settings={}, methods="undescribed,evs")
        command = options.command("b", imports=options.imports({}))
        assert command.startswith("vidcom2 --import undescribed_scores publish --base b")
    finally:
        del COMPRESSION_METHODS["undescribed"], sys.modules["undescribed_scores"]
    text = (tmp_path / "staged" / "README.md").read_text()
    assert {"undescribed_scores.py", "method_evs.py"} <= listed_files(text).keys()
    assert "`undescribed_scores.py` is not part of the project `vidcom2`, and nobody there has read it" in text
    assert '| `compression_method` | `"vidcom2"` | `"evs"` or `"undescribed"` or `"vidcom2"` |' in text
    assert '| `vision_method` | `"full"` | `"full"` |' in text


def test_a_vision_method_that_the_familys_tower_cannot_run_is_not_published(card: CardOptions, tmp_path: Path) -> None:
    base = local_base(save_base(next(case for case in MODELS if case.name == "internvl"), tmp_path / "base"))
    with pytest.raises(CheckpointError, match=r"`vision_method` is 'skip_repeated', but the vision tower of this"):
        stage(base, tmp_path / "staged", {}, card, ["skip_repeated"])
    assert not (tmp_path / "staged").exists()


def test_every_setting_is_published_and_in_the_card(
    case: ModelCase, base_folder: Path, api: HfApi, tmp_path: Path
) -> None:
    settings = {"retention_ratio": 0.4, "compression_rounding": "ceil", "compression_window": 3}
    if case.name == "llava_video":
        settings["compression_newlines"] = "occupied"
    options = PublishOptions(base=str(base_folder), repo=REPO, settings=settings, verify=False, dry_run=True)
    prepared = prepare(api, options, tmp_path / "staged")
    config = json.loads((prepared.staged.folder / "config.json").read_text())
    assert {name: config[name] for name in settings} == settings
    text = (prepared.staged.folder / "README.md").read_text()
    chosen = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
    assert f"vidcom2 publish --base {base_folder.name} --repo {REPO} --no-verify {chosen}\n" in text
    assert f"Run it in the folder that holds `{base_folder.name}`." in text
    assert any("--base-model" in note for note in prepared.notes)
    for name, value in settings.items():
        assert f"| `{name}` | `{json.dumps(value)}` |" in text
    assert "add" in {operation.action for operation in prepared.operations} and not prepared.checks


def test_bad_settings_are_refused(onevision_folder: Path, api: HfApi, tmp_path: Path) -> None:
    for settings, reason in (
        ({"retention_ratio": 2}, "`retention_ratio` is 2"),
        ({"compression_speed": 2}, "'compression_speed'"),
        ({"compression_newlines": "none"}, "must be one of all, occupied, trailing"),
        ({"compression_newlines": "all"}, "`compression_newlines` is not a setting of the base 'onevision"),
    ):
        options = PublishOptions(base=str(onevision_folder), repo=REPO, settings=settings, dry_run=True)
        with pytest.raises(OptionError, match=reason):
            options.check()
            prepare(api, options, tmp_path / "staged")
        assert not (tmp_path / "staged").exists()


def test_the_bases_settings_are_kept_unless_replaced(onevision_folder: Path, card: CardOptions, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(onevision_folder, tmp_path / "tuned"))
    change_json(folder / "config.json", retention_ratio=0.6, compression_rounding="round")
    for i, (settings, expected) in enumerate((({}, 0.6), ({"retention_ratio": 0.1}, 0.1))):
        staged = stage(local_base(folder), tmp_path / f"staged{i}", settings, card)
        config = json.loads((staged.folder / "config.json").read_text())
        assert (config["retention_ratio"], config["compression_rounding"]) == (expected, "round")
    change_json(folder / "config.json", vision_method="skip_repeated", vision_tolerance=0.1)
    assert local_base(folder).settings({"vision_method": "full"})["vision_tolerance"] == 0.0  # which it does not read
    change_json(folder / "config.json", retention_ratio=2)
    with pytest.raises(CheckpointError, match=r"the settings for 'tuned' cannot be used: .*`retention_ratio` is 2"):
        stage(local_base(folder), tmp_path / "wrong", {}, card)


# -- the card ---------------------------------------------------------------------------------------------------------


def test_the_card_describes_the_repo(case: ModelCase, base_folder: Path, card: CardOptions, tmp_path: Path) -> None:
    options = dataclasses.replace(card, tag="v1")
    settings = {"retention_ratio": 0.4, "max_video_tokens": 8000}
    staged = stage(local_base(base_folder), tmp_path / "staged", settings, options)
    made = ModelCard.load(staged.folder / "README.md")
    assert made.data.to_dict() == {
        "base_model": BASE,
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "license": "other",
        "license_name": "some-license",
        "language": ["en"],
        "pipeline_tag": "video-text-to-text",
        "tags": ["vidcom2", "video", "token-compression", "custom_code"],
    }
    text, published = made.text, FAMILIES[case.config_class.model_type].published
    shown = [MODEL_MARKER, f'repo, revision = "{REPO}", "v1"', "40 % of the video tokens, at most 8,000", card.command]
    shown += [
        "how_it_works.png",
        "It keeps 40 % of the tokens of each video, at most 8,000, ",
        f"derived from [{BASE}](https://huggingface.co/{BASE})",
        "some-license",
    ]
    shown += ["Nothing has been measured", *(f"| `{name}` |" for name in SETTING_NAMES)]
    shown += [] if published is None else [f"publish for {published.model}, measured by them", "| figure | value |"]
    assert not [part for part in shown if part not in text]
    assert ("the stock model loads" in text) == case.native == ("nothing loads, and" not in text)
    assert "{{" not in text and "{%" not in text and "Undefined" not in text
    listed = listed_files(text)
    assert listed.keys() == {*staged.files, "model.safetensors"} - {"README.md", "how_it_works.png"}
    for name, sha in listed.items():
        folder = base_folder if name == "model.safetensors" else staged.folder
        assert sha == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    for block in text.split("```python\n")[1:]:
        compile(block.split("```")[0], "card", "exec")
    code = code_of(case.model_class)
    in_order = [name for name in listed if name in code]
    assert in_order == list(code) and all(f"| `{name}` | {purpose(code[name])} |" in text for name in code)


def test_the_card_says_how_vllm_serves_it(onevision: Base, card: CardOptions) -> None:
    served = f"`vllm serve {REPO} --trust-remote-code"
    for settings, command in (
        ({}, f"{served}`"),
        (PAPER, f"""{served} --hf-overrides '{{"compression_rounding": "exact"}}'`"""),
        ({"compression_method": "evs"}, f"{served}`"),
        ({"compression_positions": "original"}, "vLLM's plugin of `vidcom2` cannot serve it with these settings"),
        ({"vision_method": "skip_repeated"}, "vLLM's plugin of `vidcom2` cannot serve it with these settings"),
    ):
        text = card_of(onevision, card, **settings)
        assert command in text and "do not run this code" in text
        assert ("--model-impl transformers" in text) == (settings in ({}, {"compression_method": "evs"}))


def test_the_card_names_vllms_transformers_backend_where_it_serves(
    case: ModelCase, base_folder: Path, card: CardOptions
) -> None:
    text, whole = (card_of(local_base(base_folder), card, **settings) for settings in ({}, PAPER))
    documented = re.findall(r"modeling_vidcom2_\w+\.\w+Model", (ROOT / "docs" / "serving.md").read_text())
    inner = case.model_class.inner_class
    named = f"{inner.__module__.rpartition('.')[2]}.{inner.__name__}"
    command = f"""--model-impl transformers --hf-overrides '{{"auto_map": {{"AutoModel": "{named}"}}}}'`"""
    assert (command in text) == (named in documented) and "--model-impl" not in whole
    unserved = "vLLM's plugin of `vidcom2` has no class for it"
    assert (unserved in text) == (case.model_class.__name__ not in SERVED)


def test_the_card_installs_what_the_family_needs(case: ModelCase, base_folder: Path, card: CardOptions) -> None:
    text = card_of(local_base(base_folder), card)
    needed = f'"transformers>={case.family.since}"', "torch torchvision av", *case.family.packages
    assert " ".join(needed) + "\n```" in text and f"It needs Transformers ≥ {case.family.since}" in text


def test_only_cards_of_the_papers_method_and_families_show_its_figures(onevision: Base, card: CardOptions) -> None:
    assert "99.6 %" in card_of(onevision, card)
    other = card_of(onevision, card, compression_method="random")
    assert "99.6 %" not in other and "| figure |" not in other and "The method is `random`" in other
    assert "Stage 1" not in other
    family = dataclasses.replace(onevision.family, published=None)
    unpublished = card_of(dataclasses.replace(onevision, family=family), card)
    assert "99.6 %" not in unpublished and "| figure |" not in unpublished


CERTIFICATE = {"model": BASE, "date": "2026-01-02", "command": "bench --all", "device": "some GPU", "torch": "2.15"}
USERS = "the result files and the module `inner_contrast` (unless it is installed)"
CERTIFICATE |= {"transformers": "5.23", "vidcom2_commit": "c0ffee", "vidcom2_dirty": True}


def result_file(folder: Path, rows: Any, **certificate: Any) -> Path:
    content = {"birth_certificate": certificate, "rows": rows, "notes": "Brackets hold it.\nn is it."}
    (folder / "prefill.json").write_text(json.dumps(content))
    return folder / "prefill.json"


def test_measured_tables_are_shown_with_their_provenance(onevision: Base, card: CardOptions, tmp_path: Path) -> None:
    rows = [{"frames": 32, "speedup": 3.14159, "shape": [2, 3], "detail": {"x": 1}}, {"frames": 64, "speedup": 4.0}]
    measured = [read_result(result_file(tmp_path, rows, **CERTIFICATE), [BASE])]
    text = card_of(onevision, dataclasses.replace(card, results=measured))
    assert "| frames | speedup | shape |" in text and "| 32 | 3.142 | 2 × 3 |" in text
    assert "| 64 | 4 | – |\n\nBrackets hold it.\nn is it.\n\n`bench --all`" in text
    assert "`bench --all` on some GPU, 2026-01-02; torch 2.15" in text and "with uncommitted changes" in text
    assert "Nothing has been measured" not in text


def test_a_measured_table_has_the_columns_of_all_its_rows(tmp_path: Path) -> None:
    rows = [{"frames": 32, "detail": {"x": 1}}, {"frames": 64, "speedup": 4.0}, {"memory, GB": 3, "frames": 128}]
    table = read_result(result_file(tmp_path, rows, **CERTIFICATE), [BASE]).table.splitlines()
    assert table[0] == "| frames | speedup | memory, GB |"
    assert table[2:] == ["| 32 | – | – |", "| 64 | 4 | – |", "| 128 | – | 3 |"]


def test_the_notes_of_eval_show_their_words_as_code(onevision: Base, card: CardOptions, tmp_path: Path) -> None:
    notes = "\n".join([*NOTES.values(), BY_LETTER, "`<b>` `a|b`", "``"])
    file = result_file(tmp_path, [{"x": 1}], **CERTIFICATE)
    change_json(file, notes=notes)
    shown = READER.render(card_of(onevision, dataclasses.replace(card, results=[read_result(file, [BASE])])))
    for words in ("kept", "accuracy", "all tokens", "no option"):
        assert f"<code>{words}</code> " in shown
    beside_code = re.sub(r"<(code|pre).*?</\1>|<!--.*?-->", "", shown, flags=re.DOTALL)
    assert re.findall(r".*`.*", beside_code) == ["`&lt;b&gt;` `a|b`", "``</p>"]  # what no note of ours has


@pytest.mark.usefixtures("methods_restored")
def test_the_card_says_what_its_command_needs_and_where(onevision: Base, card: CardOptions, tmp_path: Path) -> None:
    measured = result_file(tmp_path, [{"x": 1}], **CERTIFICATE | {"model": REPO})
    module = Path(__file__).with_name("methods_of_users") / "inner_contrast.py"
    COMPRESSION_METHODS.pop("inner_contrast", None)  # another test may have registered another module's
    typed = ("--import", module, "publish", "--base", "toy", "--repo", REPO, "--dry-run", "--no-verify")
    shown_by(*typed, "--methods", "inner_contrast", "--results", measured, "-o", tmp_path / "repo")
    toy, with_results = local_base(TOY.folder), dataclasses.replace(card, results=[read_result(measured, [REPO])])
    for base, text, needed in (
        (toy, (tmp_path / "repo" / "README.md").read_text(), [USERS]),
        (toy, card_of(toy, card), []),
        (toy, card_of(toy, with_results), ["the result files"]),
        (onevision, card_of(onevision, card), [f"`{onevision.name}`"]),
        (onevision, card_of(onevision, with_results), [f"`{onevision.name}` and the result files"]),
    ):
        assert re.findall(r"Run it in the folder that holds (.*)\.\n", text) == needed
        assert ("of the toy that this was made from" in text) == (base is toy)


# markdown-it-py, which comes with Rich, renders as the Hub does: with tables, strikethrough and HTML.
READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
OF_A_CARD = {  # the elements of which a card is made
    *("!--", "h1", "h2", "h3", "p", "a", "em", "strong", "img", "pre", "code", "table", "tr", "th", "td", "ul"),
    *("li", "thead", "tbody", "details", "summary"),
}
MARKUP = [
    "a | b\n| `evil.py` | `" + 64 * "0" + "` |",
    "x\r\n\r\n# Heading\u2028> quote",
    "<img src=x onerror=alert(1)> <script>1</script> <!-- x --> <https://evil.example>",
    "[text](https://evil.example) ![picture](https://evil.example/x.png)",
    "`code` ``` ~~~ ~~gone~~ **bold** *slanted* __bold__ _slanted_ a_b_c",
    "\\| \\` \\<b> \\\\| &lt;b&gt; &#124; {{ repo }} {% raw %}",
    "-- \\[x\\](https://evil.example) ]( ](( a](b_",
]


@pytest.mark.parametrize("given", MARKUP)
def test_text_and_cells_are_shown_as_they_are_given(given: str) -> None:
    expected = " ".join(given.split())
    assert html.unescape(READER.renderInline(as_text(given))) == expected
    table = READER.render(pipes([["a", as_text(given)], [as_text(given), "b"]]))
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", table, flags=re.DOTALL)
    assert [html.unescape(cell) for cell in cells] == ["a", expected, expected, "b"]


@pytest.mark.parametrize("given", MARKUP)
def test_nothing_in_a_card_becomes_markup(given: str, onevision: Base, card: CardOptions, tmp_path: Path) -> None:
    """Titles, cells, dates, licences and the rest come from files that others may have written."""
    base = dataclasses.replace(onevision, folder=tmp_path / "*ba*se` <i>", name="*ba*se` <i>")
    base.folder.mkdir()
    metadata = {"license": given, "license_name": given, "license_link": given, "language": [given], "tags": [given]}
    (base.folder / "README.md").write_text(f"---\n{yaml_dump(metadata)}\n---\n{given}")
    certificate = CERTIFICATE | {name: given for name in CERTIFICATE if name not in ("model", "vidcom2_dirty")}
    file = result_file(tmp_path, [{given: given, "x": [given, 1]}], **certificate)
    change_json(file, title=given)
    command = f"vidcom2 publish --base '{given}\n```\n# Heading'"
    options = dataclasses.replace(card, command=command, results=[read_result(file, [BASE])])
    made = ModelCard(model_card(base, base.config | base.settings({}), [], {}, options).content)
    assert listed_files(made.text) == listed_files(card_of(onevision, card)) != {}
    assert (made.data.license, made.data.language, made.data.tags) == (given, [given], TAGS)
    shown = READER.render(made.text)
    assert "evil.example" not in re.sub(r"<code.*?</code>|>[^<]*<", "><", shown, flags=re.DOTALL)
    assert set(re.findall(r"<(!--|\w+)", shown)) <= OF_A_CARD and shown.count("<img") == 1
    assert "<em>slanted" not in shown and shown.count("<h1>") == 1 and "<em>ba" not in shown


def test_metadata_of_a_base_that_cannot_be_read_are_refused(onevision: Base, card: CardOptions, tmp_path: Path) -> None:
    base, file = dataclasses.replace(onevision, folder=tmp_path), tmp_path / "README.md"
    for metadata in ("license: [", "- a", "[" * 5000, "license: !!python/object/apply:os.getcwd []", "\xff"):
        file.write_bytes(f"---\n{metadata}\n---\n".encode("latin-1"))
        with pytest.raises(CheckpointError, match=r"the metadata of the base's README\.md are not valid"):
            card_of(base, card)
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    file.write_text(f"---\n{bomb}license: *a59\nlicense_name: 3\nlanguage: {{en: 1}}\n---\n")
    assert "which is not known here: see the base" in card_of(base, card)


def test_figures_without_provenance_are_refused(tmp_path: Path) -> None:
    for rows, certificate, reason in (
        ([], CERTIFICATE, "is not a result file"),
        ({"a": 1}, CERTIFICATE, "is not a result file"),
        ([{"a": 1}, 3], CERTIFICATE, "is not a result file"),
        ([{"a": 1}], CERTIFICATE | {"device": ""}, "device"),
        ([{"a": 1}], CERTIFICATE | {"model": "x/y"}, "'x/y', but the card is about org/base"),
    ):
        with pytest.raises(ResultsError, match=reason):
            read_result(result_file(tmp_path, rows, **certificate), [BASE])


def test_a_toys_own_results_go_onto_its_card_whatever_the_toy_is_called(tmp_path: Path) -> None:
    write_clip(tmp_path / "clip.mp4", SECONDS)
    (tmp_path / "questions.jsonl").write_text('{"video": "clip.mp4", "question": "What?", "answer": "5"}\n')
    few = ("--methods", "random", "--ratios", 0.5, "--num-frames", 2, "--max-new-tokens", 1, "--device", "cpu")
    shown_by("eval", "--data", tmp_path / "questions.jsonl", *few, "-o", tmp_path / "measured")
    renamed = shutil.copytree(TOY.folder, tmp_path / "another-name")
    rest = ("--repo", REPO, "--dry-run", "--no-verify", "--results", tmp_path / "measured" / "results.json")
    for i, base in enumerate(("toy:llava_onevision", renamed)):
        shown_by("publish", "--base", base, *rest, "-o", tmp_path / str(i))
        text = (tmp_path / str(i) / "README.md").read_text()
        assert "### a toy LLaVA-OneVision on questions.jsonl" in text and "| random | 0.5 |" in text
    error = mistake("publish", "--base", "toy:qwen3_vl", *rest, "-o", tmp_path / "x")
    assert "was measured on another model than the base" in error


def test_results_of_another_commit_are_refused(hub: LoopbackHub, onevision_folder: Path, tmp_path: Path) -> None:
    hub.seed(BASE, onevision_folder)
    before = hub.head(BASE)
    hub.commit(BASE, {"README.md": b"# Later"}, "later")
    measured = result_file(tmp_path, [{"x": 1}], **CERTIFICATE, model_commit=before)
    rest = ("--base", BASE, "--repo", REPO, "--dry-run", "--no-verify", "--results", measured)
    error = mistake("publish", *rest, "-o", tmp_path / "refused")
    assert f"at commit {before}, but the card is about commit {hub.head(BASE)}" in error
    assert f"Pass `--revision {before}`" in error
    shown_by("publish", *rest, "--revision", before, "-o", tmp_path / "taken")


# -- the commit -------------------------------------------------------------------------------------------------------


def test_publishing_makes_one_commit_and_copies_weights_on_the_server_from_the_pinned_commit(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, onevision_folder: Path
) -> None:
    pinned = hub.head(BASE)
    hub.commit(BASE, {"model.safetensors": b"later weights", "config.json": b"{}"}, "later")
    done = send(api, staged, tag="v1", private=True)
    assert remote_state(api, REPO).private and remote_state(HfApi(endpoint=hub.url, token=False), REPO).head is None
    expected = {path: (staged.folder / path).read_bytes() for path in staged.files}
    expected["model.safetensors"] = (onevision_folder / "model.safetensors").read_bytes()
    assert contents(hub, REPO) == expected == contents(hub, REPO, "v1")
    commits = [request for request in hub.requests if "/commit/" in request.path]
    assert len(commits) == 1 and commits[0].status == 200 and done.commit == hub.head(REPO)
    moved = sum(request.body_bytes for request in hub.requests)
    weights = len(expected.pop("model.safetensors"))  # no request carries them; small files are sent in base64
    others = sum(map(len, expected.values()))
    assert moved < 4 / 3 * others + weights / 2, (moved, others, weights)
    assert staged.base.revision == pinned != hub.head(BASE) and pinned in expected["README.md"].decode()


def test_publishing_again_sends_what_changed(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo, card: CardOptions, tmp_path: Path
) -> None:
    send(api, staged)
    before = hub.head(REPO)
    assert send(api, staged, tag="v1") == Published(f"{hub.url}/{REPO}", None, before)
    assert hub.head(REPO) == before == hub.head(REPO, "v1")

    # As from an older version of the code, with one more file, which the card lists.
    row = f"\n| `modeling_old.py` | `{hashlib.sha256(b'old').hexdigest()}` |\n".encode()
    old = {"modeling_old.py": b"old", "README.md": hub.read(REPO, "README.md") + row}
    kept = {"notes.txt": b"mine", "eval.py": b"mine", "training_args.bin": b"mine", "eval.png": b"mine"}
    hub.commit(REPO, old | kept, "by hand")
    changed = stage(staged.base, tmp_path / "again", {"retention_ratio": 0.3}, card)
    operations = {(op.action, op.path) for op in plan(changed, remote_state(api, REPO))}
    changed_files = {("add", name) for name in ("README.md", "config.json", "processor_config.json")}
    assert operations == {*changed_files, ("delete", "modeling_old.py")}
    send(api, changed)
    assert hub.files(REPO).keys() == {".gitattributes", *staged.files, "model.safetensors", *kept}
    assert json.loads(hub.read(REPO, "config.json"))["retention_ratio"] == 0.3


@pytest.mark.parametrize("files", [["model.safetensors"], ["adapter_config.json", "chat_template.json"]])
def test_files_that_others_changed_stay_unless_forced(
    files: list[str], hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    send(api, staged)
    published = contents(hub, REPO)
    hub.commit(REPO, dict.fromkeys(files, b"weeks of work"), "by hand")
    with pytest.raises(PublishError, match=re.escape(str(files))):
        send(api, staged)
    assert all(hub.read(REPO, name) == b"weeks of work" for name in files)
    send(api, staged, force=True)
    assert contents(hub, REPO) == published


@pytest.mark.parametrize("reason", ["a folder", "no xet hash", "another region", "not allowed"])
def test_weights_that_the_server_cannot_copy_are_uploaded(
    reason: str, hub: LoopbackHub, api: HfApi, onevision_folder: Path, card: CardOptions, tmp_path: Path
) -> None:
    hub.seed(BASE, onevision_folder)
    weights = (onevision_folder / "model.safetensors").read_bytes()
    sha256 = hashlib.sha256(weights).hexdigest()
    if reason == "no xet hash":
        blob = Blob.lfs(sha256, len(weights), None, weights)
        hub.repos[BASE].objects[sha256] = blob
        hub.commit(BASE, {"model.safetensors": blob}, "an old LFS file")
    elif reason == "another region":
        refused = {"failed": [{"sha256": sha256, "error": "region"}]}
        hub.fail("POST", "lfs-files/duplicate", status=200, body=refused, times=9)
    elif reason == "not allowed":
        hub.fail("POST", "lfs-files/duplicate", status=404, times=9)
    base = local_base(onevision_folder) if reason == "a folder" else hub_base(api, BASE, None)
    staged = stage(base, tmp_path / "staged", {}, card)
    copies = [op.path for op in plan(staged, remote_state(api, REPO)) if op.action == "copy"]
    assert copies == ([] if reason == "a folder" else ["model.safetensors"])
    send(api, staged)
    assert hub.read(REPO, "model.safetensors") == weights
    assert json.loads(hub.read(REPO, "config.json"))["retention_ratio"] == 0.25


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (200, {"files": "of another shape"}, ValueError, "preupload_info is improperly formatted"),
        (400, {"error": "'config.json' has no xet hash"}, PublishError, f"'{REPO}' with 400: (?s:.*) no xet hash"),
    ],
    ids=["a ValueError", "the words of a refused copy"],
)
def test_an_error_other_than_a_refused_copy_is_raised_and_no_weights_are_fetched(
    status: int, body: dict, error: type[Exception], words: str, hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    hub.fail("POST", "/preupload/", status=status, body=body, times=9)
    with pytest.raises(error, match=words):
        send(api, staged)
    assert not any("xet-read-token" in request.path for request in hub.requests)


def test_a_pull_request_leaves_main_alone(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.create(REPO)
    hub.commit(REPO, {"theirs.txt": b"theirs"}, "theirs")
    before = hub.head(REPO)
    done = send(api, staged, pr=True)
    assert done.pull_request.endswith("/discussions/1") and hub.head(REPO) == before
    assert {"config.json", "theirs.txt", "model.safetensors"} <= hub.files(REPO, "refs/pr/1").keys()


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_repo_of_others_is_refused_and_stays_unless_forced(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.create(REPO)
    hub.commit(REPO, {"theirs.txt": b"theirs", "config.json": b"{}"}, "theirs")
    api.create_tag(REPO, tag="v1")
    before = hub.head(REPO)
    for options, reason in (
        ({}, r"holds 3 files .* did not write \(\.gitattributes, config\.json, theirs\.txt"),
        ({"private": True}, "exists and is public"),
        ({"tag": "v1"}, "has a tag 'v1'"),
        ({"tag": "v1..v2"}, r"'v1\.\.v2' cannot be a tag"),
        ({"pr": True, "repo": "org/nothing"}, "there is no repo 'org/nothing'"),
    ):
        with pytest.raises(PublishError, match=reason):
            send(api, staged, **options)
        assert hub.head(REPO) == before
    send(api, staged, force=True)
    assert hub.read(REPO, "theirs.txt") == b"theirs"
    assert hub.read(REPO, "config.json") == (staged.folder / "config.json").read_bytes()


def test_a_base_that_cannot_be_read_is_reported_by_name(hub: LoopbackHub, api: HfApi, onevision_folder: Path) -> None:
    with pytest.raises(PublishError, match="no such repo as 'org/nothing'"):
        hub_base(api, "org/nothing", None)
    hub.seed(BASE, onevision_folder)
    hub.fail("GET", f"api/models/{BASE}", status=403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(PublishError, match=r"'org/base' is gated\. Accept its terms"):
        hub_base(api, BASE, None)


@pytest.mark.parametrize("name", ["org/x](https://evil.example)", "org/x\n# y", "<b>/x", "a/b/c"])
def test_a_base_model_that_is_no_hub_id_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"`--base-model` is .*, which is not a valid Hub name"):
        PublishOptions(base="folder", repo=REPO, base_model=name).check()


def test_an_unknown_and_an_unauthorised_token_are_refused(hub: LoopbackHub, staged: StagedRepo) -> None:
    hub.tokens["hf_eve"] = {"name": "eve", "orgs": []}
    namespace = r"is not in a namespace of yours\. Choose one of these: eve"
    reasons = (("hf_eve", namespace), ("hf_unknown", "Log in with"), (None, "Log in with"))
    for token, reason in reasons:
        with pytest.raises(PublishError, match=reason) as error:
            send(HfApi(endpoint=hub.url, token=token), staged)
        assert "hf_" not in str(error.value)
    assert REPO not in hub.repos


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_refusal_of_the_hub_has_a_remedy_and_leaves_the_repo(
    hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    hub.create(REPO)
    before = hub.head(REPO)
    for status, reason in (
        (401, "Log in with `hf auth login`"),
        (403, "the Hub forbids this in 'org/vidcom2-model'"),
        (404, "no such repo as 'org/vidcom2-model'"),
        (412, "changed while this was being published"),
        (422, "the Hub refused 'org/vidcom2-model' with 422"),
    ):
        hub.requests.clear()
        hub.fail("POST", "/commit/", status=status)
        with pytest.raises(PublishError, match=reason):
            send(api, staged)
        assert hub.head(REPO) == before and len([r for r in hub.requests if "/commit/" in r.path]) == 1
    assert send(api, staged).commit == hub.head(REPO)


@pytest.mark.parametrize("route", ["/repos/create", "/commit/", "lfs-files/duplicate", "/tag/", "/paths-info/"])
@pytest.mark.parametrize("fault", [{"status": 503}, {"drop": True, "after_bytes": 20}, {"answer_lost": True}])
def test_a_second_run_finishes_a_failed_one(
    route: str, fault: dict, hub: LoopbackHub, api: HfApi, staged: StagedRepo
) -> None:
    hub.fail("POST", route, **fault)
    with pytest.raises(PublishError):
        send(api, staged, tag="v1")
    is_tagged = "answer_lost" in fault and route == "/tag/"
    done = send(api, staged, tag=None if is_tagged else "v1")
    assert done.head == hub.head(REPO) == hub.head(REPO, "v1")
    assert contents(hub, REPO).keys() == {*staged.files, "model.safetensors"}
    assert [commit.title for commit in hub.repos[REPO].commits.values()] == ["initial commit", "Publish with vidcom2"]


def test_a_pull_request_is_not_repeated_after_a_lost_answer(hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    hub.create(REPO)
    hub.fail("POST", "/commit/", answer_lost=True)
    with pytest.raises(PublishError, match="a pull request may have been opened"):
        send(api, staged, pr=True)
    assert "refs/pr/1" in hub.repos[REPO].refs and "refs/pr/2" not in hub.repos[REPO].refs


@pytest.mark.parametrize("exists", [True, False])
def test_a_repo_that_changes_meanwhile_stays(exists: bool, hub: LoopbackHub, api: HfApi, staged: StagedRepo) -> None:
    if exists:
        hub.create(REPO)

    def theirs() -> None:
        if not exists:
            hub.create(REPO)
        hub.commit(REPO, {"theirs.txt": b"theirs"}, "in between")

    hub.fail("POST", "/commit/" if exists else "/repos/create", before=theirs)
    with pytest.raises(PublishError, match="changed while this was being published"):
        send(api, staged)
    assert hub.files(REPO).keys() == {".gitattributes", "theirs.txt"}


def test_the_token_appears_in_no_output_and_no_file(
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
