"""What this code relies on in Transformers beyond its documented interface, one sentence per test.

A release that breaks one of them makes its test fail by name. Nothing here runs our classes."""

import inspect

import pytest
import torch
import transformers
from conftest import Family, only
from models import CASES_THAT_LOAD, make_image, make_video
from transformers import DynamicCache, GenerationMixin, StaticCache, Trainer
from transformers.cache_utils import Cache
from transformers.generation import utils as generation_utils
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

pytestmark = only(lambda family: family.native)


def test_the_class_that_ours_extends_is_transformers_own_for_the_model_type() -> None:
    for case in CASES_THAT_LOAD:
        if case.native:
            assert getattr(transformers, case.stock_class.__name__) is case.stock_class
            assert CONFIG_MAPPING[case.name] is case.stock_class.config_class


# -- forward ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["model with a head", "inner model"])
def test_the_last_argument_of_forward_takes_any_name(family: Family, part: str) -> None:
    stock = family.stock if part == "model with a head" else family.stock.model
    *_, last = inspect.signature(type(stock).forward).parameters.values()
    assert last.kind is inspect.Parameter.VAR_KEYWORD
    *_, last = inspect.signature(type(family.stock.model).get_video_features).parameters.values()
    assert last.kind is inspect.Parameter.VAR_KEYWORD


@only(lambda family: not family.frames_are_images)
def test_forward_accepts_encoded_videos_instead_of_pixels(family: Family) -> None:
    inputs = family.one_video()
    encoded = {"video": family.stock.model.get_video_features(**family.videos_of(inputs))}
    rest = {name: value for name, value in inputs.items() if name != "pixel_values_videos"}
    assert torch.equal(family.stock(**rest, mm_encoder_outputs=encoded).logits, family.stock(**inputs).logits)


