"""A mixture of experts on the compressed prompt: its routing, and the loss that balances the experts."""

from typing import Any

import pytest
import torch
from conftest import Family, build_family
from models import CASES_THAT_LOAD, RETENTION_RATIO
from reference import compressed_embeddings, new_tokens, position_arguments
from test_forward import labels_of
from test_generate import batch_of_two, make_prompt, run
from torch import Tensor


@pytest.fixture(
    scope="module", params=[case for case in CASES_THAT_LOAD if "moe" in case.name], ids=lambda case: case.name
)
def experts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return build_family(request.param, tmp_path_factory)


def test_a_mixture_of_experts_generates_the_tokens_of_the_prompt_compressed_by_hand(experts: Family) -> None:
    for kind in ("two_videos", "image_and_video"):
        inputs = make_prompt(experts, kind)
        expected = new_tokens(experts, inputs, RETENTION_RATIO, 6, do_sample=False, pad_token_id=256)
        assert torch.equal(run(experts.model, inputs)[:, inputs["input_ids"].shape[1] :], expected)


def balance(layers: list[Tensor], num_experts: int, chosen: int) -> float:
    """Sum each expert's share of the choices times its mean probability, from each layer's router logits
    (tokens, experts). These are Switch Transformers' equations 4 to 6, over all layers."""
    counts, probabilities, tokens = [0.0] * num_experts, [0.0] * num_experts, 0
    for layer in layers:
        for token in layer.double().softmax(dim=-1).tolist():
            tokens += 1
            for expert in sorted(range(num_experts), key=lambda e: -token[e])[:chosen]:
                counts[expert] += 1
            for expert in range(num_experts):
                probabilities[expert] += token[expert]
    return num_experts * sum(c / tokens * p / tokens for c, p in zip(counts, probabilities))


@torch.no_grad()
def test_the_balancing_loss_is_computed_over_the_compressed_prompts_tokens(experts: Family) -> None:
    """That holds in a padded batch, with the loss and without, and in another library's head."""
    both, alone = batch_of_two(experts)
    labels, text = labels_of(experts, both), experts.model.config.text_config
    layers: list[list[Tensor]] = []
    for inputs in alone:
        embeddings, remaining = compressed_embeddings(experts, inputs, RETENTION_RATIO)
        arguments: dict[str, Any] = position_arguments(experts, inputs, remaining) | {"output_router_logits": True}
        layers.append(experts.stock(inputs_embeds=embeddings, **arguments).router_logits)
    layers = [list(layer) for layer in zip(*layers, strict=True)]
    joined = [torch.cat(layer) for layer in layers]
    num_experts = joined[0].shape[1]
    expected = balance(joined, num_experts, text.num_experts_per_tok)

    out = experts.model(**both, output_router_logits=True)
    assert out.aux_loss.item() == pytest.approx(expected, rel=1e-5) and out.loss is None
    assert [len(layer) for layer in out.router_logits] == [2 * max(len(a) for a in layer) for layer in layers]
    plain, balanced = (experts.model(**both, labels=labels, output_router_logits=wanted) for wanted in (False, True))
    assert plain.aux_loss is None and plain.router_logits is None
    torch.testing.assert_close(balanced.loss, plain.loss + text.router_aux_loss_coef * out.aux_loss)
    torch.testing.assert_close(balanced.logits, plain.logits)

    inner = experts.model.model(**both, output_router_logits=True)
    assert [len(layer) for layer in inner.router_logits] == [both["input_ids"].numel()] * len(layers)
    attended = both["attention_mask"].flatten().bool()
    elsewhere = balance([layer[attended] for layer in inner.router_logits], num_experts, text.num_experts_per_tok)
    assert elsewhere == pytest.approx(expected, rel=0.02)


def test_without_video_the_balancing_loss_equals_the_parents(experts: Family) -> None:
    inputs = experts.inputs("Hello.", "Hello there, who is it?")
    ours, theirs = (
        model(**inputs, labels=labels_of(experts, inputs), output_router_logits=True)
        for model in (experts.model, experts.stock)
    )
    assert torch.equal(ours.aux_loss, theirs.aux_loss) and torch.equal(ours.loss, theirs.loss)


def test_masks_in_a_dict_are_refused_as_in_other_families(experts: Family) -> None:
    inputs = experts.one_video()
    masks = {"full_attention": None}
    with pytest.raises(ValueError, match=r"`attention_mask` is dict.*Pass a 2-D mask"):
        experts.model(**dict(inputs) | {"attention_mask": masks})
