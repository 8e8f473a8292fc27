"""A checkpoint of a stranger is data. None of its files makes code run that nobody asked for: not where it is loaded or
published, and not at the users of what is saved or published from it."""

import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from llava_video_original import write_original
from models import MODELS
from safetensors.torch import load_file, save_file
from test_publish import REPO, save_base
from transformers import PreTrainedModel

import vidcom2
from vidcom2.asking.prompting import check_template
from vidcom2.bulk.requests import read_requests
from vidcom2.errors import CheckpointError, OptionError
from vidcom2.evaluation.accuracy_tables import markdown
from vidcom2.hub_upload.base_checkpoint import local_base
from vidcom2.hub_upload.model_card import CardOptions, ResultsError, read_result
from vidcom2.hub_upload.publish_options import PublishOptions
from vidcom2.hub_upload.publish_repo import prepare
from vidcom2.hub_upload.staging import StagedRepo, complete, stage
from vidcom2.hub_upload.verification import WORKER, verify
from vidcom2.llava_video.converter import convert_llava_video
from vidcom2.measuring.results import read_results
from vidcom2.records.run_record import AnswerFile
from vidcom2.shipping.shipped_code import written_before

KERNEL = "stranger/kernel"
PARTS = {
    "AutoProcessor": "LlavaOnevisionProcessor",
    "AutoTokenizer": "Qwen2Tokenizer",
    "AutoImageProcessor": "LlavaOnevisionImageProcessor",
    "AutoVideoProcessor": "LlavaOnevisionVideoProcessor",
    "AutoModel": "LlavaOnevisionForConditionalGeneration",
}


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    change(content)
    file.write_text(json.dumps(content))


def code_elsewhere(folder: Path) -> dict[str, str]:
    """Write modules of another repo, each of which leaves a file `ran` when it is imported, and return how a checkpoint
    names their classes. The repo is a folder, so that no Hub is needed."""
    other, named = folder / "other", {}
    other.mkdir()
    for auto_class, parent in PARTS.items():
        code = f"open({str(folder / 'ran')!r}, 'a').write({auto_class!r})\nfrom transformers import {parent}\n\n"
        (other / f"foreign_{auto_class}.py").write_text(f"{code}class Foreign({parent}):\n    pass\n")
        named[auto_class] = f"{other}--foreign_{auto_class}.Foreign"
    return named


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(MODELS[0], tmp_path_factory.mktemp("plain"))


@pytest.fixture
def base(plain: Path, tmp_path: Path) -> Path:
    """Copy a base whose processor, tokenizer and configs name another repo's code, at every depth."""
    folder, named = Path(shutil.copytree(plain, tmp_path / "base")), code_elsewhere(tmp_path)
    pipelines = {"video-text-to-text": {"impl": named["AutoModel"], "pt": ["AutoModel"], "type": "multimodal"}}

    def of_processor(content: dict[str, Any]) -> None:
        content |= {"auto_map": named, "custom_generate": "stranger/generate"}
        for part in ("image_processor", "video_processor"):
            content[part] |= {"auto_map": named, "more": [{"auto_map": named}]}

    def of_config(content: dict[str, Any]) -> None:
        content |= {"auto_map": named, "custom_pipelines": pipelines}
        for part in ("text_config", "vision_config"):
            content[part] |= {"auto_map": named, "custom_pipelines": pipelines}

    edit(folder / "processor_config.json", of_processor)
    edit(folder / "config.json", of_config)
    for file in ("preprocessor_config.json", "video_preprocessor_config.json"):
        fields = json.loads((folder / "processor_config.json").read_text())["image_processor"]
        (folder / file).write_text(json.dumps(fields | {"auto_map": named}))
    edit(folder / "generation_config.json", lambda content: content.update(custom_generate="stranger/generate"))
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        edit(folder / file, lambda content: content.update(auto_map=[named["AutoTokenizer"], None]))
    return folder


def staged(base: Path, tmp_path: Path) -> StagedRepo:
    return stage(local_base(base), tmp_path / "staged", {}, CardOptions(REPO, "vidcom2 publish"))


def names_of_code(folder: Path) -> list[str]:
    """Return where files of a folder name code that is not theirs."""
    found = []

    def look(where: str, value: Any) -> None:
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            here = f"{where} {name}"
            if name == "auto_map" or str(name).startswith("custom_"):
                named = re.findall(r'"([^"]*)\.\w+"', json.dumps(inner))
                is_own = bool(named) and all((folder / f"{module}.py").is_file() for module in named)
                found.extend([] if is_own else [here])
            elif isinstance(inner, dict | list):
                look(here, inner)

    for file in folder.glob("*.json"):
        if file.name != "tokenizer.json":
            look(file.name, json.loads(file.read_text()))
    return found


