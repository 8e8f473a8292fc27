"""The plugin's families, and the window of vLLM's versions. Nothing of vLLM runs here: see `tests/vllm_engine`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vidcom2.families.table import FAMILIES
from vidcom2.vllm_plugin import MODELS, SERVED, compat
from vidcom2.vllm_plugin.compat import SUPPORTED, WINDOW, why_not

ROOT = Path(__file__).parents[1]


def test_the_plugin_has_all_methods_in_a_process_of_vllms() -> None:
    """There, a repo's own code is another package, with tables of its own. A request may name what vLLM does anyway."""
    program = """
import sys
from types import ModuleType

for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models", "vllm.transformers_utils"):
    sys.modules[name] = ModuleType(name)
configs = sys.modules["vllm.model_executor.models.config"] = ModuleType("config")
configs.MODELS_CONFIG_MAP, configs.VerifyAndUpdateConfig = {}, object
sys.modules["vllm.transformers_utils.config"] = ModuleType("config")
sys.modules["vllm.transformers_utils.config"].uses_mrope = None
from vidcom2.vllm_plugin.settings import CompressionSettings, kept_tokens, settings_of_request
print(kept_tokens(CompressionSettings(), 8, (4, 4)))
asked = {"vision_method": "full", "retention_ratio": 0.5}
print(settings_of_request(CompressionSettings(), asked, has_mrope=False).retention_ratio)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "32\n0.5\n", ran.stderr


def test_each_family_is_served_in_vllm_or_refused_by_name() -> None:
    """vLLM would run the repos of any other by a generic class, without compression."""
    assert MODELS.keys() == {f"{family.classes}ForConditionalGeneration" for family in FAMILIES.values()}
    assert not SERVED.keys() & compat.REASONS.keys() and compat._REASONS.keys() <= compat.REASONS.keys()
    for name, reason in compat.REASONS.items():
        with pytest.raises(ImportError, match=rf"{name} in vLLM, because {reason}\. Serve the repo with `transf"):
            getattr(compat, name)


def test_the_extra_and_the_container_file_ask_for_supported_versions_and_others_are_refused() -> None:
    assert f'\nvllm = ["{WINDOW}"]' in (ROOT / "pyproject.toml").read_text()
    first, end = (int(minor) for minor in re.findall(r"0\.(\d+)", WINDOW))
    assert list(SUPPORTED) == [f"0.{minor}" for minor in range(first, end)]
    contained = re.search(r"^FROM vllm/vllm-openai:v(\S+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    for version in ("0.32.0", "0.32.1+cpu", "0.33.0", "0.33.1.dev3+g1234567", contained[1]):
        assert why_not(version) is None
    for version in ("0.31.0", "0.34.0rc1", "1.0", "dev"):
        assert f"is {version}, " in why_not(version) and WINDOW in why_not(version)
