"""`vidcom2.load` and `from_pretrained`: stock checkpoints load here, and ours in the stock class. Nothing else in the
process changes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, only
from models import (
    CASES_THAT_LOAD,
    HELD_IN_OTHER_PARTS,
    MODELS,
    RETENTION_RATIO,
    chat_prompt,
    make_video,
    save_as_on_the_hub,
)
from safetensors.torch import load_file
from transformers import AutoModel, AutoProcessor, BitsAndBytesConfig, ProcessorMixin
from transformers.conversion_mapping import get_model_conversion_mapping

import vidcom2
from vidcom2.errors import CheckpointError
from vidcom2.families.table import FAMILIES, no_class_for
from vidcom2.loading.processors import check_processor
from vidcom2.modeling.hosting.in_transformers import without


def test_load_returns_the_class_and_the_processor_of_the_family(family: Family) -> None:
    model, processor = vidcom2.load(str(family.folder), retention_ratio=RETENTION_RATIO, device="cpu")
    row = FAMILIES[model.config.model_type]
    assert type(model) is family.case.model_class and type(processor) is row.processor_class
    assert type(family.processor).__name__ == row.processor_names[0] and isinstance(processor, type(family.processor))
    # The config of LLaVA-Video's checkpoint names its code, which `load` does not read.
    expected = without(family.model.config.to_dict(), ("auto_map", "custom_pipelines"))
    assert not model.training and model.config.to_dict() == expected
    inputs = family.one_video()
    assert torch.equal(model(**inputs).logits, family.model(**inputs).logits)
    new = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(**inputs, **new), family.model.generate(**inputs, **new))
    made = processor(text=[family.prompt("What?", images=1)], images=[torch.zeros(3, 70, 90)], return_tensors="pt")
    assert set(made) >= {"input_ids", "pixel_values"}


def test_load_takes_settings_and_arguments_of_from_pretrained(family: Family, tmp_path: Path) -> None:
    settings = {"retention_ratio": 0.5, "compression_frame_score": "max"}
    given = {"dtype": torch.bfloat16, "attn_implementation": "eager", "device_map": "cpu", "image_token_id": 3}
    model, _ = vidcom2.load(family.folder, **settings, **given, cache_dir=tmp_path)
    assert {name: getattr(model.config, name) for name in settings} == settings
    assert model.dtype == torch.bfloat16 and model.config._attn_implementation == "eager"
    assert model.device == torch.device("cpu") and model.config.image_token_id == 3


@only(lambda family: family.name in ("llava_video", "qwen2_5_vl"))
def test_a_hub_repo_is_loaded_from_the_given_cache(family: Family, tmp_path: Path) -> None:
    """Its config, processor and weights come from there, at the given revision."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--org--tiny"
    shutil.copytree(family.folder, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    for revision in (None, commit):
        model, processor = vidcom2.load("org/tiny", cache_dir=tmp_path, revision=revision, device="cpu")
        assert type(model) is family.case.model_class and type(processor) is family.case.family.processor_class
    with pytest.raises(CheckpointError, match="cannot load the model 'org/tiny'"):
        vidcom2.load("org/tiny", device="cpu")


def test_a_setting_replaces_one_of_the_config_that_is_unknown_here(family: Family, tmp_path: Path) -> None:
    """Such as a user's method whose module was not imported, or a method that an older version had."""
    family.load(compression_method="evs").save_pretrained(tmp_path)
    family.processor.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"evs"', '"fastvid"'))
    with pytest.raises(CheckpointError, match=r"`compression_method` is 'fastvid', but must be one of"):
        vidcom2.load(tmp_path, device="cpu")
    model, _ = vidcom2.load(tmp_path, compression_method="vidcom2", device="cpu")
    assert model.config.compression_method == "vidcom2"


def test_a_quantized_model_is_loaded_onto_its_device(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not moved after loading, which bitsandbytes refuses."""
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    pytest.importorskip("accelerate")
    given = []
    from_pretrained = family.case.model_class.from_pretrained

    def recorded(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs)
        return from_pretrained(*args, **kwargs)

    monkeypatch.setattr(family.case.model_class, "from_pretrained", recorded)
    config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
    model, _ = vidcom2.load(family.folder, quantization_config=config, device="cpu", retention_ratio=RETENTION_RATIO)
    assert model.hf_quantizer is not None and given[0]["device_map"] == "cpu"
    assert model.generate(**family.one_video(), max_new_tokens=2, do_sample=False).shape[0] == 1


def test_weights_that_bitsandbytes_makes_int8_run_on_a_cpu_and_are_saved(family: Family, tmp_path: Path) -> None:
    """At ratio 1 the logits are those of the stock class with the same weights."""
    pytest.importorskip("bitsandbytes")
    if family.case.name == "cosmos3_edge":
        pytest.skip("its tower asks quantized weights for the dtype of pixels, in the stock class too")
    int8 = BitsAndBytesConfig(load_in_8bit=True)
    model, processor = vidcom2.load(family.folder, quantization_config=int8, device="cpu", retention_ratio=1.0)
    stock = family.load_stock(quantization_config=int8, device_map="cpu")
    inputs = family.one_video()
    assert any(type(module).__name__ == "Linear8bitLt" for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, stock(**inputs).logits)
        model.config.retention_ratio = RETENTION_RATIO
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        again, _ = vidcom2.load(tmp_path, device="cpu")
        assert torch.equal(model(**inputs).logits, again(**inputs).logits)


def rename_processor(folder: Path, name: str = "UnslothVisionProcessor") -> None:
    """Let all files that name the processor's class name another."""
    for file in folder.glob("*_config.json"):
        content = json.loads(file.read_text())
        if "processor_class" in content:
            file.write_text(json.dumps(content | {"processor_class": name}))


def test_a_processor_that_another_library_renamed_is_the_familys(family: Family, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(family.folder, tmp_path / "renamed"))
    rename_processor(folder)
    if family.case.native:
        assert not isinstance(AutoProcessor.from_pretrained(folder), ProcessorMixin)  # it is the tokenizer alone
    _, processor = vidcom2.load(folder, device="cpu")
    assert type(processor) is family.case.family.processor_class
    asked = {"text": [family.prompt("What?", images=1)], "images": [torch.zeros(3, 70, 90)], "return_tensors": "pt"}
    made, expected = processor(**asked), family.processor(**asked)
    assert all(torch.equal(made[name], expected[name]) for name in ("input_ids", "pixel_values"))


# -- `from_pretrained` and `save_pretrained` of the classes ------------------------------------------------------------


def legacy_checkpoint(family: Family, folder: Path) -> Path:
    """Save a checkpoint as it is stored on the Hub, with the stock config and old key names."""
    family.stock.config.save_pretrained(folder)
    save_as_on_the_hub(family.case, family.stock, folder)
    return folder


def assert_same_weights(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@only(lambda family: family.native)
def test_a_stock_checkpoint_in_the_hub_layout_loads_with_every_key_in_place(family: Family, tmp_path: Path) -> None:
    folder = legacy_checkpoint(family, tmp_path)
    renamed = {new for new, old in family.case.legacy_prefixes.items() if new != old}
    names = load_file(folder / "model.safetensors").keys()
    assert not any(name.startswith(prefix) for name in names for prefix in renamed)
    model, info = family.case.model_class.from_pretrained(folder, retention_ratio=0.3, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(model, family.case.stock_from(folder))
    assert_same_weights(model, family.stock)
    assert model.config.retention_ratio == 0.3
    assert "retention_ratio" not in json.loads((folder / "config.json").read_text())


@only(lambda family: family.native and not family.in_one_class)
def test_an_inner_model_loads_by_itself_as_its_stock_class_does(family: Family, tmp_path: Path) -> None:
    folder, inner_class = legacy_checkpoint(family, tmp_path), family.case.model_class.inner_class
    stock, expected = type(family.untouched_stock().model).from_pretrained(folder, output_loading_info=True)
    for _ in range(2):  # The renames of the first time are taken back.
        model, info = inner_class.from_pretrained(folder, output_loading_info=True)
        assert info == expected
        assert_same_weights(model, stock)


@only(lambda family: family.native)
def test_weights_are_renamed_as_often_as_in_the_stock_class(family: Family) -> None:
    def renames(model: Any) -> list[tuple]:
        found = get_model_conversion_mapping(model)
        return [
            (type(each), each.source_patterns, each.target_patterns, getattr(each, "scope_prefix", None))
            for each in found
        ]

    assert renames(family.model) == renames(family.untouched_stock())


def test_a_saved_model_loads_with_its_settings_and_in_the_stock_class(family: Family, tmp_path: Path) -> None:
    settings = {"retention_ratio": 0.4, "compression_rounding": "ceil", "compression_window": 4}
    model = family.load(**settings)
    model.save_pretrained(tmp_path)
    processor = AutoProcessor.from_pretrained(family.folder)
    processor.save_pretrained(tmp_path)
    again, info = family.case.model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert {name: getattr(again.config, name) for name in settings} == settings
    here = {"_name_or_path": tmp_path}
    assert again.config.to_dict() | here == model.config.to_dict() | here
    assert_same_weights(again, family.stock)

    native, info = family.case.stock_from(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(native, family.stock)
    assert type(AutoProcessor.from_pretrained(tmp_path)) is type(processor)
    inputs = family.processed_video()
    assert torch.equal(native(**inputs).logits, family.untouched_stock()(**inputs).logits)


class Wrapper(torch.nn.Module):
    """Holds a model as wrappers of trainers do."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.module = model


@only(lambda family: family.name not in HELD_IN_OTHER_PARTS)
def test_a_state_dict_has_the_names_of_the_checkpoint_or_the_models_own(family: Family, tmp_path: Path) -> None:
    """`Trainer` reads a checkpoint so, with `strict=False`. Wrappers put a prefix before all names."""
    other = family.load()
    other.save_pretrained(tmp_path)
    own = family.model.state_dict()
    for state in (load_file(tmp_path / "model.safetensors"), dict(own)):
        for prefix, wrapped in (("", other), ("module.", Wrapper(other))):
            with torch.no_grad():
                for value in other.state_dict().values():
                    value.fill_(0)
            given = {f"{prefix}{name}": value for name, value in state.items()}
            wrapped.load_state_dict(given, strict=True)
            assert all(torch.equal(value, own[name]) for name, value in other.state_dict().items())
            assert given.keys() == {f"{prefix}{name}" for name in state}  # the caller's is not changed
            given[f"{prefix}b.c"] = torch.ones(1)
            left = wrapped.load_state_dict(given, False)
            assert not left.missing_keys and left.unexpected_keys == [f"{prefix}b.c"]


@only(lambda family: family.can_tie)
def test_tied_embeddings_stay_tied(family: Family, tmp_path: Path) -> None:
    stock, _ = family.case.build(**family.case.build_arguments, tie_word_embeddings=True)
    stock.save_pretrained(tmp_path)
    model, info = family.case.model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert model.lm_head.weight is model.get_input_embeddings().weight


@only(lambda family: not family.in_one_class)  # Transformers does not find Nemotron's head
def test_embeddings_can_be_resized(family: Family) -> None:
    model = family.load(retention_ratio=RETENTION_RATIO)
    model.resize_token_embeddings(300)
    inputs = family.one_video()
    assert model(**inputs).logits.shape[-1] == 300
    assert model.generate(**inputs, max_new_tokens=2, do_sample=False).shape[0] == 1


def test_a_checkpoint_of_another_family_is_refused(family: Family, tmp_path: Path) -> None:
    others = {model_type: f"is of type '{model_type}', but .* its own family" for model_type in FAMILIES}
    del others[family.model.config.model_type]
    for model_type, reason in {**others, "llava": "convert it first: `vidcom2 convert-llava-video`"}.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        with pytest.raises(ValueError, match=reason):
            family.case.model_class.from_pretrained(tmp_path)


def test_a_users_subclass_does_not_replace_our_class(family: Family) -> None:
    class Mine(family.case.model_class):
        pass

    assert type(AutoModel.from_config(family.model.config)) is family.case.model_class


# -- nothing else in the process changes ------------------------------------------------------------------------------

ISOLATION = """
import inspect, json, sys, torch, transformers
from transformers import AutoModel, AutoModelForImageTextToText
from transformers.models.auto import modeling_auto
from transformers.generation.utils import GenerationMixin

folders = json.loads(sys.argv[1])

def snapshot():
    stock = [sys.modules[getattr(transformers, name).__module__] for name in folders]
    seen = {}
    for module in [*stock, sys.modules[GenerationMixin.__module__], transformers.modeling_utils,
                   transformers.configuration_utils]:
        for name, value in vars(module).items():
            if inspect.isclass(value) or inspect.isfunction(value):
                seen[module.__name__, name] = id(value)
            if inspect.isclass(value) and value.__module__.startswith("transformers"):
                for key, member in vars(value).items():
                    if callable(member) or isinstance(member, (property, classmethod, staticmethod)):
                        seen[module.__name__, name, key] = id(member)
    return seen

def run(folder):
    model = AutoModelForImageTextToText.from_pretrained(folder)
    torch.manual_seed(0)
    inputs = torch.load(folder + "/inputs.pt", weights_only=True)
    out = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    return type(model).__name__, type(AutoModel.from_pretrained(folder)).__name__, out.tolist()

def run_all():
    return [run(folder) for folder in folders.values()]

run_all()  # lazy imports of transformers are done
tables = {name: dict(getattr(modeling_auto, name)) for name in dir(modeling_auto) if name.endswith("_MAPPING_NAMES")}
before, first = snapshot(), run_all()
import vidcom2
for name in vidcom2.__all__:
    getattr(vidcom2, name)
after, second = snapshot(), run_all()
changed = [key for key, value in before.items() if after.get(key) != value]
assert not changed, changed
assert first == second, (first, second)
assert [names[0] for names in first] == list(folders)
for name, table in tables.items():
    now = dict(getattr(modeling_auto, name))
    assert {key: now.get(key) for key in table} == table, name
    assert all("idCom2" in str(now[key]) for key in now.keys() - table.keys()), name
print("unchanged")
"""


@pytest.mark.slow
def test_importing_vidcom2_changes_nothing_for_stock_models(tmp_path: Path) -> None:
    """One process serves for all families, since all of vidcom2 is imported."""
    folders = {}
    for case in CASES_THAT_LOAD:
        if case.native and not case.in_one_class:  # which `AutoModel` does not have
            stock, processor = case.build(**case.build_arguments)
            folders[case.stock_class.__name__] = folder = str(tmp_path / case.name)
            stock.save_pretrained(folder)
            prompt = chat_prompt(processor, "What happens?", videos=1)
            inputs = processor(text=[prompt], videos=[[make_video(0)]], return_tensors="pt")
            torch.save(dict(inputs), tmp_path / case.name / "inputs.pt")
    command = [sys.executable, "-c", ISOLATION, json.dumps(folders)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and "unchanged" in result.stdout, result.stderr[-3000:]


AUTO_CLASSES = """
import sys, transformers, vidcom2
for case in sys.argv[1:]:
    folder, config_class, model_class, stock_class = case.split(",")
    ours = getattr(vidcom2, config_class).from_pretrained(folder)
    stock = transformers.AutoConfig.from_pretrained(folder)
    for name in ("AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM"):
        auto_class = getattr(transformers, name)
        model = auto_class.from_config(ours)
        assert type(model).__name__ == model_class and model.config.retention_ratio == 0.25, (name, type(model))
        if stock_class:
            expected = stock_class.replace("ForConditionalGeneration", "Model") if name == "AutoModel" else stock_class
            assert type(auto_class.from_config(stock)).__name__ == expected, name
print("made")
"""


@pytest.mark.slow
def test_auto_classes_make_our_models_from_our_configs_and_stock_models_from_stock_configs(tmp_path: Path) -> None:
    """The process has imported only the configs."""
    cases = []
    for case in (case for case in MODELS if case.name in ("llava_onevision", "llava_video", "qwen3_vl")):
        stock, _ = case.build(**case.build_arguments)
        stock.config.save_pretrained(tmp_path / case.name)
        names = (case.config_class.__name__, case.model_class.__name__, case.stock_class.__name__ * case.native)
        cases.append(",".join([str(tmp_path / case.name), *names]))
    result = subprocess.run([sys.executable, "-c", AUTO_CLASSES, *cases], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and "made" in result.stdout, result.stderr[-3000:]


@pytest.mark.slow
def test_compress_imports_neither_transformers_nor_the_compiler() -> None:
    script = """
import sys, torch, vidcom2
tokens = torch.rand(4, 9, 8)
kept = vidcom2.compress(tokens).indices
assert not {"transformers", "torch._dynamo"} & set(sys.modules)
# Compiled later, it still runs outside the graphs, since how much "ceil" keeps of each frame depends on the video.
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
compiled = torch.compile(lambda tokens: vidcom2.compress(tokens * 1).indices + 1, backend=backend)
for seed in range(4):
    tokens = torch.rand(4, 9, 8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(compiled(tokens), vidcom2.compress(tokens).indices + 1)
    vidcom2.compress(tokens)
assert all(not graph.graph.find_nodes(op="call_function", target=torch.topk) for graph in graphs), graphs
print(len(graphs))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) <= 3  # one before it, one after it, and one for varying lengths


# -- refused ----------------------------------------------------------------------------------------------------------


def test_a_model_of_no_family_is_told_the_type_that_is_written_most_like_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(CheckpointError, match=f"{tmp_path}.* 'bert', .*'llava_onevision', .*'minicpmv4_6'"):
        vidcom2.load(tmp_path)
    for model_type, meant in (
        ("internvl_chat", ["'internvl'"]),
        ("videollama3_qwen2", ["'video_llama_3'"]),
        ("qwen3_5_moe_text", ["'qwen3_5_moe'"]),  # Qwen3.8-2.4T
        ("qwen2-vl", ["'qwen2_vl'"]),
        ("minicpmv4_7", ["'minicpmv4_6'"]),
        ("Keye", []),
    ):
        assert re.findall(r"Did you mean (.*?)\?", no_class_for("it", model_type)) == meant


@only(lambda family: family.name == "llava_onevision")
def test_load_refuses_arguments_that_make_no_sense(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidcom2.loading.placement.find_spec", lambda name: name == "accelerate" or None)
    for arguments, message in (
        ({"retention_ratio": 1.5}, "`retention_ratio` is 1.5"),
        ({"compresion_rounding": "up"}, "`compresion_rounding` is neither a setting .* retention_ratio"),
        ({"compression_rouding": "up"}, "`compression_rouding` is not a setting"),
        ({"num_frames": 3}, "`num_frames` is neither a setting of VidCom² nor an argument of `from_pretrained`"),
        ({"name": 3}, "`name` is a int"),
        ({"name": "no/such"}, "cannot load the model 'no/such': there is no such folder"),
        ({"name": "no/such", "local_files_only": True}, "`local_files_only`"),
        ({"device": "cpu", "device_map": "auto"}, "`device` is 'cpu' and `device_map` is 'auto'"),
        ({"config": {}}, "`config` is not an argument of `vidcom2.load`"),
        ({"trust_remote_code": True}, "`trust_remote_code` is not an argument"),
        ({"revision": "main"}, "`revision` is 'main', but the model .* is a folder"),
        ({"dtype": "bf16"}, "`dtype` is 'bf16', .* Did you mean 'bfloat16'"),
        ({"torch_dtype": "bf16"}, "`dtype` is 'bf16', .* Did you mean 'bfloat16'"),
        ({"ignore_mismatched_sizes": True}, "`ignore_mismatched_sizes` is not an .* refuses weights that do not fit"),
        (
            {"load_in_8bit": True},
            r"`load_in_8bit` is not an .* Pass `quantization_config=BitsAndBytesConfig\(load_in_8",
        ),
        ({"load_in_4bit": False}, r"`load_in_4bit` is not .* Pass `quantization_config=BitsAndBytesConfig\(load_in_4"),
        ({"use_auth_token": "x"}, "`use_auth_token` is not an .* Transformers renamed it. Pass `token`"),
        ({"resume_download": True}, "`resume_download` is not an .* downloads always resume. Leave it out"),
        ({"use_flash_attention_2": True}, "`use_flash_attention_2` is not .* Pass `attn_implementation='flash_attent"),
        ({"device": "cpu", "attn_implementation": "flash_attention_2"}, r"FlashAttention2 needs a GPU. Try sdpa\.$"),
        (
            {"attn_implementation": "flash_attention_2", "device_map": "cpu"},
            r"not installed\. Take sdpa, or install it\. Run: pip install \"flash-attn[^ ]*\"$",
        ),
        ({"attn_implementation": "sdpaa"}, "cannot load the model '[^']*': Specified `attn_implementation="),
        ({"attn_implementation": "flash_attention_3"}, "cannot load the model '[^']*': FlashAttention3 has been"),
    ):
        with pytest.raises(ValueError, match=message):
            vidcom2.load(**{"name": family.folder, **arguments})


def test_a_processor_of_another_family_is_refused_with_the_one_to_take(family: Family, tmp_path: Path) -> None:
    other = next(case for case in MODELS if case.name == ("qwen2_vl" if family.case.name != "qwen2_vl" else "qwen3_vl"))
    folder, (_, processor) = tmp_path / "mixed", other.build(**other.build_arguments)
    shutil.copytree(family.folder, folder)
    processor.save_pretrained(folder)
    names = FAMILIES[family.model.config.model_type].processor_names
    needed = f"is a {type(processor).__name__}, which belongs to another family: .* needs a {names[0]}"
    with pytest.raises(CheckpointError, match=f"because of its processor: it {needed}"):
        vidcom2.load(folder, device="cpu")
    for wrong, why in ((processor, needed), (family.processor.tokenizer, f"only a part of a processor.* {names[0]}")):
        for call in (vidcom2.ask, vidcom2.answer_many):
            video = "no such.mp4" if call is vidcom2.ask else [{"video": "no such.mp4", "prompt": "What?"}]
            more = ("What?",) if call is vidcom2.ask else ()
            with pytest.raises(ValueError, match=f"`processor` {why}" if wrong is processor else why):
                call(video, *more, model=family.model, processor=wrong)


@only(lambda family: family.name == "qwen2_vl")
def test_a_users_own_class_of_a_processor_is_taken(family: Family) -> None:
    class Mine(type(family.processor)):
        pass

    class Alien(ProcessorMixin):
        def __init__(self) -> None:
            pass

    row = FAMILIES["qwen2_vl"]
    for accepted in (Mine.__new__(Mine), Alien()):
        check_processor("it", accepted, row)
