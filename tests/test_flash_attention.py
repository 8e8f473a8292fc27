"""FlashAttention-2 gives what SDPA gives, in every way to generate and train, by the stand-in of flash_attention.py."""

import copy
from typing import Any

import pytest
import torch
from conftest import Family, by_default, only
from flash_attention import put_in_place_of_the_package
from models import RETENTION_RATIO, make_video
from test_generate import answered, batch_of_two, make_prompt
from torch import Tensor
from transformers import BatchFeature, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES

NAME = "flash_attention_2"
ORIGINAL, CONSECUTIVE = ({"compression_positions": name} for name in ("original", "consecutive"))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place_of_the_package(monkeypatch)


@pytest.fixture
def flash(family: Family, stand_in: None) -> PreTrainedModel:
    model = family.load(retention_ratio=RETENTION_RATIO, attn_implementation=NAME)
    assert model.get_decoder().config._attn_implementation == NAME
    assert model.config.vision_config._attn_implementation == NAME
    return model


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


# -- generate ---------------------------------------------------------------------------------------------------------

BEAMS = {"num_beams": 3, "num_return_sequences": 2}
STATIC = {"cache_implementation": "static"}

# A covering set: every way to generate, and every kind of prompt, with gaps between positions and without.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "one video": ("one_video", ORIGINAL),
    "one video, renumbered": ("one_video", CONSECUTIVE),
    "padded batch": ("padded_batch", ORIGINAL),
    "all tokens": ("image_and_video", {"retention_ratio": 1.0}),
    "text": ("text", {}),
    "beams": ("two_videos", BEAMS | ORIGINAL),
    "beams of a padded batch": ("padded_batch", BEAMS | ORIGINAL),
    "static cache": ("image_and_video", STATIC | ORIGINAL),
    "static cache, padded batch": ("padded_batch", STATIC | CONSECUTIVE),
    "static cache, no room left": ("one_video", STATIC | ORIGINAL | {"max_new_tokens": 1}),
    "no cache": ("one_video", {"use_cache": False} | ORIGINAL),
    "no cache, batch": ("batch", {"use_cache": False} | ORIGINAL),
    "chunks": ("image_and_video", {"prefill_chunk_size": 16} | ORIGINAL),
    "chunks of a padded batch": ("padded_batch", {"prefill_chunk_size": 16} | ORIGINAL),
    "prompt lookup": ("one_video", {"prompt_lookup_num_tokens": 3, "max_new_tokens": 12} | ORIGINAL),
    "assistant": ("one_video", {"assistant_model": None, "max_new_tokens": 12} | ORIGINAL),
    "repeats": ("padded_batch", {"vision_method": "skip_repeated", "vision_tolerance": 0.5} | ORIGINAL),
}


def prompt_of(family: Family, kind: str) -> BatchFeature:
    if kind == "padded_batch":
        return batch_of_two(family, images=True)[0]
    if kind == "batch":  # The second video keeps as many tokens as the first, so that nothing is padded.
        return family.inputs(*[family.prompt("What happens?", videos=1)] * 2, videos=[make_video(0)] * 2)
    return make_prompt(family, kind)


def works_in_the_stock_class(family: Any) -> bool:
    """In Transformers 5.19 to 5.24, FlashAttention gets GLM-4V-MoE's positions of three axes as if they were rows,
    and is refused for Molmo2, Qwen4-Exp and GLM-5-Next."""
    return family.name not in ("glm4v_moe", "molmo2", "qwen4_exp", "glm5_next")


def has_attention_of_its_own(family: Any) -> bool:
    """Whether its layers call attention otherwise than those of the representatives do."""
    return (family.keys_are_latent or family.shares_kv) and works_in_the_stock_class(family)


pytestmark = [
    only(works_in_the_stock_class),
    by_default(lambda family: family.representative or has_attention_of_its_own(family)),
]


def exists(family: Any, way: str) -> bool:
    if not works_in_the_stock_class(family):
        return False
    if "chunks" in way:
        return CHUNKS_FEATURES
    drafts = not family.recurrent
    applies = {"prompt lookup": drafts, "assistant": drafts and not family.mrope, "repeats": family.grouped}
    return applies.get(way, True)


@only(exists)
@pytest.mark.parametrize("way", WAYS)
def test_generate_gives_the_tokens_and_logits_of_sdpa(family: Family, flash: PreTrainedModel, way: str) -> None:
    kind, settings = WAYS[way]
    if "assistant_model" in settings:
        text, own = family.stock.config.text_config.to_dict(), ("rope_parameters", "layer_types", "per_layer_config")
        assistant = Qwen2Config(**{name: value for name, value in text.items() if name not in own})
        settings = settings | {"assistant_model": Qwen2ForCausalLM(assistant).eval()}
    ours, theirs = (answered(model, prompt_of(family, kind), **settings) for model in (flash, family.model))
    vars(family.model).pop("_previous_max_cache_length", None)  # or static caches of later tests would be as long
    assert torch.equal(ours.sequences, theirs.sequences)
    assert_close(ours.logits, theirs.logits)


