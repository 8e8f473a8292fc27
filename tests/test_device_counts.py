"""What a GPU is asked, counted without one. The device that counts is in a process of its own, since other tests would
find it, too."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Family, only

ROOT = Path(__file__).parents[1]
QUICK = ("llava_onevision", "qwen3_vl")  # The others take as long, and are slow tests.
MORE_LAUNCHES = 120  # than the stock class, between the vision tower and the language model


def counted(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.device_counts", *arguments, "--json", str(folder / "counts.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads((folder / "counts.json").read_text())


def assert_device_is_asked_as_by_stock(folder: Path, *names: str) -> None:
    """Behind the vision tower the host waits for nothing of ours, and few more kernels are launched, beside those that
    choose tokens."""
    counts = counted(folder, *names)["families"]
    assert counts.keys() == set(names)
    behind = ("selection", "between", "prefill", "step")
    for ours, stock in ((each["ours"], each["stock"]) for each in counts.values()):
        assert {stage: ours[stage]["own_waits"] for stage in behind} == {stage: {} for stage in behind}
        assert ours["tower"]["waits"] <= stock["tower"]["waits"]
        assert ours["tower"]["launches"] <= stock["tower"]["launches"]
        assert ours["between"]["launches"] <= stock["between"]["launches"] + MORE_LAUNCHES
        assert ours["prefill"]["launches"] <= stock["prefill"]["launches"] + 5
        assert ours["step"]["launches"] <= stock["step"]["launches"]
        assert ours["step"]["waits"] == stock["step"]["waits"]


def test_behind_the_tower_the_device_is_asked_as_by_the_stock_class(tmp_path: Path) -> None:
    assert_device_is_asked_as_by_stock(tmp_path, *QUICK)


@pytest.mark.slow
@only(lambda family: family.name not in QUICK)
def test_in_the_other_families_too(family: Family, tmp_path: Path) -> None:
    assert_device_is_asked_as_by_stock(tmp_path, family.case.family.model_type)


@pytest.mark.parametrize("toy", ["llava_onevision", pytest.param("qwen3_vl", marks=pytest.mark.slow)])
def test_every_way_to_an_answer_gives_on_a_device_what_it_gives_on_the_cpu(toy: str) -> None:
    command = [sys.executable, "tests/ways_on_a_device.py", toy]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert not ran.stdout


def test_a_method_launches_few_kernels_and_waits_once_at_most(tmp_path: Path) -> None:
    counts = counted(tmp_path, "--methods")["methods"]
    more = {"vidcom2 released": 128, "coverage": 450}  # benchmarks/results/README.md says why
    for name, asked in counts.items():
        assert asked["launches"] <= more.get(name, 120), name
        assert asked["waits"] <= (name in ("vidcom2", "vidcom2 released", "random")), name
