"""Stock checkpoints load here, ours load in the stock class, and nothing else in the process changes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import Family, only
from models import CASES_THAT_LOAD, MODELS, RETENTION_RATIO, chat_prompt, make_video, save_as_on_the_hub
from safetensors.torch import load_file
from transformers import AutoModel, AutoProcessor


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
def test_a_stock_checkpoint_in_the_hub_layout_loads_without_missing_or_unexpected_keys(
    family: Family, tmp_path: Path
) -> None:
    folder = legacy_checkpoint(family, tmp_path)
    renamed = {new for new, old in family.case.legacy_prefixes.items() if new != old}
    names = load_file(folder / "model.safetensors").keys()
    assert not any(name.startswith(prefix) for name in names for prefix in renamed)
    model, info = family.case.model_class.from_pretrained(folder, retention_ratio=0.3, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(model, family.case.stock_class.from_pretrained(folder))
    assert_same_weights(model, family.stock)
    assert model.config.retention_ratio == 0.3
    assert "retention_ratio" not in json.loads((folder / "config.json").read_text())


def test_a_checkpoint_saved_by_the_stock_class_loads(family: Family) -> None:
    model, info = family.case.model_class.from_pretrained(family.folder, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(model, family.stock)
    assert model.config.retention_ratio == 0.25


def test_a_saved_model_loads_with_its_settings_and_in_the_stock_class(family: Family, tmp_path: Path) -> None:
    settings = {"retention_ratio": 0.4, "compression_rounding": "exact", "compression_window": 4}
    model = family.load(**settings)
    model.save_pretrained(tmp_path)
    family.processor.save_pretrained(tmp_path)
    again, info = family.case.model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert {name: getattr(again.config, name) for name in settings} == settings
    assert_same_weights(again, family.stock)

    native, info = family.case.stock_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(native, family.stock)
    assert type(AutoProcessor.from_pretrained(tmp_path)) is type(family.processor)
    inputs = family.processed_video()
    assert torch.equal(native(**inputs).logits, family.untouched_stock()(**inputs).logits)


@only(lambda family: family.can_tie)
def test_tied_embeddings_stay_tied(family: Family, tmp_path: Path) -> None:
    stock, _ = family.case.build(**family.case.build_arguments, tie_word_embeddings=True)
    stock.save_pretrained(tmp_path)
    model, info = family.case.model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_the_config_survives_a_round_trip_and_holds_every_setting(family: Family, tmp_path: Path) -> None:
    config = family.case.config_class(retention_ratio=1, compression_scoring="released")
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["retention_ratio"] == 1.0 and saved["compression_scoring"] == "released"
    assert saved["compression_window"] is None and saved["model_type"] == family.stock.config.model_type
    assert family.case.config_class.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_embeddings_can_be_resized(family: Family) -> None:
    model = family.load(retention_ratio=RETENTION_RATIO)
    model.resize_token_embeddings(300)
    inputs = family.one_video()
    assert model(**inputs).logits.shape[-1] == 300
    assert model.generate(**inputs, max_new_tokens=2, do_sample=False).shape[0] == 1


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
        if case.native:
            stock, processor = case.build(**case.build_arguments)
            folders[case.stock_class.__name__] = folder = str(tmp_path / case.name)
            stock.save_pretrained(folder)
            prompt = chat_prompt(processor, "What happens?", videos=1)
            inputs = processor(text=[prompt], videos=[[make_video(0)]], return_tensors="pt")
            torch.save(dict(inputs), tmp_path / case.name / "inputs.pt")
    command = [sys.executable, "-c", ISOLATION, json.dumps(folders)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and "unchanged" in result.stdout, result.stderr[-3000:]


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


@pytest.mark.parametrize("folder", ["modeling", "configuration"])
def test_shipped_files_import_only_what_a_hub_repo_has(folder: str) -> None:
    import ast

    root = Path(__file__).parents[1]
    shipped = {path.stem for name in ("modeling", "configuration") for path in (root / name).rglob("*.py")}
    for path in (root / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                modules = [str(node.module).rpartition(".")[2], *(alias.name for alias in node.names)]
                assert any(module in shipped for module in modules), (path.name, modules)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                for name in names:
                    top = name.split(".")[0]
                    assert top in {"torch", "transformers", "huggingface_hub"} | sys.stdlib_module_names, (path, name)


def test_a_checkpoint_of_another_family_is_refused(family: Family, tmp_path: Path) -> None:
    for case in MODELS:
        if case is family.case:
            continue
        stock, _ = case.build(**case.build_arguments)
        stock.config.save_pretrained(tmp_path / case.name)
        with pytest.raises(ValueError, match=f"is of type '{stock.config.model_type}', but .* its own family"):
            family.case.model_class.from_pretrained(tmp_path / case.name)
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "config.json").write_text(json.dumps({"model_type": "llava"}))
    with pytest.raises(ValueError, match="convert it first: `vidcom2 convert-llava-video`"):
        family.case.model_class.from_pretrained(tmp_path / "original")


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


def test_a_users_subclass_does_not_replace_our_class(family: Family) -> None:
    class Mine(family.case.model_class):
        pass

    assert type(AutoModel.from_config(family.model.config)) is family.case.model_class
