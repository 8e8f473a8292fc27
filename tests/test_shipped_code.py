"""A Hub repo holds the code that these tests import, all that it needs and no more, and it is harmless to load."""

import ast
import functools
import hashlib
import importlib
import json
import re
import shutil
from pathlib import Path

import cloudpickle
import pytest
import torch
from conftest import Family, only
from models import EACH_MODEL, MODELS, ModelCase
from transformers import AutoConfig, AutoModel, AutoProcessor
from transformers.dynamic_module_utils import get_class_from_dynamic_module, get_relative_import_files

import vidcom2
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.configuration.saved_with_code import check_before_copy
from vidcom2.families.sources import written_modules, written_source
from vidcom2.families.table import FAMILIES
from vidcom2.hub_upload.verification import failures, verify
from vidcom2.loading.processors import shorten
from vidcom2.shipping.shipped_code import code_of, fields_of
from vidcom2.tiny.llava_video import tiny_llava_video

ROOT = Path(__file__).parents[1]
ROOMS = ("modeling", "configuration")
SHIPPED = {
    path.name: path.read_text(encoding="utf-8")
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if path.stem != "__init__"
}
WRITTEN = {f"{name}.py": written_source(name) for name in written_modules()}  # from rows


@pytest.fixture(params=EACH_MODEL)
def case(request: pytest.FixtureRequest) -> ModelCase:
    return request.param


def test_a_repo_holds_exactly_the_code_that_transformers_finds(case: ModelCase, tmp_path: Path) -> None:
    """Transformers searches for relative imports in its own way."""
    code = code_of(case.model_class)
    for name, content in code.items():
        (tmp_path / name).write_bytes(content)
    fields = fields_of(case.model_class, code)
    model = f"modeling_vidcom2_{case.name}.{case.model_class.__name__}"
    assert fields["architectures"] == [case.model_class.__name__]
    assert fields["auto_map"] == {
        "AutoConfig": f"configuration_vidcom2_{case.name}.{case.config_class.__name__}",
        "AutoModel": model,
        "AutoModelForImageTextToText": model,
        "AutoModelForMultimodalLM": model,
    }
    named = [*fields["auto_map"].values(), *(task["impl"] for task in fields["custom_pipelines"].values())]
    named.append(case.family.processor)
    reached = set()
    for value in named:
        file = tmp_path / f"{value.split('.')[0]}.py"
        reached |= {file.name, *(Path(path).name for path in get_relative_import_files(file))}
    assert reached == set(code)


def test_a_repo_holds_the_methods_that_its_config_names_and_no_other(case: ModelCase) -> None:
    def methods(*chosen: str | list[str]) -> set[str]:
        return {name for name in code_of(case.model_class, *chosen) if re.match("method_|vision_", name)}

    assert methods() == {"method_vidcom2.py"}
    assert methods("evs") == {"method_vidcom2.py", "method_evs.py"}
    assert methods("vidcom2", "skip_repeated") == {"method_vidcom2.py", "vision_skip_repeated.py"}
    assert methods("vidcom2", "full", ["coverage"]) == {"method_vidcom2.py", "method_coverage.py"}


