"""The settings that go by one name: `PAPER` and `RECOMMENDED`."""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Family, change_json, only

import vidcom2
from vidcom2 import PAPER, RECOMMENDED, CompressionSettings, compress
from vidcom2.configuration.compression_settings import OF_SOME_COMPRESSION_METHODS

OTHERS: dict[str, Any] = {
    "compression_scoring": "released",
    "compression_temperature": 0.5,
    "compression_frame_score": "max",
    "compression_window": 2,
    "compression_positions": "original",
    "compression_frame_weight": 2.0,
    "compression_video_weight": -1.0,
}


def test_the_papers_settings_are_all_that_its_method_reads_with_the_defaults_of_compress() -> None:
    defaults = {name: each.default for name, each in inspect.signature(compress).parameters.items()}
    assert dict(PAPER) == {name: defaults[name] for name in PAPER}
    assert set(PAPER) == {"compression_method", "compression_positions", *OF_SOME_COMPRESSION_METHODS}


@only(lambda family: family.name in ("llava_onevision", "qwen3_vl"))
def test_a_checkpoint_with_other_settings_loads_with_those_of_a_preset(family: Family, tmp_path: Path) -> None:
    for stored in (OTHERS, RECOMMENDED):
        shutil.copytree(family.folder, tmp_path, dirs_exist_ok=True)
        change_json(tmp_path / "config.json", retention_ratio=0.5, **stored)
        for preset in (PAPER, RECOMMENDED):
            model, _ = vidcom2.load(tmp_path, device="cpu", **preset)
            assert model.config.as_dict() == CompressionSettings(retention_ratio=0.5, **preset).as_dict()
    assert vidcom2.apply(family.load_stock(), **PAPER).config.as_dict() == CompressionSettings(**PAPER).as_dict()


@pytest.mark.parametrize("preset", [PAPER, RECOMMENDED])
def test_a_preset_cannot_be_changed(preset: Any) -> None:
    with pytest.raises(TypeError):
        preset["retention_ratio"] = 0.1
    assert json.dumps(dict(preset)) and "retention_ratio" not in preset
