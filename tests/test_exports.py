"""What `vidcom2` exports. `.ci/run wheel` checks what the wheel and the source distribution hold."""

import subprocess
import sys

import pytest

import vidcom2
from vidcom2.families import FAMILIES


def test_importing_the_package_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, vidcom2; assert vidcom2.__all__; print({'torch', 'transformers', 'av'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_every_exported_name_is_that_of_its_object() -> None:
    absent = tuple(family.classes for family in FAMILIES.values() if not family.runs_here)
    for name in vidcom2.__all__:
        if absent and name.startswith(absent):
            continue
        exported = getattr(vidcom2, name)
        assert getattr(exported, "__name__", name) == name and name in dir(vidcom2)
    with pytest.raises(AttributeError, match="compres"):
        _ = vidcom2.compres


def test_the_classes_of_every_family_are_exported_and_no_others() -> None:
    classes = set()
    for family in FAMILIES.values():
        config, model = (f"{family.classes}{kind}" for kind in ("Config", "ForConditionalGeneration"))
        classes |= {config, model}
        if family.runs_here:
            assert getattr(vidcom2, config) is family.config_class and getattr(vidcom2, model) is family.model_class
    assert {name for name in vidcom2.__all__ if name.startswith("VidCom2")} == classes