@pytest.mark.skipif(not all(each.runs_here for each in FAMILIES.values()), reason="this Transformers lacks a family")
def test_every_shipped_file_belongs_to_some_repo_and_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hub repo is one flat folder."""
    monkeypatch.setattr("vidcom2.repo_shape.ast.parse", functools.cache(ast.parse))  # families share most files
    shipped = {name for case in MODELS for name in code_of(case.model_class)}
    compression = [name for name, method in COMPRESSION_METHODS.items() if method.own]
    shipped |= code_of(MODELS[0].model_class, "vidcom2", "skip_repeated", compression).keys()
    shipped |= {"users_methods.py", "users_vision_methods.py"}  # are shipped with methods of users
    names = [path.name for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.stem != "__init__"]
    names += WRITTEN
    assert shipped == set(names) - {"compress.py"} and len(names) == len(set(names))


def test_the_code_in_a_repo_differs_from_the_package_only_in_names_of_rooms(case: ModelCase) -> None:
    files = {name: source.splitlines() for name, source in (SHIPPED | WRITTEN).items()}
    differing = 0
    for name, content in code_of(case.model_class).items():
        if name == "registered_methods.py":  # It names the methods that the repo holds.
            continue
        for ours, theirs in zip(files[name], content.decode().splitlines(), strict=True):
            if ours != theirs:
                module = re.fullmatch(r"\s*from \.+(?:\w+\.)*(\w+) import .*", ours)[1]
                assert theirs.split("from .")[1].split()[0] == module and f"{module}.py" in files
                differing += 1
    assert differing


def test_a_familys_settings_equal_those_of_its_config(case: ModelCase) -> None:
    family = FAMILIES[case.config_class.model_type]
    assert family.native == case.native and family.model_class is case.model_class
    for name, accepted in family.settings.items():
        assert getattr(case.config_class(), name) == accepted[0]
        for value in accepted:
            assert getattr(case.config_class(**{name: value}), name) == value
        with pytest.raises(ValueError, match=f"{name}.*{accepted[-1]}"):
            case.config_class(**{name: "none of them"})


# -- harmless ---------------------------------------------------------------------------------------------------------

IMPORTED = {
    *("torch", "transformers", "collections", "contextlib", "copy", "dataclasses", "difflib", "enum", "functools"),
    *("inspect", "itertools", "math", "numbers", "re", "types", "typing", "weakref"),
}
HARMLESS = {"os": {"PathLike", "fspath"}, "os.path": {"basename", "isfile", "join"}}  # these open nothing
# Names through which Python code reaches files, the network, other programs, or code that nobody can read beforehand.
REACHING_CALLS = {"open", "exec", "eval", "compile", "__import__", "input", "breakpoint", "globals"}
REACHING_ATTRIBUTES = {
    *("environ", "getenv", "system", "popen", "hub", "load_state_dict_from_url", "load_library", "cpp_extension"),
    *("read_text", "write_text", "read_bytes", "write_bytes", "unlink", "rmtree", "urlopen", "urlretrieve"),
    *("__globals__", "__builtins__", "__subclasses__", "__loader__", "__code__"),
}


def reaching(source: str) -> list[str]:
    """Find what in this code reads the environment, opens a file or socket, or runs something."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] not in IMPORTED]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {alias.name for alias in node.names}
            if node.module.split(".")[0] not in IMPORTED and not names <= HARMLESS.get(node.module, set()):
                found.append(node.module)
            found += names & REACHING_ATTRIBUTES
        elif isinstance(node, ast.Name) and node.id in REACHING_CALLS:
            found.append(node.id)
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in REACHING_ATTRIBUTES or (owner, node.attr) in {("torch", "load"), ("torch", "save")}:
                found.append(f"{owner}.{node.attr}")
    return found


def test_shipped_code_reads_no_environment_opens_nothing_and_runs_nothing() -> None:
    sources = SHIPPED | WRITTEN
    methods = "registered_methods.py"  # The package's lists files. A repo's is another.
    sources[methods] = code_of(MODELS[0].model_class)[methods].decode()
    assert {name: found for name, source in sources.items() if (found := reaching(source))} == {}
    for source in (
        "import os",
        "from os.path import join, os",
        "from torch import hub",
        "import torch\ntorch.load('x')",
        "(lambda f=open: f)()",
        "def f():\n    from subprocess import run",
    ):
        assert reaching(source), source


# -- saved by the package ---------------------------------------------------------------------------------------------


def test_a_model_saved_by_the_package_is_a_complete_repo(family: Family, tmp_path: Path) -> None:
    model = family.load(retention_ratio=0.5, compression_frame_score="max")
    with torch.no_grad():
        (model.language_model if family.case.in_one_class else model).lm_head.weight.add_(0.01)
    model.save_pretrained(tmp_path)
    processor = AutoProcessor.from_pretrained(family.folder)
    shorten(processor, model.config)
    processor.save_pretrained(tmp_path)
    for name, content in code_of(family.case.model_class).items():
        assert (tmp_path / name).read_bytes() == content
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["retention_ratio"], config["compression_frame_score"]) == (0.5, "max")
    assert config["architectures"] == [family.case.model_class.__name__]

    fields = fields_of(family.case.model_class, code_of(family.case.model_class))
    assert {name: config[name] for name in fields} == fields
    if not family.case.native:  # LLaVA-Video has the most code and its own processor; checking each family takes long
        seen = []
        checks = verify(str(tmp_path), progress=seen.append)
        assert seen == checks
        assert not failures(checks), failures(checks)
        assert [check.name for check in checks if check.status == "skipped"] == ["card"]
    again = family.case.model_class.from_pretrained(tmp_path)
    inputs = family.one_video()
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)