@pytest.mark.parametrize("kind", ["one_video", "padded_batch"])
def test_a_conversation_gives_the_logits_of_sdpa_in_every_turn(
    family: Family, flash: PreTrainedModel, kind: str
) -> None:
    """Text and then another video follow on the cache, so that a prompt with gaps has cached tokens before it."""
    ours, theirs = (answers_of_three_turns(family, model, kind) for model in (flash, family.model))
    assert_close(ours, theirs)


def answers_of_three_turns(family: Family, model: PreTrainedModel, kind: str) -> list[Tensor]:
    first = prompt_of(family, kind)
    rows = len(first["input_ids"])
    text = family.inputs(*[family.prompt("Why?")] * rows)
    video = family.inputs(*[family.prompt("And here?", videos=1)] * rows, videos=[make_video(7)] * rows)
    answers, cache, ids, mask = [], None, first["input_ids"][:, :0], first["attention_mask"][:, :0]
    for turn in (first, text, video):
        ids = torch.cat([ids, turn["input_ids"]], dim=1)
        mask = torch.cat([mask, turn["attention_mask"]], dim=1)
        inputs = dict(turn) | {"input_ids": ids, "attention_mask": mask, "past_key_values": cache}
        if family.case.mrope:
            inputs.pop("mm_token_type_ids", None)
            inputs["mm_token_type_ids"] = family.processor.create_mm_token_type_ids(ids.tolist())
        out = answered(model, inputs, **ORIGINAL, min_new_tokens=6)
        answers.extend(out.logits)
        cache, mask = out.past_key_values, torch.cat([mask, mask.new_ones(rows, 6)], dim=1)
        ids = out.sequences
    return answers


# -- forward ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["one_video", "padded_batch"])
def test_training_gets_the_loss_and_gradients_of_sdpa(family: Family, flash: PreTrainedModel, kind: str) -> None:
    """One row trains without a cache, and a padded batch with checkpoints."""
    inputs = prompt_of(family, kind)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    of_each = []
    for model in (flash, copy.deepcopy(family.model)):
        model.train()
        if kind == "padded_batch":
            model.gradient_checkpointing_enable()
        loss = model(**inputs, labels=labels, use_cache=False, **ORIGINAL).loss
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        of_each.append((loss, gradients))
    assert len(of_each[0][1]) > 20
    torch.testing.assert_close(*of_each, rtol=1e-4, atol=1e-5)


@only(lambda family: family.name == "llava_onevision")
@pytest.mark.parametrize("layers", [["sliding_attention"] * 2, ["full_attention", "sliding_attention"]], ids="-".join)
def test_sliding_windows_give_the_logits_of_sdpa_or_are_refused(
    family: Family, stand_in: None, layers: list[str]
) -> None:
    """FlashAttention takes one number of cached tokens for all layers, but a window makes them hold different ones."""
    config = family.case.config_class.from_pretrained(family.folder, retention_ratio=RETENTION_RATIO)
    text = config.text_config
    text.use_sliding_window, text.sliding_window, text.layer_types = True, 24, layers
    flash, sdpa = (family.load(config=copy.deepcopy(config), attn_implementation=name) for name in (NAME, "sdpa"))
    if len(set(layers)) == 1:
        ours, theirs = (answers_of_three_turns(family, model, "one_video") for model in (flash, sdpa))
        assert_close(ours, theirs)
        return
    ours, theirs = (answered(model, family.one_video(), **ORIGINAL) for model in (flash, sdpa))
    assert_close(ours.logits, theirs.logits)
    with pytest.raises(ValueError, match=r'leaves gaps .* the layers read \[\d+, \d+\] tokens.*"sdpa"'):
        answers_of_three_turns(family, flash, "one_video")


@only(lambda family: family.representative)
def test_the_callers_packed_prompts_stay_apart(family: Family, flash: PreTrainedModel) -> None:
    """Text prompts in one row, told apart by positions that start again, as for training without padding."""
    prompts = [family.inputs(family.prompt(question))["input_ids"] for question in ("Hello.", "Who is there, and why?")]
    order = torch.cat([torch.arange(ids.shape[1]) for ids in prompts])[None]
    positions = order.expand(4, 1, -1) if family.case.mrope else order
    packed = {"input_ids": torch.cat(prompts, dim=1), "position_ids": positions, "use_cache": False}
    with torch.no_grad():
        alone = torch.cat([family.stock(input_ids=ids).logits for ids in prompts], dim=1)
        for model in (family.model, flash):
            if not family.case.recurrent:  # Linear attention reads the first prompt on, in the stock class too.
                assert_close(model(**packed).logits, alone)
        stock = family.load_stock(attn_implementation=NAME)
        assert torch.equal(flash(**packed).logits, stock(**packed).logits)
