"""Families that no row names: which row the conventions give them, and what tells a right row from a wrong one."""

import copy
import dataclasses
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from conftest import by_default, only
from models import EACH_MODEL, MODELS, ModelCase
from transformers import AutoModel, GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

import vidcom2
from vidcom2 import load
from vidcom2.cli.app import app
from vidcom2.conventions import hosting
from vidcom2.conventions.against_stock import compare_with_stock, written
from vidcom2.conventions.derived_row import BrokenConventionError, derived_row, frame_side, hosted, noise, row_text
from vidcom2.families import table as families
from vidcom2.families.sources import written_modules, written_source
from vidcom2.families.table import (
    FAMILIES,
    GRIDS,
    LINEAR_ATTENTION,
    MROPE_GRIDS,
    MROPE_SHARED_IDS,
    POSITIONS_BY_ORDER,
    PROCESSOR_ROWS,
    PROCESSORS,
)
from vidcom2.loading.processors import restore

REASONS = {
    "llava_onevision": "takes `video_grid_thw`",
    "llava_next_video": "takes `video_grid_thw`",
    "perception_lm": "takes `video_grid_thw`",
    "qwen2_5_omni_thinker": "`replace_video_token` fails on a video of noise",
    "qwen3_omni_moe_thinker": "`replace_video_token` fails on a video of noise",
    "internvl": "takes `video_grid_thw`",
    "smolvlm": "takes `video_grid_thw`",
    "gemma4": "takes `video_grid_thw`",
    "gemma4_unified": "takes `video_grid_thw`",
    "video_llama_3": "`vision_config.spatial_merge_size` is not 2",
    "minicpmv4_6": "takes `video_grid_thw`",
    "molmo2": "takes `video_grid_thw`",
    "kimi_k25": "videos of 8 and 16 frames have the grids",
}
BY_NAME = {case.name: case for case in MODELS}
OF_A_ROW = [case for case in MODELS if case.family.mixins and case.name not in REASONS]
# One family for each combination of what rows add to a stock class.
KINDS = {(case.family.mixins, case.family.head_mixins): case.name for case in reversed(OF_A_ROW)}.values()


def stock(case: ModelCase) -> tuple[Any, Any]:
    model, processor = case.build(**case.build_arguments)
    restore(processor)
    return model, processor


@pytest.fixture(params=EACH_MODEL)
def case(request: pytest.FixtureRequest) -> ModelCase:
    return request.param


@pytest.fixture
def without_a_row() -> Any:
    """Return a function that takes a family and its processor out of the tables. They come back to their places, and so
    do modules that were written from rows: classes that were imported before stay the ones that other tests find."""
    modules = dict(sys.modules)
    tables: tuple[dict[str, Any], ...] = (FAMILIES, PROCESSOR_ROWS, PROCESSORS)
    before = [dict(table) for table in tables]

    def take_out(name: str) -> None:
        processor = FAMILIES[name].stock_processors[0]
        for table, key in zip(tables, (name, processor, processor), strict=True):
            del table[key]
        written_modules.cache_clear()

    yield take_out
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)
    written_modules.cache_clear()
    written_source.cache_clear()
    for name in [each for each in sys.modules if "_vidcom2_" in each]:
        if modules.get(name) is not sys.modules[name]:
            del sys.modules[name]
    sys.modules.update({name: module for name, module in modules.items() if "_vidcom2_" in name})


@only(lambda case: case in OF_A_ROW)
def test_the_conventions_give_each_family_the_row_that_people_wrote(case: ModelCase) -> None:
    found, processor, row = derived_row(*stock(case))
    written = case.family
    assert (found.model_type, found.classes, found.of) == (written.model_type, written.classes, written.of)
    assert (found.mixins, found.head_mixins) == (written.mixins, written.head_mixins)
    assert processor in written.stock_processors
    of_table = PROCESSOR_ROWS[processor]
    assert (row.frames_stand_apart, row.placeholder) == (of_table.frames_stand_apart, of_table.placeholder)


@only(lambda case: case.name in REASONS)
def test_a_family_that_breaks_a_convention_is_refused_with_it(case: ModelCase) -> None:
    with pytest.raises(BrokenConventionError, match=REASONS[case.name]):
        derived_row(*stock(case))


@by_default(lambda case: case.name in KINDS)
@only(lambda case: case in OF_A_ROW)
def test_a_model_that_a_row_hosts_differs_nowhere_from_its_stock_class(case: ModelCase) -> None:
    model, processor = stock(case)
    stock_class = type(model)
    compared = compare_with_stock(model, processor)
    assert len(compared) == 10 and [each for each in compared if each.difference] == []
    assert type(model) is stock_class and not hasattr(processor, "retention_ratio")