@only(lambda family: family.name in ("llava_onevision", "qwen3_vl"))
def test_parts_of_other_methods_are_saved_over_each_other_in_any_order(family: Family, tmp_path: Path) -> None:
    """A processor that is saved first leaves no config.json, which would say what this project wrote."""
    for method in ("evs", "coverage"):
        model, processor = vidcom2.load(family.folder, device="cpu", compression_method=method)
        processor.save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)
        assert AutoConfig.from_pretrained(tmp_path, trust_remote_code=True).compression_method == method
    family.stock.save_pretrained(tmp_path)  # whose config.json says nothing of our code
    vidcom2.load(family.folder, device="cpu", compression_method="dycoke")[0].save_pretrained(tmp_path)
    registered = tmp_path / "registered_methods.py"
    registered.write_text(registered.read_text() + "mine = 1\n")
    family.stock.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds 'registered_methods\.py', which this project did not write"):
        model.save_pretrained(tmp_path)


@only(lambda family: not family.in_one_class)
def test_a_saved_inner_model_carries_its_code_and_compresses_again(family: Family, tmp_path: Path) -> None:
    inner = family.load(retention_ratio=0.5).model
    inner.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["auto_map"].keys() == {"AutoConfig", "AutoModel"} and "custom_pipelines" not in config
    if not family.case.native:  # this process knows its config's own type, whatever `trust_remote_code` says
        return
    again, info = AutoModel.from_pretrained(tmp_path, trust_remote_code=True, output_loading_info=True)
    assert type(again).__name__ == type(inner).__name__ and not any(info.values()), info
    inputs = family.one_video()
    expected, found, stock = (m.eval()(**inputs).last_hidden_state for m in (inner, again, family.stock.model))
    assert torch.equal(found, expected) and not torch.equal(stock, expected)


# -- files of others --------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_refused(saved: object, folder: Path, name: str) -> None:
    """Check that saving is refused because of a file, and changes nothing."""
    before = files_of(folder)
    with pytest.raises(ValueError, match=rf"holds '{name}'.*which this project did not write"):
        saved.save_pretrained(folder)
    assert files_of(folder) == before


def test_saving_never_overwrites_a_file_that_this_project_did_not_write(family: Family, tmp_path: Path) -> None:
    for name in ("compression.py", f"configuration_vidcom2_{family.case.name}.py"):
        (tmp_path / name).write_text("mine = 1\n")
        for saved in (family.case.config_class(), family.model):
            assert_refused(saved, tmp_path, name)
        (tmp_path / name).unlink()


def test_a_saved_file_that_the_user_changed_is_not_overwritten(case: ModelCase, tmp_path: Path) -> None:
    config = case.config_class()
    config.save_pretrained(tmp_path)
    path = tmp_path / "compression.py"
    path.write_text(path.read_text() + "# I changed this\n")
    assert_refused(config, tmp_path, "compression.py")
    for spoilt in ("[]", "{", '{"vidcom2_code_sha256": 1}'):
        (tmp_path / "config.json").write_text(spoilt)  # then only a file's content tells whether this project wrote it
        assert_refused(config, tmp_path, "compression.py")


