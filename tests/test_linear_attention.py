"""The states of linear attention hold no padding, and whatever would put some there is refused."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Family
from models import EACH_MODEL, RETENTION_RATIO, video_places
from test_conversations import QUESTION
from test_generate import NEW, UNEVEN, answered, batch_of_two, make_prompt, run
from torch import Tensor
from transformers import BatchFeature, StaticCache

pytestmark = pytest.mark.parametrize("family", [each for each in EACH_MODEL if each.values[0].recurrent], indirect=True)
CLOSE = {"rtol": 0, "atol": 1e-5}
GAP = "linear attention cannot leave them out"


def states(cache: Any) -> list[Tensor]:
    """Return the states of the layers of linear attention, a row for each prompt."""
    linear = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
    assert linear
    kinds = [kind for layer in linear for kind in (layer.conv_states, layer.recurrent_states) if kind]
    return [kind[0] for kind in kinds if kind[0] is not None]  # LFM3's layers have those of convolutions alone


def next_turn(turn: Any, inputs: BatchFeature, questions: list[Tensor]) -> dict[str, Tensor]:
    """Append a question, padded on its left, to each conversation of a batch."""
    length = max(len(question) for question in questions)
    ids = torch.stack([torch.nn.functional.pad(each, (length - len(each), 0), value=33) for each in questions])
    mask = torch.tensor([[0] * (length - len(each)) + [1] * len(each) for each in questions])
    answers = torch.ones_like(turn.sequences[:, inputs["input_ids"].shape[1] :])
    return {
        "input_ids": torch.cat([turn.sequences, ids], dim=1),
        "attention_mask": torch.cat([inputs["attention_mask"], answers, mask], dim=1),
    }


def questions(family: Family, *texts: str) -> list[Tensor]:
    return [family.inputs(QUESTION.replace("Why", text))["input_ids"][0] for text in texts]


@torch.no_grad()
@pytest.mark.parametrize("images", [False, True], ids=["videos", "images and videos"])
def test_padding_of_the_compressed_prompt_does_not_reach_the_states(family: Family, images: bool) -> None:
    both, alone = batch_of_two(family, images)
    together = family.model(**both, use_cache=True)
    assert (together.past_key_values.conversation.order < 0).any(), "without padding nothing is tested"
    for row, inputs in enumerate(alone):
        separate = family.model(**inputs, use_cache=True)
        torch.testing.assert_close(together.logits[row, -1], separate.logits[0, -1], **CLOSE)
        for state, expected in zip(states(together.past_key_values), states(separate.past_key_values), strict=True):
            torch.testing.assert_close(state[row], expected[0], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("by", ["generate", "forward"])
def test_a_second_turn_of_a_batch_equals_each_row_alone(family: Family, by: str, kind: str) -> None:
    both, alone = batch_of_two(family)

    def second_turn(inputs: BatchFeature) -> list[Tensor]:
        """Return the logits of both turns, and the states after them."""
        cache = StaticCache(family.model.config.get_text_config(), max_cache_len=300) if kind == "static" else None
        turn = answered(family.model, inputs, min_new_tokens=NEW, past_key_values=cache)
        question = questions(family, "Why") * len(inputs["input_ids"])
        given = next_turn(turn, inputs, question)
        if by == "generate":
            said = answered(family.model, given, min_new_tokens=NEW, past_key_values=turn.past_key_values)
            return [*turn.logits, *said.logits, *states(said.past_key_values)]
        new = torch.cat([turn.sequences[:, -1:], torch.stack(question)], dim=1)
        out = family.model(input_ids=new, attention_mask=given["attention_mask"], past_key_values=turn.past_key_values)
        return [*turn.logits, out.logits, *states(out.past_key_values)]

    together = second_turn(both)
    for row, inputs in enumerate(alone):
        for ours, expected in zip(together, second_turn(inputs), strict=True):
            torch.testing.assert_close(ours[row], expected[0], **CLOSE)


def video_turn(family: Family, turn: Any, inputs: BatchFeature) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask about the same videos again, of which the prompts keep different numbers of tokens."""
    whole = {
        "input_ids": torch.cat([turn.sequences, inputs["input_ids"]], dim=1),
        "attention_mask": torch.ones(2, turn.sequences.shape[1] + inputs["input_ids"].shape[1], dtype=torch.long),
    }
    whole["attention_mask"][:, : inputs["input_ids"].shape[1]] = inputs["attention_mask"]
    new = {"input_ids": torch.cat([turn.sequences[:, -1:], inputs["input_ids"]], dim=1)}
    return whole | family.videos_of(inputs) | UNEVEN, new | family.videos_of(inputs) | UNEVEN