@pytest.mark.skipif(not FAMILIES["lfm3_vl"].runs_here, reason="this Transformers has no LFM3-VL")
def test_a_family_without_a_row_is_hosted_while_it_is_compared_and_not_after(
    without_a_row: Any, tmp_path: Path
) -> None:
    model, processor = stock(BY_NAME["lfm3_vl"])
    without_a_row("lfm3_vl")
    found, name, row = derived_row(model, processor)
    with pytest.raises(ValueError, match="is of type 'lfm3_vl'"), hosted(found, name, row):
        assert [each for each in compare_with_stock(model, processor) if each.difference] == []
        raise ValueError("is of type 'lfm3_vl'")  # whatever happens inside, the tables are as before
    assert "lfm3_vl" not in FAMILIES and name not in PROCESSORS and name not in PROCESSOR_ROWS
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is of type 'lfm3_vl'"):
        load(tmp_path)


@pytest.mark.skipif(not FAMILIES["lfm3_vl"].runs_here, reason="this Transformers has no LFM3-VL")
def test_a_family_without_a_row_can_be_hosted_in_a_process(without_a_row: Any, tmp_path: Path) -> None:
    case = BY_NAME["lfm3_vl"]
    model, processor = stock(case)
    shown = noise(8, frame_side(processor))
    ours, applied = copy.deepcopy((model, processor))
    kept = written(vidcom2.apply(ours, applied), applied, [shown], ["What?"])
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    without_a_row("lfm3_vl")
    model.train()
    model.model.vision_tower.eval()
    model.generation_config.num_beams, model.config.compression_method = 2, "evs"
    modes = [module.training for module in model.modules()]
    with pytest.warns(UserWarning, match="hosts 'lfm3_vl' by its conventions, in this process alone"):
        vidcom2.host_family(model, processor)
    assert type(model) is case.stock_class and not hasattr(processor, "retention_ratio")
    assert [module.training for module in model.modules()] == modes and model.config.compression_method == "evs"
    with pytest.raises(ValueError, match="has classes for Lfm3Vl already"):
        vidcom2.host_family(model, processor)
    loaded, of_loaded = load(tmp_path)
    assert type(loaded).__name__ == "VidCom2Lfm3VlForConditionalGeneration"
    short = written(loaded, of_loaded, [shown], ["What?"])
    assert torch.equal(short["input_ids"], kept["input_ids"])
    with torch.no_grad():
        assert torch.equal(loaded(**short).logits, ours(**kept).logits)