# -- published --------------------------------------------------------------------------------------------------------


def test_a_published_repo_names_no_code_of_others_at_any_depth(base: Path, plain: Path, tmp_path: Path) -> None:
    options = PublishOptions(base=str(base), repo=REPO, verify=False, dry_run=True)
    prepared = prepare(HfApi(), options, tmp_path / "staged")
    repo = prepared.staged
    assert names_of_code(base) and not names_of_code(repo.folder)
    for file in ("processor_config.json", "tokenizer_config.json"):  # all else in them is kept
        before, after = (json.loads((folder / file).read_text()) for folder in (plain, repo.folder))
        assert all(after[name] == value for name, value in before.items() if not name.endswith("_processor"))
    changed = [path.name for path in base.glob("*.json") if path.name not in ("config.json", "tokenizer.json")]
    assert not {file.path for file in repo.base.files} & set(changed)  # the card does not call them the base's
    assert f"fit the model and name no code elsewhere: {', '.join(sorted(changed))}" in " ".join(prepared.notes)


@pytest.mark.slow
def test_such_a_repo_is_verified_without_running_any_of_that_code(base: Path, tmp_path: Path) -> None:
    repo = staged(base, tmp_path)
    complete(repo)
    assert [check for check in verify(str(repo.folder)) if check.status != "passed"] == []
    assert not (tmp_path / "ran").exists()


def test_verification_fails_on_code_of_others_and_does_not_run_it(plain: Path, tmp_path: Path) -> None:
    """Only one of the checks is made, in a process like that of `verify`, because each takes seconds."""
    repo, named = staged(plain, tmp_path), code_elsewhere(tmp_path)
    edit(repo.folder / "processor_config.json", lambda content: content["video_processor"].update(auto_map=named))
    start = f"""import runpy, sys
worker = runpy.run_path({str(WORKER)!r})
for name in worker["CHECKS"].keys() - {{"AutoProcessor"}}:
    del worker["CHECKS"][name]
worker["run"](worker["Repo"]({str(repo.folder)!r}, "cpu"))
"""
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    run = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, env=environment, check=True)
    check = json.loads(run.stdout.splitlines()[0])
    assert not (tmp_path / "ran").exists() and (check["name"], check["status"]) == ("AutoProcessor", "failed")
    assert "asks for foreign_AutoVideoProcessor.py, which is no file of it" in check["detail"]


def test_files_of_a_base_that_could_be_code_are_not_published(plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "base"))
    left_out = ["tokenizer_foreign.py", "tokenizer.pkl", "vocab.bin", "chat_template.py", "LICENSE.py", "NOTICE.html"]
    left_out += ["tokenizer`|x.json", "LICENSE\n# heading", "audio_tokenizer_config.json", "spiece.model.gguf"]
    for name in left_out:
        (folder / name).write_text("{}")
    kept = ["LICENSE", "LICENSE-2.0.txt", "NOTICE.md", "USE_POLICY.md", "vocab.json", "merges.txt", "tokenizer.model"]
    for name in kept:
        (folder / name).write_text("{}")
    base = local_base(folder)
    assert sorted(base.left_out) == sorted(left_out) and {file.path for file in base.files} >= set(kept)


@pytest.mark.parametrize("name", ["LICENSE", "chat_template.jinja", "model.safetensors"])
def test_a_link_that_leads_out_of_a_base_is_refused(name: str, plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "base"))
    secret = tmp_path / "secret"
    shutil.copyfile(plain / name, secret) if (plain / name).exists() else secret.write_text("hf_secret")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(os.path.relpath(secret, folder))
    with pytest.raises(CheckpointError, match=rf"the base's {name} is a link out of it\. Copy the file"):
        local_base(folder)


def test_the_links_of_the_hubs_cache_are_followed(plain: Path, tmp_path: Path) -> None:
    blobs, folder = tmp_path / "models--org--base" / "blobs", tmp_path / "models--org--base" / "snapshots" / "0123"
    shutil.copytree(plain, blobs)
    folder.mkdir(parents=True)
    for file in blobs.iterdir():
        (folder / file.name).symlink_to(Path("..", "..", "blobs", file.name))
    assert [file.path for file in local_base(folder).files] == [file.path for file in local_base(plain).files]


