"""`forward`, `get_video_features`, the loss and its gradients on the compressed prompt."""

import copy
import inspect

import pytest
import torch
from conftest import Family, by_default, of_representatives, only
from models import RETENTION_RATIO, make_video
from reference import EXACT, compressed_embeddings, position_arguments
from test_generate import batch_of_two, make_prompt
from torch import Tensor
from transformers import BatchFeature
from transformers.utils.generic import ModelOutput

from vidcom2 import compress
from vidcom2.configuration.compression_settings import NUM_KEPT, SETTING_NAMES


def labels_of(family: Family, inputs: BatchFeature) -> Tensor:
    """Return the prompt itself as labels, without placeholders and padding."""
    config = family.model.config
    ignored = torch.isin(inputs["input_ids"], torch.tensor([config.video_token_id, config.image_token_id]))
    return inputs["input_ids"].masked_fill(ignored | (inputs["attention_mask"] == 0), -100)


# -- features ---------------------------------------------------------------------------------------------------------


def test_video_features_equal_the_parents_at_the_indices_of_the_operator(family: Family) -> None:
    inputs = family.inputs(family.prompt("?", videos=2), videos=[make_video(0), make_video(1)])
    theirs = family.stock.model.get_video_features(**family.videos_of(inputs))
    ours = family.model.get_video_features(**family.videos_of(inputs))
    assert isinstance(ours.pooler_output, tuple) and len(ours.pooler_output) == len(ours.video_compressions) == 2
    whole = family.parents_features(inputs)
    for video, kept, compression in zip(whole, ours.pooler_output, ours.video_compressions, strict=True):
        is_scored = family.case.is_scored(len(video))
        tokens = video[is_scored]
        frames = tokens.reshape(-1, family.case.tokens_per_frame, tokens.shape[-1])
        expected = compress(frames, RETENTION_RATIO, **EXACT)
        assert torch.equal(compression.indices, expected.indices)
        assert torch.equal(compression.frame_budgets, expected.frame_budgets)
        stays = ~is_scored
        stays[is_scored.nonzero().flatten()[expected.indices]] = True
        assert torch.equal(kept, video[stays])
    assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)


@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_video_features_have_the_parents_fields_first_and_the_compressions_last(family: Family, ratio: float) -> None:
    inputs = family.one_video()
    videos = family.videos_of(inputs)
    names = list(family.stock.model.get_video_features(**videos))
    features = family.model.get_video_features(**videos, retention_ratio=ratio)
    assert list(features) == [*names, "video_compressions"]
    as_tuple = family.model.get_video_features(**videos, retention_ratio=ratio, return_dict=False)
    assert isinstance(as_tuple, tuple) and len(as_tuple) == len(features)
    assert torch.equal(as_tuple[names.index("pooler_output")][0], features.pooler_output[0])
    assert torch.equal(as_tuple[-1][0].indices, features.video_compressions[0].indices)
    if ratio == 1.0:
        assert torch.equal(torch.cat(features.pooler_output), torch.cat(family.parents_features(inputs)))


@of_representatives
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_a_config_that_asks_for_tuples_is_honoured_or_refused_where_the_parent_fails(
    family: Family, ratio: float
) -> None:
    inputs = make_prompt(family, "image_and_video")
    videos = family.videos_of(inputs)
    model = family.load(retention_ratio=ratio)
    expected = model.get_video_features(**videos, return_dict=False)
    hidden = model.model(**inputs, return_dict=False)[0]
    model.config.return_dict = False
    features = model.get_video_features(**videos)
    assert isinstance(features, tuple) and len(features) == len(expected)
    assert all(type(one) is type(other) for one, other in zip(features, expected, strict=True))
    inner = model.model(**inputs)
    assert isinstance(inner, tuple) and torch.equal(inner[0], hidden)
    assert model.config.return_dict is False
    for call in (model, model.generate):
        with pytest.raises(ValueError, match=r"`config\.return_dict` is False.*pass `return_dict=False`"):
            call(**inputs)


# -- forward ----------------------------------------------------------------------------------------------------------


def features(encoded: ModelOutput) -> torch.Tensor:
    """Return all tokens that an encoder returned, (n, D)."""
    return torch.cat([part.flatten(0, -2) for part in encoded.pooler_output])


