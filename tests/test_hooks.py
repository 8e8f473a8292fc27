"""Logits processors and stopping criteria, the caller's and those of `generate`, see the prompt that runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Family
from test_generate import NEW, run
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.generation import EosTokenCriteria, SequenceBiasLogitsProcessor


def new(out: Tensor, inputs: Any) -> Tensor:
    return out[:, inputs["input_ids"].shape[1] :]


def test_the_callers_length_criterion_replaces_that_of_generate(family: Family, short_length: Callable) -> None:
    inputs = family.one_video()
    for ratio in (0.25, 1.0):
        limit = StoppingCriteriaList([MaxLengthCriteria(short_length(inputs, retention_ratio=ratio) + 9)])
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
def test_processors_that_generate_makes_see_the_prompt_that_runs(family: Family, kind: str) -> None:
    """So a prompt that the model shortens gives the tokens of one that was written short."""
    settings = dict(LOOKING_BACK[kind])
    outputs = []
    for inputs in (family.one_video(), family.writing_short.one_video()):
        if kind == "min_length":
            length = inputs["input_ids"].shape[1]
            settings |= {"min_length": length + 3, "max_length": length + NEW}
        outputs.append(new(run(family.model, inputs, **settings), inputs))
    assert torch.equal(*outputs)


def test_token_healing_with_videos_is_refused(family: Family) -> None:
    with pytest.raises(ValueError, match="token_healing"):
        run(family.model, family.one_video(), token_healing=True, tokenizer=family.processor.tokenizer)