@pytest.mark.parametrize("listed", ["api_token.txt", "model.pkl", "model`|x.safetensors", ["model.safetensors"], 3])
def test_an_index_names_only_safetensors_beside_it(listed: Any, plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "base"))
    if isinstance(listed, str):
        shutil.copyfile(plain / "model.safetensors", folder / listed)
    (folder / "model.safetensors").unlink()
    for weight_map in ({"a": listed}, [listed]):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError, match=r"the weights|has weights"):
            local_base(folder)


# -- loaded, saved and converted --------------------------------------------------------------------------------------


def test_a_loaded_checkpoint_runs_no_code_of_others_and_does_not_pass_its_names_on(base: Path, tmp_path: Path) -> None:
    model, processor = vidcom2.load(base, device="cpu")
    parts = [model.config, processor, processor.tokenizer, processor.image_processor, processor.video_processor]
    parts += [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    assert {type(part).__module__.partition(".")[0] for part in parts} <= {"transformers", "vidcom2"}
    for part in (model, processor):
        part.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "ran").exists()
    # Of a part, Transformers reads only the fields at the top.
    assert [where for where in names_of_code(tmp_path / "saved") if " more " not in where] == []


def test_a_checkpoint_that_asks_for_another_repo_is_refused(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Transformers would load it, or ask on the terminal whether to run its code."""
    model = tmp_path / "audio"
    model.mkdir()
    auto_map = {"AutoConfig": "foreign.Config", "AutoModel": "foreign.Model"}
    (model / "config.json").write_text(json.dumps({"model_type": "foreign", "auto_map": auto_map}))
    (model / "foreign.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    sound = {"audio_tokenizer_class": "AutoModel", "audio_tokenizer_name_or_path": str(model)}
    for number, (file, fields) in enumerate(
        (
            ("processor_config.json", {"audio_tokenizer": sound}),
            ("audio_tokenizer_config.json", sound),
            ("config.json", {"attn_implementation": KERNEL}),
            ("config.json", {"text_config": {"_attn_implementation": {"": f"{KERNEL}@main:f"}}}),
            ("config.json", {"experts_implementation": KERNEL}),
        )
    ):
        folder = Path(shutil.copytree(plain, tmp_path / str(number)))
        edit(folder / file, lambda content, fields=fields: content.update(fields))
        with pytest.raises(CheckpointError, match=rf"{file} is not valid \(its `\w+` asks for code or a model that"):
            vidcom2.load(folder, device="cpu")
    assert not (tmp_path / "ran").exists() and "custom code" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"megatron_config": {"a": 1}, "megatron_core": "antigravity"},
            r"is not valid \(its `megatron_config` asks for",
        ),
        ({"base_model_name_or_path": ["a"]}, "its base is not known"),
        ({"base_model_name_or_path": "org/base", "revision": {"a": 1}}, "its base is not known"),
        ({"base_model_name_or_path": "org/base", "revision": 3}, "its base is not known"),
    ],
)
def test_an_adapter_that_names_a_module_to_import_or_no_base_is_refused(
    fields: dict[str, Any], reason: str, plain: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    config = {"peft_type": "LORA", "base_model_name_or_path": str(plain), "target_modules": ["q_proj"]} | fields
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        vidcom2.load(tmp_path, device="cpu")


class Runs:
    """Runs code when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (open, (str(self.file), "w"))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # torch's, of the file that is refused
def test_pickled_weights_run_no_code(plain: Path, tmp_path: Path) -> None:
    folder, ran = Path(shutil.copytree(plain, tmp_path / "base")), tmp_path / "ran"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights | {"more": Runs(ran)}, folder / "pytorch_model.bin")
    torch_file = (folder / "pytorch_model.bin").read_bytes()
    for content in (torch_file, pickle.dumps(Runs(ran))):
        (folder / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(CheckpointError, match="because of its weights"):
            vidcom2.load(folder, device="cpu")
    assert not ran.exists()


@pytest.mark.parametrize("deep", ['{"a":' * 100_000, "[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "processor_config.json"])
def test_a_deeply_nested_file_is_refused_by_name(file: str, deep: str, plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "base"))
    (folder / file).write_text(deep)
    with pytest.raises(CheckpointError, match=r"cannot load the model .* is not valid \("):
        vidcom2.load(folder, device="cpu")
    with pytest.raises(CheckpointError, match=rf"{file} is not valid \("):
        staged(folder, tmp_path)


def test_a_chat_template_reaches_nothing_of_python(plain: Path, tmp_path: Path) -> None:
    """Transformers renders it in Jinja's immutable sandbox."""
    _, processor = vidcom2.load(plain, device="cpu")
    for template in (
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% include 'config.json' %}",
        "{{ raise_exception.__globals__['os'].getcwd() }}",
    ):
        processor.chat_template = template
        with pytest.raises((CheckpointError, OptionError), match="chat template"):
            check_template(processor)


def test_a_converted_checkpoint_names_no_code_of_others(tmp_path: Path) -> None:
    write_original(tmp_path / "original")
    named = code_elsewhere(tmp_path)
    edit(
        tmp_path / "original" / "tokenizer_config.json",
        lambda content: content.update(auto_map={"AutoTokenizer": [named["AutoTokenizer"], None]}),
    )
    convert_llava_video(str(tmp_path / "original"), str(tmp_path / "converted"))
    assert not (tmp_path / "ran").exists() and names_of_code(tmp_path / "converted") == []


# -- other files ------------------------------------------------------------------------------------------------------


def test_saving_over_a_checkpoint_removes_no_file_but_code(plain: Path, tmp_path: Path) -> None:
    """config.json says by sha256 which files this project wrote, and those that are no longer needed are removed."""
    folder = Path(shutil.copytree(plain, tmp_path / "base"))
    for name in ("LICENSE", "method_old.py"):
        (folder / name).write_text("text")
    written = {name: hashlib.sha256(b"text").hexdigest() for name in ("LICENSE", "method_old.py")}
    edit(folder / "config.json", lambda content: content.update(vidcom2_code_sha256=written))
    vidcom2.load(folder, device="cpu")[0].save_pretrained(folder)
    assert (folder / "LICENSE").read_text() == "text" and not (folder / "method_old.py").exists()


DEEP = "[" * 100_000


def test_deeply_nested_results_and_answers_are_refused_like_other_broken_ones(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(DEEP + "\n")
    for read, error in (
        (lambda: read_result(file, [REPO]), ResultsError),
        (lambda: read_results(file), OptionError),
        (lambda: AnswerFile(file).answered(), OptionError),
        (lambda: AnswerFile(file).check({}), OptionError),
    ):
        file.with_suffix(".run.json").write_text(DEEP)
        with pytest.raises(error):
            read()
    assert written_before(file) == {}


def test_a_request_of_any_types_spoils_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    good = {"id": "good", "video": "a.mp4", "prompt": "?"}
    odd = [{**good, "id": str(i), "compression_method": value} for i, value in enumerate(({}, [], {"a": []}, 3, True))]
    file.write_text("\n".join(map(json.dumps, [*odd, good])))
    *refused, kept = read_requests(file)
    assert kept.problem is None and all("`compression_method` is" in str(each.problem) for each in refused)


def test_bench_results_whose_figures_are_nonsense_are_refused(tmp_path: Path) -> None:
    content = json.loads((Path(__file__).parents[1] / "benchmarks" / "results" / "bench_frames.json").read_text())
    for value in (0, "x", None, []):
        for row in content["rows"]:
            for turn in row["figures"]["turns"]:
                turn["end_to_end_seconds"] = value
        (tmp_path / "bench.json").write_text(json.dumps(content))
        with pytest.raises(OptionError, match="is not a result file"):
            read_results(tmp_path / "bench.json")


def test_kinds_of_questions_and_names_of_files_are_text_in_the_page_of_results() -> None:
    shares = {"agreement": 1.0, "agreement_low": None, "agreement_high": None, "agreement_n": 2}
    kind = "a | b\n\n# <b>[x](https://evil.example)"
    of_kinds = {"accuracy": None, "by_kind": {kind: shares}, "no_option": 0, "of_choice": 0, "questions": 2}
    of_kinds |= {"unfinished": 0, "of_open": 2, "agreement_videos": 1, "difference_videos": 0, "letter_share": None}
    result = {"method": "vidcom2", "retention_ratio": 0.25, "kept_share": 0.25, **of_kinds, **shares}
    page = markdown("clips\n# <i>", [result], 0, "origin")
    assert page.startswith("# clips # \\<i>\n") and page.count("\n#") == 0
    assert "| method | ratio | a \\| b # \\<b>[x]\\(https://evil.example) (n = 2) |" in page
