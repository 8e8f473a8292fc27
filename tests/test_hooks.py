"""Logits processors and stopping criteria, the caller's and those of `generate`, act as on the full prompt."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Family
from test_generate import NEW, batch_of_two, run
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    WatermarkingConfig,
    WatermarkLogitsProcessor,
)
from transformers.generation import EosTokenCriteria, SequenceBiasLogitsProcessor


def new(out: Tensor, inputs: Any) -> Tensor:
    return out[:, inputs["input_ids"].shape[1] :]


def test_the_callers_length_criterion_replaces_that_of_generate(family: Family) -> None:
    inputs = family.one_video()
    limit = StoppingCriteriaList([MaxLengthCriteria(inputs["input_ids"].shape[1] + 9)])
    for ratio in (0.25, 1.0):
        endless = {"max_new_tokens": 4, "suppress_tokens": [family.processor.tokenizer.eos_token_id]}
        out = run(family.model, inputs, **endless, stopping_criteria=limit, retention_ratio=ratio)
        assert new(out, inputs).shape[1] == 9


def test_the_callers_end_token_criterion_replaces_that_of_generate(family: Family) -> None:
    inputs = family.one_video()
    greedy = new(run(family.model, inputs), inputs)[0].tolist()
    stop = StoppingCriteriaList([EosTokenCriteria(greedy[2])])
    out = run(family.model, inputs, eos_token_id=greedy[0], stopping_criteria=stop)
    assert new(out, inputs)[0].tolist() == greedy[: greedy.index(greedy[2]) + 1]


# Settings, a processor of the same type, and the settings from which `generate` makes that processor.
PROCESSORS: dict[str, tuple[dict, Callable, dict]] = {
    "repetition_penalty": (
        {"repetition_penalty": 5.0},
        lambda: RepetitionPenaltyLogitsProcessor(0.01),
        {"repetition_penalty": 0.01},
    ),
    "no_repeat_ngram": (
        {"no_repeat_ngram_size": 2, "repetition_penalty": 0.01},
        lambda: NoRepeatNGramLogitsProcessor(1),
        {"no_repeat_ngram_size": 1, "repetition_penalty": 0.01},
    ),
    "sequence_bias": (
        {"sequence_bias": [[[7], 100.0]]},
        lambda: SequenceBiasLogitsProcessor([[[9], 100.0]]),
        {"sequence_bias": [[[9], 100.0]]},
    ),
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_the_callers_processor_replaces_that_of_generate(family: Family, kind: str) -> None:
    settings, processor, same = PROCESSORS[kind]
    inputs = family.one_video()
    out = run(family.model, inputs, logits_processor=LogitsProcessorList([processor()]), **settings)
    assert torch.equal(out, run(family.model, inputs, **same))
    assert not torch.equal(out, run(family.model, inputs, **settings)), "both processors give the same tokens"


def shown_to_processors(family: Family, inputs: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[tuple]:
    """Record for each call the processor's name, the sequence it was shown, and the arguments it was made with."""
    from transformers.generation import logits_process, utils

    seen = []
    for name in dir(logits_process):
        cls = getattr(logits_process, name)
        if not (isinstance(cls, type) and issubclass(cls, logits_process.LogitsProcessor)):
            continue

        class Spy(cls):
            _name = name

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self._made_with = [each for each in (*args, *kwargs.values()) if isinstance(each, (int, Tensor))]
                super().__init__(*args, **kwargs)

            def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
                seen.append((self._name, input_ids.clone(), self._made_with))
                return super().__call__(input_ids, scores)

        if hasattr(utils, name):
            monkeypatch.setattr(utils, name, Spy)
    run(family.model, inputs, **settings)
    return seen


LOOKING_BACK = {
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "sequence_bias": {"sequence_bias": [[[7, 8], 2.0]]},
    "bad_words_ids": {"bad_words_ids": [[7, 8]]},
    "min_length": {"max_new_tokens": None, "eos_token_id": 5},
    "min_new_tokens": {"min_new_tokens": 3, "eos_token_id": 5},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (1, 1.5), "eos_token_id": 5},
    "begin_suppress_tokens": {"begin_suppress_tokens": [5]},
    "forced_eos_token_id": {"forced_eos_token_id": 5},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda batch, ids: list(range(256))},
}


@pytest.mark.parametrize("kind", LOOKING_BACK)
def test_processors_that_generate_makes_see_the_full_prompt(
    family: Family, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    both, _ = batch_of_two(family)
    full = both["input_ids"]
    settings = LOOKING_BACK[kind]
    if kind == "min_length":
        settings = {"min_length": full.shape[1] + 3, "max_length": full.shape[1] + NEW} | settings
    with monkeypatch.context() as patch:
        compressed = shown_to_processors(family, both, patch, **settings)
    with monkeypatch.context() as patch:
        whole = shown_to_processors(family, both, patch, retention_ratio=1.0, **settings)
    assert compressed and [name for name, *_ in compressed][:1] == [name for name, *_ in whole][:1]
    for (name, ids, made_with), (_, other_ids, other_made_with) in zip(compressed, whole):
        assert torch.equal(ids[:, : full.shape[1]], full), name
        assert ids.shape == other_ids.shape
        assert len(made_with) == len(other_made_with)
        for one, other in zip(made_with, other_made_with, strict=True):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other)), name


def test_a_watermark_is_computed_from_the_full_prompt(family: Family) -> None:
    """It equals that of the caller's own processor, which sees the full prompt. Its context includes the video."""
    inputs = family.one_video()
    settings = {"seeding_scheme": "selfhash", "bias": 20.0}
    context = inputs["input_ids"].shape[1] - 1
    marked = run(family.model, inputs, watermarking_config=WatermarkingConfig(context_width=context, **settings))
    size = family.model.config.get_text_config().vocab_size
    own = WatermarkLogitsProcessor(size, "cpu", context_width=context, **settings)
    assert torch.equal(marked, run(family.model, inputs, logits_processor=LogitsProcessorList([own])))
    assert not torch.equal(marked, run(family.model, inputs))


def test_token_healing_with_videos_is_refused(family: Family) -> None:
    with pytest.raises(ValueError, match="token_healing"):
        run(family.model, family.one_video(), token_healing=True, tokenizer=family.processor.tokenizer)