@only(lambda family, kind: kind != "image_and_video" or not family.refuses_both)
@pytest.mark.parametrize("kind", ["one_video", "two_videos", "image_and_video", "image", "text"])
def test_at_ratio_1_forward_equals_the_parents_bit_for_bit(family: Family, kind: str) -> None:
    inputs = make_prompt(family, kind)
    labels = labels_of(family, inputs)
    theirs = family.stock(**inputs, labels=labels)
    for ours in (
        family.model(**inputs, labels=labels, retention_ratio=1.0),
        family.uncompressing(**inputs, labels=labels),
    ):
        assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.loss, theirs.loss)
        for name in ("image_outputs", "video_outputs"):  # since Transformers 5.24
            if getattr(theirs, name, None) is not None:
                assert torch.equal(features(ours[name]), features(theirs[name]))
    for ours, other in zip(
        family.uncompressing(**inputs, return_dict=False, use_cache=False),
        family.stock(**inputs, return_dict=False, use_cache=False),
        strict=False,  # Transformers 5.19 appends the `rope_deltas` of an earlier prompt
    ):
        if isinstance(other, tuple):  # the features, which are compared above
            assert isinstance(ours, tuple)
            continue
        if not isinstance(other, torch.Tensor):  # SmolVLM's features of images, which may be in parts
            ours, other = features(ours), features(other)
        if family.case.own_outputs:  # On Transformers 5.19, the parent's features of frames are apart.
            ours, other = ours.flatten(0, -2), other.flatten(0, -2)
        assert torch.equal(ours.flatten(), other.flatten())


@pytest.mark.parametrize("kind", ["one_video", "two_videos", "image_and_video"])
def test_logits_and_loss_equal_those_of_the_prompt_compressed_by_hand(family: Family, kind: str) -> None:
    inputs = make_prompt(family, kind)
    labels = labels_of(family, inputs)
    embeddings, remaining = compressed_embeddings(family, inputs, RETENTION_RATIO)
    positions = position_arguments(family, inputs, remaining)
    theirs = family.stock(inputs_embeds=embeddings, labels=labels[:, remaining], **positions)
    ours = family.model(**inputs, labels=labels)
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-5, atol=1e-6)
    # Each position of the prompt has a row, either its own or that of the last kept token before it.
    last_kept = [max(i for i in remaining.tolist() if i <= position) for position in range(labels.shape[1])]
    rows = [remaining.tolist().index(i) for i in last_kept]
    torch.testing.assert_close(ours.logits, theirs.logits[:, rows], rtol=0, atol=1e-5)


@of_representatives
def test_hidden_states_of_chosen_layers_equal_those_among_all_layers(family: Family) -> None:
    inputs = family.one_video()
    for model, stock in ((family.model, family.stock), (family.model.model, family.stock.model)):
        every = model(**inputs, output_hidden_states=True).hidden_states
        chosen = model(**inputs, output_hidden_states=[1]).hidden_states
        theirs = stock(**inputs, output_hidden_states=[1]).hidden_states
        assert [layer is None for layer in chosen] == [layer is None for layer in theirs]
        if len(theirs) < len(every):  # Transformers 5.19 does not take lists of layers
            continue
        assert all(torch.equal(one, every[i]) for i, one in enumerate(chosen) if one is not None)


def ends_of(inputs: BatchFeature) -> Tensor:
    """Return labels of each prompt's first token, which nothing predicts, and of its last one."""
    own = inputs["attention_mask"].bool()
    number = own.cumsum(dim=1)
    return inputs["input_ids"].masked_fill(~own | ((number != 1) & (number != number[:, -1:])), -100)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_a_padded_batch_equals_its_rows_alone(family: Family, padding_side: str) -> None:
    both, alone = batch_of_two(family, images=True, padding_side=padding_side)
    together = family.model(**both, labels=ends_of(both))
    assert together.logits.shape[:2] == both["input_ids"].shape
    for row, inputs in enumerate(alone):
        separate = family.model(**inputs)
        own = both["attention_mask"][row].bool()
        torch.testing.assert_close(together.logits[row, own], separate.logits[0], rtol=0, atol=1e-5)
    losses = [family.model(**inputs, labels=ends_of(inputs)).loss for inputs in alone]
    torch.testing.assert_close(together.loss, sum(losses) / 2, rtol=1e-4, atol=1e-5)


# What is padding in a short prompt, only its mask tells, as with the stock class.
@only(lambda asking, masked: asking == "stock" or masked)
@by_default(lambda family, asking: asking == "stock" or family.representative)
@pytest.mark.parametrize("masked", [True, False])
def test_a_hand_written_decoding_loop_gives_the_tokens_of_generate(asking: Family, masked: bool) -> None:
    both, _ = batch_of_two(asking)
    expected = asking.model.generate(**both, max_new_tokens=5, do_sample=False)[:, both["input_ids"].shape[1] :]
    with torch.no_grad():
        out = asking.model(**both, use_cache=True, logits_to_keep=1)
        asking.model(**asking.one_video())  # another conversation comes in between
        mask = both["attention_mask"]
        assert out.logits.shape[1] == 1
        tokens = []
        for _ in range(5):
            tokens.append(out.logits[:, -1].argmax(-1, keepdim=True))
            mask = torch.cat([mask, torch.ones_like(tokens[-1])], dim=1)
            kwargs = {"attention_mask": mask} if masked else {}
            out = asking.model(input_ids=tokens[-1], past_key_values=out.past_key_values, **kwargs)
    assert torch.equal(torch.cat(tokens, dim=1), expected)


