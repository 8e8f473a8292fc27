"""Batches whose rows have different media, or none, on prompts of either processor: each row is as it is alone."""

import copy
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
from conftest import Family, by_default, of_representatives
from models import make_image, make_video
from test_generate import MODES, NEW, run
from torch import Tensor
from transformers import BatchFeature

# How many videos and images each kind of row has.
ROWS = {"video": (1, 0), "two videos": (2, 0), "image": (0, 1), "image and video": (1, 1), "text": (0, 0)}
EVERY_KIND = [tuple(ROWS), tuple(reversed(ROWS))]  # In these two, each kind stands before each other one.
BATCHES = [*permutations(("video", "text"), 2), *permutations(("video", "image"), 2), *EVERY_KIND]


def batch_of(asking: Family, kinds: tuple[str, ...], side: str = "left") -> BatchFeature:
    """Return a batch of rows of these kinds. A kind's text and media are the same in every batch."""
    prompts, media = [], {"videos": [], "images": []}
    for kind in kinds:
        seed = 10 * list(ROWS).index(kind)
        videos, images = ROWS[kind]
        prompts.append(asking.prompt(f"What is it? {'Say more. ' * (seed // 10)}", videos, images))
        media["videos"] += [make_video(seed + number) for number in range(videos)]
        media["images"] += [make_image(seed + number) for number in range(images)]
    return asking.inputs(*prompts, **media, padding_side=side)


def last_tokens(inputs: Any) -> Tensor:
    """Return labels of each prompt's last token alone, so that a batch's loss is the mean of its rows'."""
    ranks = inputs["attention_mask"].cumsum(dim=1)
    is_last = inputs["attention_mask"].bool() & (ranks == ranks[:, -1:])
    return inputs["input_ids"].masked_fill(~is_last, -100)


@by_default(lambda family, asking: family.representative or asking == "short")
@pytest.mark.parametrize("side", ["left", "right"])
def test_each_row_has_the_logits_and_the_loss_that_it_has_alone(asking: Family, side: str) -> None:
    @cache
    def alone(kind: str) -> Any:
        inputs = batch_of(asking, (kind,))
        with torch.no_grad():
            return asking.model(**inputs, labels=last_tokens(inputs))

    for kinds in BATCHES:
        inputs = batch_of(asking, kinds, side)
        with torch.no_grad():
            together = asking.model(**inputs, labels=last_tokens(inputs))
        assert together.logits.shape[:2] == inputs["input_ids"].shape
        for kind, logits, mask in zip(kinds, together.logits, inputs["attention_mask"].bool(), strict=True):
            assert torch.allclose(logits[mask], alone(kind).logits[0], rtol=0, atol=3e-5), f"{kind} of {kinds}"
        losses = torch.stack([alone(kind).loss for kind in kinds])
        torch.testing.assert_close(together.loss, losses.mean(), rtol=1e-4, atol=1e-5)


@of_representatives
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batchs_gradients_are_the_mean_of_its_rows(asking: Family, side: str) -> None:
    def gradients(*batches: BatchFeature) -> dict[str, Tensor]:
        model = copy.deepcopy(asking.model).train()
        for inputs in batches:
            (model(**inputs, labels=last_tokens(inputs)).loss / len(batches)).backward()
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    kinds = EVERY_KIND[side == "right"]
    together = gradients(batch_of(asking, kinds, side))
    expected = gradients(*(batch_of(asking, (kind,)) for kind in kinds))
    scale = max(float(each.abs().max()) for each in expected.values())
    assert together.keys() == expected.keys() and scale > 0
    for name, gradient in expected.items():
        torch.testing.assert_close(together[name], gradient, rtol=1e-3, atol=1e-4 * scale, msg=name)


@by_default(lambda family, asking: family.representative or asking == "stock")
@pytest.mark.parametrize("mode", ["greedy", "beams_returned", "repetition_penalty", "static_cache"])
def test_each_row_is_answered_as_it_is_alone(asking: Family, mode: str) -> None:
    rows = MODES[mode].get("num_return_sequences", 1)

    def answers(kinds: tuple[str, ...]) -> tuple[Tensor, ...]:
        inputs = batch_of(asking, kinds)
        out, length = run(asking.model, inputs, min_new_tokens=NEW, **MODES[mode]), inputs["input_ids"].shape[1]
        for of_prompt, ids in zip(out.split(rows), inputs["input_ids"], strict=True):
            assert (of_prompt[:, :length] == ids).all(), "answers stand behind another prompt"
        return out[:, length:].split(rows)

    alone = {kind: answers((kind,))[0] for kind in ROWS}
    for kinds in BATCHES if mode == "greedy" else EVERY_KIND[:1]:
        for kind, answer in zip(kinds, answers(kinds), strict=True):
            assert torch.equal(answer, alone[kind]), f"{kind} of {kinds}"
