"""Molmo2 beyond what all families share: what its processor and its patches must be."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import Family, only
from test_generate import assert_same, run

import vidcom2
from vidcom2.families.table import FAMILIES

MOLMO2 = FAMILIES["molmo2"]


@pytest.mark.skipif(MOLMO2.runs_here, reason="this Transformers has the family")
def test_a_transformers_without_the_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "molmo2"}')
    for make in (lambda: MOLMO2.config_class, lambda: MOLMO2.build_tiny, lambda: vidcom2.load(tmp_path)):
        with pytest.raises(ValueError, match=r"Molmo2 needs Transformers 5\.20 or newer, but 5\.19"):
            make()


@only(lambda family: family.adds_features)
@pytest.mark.parametrize("wrong", [{"video_use_col_tokens": True}, {"use_frame_special_tokens": False}], ids=str)
def test_a_processor_that_marks_frames_otherwise_is_refused(family: Family, wrong: dict[str, bool]) -> None:
    of = replace(family.writing_short, processor=copy.copy(family.writing_short.processor))
    for name, value in wrong.items():
        setattr(of.processor, name, value)
    with pytest.raises(ValueError, match=r"`video_use_col_tokens` is .* Set them to False and True"):
        of.one_video()


@only(lambda family: family.adds_features)
def test_patches_that_differ_between_frames_or_belong_to_others_are_refused(family: Family) -> None:
    inputs = family.one_video()
    pooling = inputs["video_token_pooling"]
    for wrong in (pooling + 1, pooling.flip(0), pooling - 81):
        with pytest.raises(ValueError, match="does not take the same patches of each frame of video 0"):
            family.model(**inputs | {"video_token_pooling": wrong})
    for wrong in ({"video_token_pooling": pooling[1:]}, {"video_grids": inputs["video_grids"] * 2}):
        with pytest.raises(ValueError, match="they must describe at least one frame, of 81 patches"):
            family.model(**inputs | wrong)


@only(lambda family: family.adds_features)
@pytest.mark.parametrize("prompt", ["stock", "short"])
def test_placeholders_may_lie_beyond_the_vocabulary_of_the_head(family: Family, prompt: str) -> None:
    """As in the released checkpoints. Logits processors pass such ids over, and labels of them are -100."""
    config = copy.deepcopy(family.stock.config)
    vocabulary = family.processor.tokenizer.convert_tokens_to_ids("<|image|>")  # the special tokens come after it
    config.text_config.additional_vocab_size += config.text_config.vocab_size - vocabulary
    config.text_config.vocab_size = vocabulary
    torch.manual_seed(0)
    stock = type(family.stock)(config).eval()
    model = family.case.model_class(family.case.config_class(**config.to_dict() | {"retention_ratio": 0.25})).eval()
    model.load_state_dict(stock.state_dict())
    inputs = (family if prompt == "stock" else family.writing_short).one_video()
    whole = family.one_video()
    assert whole["input_ids"].max() >= stock.lm_head.out_features == vocabulary
    scores = {"return_dict_in_generate": True, "output_scores": True}
    for mode in ({"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 1}, {"num_beams": 2}):
        theirs, ours = run(stock, whole, **mode, **scores), run(model, whole, retention_ratio=1.0, **mode, **scores)
        assert_same((ours.sequences, ours.scores), (theirs.sequences, theirs.scores))
        said = run(model, inputs, **mode)[:, inputs["input_ids"].shape[1] :]
        assert torch.equal(said, run(model, whole, **mode)[:, whole["input_ids"].shape[1] :])
    labels, all_labels = (
        each["input_ids"].masked_fill(each["input_ids"] >= vocabulary, -100) for each in (inputs, whole)
    )
    assert torch.equal(
        model(**whole, retention_ratio=1.0, labels=all_labels).loss, stock(**whole, labels=all_labels).loss
    )
    torch.testing.assert_close(model(**inputs, labels=labels).loss, model(**whole, labels=all_labels).loss)
    for each, of in ((stock, whole), (model, inputs)):  # no loss is computed of such a label
        with pytest.raises(IndexError, match="out of bounds"):
            each(**of, labels=of["input_ids"])