def test_saving_again_replaces_files_of_ours_but_no_links(
    case: ModelCase, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "older.py"
    config = case.config_class(retention_ratio=0.1)
    config.save_pretrained(tmp_path)
    first = files_of(tmp_path)
    assert first.keys() >= code_of(case.model_class).keys()
    config.save_pretrained(tmp_path)
    assert files_of(tmp_path) == first

    # An older version would have left other code, which its config.json lists. Here it is a link.
    fields, older, link = json.loads(first["config.json"]), b"# an older version\n", tmp_path / "compression.py"
    fields["vidcom2_code_sha256"]["compression.py"] = hashlib.sha256(older).hexdigest()
    (tmp_path / "config.json").write_text(json.dumps(fields))
    elsewhere.write_bytes(older)
    link.unlink()
    link.symlink_to(elsewhere)
    case.config_class.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert files_of(tmp_path) == first and not link.is_symlink() and elsewhere.read_bytes() == older
    link.unlink()
    link.symlink_to(elsewhere.with_name("nowhere.py"))
    with pytest.raises(ValueError, match=r"holds 'compression\.py'"):
        config.save_pretrained(tmp_path)
    assert not elsewhere.with_name("nowhere.py").exists()


def test_a_users_subclass_does_not_claim_code_that_is_not_saved_with_it(case: ModelCase, tmp_path: Path) -> None:
    case.config_class().save_pretrained(tmp_path / "ours")
    config = case.config_class.from_pretrained(tmp_path / "ours")
    config.architectures = ["MyModel"]
    config.save_pretrained(tmp_path / "theirs")
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["config.json"]
    saved = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert not {"auto_map", "custom_pipelines", "vidcom2_code_sha256"} & saved.keys()
    config.auto_map = {"AutoModel": "modeling_mine.MyModel"}
    config.save_pretrained(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["auto_map"] == config.auto_map

    class MyConfig(case.config_class):
        model_type = f"my_{case.name}"

    MyConfig().save_pretrained(tmp_path / "config")
    assert [path.name for path in (tmp_path / "config").iterdir()] == ["config.json"]
    assert "auto_map" not in json.loads((tmp_path / "config" / "config.json").read_text())


def test_a_model_loaded_from_a_repo_is_not_half_saved_beside_files_of_others(family: Family, tmp_path: Path) -> None:
    repo, mine, new, config_alone = (tmp_path / name for name in ("repo", "mine", "new", "config"))
    family.load().save_pretrained(repo)
    family.processor.save_pretrained(repo)
    named = fields_of(family.case.model_class, code_of(family.case.model_class))["auto_map"]
    model_class = get_class_from_dynamic_module(named["AutoModel"], str(repo))
    model_class.register_for_auto_class("AutoModel")
    model_class.config_class.register_for_auto_class()
    model = model_class.from_pretrained(repo)
    mine.mkdir()
    (mine / "in_transformers.py").write_text("mine = 1\n")
    assert_refused(model, mine, "in_transformers.py")
    model.config.save_pretrained(config_alone)
    for folder in (config_alone, repo, tmp_path / "nothing"):  # a folder with only a config, a whole repo, and none
        check_before_copy(model_class, str(folder))
    (mine / "compression_settings.py").write_text("mine = 1\n")
    assert_refused(model.config, mine, "compression_settings.py")
    (mine / "compression_settings.py").unlink()
    processor_class = get_class_from_dynamic_module(family.case.family.processor, str(repo))
    processor_class.register_for_auto_class()
    processor = processor_class.from_pretrained(repo)
    (mine / "in_transformers.py").unlink()
    (mine / "saved_with_code.py").write_text("mine = 1\n")
    assert_refused(processor, mine, "saved_with_code.py")
    processor.save_pretrained(new)
    for _ in range(2):
        model.save_pretrained(new)
    assert {path.name for path in new.glob("*.py")} == {path.name for path in repo.glob("*.py")}


def test_an_engine_can_send_a_repos_config_to_another_process(tmp_path: Path) -> None:
    """vLLM pickles the code of repos by value."""
    model, _ = FAMILIES["llava_onevision"].build_tiny()
    vidcom2.apply(model)
    for number, method in enumerate(name for name, each in COMPRESSION_METHODS.items() if each.own):
        vidcom2.apply(model, compression_method=method)
        model.save_pretrained(tmp_path / f"repo{number}")
        config = AutoConfig.from_pretrained(tmp_path / f"repo{number}", trust_remote_code=True)
        cloudpickle.register_pickle_by_value(importlib.import_module("transformers_modules"))
        try:
            assert cloudpickle.loads(cloudpickle.dumps(config)).compression_method == method
        finally:
            cloudpickle.unregister_pickle_by_value(importlib.import_module("transformers_modules"))


def test_a_processor_saved_alone_carries_its_code(tmp_path: Path) -> None:
    _, processor = tiny_llava_video()
    for _ in range(2):
        processor.save_pretrained(tmp_path)
    named = json.loads((tmp_path / "processor_config.json").read_text())["auto_map"]["AutoProcessor"]
    again = get_class_from_dynamic_module(named, str(tmp_path)).from_pretrained(tmp_path)
    assert again.to_dict() == processor.to_dict()
    (tmp_path / "configuration_vidcom2_llava_video.py").write_text("mine = 1\n")
    assert_refused(processor, tmp_path, "configuration_vidcom2_llava_video.py")


@only(lambda family: family.native)
def test_our_class_restores_the_code_of_a_checkpoint_saved_by_the_stock_class(family: Family, tmp_path: Path) -> None:
    ours, stock, again = (tmp_path / name for name in ("ours", "stock", "again"))
    family.load(retention_ratio=0.5).save_pretrained(ours)
    family.case.stock_from(ours).save_pretrained(stock)
    with pytest.raises(OSError, match="does not appear to have a file named configuration_vidcom2"):
        AutoModel.from_pretrained(stock, trust_remote_code=True)  # only Transformers runs here, and it says so
    family.case.model_class.from_pretrained(stock).save_pretrained(again)
    loaded = AutoModel.from_pretrained(again, trust_remote_code=True).eval()
    assert type(loaded).__name__ == family.case.model_class.__name__ and loaded.config.retention_ratio == 0.5
    for path in ours.glob("*.py"):
        shutil.copyfile(path, stock / path.name)
    assert AutoModel.from_pretrained(stock, trust_remote_code=True).config.retention_ratio == 0.5
