"""A Hub repo stays small enough that a careful person can read it before trusting it."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback_hub import LoopbackHub
from models import CASES_THAT_LOAD, MODELS, make_video
from safetensors.torch import save_file
from test_shipped_code import SHIPPED

from vidcom2.configuration.compression_settings import VISION_METHODS
from vidcom2.families import FAMILIES
from vidcom2.hub_upload.model_card import purpose
from vidcom2.shipping.shipped_code import code_of

# The most files, lines of Python, and requests of a first load that a default repo may take.
LIMITS = {"qwen2_vl": (16, 4553, 44), "llava_onevision": (16, 4518, 44), "vidcom2_llava_video": (18, 4837, 48)}
CASES = {case.config_class.model_type: case for case in MODELS}
IMPORTED = {
    *("torch", "transformers"),
    *("collections", "contextlib", "copy", "dataclasses", "enum", "functools", "inspect", "itertools", "math"),
    *("numbers", "os", "types", "typing", "weakref"),  # of `os` only what `test_shipped_code.HARMLESS` names
}
LOAD = """
import sys
sys.modules["vidcom2"] = None
from transformers import AutoModelForImageTextToText
model = AutoModelForImageTextToText.from_pretrained(sys.argv[1], trust_remote_code=True)
print(type(model).__name__)
"""


@pytest.mark.parametrize("model_type", LIMITS)
def test_a_default_repo_stays_small(model_type: str) -> None:
    code = code_of(FAMILIES[model_type].model_class)
    files, lines, _ = LIMITS[model_type]
    assert len(code) <= files, sorted(code)
    assert sum(len(content.splitlines()) for content in code.values()) <= lines


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_repo_holds_the_methods_that_its_config_names_and_no_other(model_type: str) -> None:
    def methods(*chosen: str) -> set[str]:
        return {
            name for name in code_of(FAMILIES[model_type].model_class, *chosen) if re.match("method_|vision_", name)
        }

    assert methods() == {"method_vidcom2.py"}
    assert methods("evs") == {"method_vidcom2.py", "method_evs.py"}
    assert methods("vidcom2", "skip_repeated") == {"method_vidcom2.py", "vision_skip_repeated.py"}
    assert methods("vidcom2", "full", ["coverage"]) == {"method_vidcom2.py", "method_coverage.py"}


def test_the_docs_list_the_files_of_a_repo_in_reading_order() -> None:
    page = (Path(__file__).parents[1] / "docs" / "hub_repos.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- repo: qwen2_vl -->\n")[2].partition("<!-- end -->")[0].splitlines()[2:]
    code = code_of(FAMILIES["qwen2_vl"].model_class)
    assert listed == [f"| `{name}` | {purpose(content)} |" for name, content in code.items()]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", LIMITS)
def test_a_first_load_asks_the_hub_for_little(model_type: str, tmp_path: Path) -> None:
    case = CASES[model_type]
    for part in case.build(**case.build_arguments):
        part.save_pretrained(tmp_path / "base")
    case.model_class.from_pretrained(tmp_path / "base").save_pretrained(tmp_path / "repo")
    with LoopbackHub(tmp_path / "hub") as hub:
        hub.seed("org/model", tmp_path / "repo")
        environment: Any = hub.environment(tmp_path / "home", None)
        ran = subprocess.run(
            [sys.executable, "-c", LOAD, "org/model"], capture_output=True, text=True, env=environment, timeout=500
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        assert ran.stdout.split() == [case.model_class.__name__]
        assert len(hub.requests) <= LIMITS[model_type][2], [request.path for request in hub.requests]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_file_says_in_two_sentences_what_it_is_for(path: Path) -> None:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    assert len(re.findall(r"[.:](?= |$)", text)) >= 2, text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_file_imports_only_torch_transformers_and_plain_modules(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    assert found <= IMPORTED


WITHOUT_EVS = """
import json, sys
sys.modules["vidcom2"] = None
from transformers import AutoConfig
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
errors = []
for settings in ({"compression_method": "evs"}, {"vision_method": "skip_repeated"}, {"compression_method": "vidcom"}):
    try:
        config.compression_settings(**settings)
    except ValueError as error:
        errors.append(str(error))
print(json.dumps(errors))
"""


def test_a_method_that_a_repo_does_not_hold_is_refused_with_the_remedies(tmp_path: Path) -> None:
    case = CASES["qwen2_vl"]
    case.config_class().save_pretrained(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_EVS, str(tmp_path)], capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    absent, skipped, misspelt = json.loads(ran.stdout.splitlines()[-1])
    assert absent.startswith("`compression_method` is 'evs', but this repo holds only 'vidcom2'. Install")
    assert "`vidcom2.load`" in absent and "`--methods evs`" in absent
    assert skipped.startswith("`vision_method` is 'skip_repeated', but this repo holds only 'full'")
    assert misspelt.startswith("`compression_method` is 'vidcom', but must be one of")
    model = case.config_class.from_pretrained(tmp_path, compression_method="evs")  # the package has all methods
    assert model.compression_method == "evs"


EVERY_REPO = """
import json, sys
sys.modules["vidcom2"] = None
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText
found = []
for folder, inputs in json.loads(sys.argv[1]):
    model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True).eval()
    inputs = load_file(inputs)
    tokens = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1]:]
    found.append([type(model).__name__, tokens.tolist()])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_every_familys_repo_answers_as_the_package_with_each_kind_of_method(tmp_path: Path) -> None:
    folders, expected = [], []
    for case in CASES_THAT_LOAD:
        stock, processor = case.build(**case.build_arguments)
        with torch.no_grad():
            for parameter in stock.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(5 if case.takes_one_kind else 2)  # Otherwise all answers are nearly the same.
        stock.save_pretrained(tmp_path / case.name)
        content = [{"type": "video"}, {"type": "text", "text": "What happens?"}]
        prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        inputs = processor(text=[prompt], videos=[[make_video(0)]], do_sample_frames=False, return_tensors="pt")
        save_file({name: value.contiguous() for name, value in inputs.items()}, tmp_path / f"{case.name}.safetensors")
        choices: list[dict[str, Any]] = [{}, {"compression_method": "evs"}]
        if VISION_METHODS["skip_repeated"].fits(getattr(stock.config.vision_config, "model_type", None)):
            choices.append({"vision_method": "skip_repeated", "vision_tolerance": 0.3})
        for number, settings in enumerate(choices):
            folder = tmp_path / f"{case.name}-{number}"
            model = case.model_class.from_pretrained(tmp_path / case.name, **settings).eval()
            model.save_pretrained(folder)
            folders.append([str(folder), str(tmp_path / f"{case.name}.safetensors")])
            tokens = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
            expected.append([case.model_class.__name__, tokens.tolist()])
    command = [sys.executable, "-c", EVERY_REPO, json.dumps(folders)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == expected