@pytest.mark.parametrize("refused", ["a convention", "a comparison", "no model"])
def test_a_family_that_a_row_cannot_host_is_not_hosted(
    without_a_row: Any, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    name, reason = {
        "a convention": ("llava_onevision", "'llava_onevision' needs code of its own: .*takes `video_grid_thw`"),
        "a comparison": ("qwen2_5_vl", "'qwen2_5_vl' differs from its stock class in one video"),
        "no model": ("qwen2_5_vl", "`model` is a str and `processor` a Qwen2_5_VLProcessor"),
    }[refused]
    model, processor = stock(BY_NAME[name])
    FAMILIES.pop(name)
    if refused == "a comparison":
        monkeypatch.setattr(hosting, "derived_row", as_if_without_positions)
    tables: list[dict[Any, Any]] = [PROCESSORS, PROCESSOR_ROWS, cast(Any, AutoModel)._model_mapping._extra_content]
    before = [dict(each) for each in tables]
    with pytest.raises(ValueError, match=reason):
        vidcom2.host_family(name if refused == "no model" else model, processor)
    assert name not in FAMILIES and before == tables
    if refused == "a comparison":  # for which the classes were imported
        ours = [each for each in sys.modules if each.startswith("vidcom2.")]  # not those of repos of other tests
        assert not [each for each in ours if each.endswith(f"_vidcom2_{name}") and "processing" not in each]
        assert not hasattr(sys.modules["vidcom2.configuration"], f"configuration_vidcom2_{name}")


@pytest.mark.skipif(not FAMILIES["lfm3_vl"].runs_here, reason="this Transformers has no LFM3-VL")
def test_an_error_before_the_comparisons_leaves_the_modes_of_a_model(without_a_row: Any) -> None:
    model, processor = stock(BY_NAME["lfm3_vl"])
    without_a_row("lfm3_vl")
    processor.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        vidcom2.host_family(model.train(), processor)
    assert model.training and "lfm3_vl" not in FAMILIES


@pytest.mark.skipif(not FAMILIES["lfm3_vl"].runs_here, reason="this Transformers has no LFM3-VL")
def test_a_class_that_is_not_of_transformers_is_refused(without_a_row: Any) -> None:
    model, processor = stock(BY_NAME["lfm3_vl"])
    without_a_row("lfm3_vl")
    processor.__class__ = type("OwnProcessor", (type(processor),), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match="its OwnProcessor is not a class of Transformers"):
        vidcom2.host_family(model, processor)


def test_layers_with_states_beside_attention_get_the_mixin_of_linear_attention() -> None:
    model, processor = stock(BY_NAME["qwen3_vl"])
    model.config.text_config.layer_types = ["hybrid", "full_attention"]
    assert derived_row(model, processor)[0].mixins == (LINEAR_ATTENTION, MROPE_GRIDS)


@pytest.mark.skipif(not FAMILIES["lfm3_vl"].runs_here, reason="this Transformers has no LFM3-VL")
def test_a_processor_is_written_anew_from_another_row(without_a_row: Any) -> None:
    family, name, row = derived_row(*stock(BY_NAME["lfm3_vl"]))
    without_a_row("lfm3_vl")
    for apart in (False, True):
        with hosted(family, name, dataclasses.replace(row, frames_stand_apart=apart)):
            assert FAMILIES["lfm3_vl"].processor_class.frames_stand_apart == apart


def as_if_without_positions(model: Any, processor: Any) -> tuple[Any, ...]:
    """Return the row of a family with M-RoPE as that of one whose tokens are numbered in order."""
    family, *of_processor = derived_row(model, processor)
    return dataclasses.replace(family, mixins=(GRIDS,)), *of_processor


@pytest.mark.parametrize("wrong", ["positions", "placeholders", "positions in generate"])
def test_a_wrong_row_is_told_from_a_right_one(without_a_row: Any, wrong: str) -> None:
    name, right, others = {
        "positions": ("cohere_compass", MROPE_GRIDS, {"mixins": (GRIDS,)}),
        "placeholders": ("glm46v", MROPE_SHARED_IDS, {"mixins": (MROPE_GRIDS,)}),
        "positions in generate": ("hyperclovax_vision_v2", POSITIONS_BY_ORDER, {"head_mixins": ()}),
    }[wrong]
    model, processor = stock(BY_NAME[name])
    found, of, row = derived_row(model, processor)
    assert right in (*found.mixins, *found.head_mixins)
    without_a_row(name)
    with hosted(dataclasses.replace(found, **others), of, row):
        assert [each for each in compare_with_stock(model, processor) if each.difference]


@pytest.mark.skipif(not FAMILIES["lfm3_vl"].runs_here, reason="this Transformers has no LFM3-VL")
def test_the_command_prints_a_row_that_is_the_derived_one(without_a_row: Any, tmp_path: Path) -> None:
    model, processor = stock(BY_NAME["lfm3_vl"])
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    without_a_row("lfm3_vl")
    derived = derived_row(model, processor)
    ran = CliRunner().invoke(app, ["check-family", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert ran.output.count("none") == 10
    printed = ran.output.partition("of its processor:\n")[2]
    names = {name: getattr(families, name) for name in dir(families)}
    rows = eval(f"({printed.strip().replace('),' + chr(10) + chr(34), '), {' + chr(34))}" + "})", names)
    assert rows == (derived[0], {derived[1]: derived[2]})
    assert row_text(*derived).strip() == printed.strip()


def test_the_command_says_why_a_family_needs_code_and_what_has_a_row(
    folder: Path, without_a_row: Any, tmp_path: Path
) -> None:
    ran = CliRunner().invoke(app, ["check-family", str(folder)])
    assert ran.exit_code == 0 and "LLaVA-OneVision has a row" in ran.output
    del FAMILIES["llava_onevision"]
    ran = CliRunner().invoke(app, ["check-family", str(folder)])
    assert ran.exit_code == 1 and "needs code of its own" in ran.output and "Traceback" not in ran.output
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=20)).save_pretrained(tmp_path)
    ran = CliRunner().invoke(app, ["check-family", str(tmp_path)])
    assert ran.exit_code == 2 and "is of type 'gpt2'" in ran.output and "Traceback" not in ran.output
    ran = CliRunner().invoke(app, ["check-family", str(folder / "nothing")])
    assert ran.exit_code == 2 and ran.output.count("\n") < 6, ran.output
