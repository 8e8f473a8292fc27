"""The KV cache has one name since Transformers 5.24 and another before. Callers may use either where both exist."""

import copy
import logging
import warnings

import pytest
import torch
from conftest import Family, only
from test_conversations import QUESTION
from test_generate import NEW, run
from transformers import StaticCache
from transformers.cache_utils import StaticLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging as transformers_logging

from vidcom2.modeling.hosting.in_transformers import CACHE, FORMER_NAME

HAS_BOTH_NAMES = hasattr(BaseModelOutputWithPast, "cache")


@pytest.mark.skipif(not HAS_BOTH_NAMES, reason="Transformers before 5.24 has one name")
@only(lambda family: family.name in ("llava_onevision", "qwen2_vl", "gemma4", "internvl"))
def test_a_conversation_continues_on_a_cache_under_either_name(family: Family) -> None:
    inputs = family.one_video()
    turn = run(family.model, inputs, return_dict_in_generate=True)
    ids = torch.cat([turn.sequences, family.inputs(QUESTION)["input_ids"]], dim=1)
    new = ids[:, turn.sequences.shape[1] - 1 :]
    tokens, logits = [], []
    for name in (CACHE, FORMER_NAME):
        tokens.append(run(family.model, {"input_ids": ids, name: copy.deepcopy(turn[CACHE])}))
        logits.append(family.model(input_ids=new, **{name: copy.deepcopy(turn[CACHE])}).logits)
    assert torch.equal(*tokens) and torch.equal(*logits)
    assert torch.equal(tokens[0], run(family.model, {"input_ids": ids} | family.videos_of(inputs)))
    both = {CACHE: turn[CACHE], FORMER_NAME: turn[CACHE]}
    for call in (family.model, family.model.generate):
        with pytest.raises(ValueError, match=f"two names of the KV cache, and both are given. Pass `{CACHE}` alone"):
            call(input_ids=ids, **both)


@only(lambda family: not family.in_one_class)  # Nemotron's own class reads `config.torch_dtype`
def test_no_call_uses_a_name_that_transformers_gives_up(family: Family, caplog: pytest.LogCaptureFixture) -> None:
    inputs = family.one_video()
    transformers_logging.warning_once.cache_clear()  # another test may have had the warning
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            turn = family.model.generate(**inputs, max_new_tokens=NEW, return_dict_in_generate=True)
            ids = torch.cat([turn.sequences, family.inputs(QUESTION)["input_ids"]], dim=1)
            family.model.generate(input_ids=ids, max_new_tokens=NEW, **{CACHE: turn[CACHE]})
            family.model(**inputs)
    finally:
        logger.removeHandler(caplog.handler)
    assert "deprecated" not in caplog.text


@pytest.mark.skipif(not hasattr(StaticLayer, "crop"), reason="Transformers before 5.24 cannot crop a static cache")
@only(lambda family: family.name in ("llava_onevision", "qwen2_vl"))
def test_an_answer_may_be_cropped_from_a_static_cache(family: Family) -> None:
    inputs = family.one_video()
    cache = StaticCache(config=family.model.config.get_text_config(), max_cache_len=256)
    run(family.model, inputs, **{CACHE: cache})
    cache.crop(-(NEW - 1))
    ids = torch.cat([inputs["input_ids"], family.inputs(QUESTION)["input_ids"]], dim=1)
    again = run(family.model, {"input_ids": ids}, **{CACHE: copy.deepcopy(cache)})
    assert torch.equal(again, run(family.model, {"input_ids": ids} | family.videos_of(inputs)))
    cache.crop(-5)
    with pytest.raises(ValueError, match=r"cropped to \d+ tokens, into a prompt .* which the model shortened"):
        run(family.model, {"input_ids": ids}, **{CACHE: cache})