def longer_question(family: Family, turn: Any, inputs: BatchFeature) -> tuple[dict[str, Any], dict[str, Any]]:
    whole = next_turn(turn, inputs, questions(family, "Why", "And where"))
    return whole, whole | {"input_ids": whole["input_ids"][:, turn.sequences.shape[1] - 1 :]}


def hidden_answer(family: Family, turn: Any, inputs: BatchFeature) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mask the end of a prompt's answer, as if it had been answered before the others."""
    whole = next_turn(turn, inputs, questions(family, "Why") * 2)
    whole["attention_mask"][1, inputs["input_ids"].shape[1] + 2 : turn.sequences.shape[1]] = 0
    return whole, whole | {"input_ids": whole["input_ids"][:, turn.sequences.shape[1] - 1 :]}


@torch.no_grad()
@pytest.mark.parametrize("second", [video_turn, longer_question, hidden_answer])
def test_padding_between_tokens_is_refused_and_leaves_the_cache_intact(family: Family, second: Callable) -> None:
    both, _ = batch_of_two(family)
    turn = answered(family.model, both, min_new_tokens=NEW)
    for_generate, for_forward = second(family, turn, both)
    cache, intact = turn.past_key_values, copy.deepcopy(turn.past_key_values)
    with pytest.raises(ValueError, match=GAP):
        run(family.model, for_generate, past_key_values=cache)
    with pytest.raises(ValueError, match=GAP):
        family.model(**for_forward, past_key_values=cache)
    with_positions = {name: each for name, each in for_forward.items() if name in ("input_ids", "attention_mask")}
    if "attention_mask" in with_positions:  # the caller's own mask and positions, where nothing is to be compressed
        positions = torch.arange(with_positions["input_ids"].shape[1]).expand(4, 2, -1)
        with pytest.raises(ValueError, match=GAP):
            family.model(**with_positions, position_ids=positions, past_key_values=cache)
    continued = next_turn(turn, both, questions(family, "Why") * 2)
    expected = run(family.model, continued, past_key_values=intact)
    assert torch.equal(run(family.model, continued, past_key_values=cache), expected)


@torch.no_grad()
def test_a_loop_continues_while_finished_prompts_are_masked(family: Family) -> None:
    """Nothing follows the hidden tokens of a finished prompt."""
    both, _ = batch_of_two(family)
    mask = both["attention_mask"]
    cache = family.model(**both, use_cache=True).past_key_values
    other = copy.deepcopy(cache)
    for token in (20, 21, 22):
        step = torch.full((2, 1), token)
        mask = torch.cat([mask, torch.tensor([[1], [0]])], dim=1)
        logits = family.model(input_ids=step, attention_mask=mask, past_key_values=cache).logits
        assert torch.equal(logits[0], family.model(input_ids=step, past_key_values=other).logits[0])
    with pytest.raises(ValueError, match=GAP):
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
        family.model(input_ids=step, attention_mask=mask, past_key_values=cache)


def test_prompts_padded_on_the_right_cannot_be_continued(family: Family) -> None:
    """That holds with all tokens. A compressed prompt is padded on the left, wherever the caller's padding was."""
    both, _ = batch_of_two(family, padding_side="right")
    mask = torch.nn.functional.pad(both["attention_mask"], (0, 1), value=1)
    step = {"input_ids": torch.full((2, 1), 20), "attention_mask": mask}
    full = family.model(**both, use_cache=True, retention_ratio=1.0)
    with pytest.raises(ValueError, match=GAP):
        family.model(**step, past_key_values=full.past_key_values)
    compressed = family.model(**both, use_cache=True)
    assert family.model(**step, past_key_values=compressed.past_key_values).logits.shape[1] == 1


@torch.no_grad()
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
@pytest.mark.parametrize("kind", ["image_and_video", "image"])
def test_beams_see_the_media_of_their_prompt(family: Family, kind: str, ratio: float) -> None:
    """Each beam's first step equals the prompt's alone. (In the stock class of Transformers 5.19 it does not.)"""
    inputs = make_prompt(family, kind)
    expected = family.model(**inputs, retention_ratio=ratio).logits[:, -1]
    said = answered(family.model, inputs, num_beams=3, retention_ratio=ratio)
    torch.testing.assert_close(said.logits[0], expected.expand(3, -1), **CLOSE)


@torch.no_grad()
def test_text_that_is_hidden_before_a_video_that_ends_the_prompt_is_refused(family: Family) -> None:
    inputs = family.one_video()
    is_video = video_places(family.model.config, inputs["input_ids"])[0]
    last = int(is_video.nonzero()[-1])
    text = int((~is_video[:last]).nonzero()[-1])  # the last before the video's last group of placeholders
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        if name in inputs:
            inputs[name] = inputs[name][:, : last + 1].clone()
    inputs["attention_mask"][0, text] = 0
    with pytest.raises(ValueError, match=GAP):
        family.model(**inputs)
