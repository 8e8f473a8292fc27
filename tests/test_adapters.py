"""A folder or a Hub repo with a PEFT adapter alone, as PEFT and `Trainer` save it, loads together with its base."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, by_default, only
from models import HELD_IN_OTHER_PARTS
from safetensors.torch import load_file, save_file
from test_cli import FAST, vidcom2
from test_cli_errors import mistake
from test_fingerprints import model_identity

import vidcom2 as package
from vidcom2.loading import finding_checkpoints
from vidcom2.loading.checkpoints import CheckpointError, load_checkpoint
from vidcom2.records.fingerprints import certificate_of

peft = pytest.importorskip("peft")

OF_LANGUAGE_MODEL = r"(?!.*(vision|audio)).*\.(q_proj|q_b_proj|v_proj)"  # DeepSeek's has no others
COMMIT, OF_BASE = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"


def adapted(family: Family, base: Path, model: Any = None, **arguments: Any) -> Any:
    """Return a model, by default the family's stock model, with a random adapter, in PEFT's wrapper."""
    model = family.load_stock() if model is None else model
    model.name_or_path = str(base)
    config = peft.LoraConfig(**{"r": 2, "target_modules": OF_LANGUAGE_MODEL, "init_lora_weights": False} | arguments)
    return peft.get_peft_model(model, config).eval()


@pytest.fixture
def adapter(family: Family, tmp_path: Path) -> Path:
    """Save an adapter in `adapter`, beside its base in `base`."""
    base = Path(shutil.copytree(family.folder, tmp_path / "base"))
    adapted(family, base).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def edit(folder: Path, **fields: object) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


# -- loaded -----------------------------------------------------------------------------------------------------------


@by_default(lambda family: family.representative or family.name in HELD_IN_OTHER_PARTS)
def test_an_adapter_alone_gives_the_logits_of_pefts_own_model(family: Family, tmp_path: Path) -> None:
    tuned = adapted(family, family.folder)
    tuned.save_pretrained(tmp_path)
    model, processor = package.load(tmp_path, retention_ratio=1.0, device="cpu")
    assert type(model) is family.case.model_class and type(processor) is type(family.writing_short.processor)
    inputs = family.one_video()
    with torch.no_grad():
        logits = model(**inputs).logits
        assert torch.equal(logits, tuned(**inputs).logits) and not torch.equal(logits, family.stock(**inputs).logits)


@only(lambda family: family.name in ("llava_onevision", "qwen3_vl"))
def test_whole_modules_that_were_trained_are_loaded_too(family: Family, tmp_path: Path) -> None:
    tuned = adapted(family, family.folder, modules_to_save=["lm_head"])
    with torch.no_grad():
        tuned.base_model.model.lm_head.modules_to_save["default"].weight.mul_(2)
    tuned.save_pretrained(tmp_path)
    model, _ = package.load(tmp_path, retention_ratio=1.0, device="cpu")
    inputs = family.one_video()
    assert torch.equal(model(**inputs).logits, tuned(**inputs).logits)


@only(lambda family: family.name in ("llava_video", "qwen2_5_vl"))
def test_an_adapter_that_was_trained_on_a_vidcom2_model_loads(family: Family, tmp_path: Path) -> None:
    tuned = adapted(family, family.folder, model=family.load(retention_ratio=0.5))
    tuned.save_pretrained(tmp_path)
    model, _ = package.load(tmp_path, retention_ratio=0.5, device="cpu")
    inputs = family.one_video()
    assert torch.equal(model(**inputs).logits, tuned(**inputs).logits)


@only(lambda family: family.name in ("llava_onevision", "qwen3_vl"))
def test_an_adapter_keeps_as_many_tokens_as_it_was_trained_with(family: Family, tmp_path: Path) -> None:
    """The processor that is saved beside it says so, since PEFT saves no config."""
    settings = {"retention_ratio": 0.5, "compression_method": "evs", "max_video_tokens": 40}
    model, processor = package.load(family.folder, device="cpu", **settings)
    adapted(family, family.folder, model=model).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    for given in ({}, {"retention_ratio": 0.1}, {"compression_method": "vidcom2"}):
        model, processor = package.load(tmp_path, device="cpu", **given)
        for part in (model.config, processor):
            assert {name: getattr(part, name) for name in settings} == settings | given
    shutil.copy(family.folder / "config.json", tmp_path)
    assert package.load(tmp_path)[0].config.retention_ratio == 0.25, "a config says more"


@only(lambda family: family.name == "qwen2_vl")
def test_what_lies_beside_an_adapter_is_taken_before_the_bases(family: Family, adapter: Path) -> None:
    """Trainers save the processor there, and some the config."""
    family.processor.save_pretrained(adapter)
    for file, fields in (("config.json", {"retention_ratio": 0.5}), ("tokenizer_config.json", {"eos_token": "!"})):
        content = json.loads(((adapter if file != "config.json" else family.folder) / file).read_text())
        (adapter / file).write_text(json.dumps(content | fields))
    model, processor = package.load(adapter, device="cpu")
    assert model.config.retention_ratio == 0.5 and processor.tokenizer.eos_token == "!"


@only(lambda family: family.name == "llava_onevision")
def test_an_adapter_is_identified_together_with_its_base(family: Family, adapter: Path) -> None:
    checkpoint = load_checkpoint(str(adapter), device="cpu")
    identity = model_identity(str(adapter))
    assert checkpoint.identity == identity and identity["model"] == f"{adapter} on {adapter.parent / 'base'}"
    seen = {json.dumps(certificate_of(identity))}
    for file in (adapter / "adapter_model.safetensors", adapter.parent / "base" / "model.safetensors"):
        weights = load_file(file)
        save_file({name: weight + 1 for name, weight in weights.items()}, file, {"format": "pt"})
        assert model_identity(str(adapter)) != identity
        seen.add(json.dumps(certificate_of(model_identity(str(adapter)))))
    assert len(seen) == 3


@only(lambda family: family.name == "llava_onevision")
def test_an_adapter_on_the_hub_loads_with_its_base_on_the_hub(
    family: Family, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(adapter, base_model_name_or_path="org/base")
    for name, folder, commit in (("adapter", adapter, COMMIT), ("base", family.folder, OF_BASE)):
        repo = tmp_path / "cache" / f"models--org--{name}"
        shutil.copytree(folder, repo / "snapshots" / commit)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)
    tuned, _ = package.load("org/adapter", device="cpu", cache_dir=tmp_path / "cache")
    same, _ = package.load(adapter, device="cpu", cache_dir=tmp_path / "cache")
    inputs = family.one_video()
    assert torch.equal(tuned(**inputs).logits, same(**inputs).logits)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for revision in (None, COMMIT):
        identity = model_identity("org/adapter", revision)
        assert identity == load_checkpoint("org/adapter", device="cpu", revision=revision).identity
        assert identity["model"] == "org/adapter on org/base"
        assert (identity["model_commit"], identity["base"]["model_commit"]) == (COMMIT, OF_BASE)


@only(lambda family: family.name == "qwen2_vl")
def test_the_command_line_answers_with_an_adapter(family: Family, adapter: Path, tmp_path: Path) -> None:
    requests, output = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    clip = package.toys.TOY.clips[0].path
    requests.write_text(json.dumps({"video": str(clip), "prompt": "What?"}))
    small = ["--num-frames", 4, "--max-new-tokens", 1, "--device", "cpu"]
    arguments = ["run", "--model", adapter, "--requests", requests, "-o", output, *small]
    assert vidcom2(*arguments)[0] == 0 and "error" not in json.loads(output.read_text())
    edit(adapter, lora_alpha=3)
    code, _, error = vidcom2(*arguments)
    assert code == 2 and "`model_files` was" in error
    assert package.ask(clip, "What?", str(adapter), num_frames=4, max_new_tokens=1, device="cpu").new_tokens == 1


# -- refused ----------------------------------------------------------------------------------------------------------


def _another_base(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    deeper = {name.replace("layers.0", "layers.40"): weight.clone() for name, weight in weights.items()}
    save_file(weights | deeper, folder / "adapter_model.safetensors", {"format": "pt"})


def _without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    weights.pop(next(iter(weights)))
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})


def _cut(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "whole weights": (
        lambda folder: shutil.copy(folder.parent / "base" / "model.safetensors", folder),
        r"weights of a whole model lie beside it \(model.safetensors\).* remove adapter_config.json",
    ),
    "further weights": (
        lambda folder: (folder / "non_lora_state_dict.bin").write_bytes(b""),
        "non_lora_state_dict.bin beside it holds further trained weights.* Merge both",
    ),
    "no base": (lambda folder: edit(folder, base_model_name_or_path=None), "its base is not known. Write .* into its"),
    "base moved away": (
        lambda folder: (folder.parent / "base").rename(folder.parent / "moved"),
        "because of its base: .* there is no such folder.* Write where the base is into its adapter_config.json",
    ),
    "another base": (_another_base, r"4 of its weights are without a place in its base .* another base\?"),
    "of another shape": (lambda folder: edit(folder, r=3), "8 of its weights are not of the shape of its base"),
    "a weight missing": (_without_a_weight, "1 of its weights are missing"),
    "cut": (_cut, "because of its adapter: .*Is the file complete"),
    "activated": (
        lambda folder: edit(folder, alora_invocation_tokens=[3, 4], task_type="CAUSAL_LM"),
        "an aLoRA, which only PEFT's own model activates. Load its base, and give both to PEFT",
    ),
    "prompt tuning": (
        lambda folder: edit(folder, peft_type="PROMPT_TUNING", num_virtual_tokens=3, task_type="CAUSAL_LM"),
        "of type PROMPT_TUNING, which changes no weights. Load its base, and give both to PEFT",
    ),
}


@torch.no_grad()
@only(lambda family: family.name in ("llava_onevision", "qwen2_5_vl"))
def test_an_activated_adapter_takes_short_prompts_alone(family: Family) -> None:
    """PEFT counts from the end of the prompt where it begins. The stock class gives the same logits for the same short
    ids, features and positions. In a prompt that the model shortens, the adapter would begin too early."""
    inputs, short = family.one_video(), dict(family.writing_short.one_video())
    arguments = {"alora_invocation_tokens": inputs["input_ids"][0, -3:].tolist(), "task_type": "CAUSAL_LM"}
    torch.manual_seed(0)
    tuned = adapted(family, family.folder, family.load(retention_ratio=0.25), **arguments)
    torch.manual_seed(0)
    stock = adapted(family, family.folder, **arguments)
    for call in (tuned, functools.partial(tuned.generate, max_new_tokens=1)):
        call(**inputs, retention_ratio=1.0)
        with pytest.raises(ValueError, match=r"An aLoRA is active.*Write the prompt with this project's processor"):
            call(**inputs)
        call(**short)
    inner = family.model.model
    given = {name: each for name, each in inner.prepared(dict(short)).inputs.items() if each is not None}
    features = inner._for_parent(given["mm_encoder_outputs"]["video"])
    logits, theirs = tuned(**short).logits, stock(**given | {"mm_encoder_outputs": {"video": features}}).logits
    torch.testing.assert_close(logits, theirs, rtol=0, atol=1e-5)
    changed = (logits - family.model(**short).logits).abs().amax(dim=-1)[0] > 1e-6
    assert changed[-3:].all() and not changed[:-3].any()


@pytest.mark.parametrize(("harm", "message"), REFUSED.values(), ids=REFUSED)
@only(lambda family: family.name == "llava_onevision")
@pytest.mark.filterwarnings("ignore:Unexpected keyword arguments")  # those of another kind of adapter
def test_an_adapter_that_does_not_fit_is_refused(
    family: Family, adapter: Path, harm: Callable[[Path], object], message: str
) -> None:
    harm(adapter)
    with pytest.raises(CheckpointError, match=message) as error:
        package.load(adapter, device="cpu")
    assert str(adapter) in str(error.value)


@only(lambda family: family.name == "llava_onevision")
def test_an_adapter_without_peft_says_what_to_install(
    family: Family, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding_checkpoints, "find_spec", lambda name: None)
    assert "pip install peft" in mistake("run", "--model", adapter, *FAST)


@only(lambda family: family.name == "llava_onevision")
def test_an_adapter_alone_is_not_published(family: Family, adapter: Path) -> None:
    error = mistake("publish", "--base", adapter, "--repo", "org/tuned", "--dry-run", "-o", adapter.parent / "staged")
    assert "is a PEFT adapter. Merge it first" in error
