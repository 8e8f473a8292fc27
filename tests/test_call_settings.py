"""Settings for one call, configs of other classes, positions of the kept tokens, and limits of length."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, by_default, of_representatives, only
from models import CASES_THAT_LOAD, RETENTION_RATIO, make_video, typed
from reference import compressed_embeddings, position_arguments
from test_generate import answered, batch_of_two, run
from transformers import AutoConfig, CLIPConfig

from vidcom2.configuration.compression_settings import SETTING_NAMES

CHANGED: dict[str, Any] = {
    "retention_ratio": 0.5,
    "compression_method": "random",
    "compression_scoring": "released",
    "compression_rounding": "ceil",
    "compression_temperature": 0.5,
    "compression_frame_score": "uniform",
    "compression_window": 2,
    "compression_positions": "original",
    "compression_frame_weight": -1.0,
    "compression_video_weight": -1.0,
    "max_video_tokens": 9,
    "vision_chunk_frames": 1,
    "vision_method": "skip_repeated",
    "vision_tolerance": 1.0,
}


assert set(CHANGED) == set(SETTING_NAMES)
NEEDS = {  # settings that make no difference by themselves
    "vision_method": {"vision_tolerance": 0.5},
    "vision_tolerance": {"vision_method": "skip_repeated"},
}


@only(lambda family, name: family.grouped or name not in ("vision_method", "vision_tolerance"))
@of_representatives
@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_of_one_call_acts_as_in_a_model_loaded_with_it(family: Family, name: str) -> None:
    base = {"compression_rounding": "ceil"} if name == "compression_window" else {}  # otherwise too few budgets change
    setting = {name: CHANGED[name], **NEEDS.get(name, {}), **base}
    both, _ = batch_of_two(family)
    loaded = family.load(**{"retention_ratio": RETENTION_RATIO} | setting)
    assert torch.equal(family.model(**both, **setting).logits, loaded(**both).logits)
    assert torch.equal(run(family.model, both, **setting), run(loaded, both))
    ours = family.model.get_video_features(**family.videos_of(both), **setting)
    theirs = loaded.get_video_features(**family.videos_of(both))
    for one, other in zip(ours.video_compressions, theirs.video_compressions, strict=True):
        assert torch.equal(one.indices, other.indices)
    unchanged = {"vision_chunk_frames"} | ({"compression_positions"} if family.case.mrope else set())
    same = torch.equal(loaded(**both).logits[:, -1], family.model(**both, **base).logits[:, -1])
    if name in unchanged or family.case.representative:  # a frame of few tokens may stay as it is
        assert same == (name in unchanged), "does the setting change the logits?"


@of_representatives
@pytest.mark.parametrize("name", ["compression_newlines", "spatial_pool_mode"])
def test_a_setting_that_belongs_to_the_model_is_refused_in_one_call(family: Family, name: str) -> None:
    for call in (family.model, family.model.generate):
        with pytest.raises(ValueError, match=rf"`{name}` is 'all' in one call"):
            call(**family.one_video(), **{name: "all"})


# -- configs ----------------------------------------------------------------------------------------------------------


@only(lambda family: family.native)
def test_a_stock_config_is_converted_with_all_its_fields(family: Family) -> None:
    stock = AutoConfig.from_pretrained(family.folder)
    stock.something_of_the_users = 7
    inputs = family.one_video()
    model = family.case.model_class(stock, retention_ratio=0.5).eval()
    assert type(model.config) is family.case.config_class and model.config.something_of_the_users == 7
    assert type(stock) is not family.case.config_class and not hasattr(stock, "retention_ratio")
    model.load_state_dict(family.stock.state_dict())
    expected = family.load(retention_ratio=0.5)(**inputs).logits
    assert torch.equal(model(**inputs).logits, expected)
    loaded = family.case.model_class.from_pretrained(family.folder, config=stock, retention_ratio=0.5).eval()
    assert torch.equal(loaded(**inputs).logits, expected)


@of_representatives
def test_another_familys_config_is_refused(family: Family) -> None:
    others = [
        case.config_class() for case in CASES_THAT_LOAD if not issubclass(case.config_class, family.case.config_class)
    ]
    for config in (*others, CLIPConfig()):
        with pytest.raises(ValueError, match=f"`config` is a .*{family.case.config_class.__name__}"):
            family.case.model_class(config)


@of_representatives
def test_a_users_subclass_loads_stock_checkpoints(family: Family, tmp_path: Path) -> None:
    from test_load import assert_same_weights, legacy_checkpoint

    subclass = type(f"My{family.case.model_class.__name__}", (family.case.model_class,), {})
    folder = legacy_checkpoint(family, tmp_path) if family.case.native else family.folder
    model, info = subclass.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(model, family.stock)
    inputs = family.one_video()
    assert torch.equal(model.eval()(**inputs).logits, family.load()(**inputs).logits)


# -- positions of the kept tokens -------------------------------------------------------------------------------------


@only(lambda family: not family.mrope)
def test_original_positions_equal_those_of_the_full_prompt(family: Family) -> None:
    inputs = family.one_video()
    embeddings, remaining = compressed_embeddings(family, inputs, RETENTION_RATIO)
    # There is a cache, since without cache and mask Transformers takes a prompt with gaps for several prompts.
    mask = torch.ones(1, len(remaining), dtype=torch.long)
    others = {"position_ids": remaining[None], "attention_mask": mask} | position_arguments(family, inputs, remaining)
    theirs = family.stock(inputs_embeds=embeddings, **others)
    ours = family.model(**inputs, compression_positions="original")
    torch.testing.assert_close(ours.logits[:, remaining], theirs.logits, rtol=0, atol=1e-5)
    renumbered = family.model(**inputs).logits
    assert torch.allclose(ours.logits, renumbered, atol=1e-4) != family.case.reads_positions


@by_default(lambda family: family.representative or family.shares_kv)
@pytest.mark.parametrize("positions", ["original", "consecutive"])
def test_turns_and_loops_continue_as_from_scratch_with_either_positions(family: Family, positions: str) -> None:
    model = family.load(retention_ratio=RETENTION_RATIO, compression_positions=positions)
    both, _ = batch_of_two(family)
    turn = run(model, both, return_dict_in_generate=True)
    question = family.inputs("<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n")["input_ids"].expand(2, -1)
    ids = torch.cat([turn.sequences, question], dim=1)
    new = torch.ones_like(ids[:, both["input_ids"].shape[1] :])
    second = {"input_ids": ids, "attention_mask": torch.cat([both["attention_mask"], new], dim=1)}
    from_scratch = model(**second, **family.videos_of(both), **typed(family, both, ids)).logits[:, -1]
    out = answered(model, second, past_key_values=turn.past_key_values)
    torch.testing.assert_close(out.logits[0], from_scratch, rtol=0, atol=1e-5)
    prompt = both["input_ids"].shape[1]
    cache = model(**both, use_cache=True).past_key_values
    for i in range(prompt, ids.shape[1]):
        step = model(input_ids=ids[:, i : i + 1], past_key_values=cache)
    torch.testing.assert_close(step.logits[:, -1], from_scratch, rtol=0, atol=1e-5)


@of_representatives
@only(lambda family: not family.mrope)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("rows", [1, 2])
def test_original_positions_without_a_cache_equal_those_with_one(family: Family, attention: str, rows: int) -> None:
    """There Transformers would take the gaps for the ends of several prompts in a row."""
    model = family.load(retention_ratio=RETENTION_RATIO, attn_implementation=attention)
    inputs = family.inputs(*[family.prompt("What happens?", videos=1)] * rows, videos=[make_video(0)] * rows)
    with_cache, without = (
        answered(model, inputs, use_cache=each, compression_positions="original") for each in (True, False)
    )
    torch.testing.assert_close(without.logits, with_cache.logits, rtol=0, atol=1e-5)


# -- lengths ----------------------------------------------------------------------------------------------------------


@of_representatives
def test_a_compressed_prompt_beyond_the_models_positions_causes_a_warning(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr("vidcom2.modeling.prompt.prompt_compression.logger.warning_once", warned.append)
    model, inputs = family.load(retention_ratio=RETENTION_RATIO), family.one_video()
    run(model, inputs)
    assert not warned
    model.config.get_text_config().max_position_embeddings = 20
    short = family.writing_short.one_video()
    for call in (
        partial(run, model, inputs),
        partial(model, **family.one_video("And what is this?")),
        partial(run, model, short),
        partial(run, model, short, compression_positions="original"),
        partial(run, model, family.one_video(), retention_ratio=1.0),
    ):
        call()
        assert "was made for 20" in warned.pop() and not warned