@of_representatives
def test_a_mask_that_fits_neither_the_conversation_nor_the_cache_is_refused(family: Family) -> None:
    inputs = family.one_video()
    out = family.model(**inputs, use_cache=True)
    token = out.logits[:, -1:].argmax(-1)
    mask = torch.ones(1, inputs["input_ids"].shape[1], dtype=torch.long)
    with pytest.raises(ValueError, match=r"covers the .* tokens of the conversation"):
        family.model(input_ids=token, attention_mask=mask, past_key_values=out.past_key_values)


def test_forward_takes_the_stock_classs_arguments_in_its_order_with_and_without_the_head(family: Family) -> None:
    """Callers pass them by position, and libraries look for `attention_mask` in the signature."""
    stock, text = family.untouched_stock(), family.inputs(family.prompt("Hello."))
    for ours, theirs in ((family.model, stock), (family.model.model, getattr(stock, "model", stock))):
        given = inspect.signature(type(ours).forward).parameters
        expected = inspect.signature(type(theirs).forward).parameters
        added = {NUM_KEPT, *SETTING_NAMES, *family.case.model_class.inner_class.video_arguments} - set(expected)
        assert [name for name in given if name not in added] == list(expected) and added <= set(given)
        *names, _ = inspect.signature(theirs.forward).parameters
        by_position = [text.get(name) for name in names[: names.index("attention_mask") + 1]]
        assert torch.equal(ours(*by_position)[0], theirs(**text)[0])


# -- training ---------------------------------------------------------------------------------------------------------


def test_gradients_reach_the_language_model_the_projector_and_the_vision_tower(family: Family) -> None:
    model = copy.deepcopy(family.model).train()
    inputs = make_prompt(family, "one_video" if family.case.refuses_both else "image_and_video")
    model(**inputs, labels=labels_of(family, inputs)).loss.backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    stock = copy.deepcopy(family.stock).train()
    stock(**inputs, labels=labels_of(family, inputs)).loss.backward()
    theirs = [name for name, weight in stock.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert without == theirs


@by_default(lambda family: family.representative or family.shares_kv)
def test_gradient_checkpointing_of_either_kind_changes_no_gradient(family: Family) -> None:
    inputs = family.one_video()
    gradients = []
    for checkpointing in (None, {"use_reentrant": False}, {"use_reentrant": True})[: 2 if family.case.shares_kv else 3]:
        model = copy.deepcopy(family.model).train()
        if checkpointing is not None:
            model.gradient_checkpointing_enable(checkpointing)
        model(**inputs, labels=labels_of(family, inputs)).loss.backward()
        gradients.append(torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None]))
    for checkpointed in gradients[1:]:
        torch.testing.assert_close(checkpointed, gradients[0], rtol=1e-4, atol=1e-6)


@torch.no_grad()
@only(lambda family: family.mrope)
def test_short_prompts_take_the_positions_that_the_model_tells(family: Family) -> None:
    """Where placeholders move to the budgets of their frames, the order stays, and (t, h, w) follow the tokens."""
    short = family.writing_short
    inputs, text = dict(short.one_video()), dict(family.inputs("Hello."))
    positions = short.model.model.get_position_ids(**inputs)
    given = inputs | {"position_ids": positions, "use_cache": False}
    torch.testing.assert_close(short.model(**given).logits, short.model(**inputs).logits, rtol=0, atol=1e-5)
    given = text | {"position_ids": short.model.model.get_position_ids(**text)}
    torch.testing.assert_close(short.model(**given).logits, family.stock(**text).logits, rtol=0, atol=1e-5)


@torch.no_grad()
@only(lambda family: family.mrope)
def test_positions_of_whole_prompts_are_the_stock_classs_and_of_shortened_ones_are_refused(family: Family) -> None:
    inputs = dict(family.one_video())
    order, *rotary = family.model.model.get_position_ids(**inputs, retention_ratio=1.0)
    assert torch.equal(order, torch.arange(order.shape[1])[None])
    seen: list[Tensor] = []
    language_model = family.stock.model.language_model
    hook = language_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True
    )
    family.stock(**inputs)
    hook.remove()
    assert torch.equal(torch.stack(rotary), seen[0][-3:])
    with pytest.raises(ValueError, match="those of dropped tokens have no positions"):
        family.model.model.get_position_ids(**inputs)
