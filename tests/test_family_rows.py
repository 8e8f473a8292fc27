"""Modules of families that are written from rows: their text, how they are imported, and what type checkers read."""

import importlib
import importlib.util
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import vidcom2
from vidcom2.families.sources import written_families, written_modules, written_source
from vidcom2.families.table import PROCESSORS

ROOT = Path(__file__).parents[1]
HERE = [each for each in written_families() if each.runs_here]


def test_a_row_makes_the_files_that_readers_meet_first() -> None:
    """Qwen2-VL is written out by hand, and so is LLaVA-OneVision, whose model alone has code of its own."""
    for module in (
        "configuration/configuration_vidcom2_qwen2_vl",
        "configuration/configuration_vidcom2_llava_onevision",
        "modeling/families/modeling_vidcom2_qwen2_vl",
        "modeling/families/processing_vidcom2_qwen2_vl",
    ):
        path = ROOT / f"{module}.py"
        assert path.stem not in written_modules()
        assert written_source(path.stem) == path.read_text(encoding="utf-8")


def test_written_modules_are_as_ruff_would_have_them(tmp_path: Path) -> None:
    assert len(written_modules()) > 20
    for name in written_modules():
        (tmp_path / f"{name}.py").write_text(written_source(name), encoding="utf-8")
    for command in (["check"], ["format", "--check"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def written_from_rows() -> Any:
    """Return the module of `.ci/stubs.py`."""
    spec = importlib.util.spec_from_file_location("stubs", ROOT / ".ci" / "stubs.py")
    assert spec is not None and spec.loader is not None
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    return stubs


def test_type_checkers_read_the_classes_of_the_rows() -> None:
    stubs = written_from_rows()
    for path, text in stubs.stubs().items():
        assert stubs.ruff(path, text) == path.read_text(encoding="utf-8"), "Run: python .ci/stubs.py"


def test_pages_list_the_families_of_the_table() -> None:
    for path, text in written_from_rows().pages().items():
        assert text == path.read_text(encoding="utf-8"), "Run: python .ci/stubs.py"


@pytest.mark.parametrize("family", HERE, ids=lambda family: family.model_type)
def test_a_written_module_is_an_ordinary_one(family: Any) -> None:
    model_class, config_class = family.model_class, family.config_class
    assert getattr(vidcom2, model_class.__name__) is model_class
    for each in (model_class, model_class.inner_class, config_class, family.processor_class):
        assert pickle.loads(pickle.dumps(each)) is each
        assert inspect.getsource(each).startswith(f"class {each.__name__}")
        assert each is getattr(importlib.import_module(each.__module__), each.__name__)
        assert each.__module__.startswith("vidcom2.") and each.__doc__


def test_a_config_and_a_model_of_written_modules_can_be_pickled() -> None:
    model, processor = vidcom2.tiny_model("qwen3_vl", retention_ratio=0.5)
    config, again = pickle.loads(pickle.dumps((model.config, model)))
    assert type(config) is type(model.config) and config.retention_ratio == 0.5
    ids = processor.tokenizer("What happens?", return_tensors="pt").input_ids
    assert torch.equal(model(ids).logits, again(ids).logits)


def test_a_process_that_imports_a_written_module_alone_has_the_package() -> None:
    """Such a process is a worker of a data loader or of Ray that unpickles a class."""
    code = (
        "from vidcom2.modeling.families.modeling_vidcom2_qwen3_vl import VidCom2Qwen3VLModel as a;"
        "from vidcom2 import VidCom2Qwen3VLForConditionalGeneration as b; assert b.inner_class is a;"
        "import vidcom2.modeling.families.modeling_vidcom2_nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: No module named 'vidcom2.modeling.families.modeling_vidcom2_nothing'"
    )


def test_every_processor_has_a_module() -> None:
    for name in PROCESSORS.values():
        module = name.partition(".")[0]
        assert module in written_modules() or (ROOT / "modeling" / "families" / f"{module}.py").exists()


def test_the_stock_classes_of_a_row_are_those_of_transformers_tables() -> None:
    for family in HERE:
        assert AutoConfig.for_model(family.model_type).__class__.__name__ == f"{family.stock}Config"
        assert family.uncompressed_class.__name__ == f"{family.stock_model}ForConditionalGeneration"
