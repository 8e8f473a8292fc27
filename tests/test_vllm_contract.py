"""The window of vLLM's versions, and what the plugin uses of them, read from their sources. Nothing of vLLM runs here.

The contract in `tests/data` is that of vLLM 0.32, on which the plugin's own tests run (`.ci/vllm`). `.ci/vllm_contract`
unpacks the wheels of other versions, which may not run on this machine, and runs these tests on them.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_contract import contract

from vidcom2.families import FAMILIES
from vidcom2.vllm_plugin import MODELS, SERVED, unsupported_family
from vidcom2.vllm_plugin.compat import SUPPORTED, WINDOW, why_not

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT / "tests" / "data" / "vllm_contract.json"
# Changes in code around the plugin that somebody has read: the end of a name, its new digest, and what it means.
READ = {
    "0.33": {
        "get_language_model": (
            "1abaa6078ec1",
            "A text tower is recognised by two of its methods, where it was by three. It is the same in all families.",
        ),
        "get_encoder_cudagraph_config": (
            "1949ba5e7ae6",
            "Graphs of Gemma 4's tower have widths. The plugin uses none.",
        ),
        "_mark_tower_model": ("0c6838f5066d", "Later pipeline stages may have no tower, whatever they serve."),
        "__init__": (
            "1dd5ac116fea",
            "Whether a tower of Gemma 4's is quantized depends on its own sizes, not on those of the vision tower.",
        ),
    },
}


def unpacked() -> list[Path]:
    """Return the folders with sources of vLLM: the environment's own, and what `.ci/vllm_contract` has unpacked."""
    installed = importlib.util.find_spec("vllm")
    folders = [Path(installed.origin).parents[1]] if installed is not None and installed.origin else []
    return folders + sorted((ROOT / ".vllm-sources").glob("*"))


@pytest.mark.slow
def test_the_sources_have_all_that_the_plugin_uses_with_the_same_code() -> None:
    if not unpacked():
        pytest.skip("no sources of vLLM are at hand; `.ci/vllm_contract` fetches them")
    expected = json.loads(CONTRACT.read_text())
    for folder in unpacked():
        (metadata,) = folder.glob("vllm*.dist-info")
        version = ".".join(metadata.name.split("-")[1].split(".")[:2])
        assert version in SUPPORTED, f"{folder} holds vLLM {version}"
        found, read = contract(folder), READ.get(version, {})
        changed = {name: entry for name, entry in found.items() if entry != expected.get(name)}
        unread = {
            name: entry
            for name, entry in changed.items()
            if not entry.endswith(read.get(name.rpartition(".")[2], ("none",))[0])
        }
        assert not unread, f"vLLM {version} has changed what stands here. Read it, then add it to READ."
        assert found.keys() == expected.keys(), "Run tests/vllm_contract.py on vLLM 0.32 again."


def test_the_plugin_has_all_methods_in_a_process_of_vllms() -> None:
    """There, a repo's own code is another package, with tables of its own."""
    program = """
import sys
from types import ModuleType

for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models", "vllm.transformers_utils"):
    sys.modules[name] = ModuleType(name)
configs = sys.modules["vllm.model_executor.models.config"] = ModuleType("config")
configs.MODELS_CONFIG_MAP, configs.VerifyAndUpdateConfig = {}, object
sys.modules["vllm.transformers_utils.config"] = ModuleType("config")
sys.modules["vllm.transformers_utils.config"].uses_mrope = None
from vidcom2.vllm_plugin.settings import CompressionSettings, kept_tokens
print(kept_tokens(CompressionSettings(compression_rounding="exact"), 8, (4, 4)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "32\n", ran.stderr


def test_each_family_is_served_in_vllm_or_refused_by_name() -> None:
    """vLLM would run the repos of any other by a generic class, without compression."""
    assert MODELS.keys() == {family.model_class.__name__ for family in FAMILIES.values()}
    assert not SERVED.keys() & unsupported_family.REASONS.keys()
    for name, reason in unsupported_family.REASONS.items():
        with pytest.raises(ImportError, match=rf"{name} in vLLM, because {reason}\. Serve the repo with `transf"):
            getattr(unsupported_family, name)


def test_the_extra_asks_for_the_supported_versions() -> None:
    assert f'\nvllm = ["{WINDOW}"]' in (ROOT / "pyproject.toml").read_text()
    first, end = (int(minor) for minor in re.findall(r"0\.(\d+)", WINDOW))
    assert list(SUPPORTED) == [f"0.{minor}" for minor in range(first, end)]


@pytest.mark.parametrize("version", ["0.31.0", "0.34.0rc1", "1.0", "dev"])
def test_other_versions_are_refused_with_the_supported_ones_and_a_remedy(version: str) -> None:
    said = why_not(version)
    assert said is not None and f"is {version}, " in said and "0.32 and 0.33" in said and WINDOW in said


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.0", "0.33.1.dev3+g1234567"])
def test_supported_versions_are_not_refused(version: str) -> None:
    assert why_not(version) is None


def test_the_container_file_has_a_supported_version() -> None:
    found = re.search(r"^FROM vllm/vllm-openai:v(\S+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    assert found and why_not(found[1]) is None