def test_the_model_with_a_head_passes_unknown_arguments_to_the_inner_model(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def inner(**kwargs: object) -> None:
        seen.update(kwargs)
        raise StopIteration

    monkeypatch.setattr(family.stock.model, "forward", inner)
    with pytest.raises(StopIteration):
        family.stock(**family.one_video(), prompt_record="ours")
    assert seen["prompt_record"] == "ours"


def test_the_model_with_a_head_runs_the_inner_model_lm_head_and_loss_function(family: Family) -> None:
    inputs = family.inputs("Hello.")
    hidden = family.stock.model(**inputs).last_hidden_state
    out = family.stock(**inputs, labels=inputs["input_ids"])
    expected, cap = (
        family.stock.lm_head(hidden),
        getattr(family.stock.config.text_config, "final_logit_softcapping", None),
    )
    assert torch.equal(out.logits, expected if cap is None else torch.tanh(expected / cap) * cap)
    vocab_size = family.stock.config.get_text_config().vocab_size
    loss = family.stock.loss_function(logits=out.logits, labels=inputs["input_ids"], vocab_size=vocab_size)
    assert torch.equal(out.loss, loss)


def test_the_inner_model_can_become_another_class_with_its_weights(family: Family) -> None:
    class Inner(type(family.stock.model)):
        pass

    inner = family.stock.model
    stock_class, expected = type(inner), inner(**family.inputs("Hello.")).last_hidden_state
    inner.__class__ = Inner
    try:
        assert torch.equal(inner(**family.inputs("Hello.")).last_hidden_state, expected)
    finally:
        inner.__class__ = stock_class


def test_base_model_is_the_inner_model(family: Family) -> None:
    assert family.stock.base_model is family.stock.model


# -- M-RoPE -----------------------------------------------------------------------------------------------------------


@only(lambda family: family.mrope)
def test_the_language_model_accepts_a_row_of_order_before_three_rows_of_rotary_positions(family: Family) -> None:
    inputs = family.one_video()
    rotary = family.case.full_positions(family.stock, inputs)
    order = torch.arange(rotary.shape[-1]).view(1, 1, -1)
    four = family.stock(**inputs, position_ids=torch.cat([order, rotary])).logits
    torch.testing.assert_close(four, family.stock(**inputs).logits, rtol=0, atol=1e-6)


@only(lambda family: family.mrope)
def test_the_inner_model_keeps_the_rope_deltas_of_the_last_prompt(family: Family) -> None:
    inputs = family.inputs(family.prompt("?", images=1), images=[make_image(0)])
    family.stock(**inputs)
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    given = {name: inputs[name] for name in names if name in inputs}
    positions, rope_deltas = family.stock.model.get_rope_index(**given)
    assert torch.equal(family.stock.model.rope_deltas, rope_deltas)
    assert int(rope_deltas) == int(positions.max()) + 1 - positions.shape[-1]


# -- generate ---------------------------------------------------------------------------------------------------------


def test_generate_makes_its_hooks_in_two_methods_that_get_the_callers_lists_unchanged(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = inspect.signature(GenerationMixin._get_logits_processor).parameters
    seen = {}

    def spy(name: str, argument: str) -> None:
        method = getattr(GenerationMixin, name)

        def spied(self: object, *args: object, **kwargs: object) -> object:
            arguments = inspect.signature(method).bind(self, *args, **kwargs).arguments
            seen[name] = arguments[argument]
            assert "generation_config" in arguments
            return method(self, *args, **kwargs)

        monkeypatch.setattr(GenerationMixin, name, spied)

    spy("_get_logits_processor", "logits_processor")
    spy("_get_stopping_criteria", "stopping_criteria")
    processors, criteria = generation_utils.LogitsProcessorList(), generation_utils.StoppingCriteriaList()
    family.stock.generate(
        **family.inputs("Hello."), max_new_tokens=1, logits_processor=processors, stopping_criteria=criteria
    )
    assert seen["_get_logits_processor"] is processors and seen["_get_stopping_criteria"] is criteria
    assert {"input_ids_seq_length", "encoder_input_ids", "model_kwargs"} <= names.keys()


@only(lambda family: not family.frames_are_images)
def test_generate_encodes_videos_with_get_video_features_and_passes_arguments_by_name(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stock Qwen3.5 of 5.19 claims to read only text, and encodes in `forward`. Ours claims what it reads.
    monkeypatch.setattr(family.case.stock_class, "input_modalities", family.case.model_class.input_modalities)
    encoder = family.stock.model.get_video_features
    seen = []

    def named(pixel_values_videos: object, **kwargs: object) -> object:
        seen.append(kwargs.keys() - set(family.case.video_inputs))
        return encoder(pixel_values_videos, **kwargs)

    named.__dict__["__signature__"] = inspect.signature(encoder)  # `generate` looks for names in it
    monkeypatch.setattr(family.stock.model, "get_video_features", named)
    family.stock.generate(**family.one_video(), max_new_tokens=1)
    assert seen == [{"return_dict"}]


def test_chunked_prefill_splits_encoded_features_if_transformers_has_a_function_for_it() -> None:
    source = inspect.getsource(generation_utils)
    assert hasattr(generation_utils, "_slice_mm_encoder_output") == ("chunk_mm_encoder_outputs" in source)


def test_generate_adds_one_to_the_last_position_of_every_row(family: Family) -> None:
    prompt = family.inputs("Hello.")
    seen = []

    def look(module: object, args: object, kwargs: dict) -> None:
        seen.append(kwargs["position_ids"])

    hook = family.stock.get_decoder().register_forward_pre_hook(look, with_kwargs=True)
    length = prompt["input_ids"].shape[1]
    rows = torch.arange(length).view(1, -1)
    position_ids = rows + 5
    if family.case.mrope:
        position_ids = torch.stack([rows, rows + 7, rows + 8, rows + 9])
    family.stock.generate(**prompt, position_ids=position_ids, max_new_tokens=2, do_sample=False, eos_token_id=None)
    hook.remove()
    assert torch.equal(seen[1], position_ids[..., -1:] + 1)


# -- caches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reorder_cache", "batch_select_indices", "batch_repeat_interleave", "crop", "reset"])
def test_row_operations_are_methods_of_the_cache(name: str) -> None:
    assert callable(getattr(Cache, name))
    for kind in (DynamicCache, StaticCache):
        assert getattr(kind, name) is getattr(Cache, name) or callable(getattr(kind, name))


def test_a_cache_keeps_attributes_and_can_become_a_subclass(family: Family) -> None:
    cache = family.stock(**family.inputs("Hello."), use_cache=True).past_key_values
    cache.__class__ = type("Ours", (type(cache),), {})
    cache.cached_prompt = "ours"
    again = family.stock(family.inputs("And?")["input_ids"], past_key_values=cache).past_key_values
    assert again is cache and cache.cached_prompt == "ours" and cache.get_seq_length() > 0


# -- registrations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
        "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    ],
)
def test_names_can_be_added_to_the_tables_of_class_names(table: str) -> None:
    names = getattr(modeling_auto, table)
    assert names.setdefault("vidcom2_contract", "Nothing") == "Nothing"
    assert "Nothing" in names.values()
    del names["vidcom2_contract"]


@only(lambda family: family.native and (family.legacy_prefixes != {"": ""} or family.legacy_transposed))
def test_checkpoint_conversions_are_looked_up_by_class_name_or_model_type(family: Family) -> None:
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    names = (family.case.stock_class.__name__, family.stock.config.model_type)
    assert any(get_checkpoint_conversion_mapping(name) is not None for name in names)


def test_trainer_asks_the_model_whether_it_scales_its_loss() -> None:
    assert "accepts_loss_kwargs" in inspect.getsource(Trainer)
    assert "keys_to_ignore_at_inference" in inspect.getsource(Trainer)


@only(lambda family: family.name == "llava_onevision")
def test_the_processor_makes_videos_in_a_method_that_returns_features_and_placeholders(family: Family) -> None:
    features, placeholders = family.processor._process_videos(
        [make_video(0)], return_metadata=True, return_tensors="pt", do_sample_frames=False
    )
    assert {"pixel_values_videos", "video_metadata"} <= set(features)
    assert placeholders == [family.processor.video_token * family.case.video_tokens(8)]
    assert placeholders[0] == family.processor.replace_video_token(features, 0)
