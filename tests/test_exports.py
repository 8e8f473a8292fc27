"""What `vidcom2` exports. `.ci/run wheel` checks what the wheel and the source distribution hold."""

import json
import subprocess
import sys

import pytest

import vidcom2
from vidcom2.families.table import FAMILIES


def test_importing_the_package_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, vidcom2; assert vidcom2.__all__; print({'torch', 'transformers', 'av'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_every_exported_name_is_that_of_its_object() -> None:
    for name in vidcom2.__all__:
        exported = getattr(vidcom2, name)
        assert getattr(exported, "__name__", name) == name and name in dir(vidcom2)
    with pytest.raises(AttributeError, match="compres"):
        _ = vidcom2.compres


def test_the_classes_of_every_family_that_runs_here_are_exported_and_no_others() -> None:
    classes = set()
    for family in FAMILIES.values():
        if family.runs_here:
            config, model = names = [f"{family.classes}{kind}" for kind in ("Config", "ForConditionalGeneration")]
            classes |= {*names}
            assert getattr(vidcom2, config) is family.config_class and getattr(vidcom2, model) is family.model_class
    assert {name for name in vidcom2.__all__ if name.startswith("VidCom2")} == classes


IMPORT_ALL = """
import importlib.metadata, json, sys
real = importlib.metadata.version
importlib.metadata.version = lambda name: sys.argv[1] if name == "transformers" else real(name)
import vidcom2
from vidcom2 import *
assert all(name in globals() for name in vidcom2.__all__)
reasons = {}
for name in sys.argv[2:]:
    assert name not in vidcom2.__all__ and name not in dir(vidcom2), name
    for ask in (lambda: getattr(vidcom2, name), lambda: exec(f"from vidcom2 import {name}")):
        try:
            ask()
        except ImportError as error:
            reasons.setdefault(name, set()).add(str(error))
print(json.dumps({name: [*found] for name, found in reasons.items()}))
"""


def test_a_family_that_this_transformers_lacks_is_not_exported_and_named_with_the_version_that_has_it() -> None:
    """The newest Transformers is taken for the oldest supported one, which lacks seven or has them otherwise."""
    needed = {
        "VidCom2Molmo2": ("Molmo2", "5.20"),
        "VidCom2Qwen2_5OmniThinker": ("Qwen2.5-Omni", "5.23"),
        "VidCom2Qwen3OmniMoeThinker": ("Qwen3-Omni", "5.23"),
        "VidCom2Cosmos3Edge": ("Cosmos 3 Edge", "5.23"),
        "VidCom2Qwen4Exp": ("Qwen4-Exp", "5.21"),
        "VidCom2Lfm3Vl": ("LFM3-VL", "5.23"),
        "VidCom2CohereCompass": ("Cohere Compass", "5.21"),
    }
    reasons = {
        f"{classes}{kind}": [
            f"{name} needs Transformers {since} or newer, but 5.19.0 is installed. "
            "Run: pip install --upgrade transformers"
        ]
        for classes, (name, since) in needed.items()
        for kind in ("Config", "ForConditionalGeneration")
    }
    command = [sys.executable, "-c", IMPORT_ALL, "5.19.0", *reasons]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == reasons and len(reasons) == 14
