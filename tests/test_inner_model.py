"""Code that calls the inner model or replaces `forward` still runs the language model on the compressed prompt."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import Family, of_representatives, only
from models import RETENTION_RATIO, video_places
from reference import compressed_embeddings, language_model_lengths, position_arguments
from test_forward import labels_of
from test_generate import batch_of_two
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast


def test_a_family_may_recognize_its_placeholders_in_its_own_way(family: Family) -> None:
    inputs, model = family.one_video(), family.load()
    kinds = model.model.kinds(inputs["input_ids"], inputs)
    assert torch.equal(kinds == 2, video_places(model.config, inputs["input_ids"]))
    model.model.kinds = lambda tokens, inputs=None: torch.zeros_like(tokens)
    for call in (model, model.generate):
        with pytest.raises(ValueError, match=r"hold \[0\] video placeholders, but there are videos of"):
            call(**inputs)


@only(lambda family: not family.in_one_class)
@of_representatives
def test_the_inner_model_takes_the_settings_of_a_call(family: Family) -> None:
    inputs = family.one_video()
    with language_model_lengths(family.model) as lengths:
        family.model.model(**inputs, retention_ratio=0.5, compression_rounding="ceil")
        family.model(**inputs, retention_ratio=0.5, compression_rounding="ceil")
        whole = family.model.model(**inputs, retention_ratio=1.0)
    assert lengths[0] == lengths[1] < lengths[2] == inputs["input_ids"].shape[1]
    assert torch.equal(whole.last_hidden_state, family.stock.model(**inputs).last_hidden_state)


@only(lambda family: family.name == "llava_onevision")
@pytest.mark.parametrize(("name", "value"), [("compression_positions", "original"), ("vision_method", "skip_repeated")])
def test_an_engine_that_would_serve_a_setting_otherwise_is_refused(family: Family, name: str, value: str) -> None:
    config = family.load(**{name: value}).config
    config.get_text_config()._attn_implementation = "vllm"
    served = {"compression_positions": "consecutive", "vision_method": "full"}[name]
    reason = f"`{name}` is '{value}', but the Transformers backend of vllm .* serves only '{served}'"
    with pytest.raises(ValueError, match=reason):
        type(family.model).inner_class(config)


def labels_after_the_first(family: Family, inputs: Any) -> Tensor:
    """Return labels without each prompt's first token, which other libraries predict from the padding before it."""
    is_first = inputs["attention_mask"].cumsum(dim=1) == 1
    return labels_of(family, inputs).masked_fill(is_first, -100)


def fused_heads(family: Family, training: bool) -> tuple[Any, Any]:
    """Return our model without and with TRL's fused head, which replaces `forward` and calls `base_model`."""
    utils = pytest.importorskip("trl.trainer.utils")
    plain = copy.deepcopy(family.model).train(training)
    fused = copy.deepcopy(family.model).train(training)
    utils.add_fused_lm_head(fused)
    return plain, fused


@only(lambda family, wrapped: not family.in_one_class and (not wrapped or not family.shares_kv))
@of_representatives
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "in PEFT"])
def test_the_loss_of_trls_fused_head_equals_the_models_own(family: Family, wrapped: bool) -> None:
    plain, fused = fused_heads(family, training=True)
    if wrapped:
        peft = pytest.importorskip("peft")
        target = ["q_proj", "v_proj"]
        adapted = []
        for model in (fused, plain):
            torch.manual_seed(0)
            config = peft.LoraConfig(target_modules=target, task_type="CAUSAL_LM")
            adapted.append(peft.get_peft_model(model, config))
        fused, plain = adapted
    both, _ = batch_of_two(family, images=True)
    labels = labels_after_the_first(family, both)
    with language_model_lengths(fused.get_base_model() if wrapped else fused) as lengths:
        loss = fused(**both, labels=labels, fused_lm_head=True).loss
    with language_model_lengths(plain.get_base_model() if wrapped else plain) as short:
        expected = plain(**both, labels=labels)
    assert lengths == short and short[0] < labels.shape[1], "the language model did not see the compressed prompt"
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.loss.backward()
    gradients = [
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None} for model in (fused, plain)
    ]
    assert gradients[0].keys() == gradients[1].keys() and gradients[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-6)


@only(lambda family: family.frames_stand_apart and not family.adds_features)
def test_a_loss_over_placeholders_is_that_of_the_short_prompt_as_it_runs(family: Family) -> None:
    """A collator that masks no placeholder asks for it. The rows of the caller's prompt would give another loss."""
    inputs = family.one_video()
    embeddings, remaining = compressed_embeddings(family, inputs, RETENTION_RATIO)
    as_it_runs = inputs["input_ids"][:, remaining]
    expected = family.stock(
        inputs_embeds=embeddings, labels=as_it_runs, **position_arguments(family, inputs, remaining)
    ).loss
    short = family.writing_short.one_video()
    assert not torch.equal(short["input_ids"], as_it_runs), "no frame keeps another number than the prompt shows"
    ours = family.model(**short, labels=short["input_ids"]).loss
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@only(lambda family: not family.in_one_class)
@of_representatives
def test_trls_log_probabilities_are_those_of_the_callers_tokens(family: Family) -> None:
    """TRL's DPO, GRPO and RLOO trainers pad prompts on the left and completions on the right."""
    plain, fused = fused_heads(family, training=False)
    both, alone, num_completion = completions(family)
    labels = both["input_ids"].masked_fill(both["attention_mask"] == 0, -100)
    labels[:, :-num_completion] = -100
    together = fused(**both, labels=labels, fused_lm_head=True).log_probs[:, -num_completion:]
    for row, (inputs, length) in enumerate(alone):
        logits = plain(**inputs).logits[:, -length - 1 : -1].log_softmax(-1)
        expected = logits.gather(-1, inputs["input_ids"][:, -length:, None])[0, :, 0]
        torch.testing.assert_close(together[row, :length], expected, rtol=0, atol=1e-5)


def completions(family: Family) -> tuple[dict[str, Tensor], list[tuple[dict[str, Tensor], int]], int]:
    """Build a batch as trainers by reinforcement do. Return it, its rows alone with their completions' lengths, and the
    width of the completions in the batch."""
    prompts, rows = batch_of_two(family)
    tokens = [torch.tensor([[10, 11, 12, 13]]), torch.tensor([[20, 21]])]
    width = max(each.shape[1] for each in tokens)
    both, alone = dict(prompts), []
    completion = torch.cat([nn.functional.pad(each, (0, width - each.shape[1])) for each in tokens])
    mask = torch.cat([nn.functional.pad(torch.ones_like(each), (0, width - each.shape[1])) for each in tokens])
    both["input_ids"] = torch.cat([prompts["input_ids"], completion], dim=1)
    both["attention_mask"] = torch.cat([prompts["attention_mask"], mask], dim=1)
    if "mm_token_type_ids" in both:
        both["mm_token_type_ids"] = nn.functional.pad(both["mm_token_type_ids"], (0, width))
    for row, each in zip(rows, tokens, strict=True):
        inputs = dict(row)
        inputs["input_ids"] = torch.cat([row["input_ids"], each], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = nn.functional.pad(inputs["mm_token_type_ids"], (0, each.shape[1]))
        alone.append((inputs, each.shape[1]))
    return both, alone, width


def slices(length: int) -> dict[str, Any]:
    return {
        "number": 5,
        "indices": torch.tensor([0, 3, length - 1]),
        "indices from the end": torch.tensor([-1, -3]),
        "slice": slice(3, 9),
        "list": [2, 5],
        "indices of each prompt": torch.tensor([[1, length - 2], [5, length - 1]]),
        "mask": torch.arange(2 * length).view(2, length) % 3 == 0,
    }


@of_representatives
@pytest.mark.parametrize("kind", slices(9))
def test_logits_to_keep_takes_every_form_that_the_parent_takes(family: Family, kind: str) -> None:
    from transformers import modeling_utils

    if not hasattr(modeling_utils, "slice_logits_to_keep") and kind in ("indices of each prompt", "mask"):
        pytest.skip("this Transformers has no such form")
    both, _, _ = completions(family)
    wanted = slices(both["input_ids"].shape[1])[kind]
    out, everything = family.model(**both, logits_to_keep=wanted), family.model(**both)
    whole = everything.logits
    if kind == "number":
        expected = whole[:, -wanted:]
    elif kind == "mask":
        expected = whole[wanted]
    elif isinstance(wanted, Tensor) and wanted.ndim == 2:
        expected = torch.stack([row[index] for row, index in zip(whole, wanted)])
    else:
        expected = whole[:, wanted]
    torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-6)


@dataclass
class OutputOfAnotherLibrary(CausalLMOutputWithPast):
    token_accuracy: Tensor | None = None


def test_a_forward_replaced_by_another_library_gets_the_loss_of_the_compressed_prompt(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Liger patches in this way: its `forward`, on the instance or in the parent class, calls the inner model, computes
    the loss itself, and returns its own kind of output."""
    both, _ = batch_of_two(family, images=True)
    labels = labels_after_the_first(family, both)
    expected = family.model(**both, labels=labels).loss

    def replaced(self: Any, labels: Tensor | None = None, **kwargs: Any) -> Any:
        kwargs.pop("logits_to_keep", None)
        kwargs.pop("return_dict", None)
        outputs = self.model(**kwargs)
        logits = self.lm_head(outputs.last_hidden_state) * (getattr(self, "logit_scale", None) or 1)
        cap = getattr(self.config.get_text_config(), "final_logit_softcapping", None)
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return OutputOfAnotherLibrary(loss=loss, logits=logits, token_accuracy=logits.mean())

    on_instance = copy.copy(family.model)
    on_instance.__dict__["forward"] = replaced.__get__(on_instance)
    torch.testing.assert_close(on_instance(**both, labels=labels).loss, expected, rtol=1e-5, atol=1e-6)

    monkeypatch.setattr(family.case.stock_class, "forward", replaced)
    out = family.model(**both, labels=labels)
    torch.testing.assert_close(out.loss, expected, rtol=1e-5, atol=1e-6)
    assert "token_accuracy" in out


@only(lambda family: not family.shares_kv and not family.reads_outside)
def test_hooks_of_accelerate_find_the_weights_in_place(family: Family) -> None:
    """`cpu_offload` loads a module's own weights, such as `image_newline`, only while its `forward` runs. The towers
    of GLM, MiniCPM-V and Cosmos 3 Edge read those of learned places at another time, and Gemma 4 the embedding of the
    pad token. There the stock classes fail too."""
    accelerate = pytest.importorskip("accelerate")
    inputs = family.one_video()
    expected = family.model(**inputs).logits
    tokens = family.model.generate(**inputs, max_new_tokens=3, do_sample=False)
    offloaded = family.load(retention_ratio=RETENTION_RATIO)
    accelerate.cpu_offload(offloaded, execution_device="cpu")
    assert any(parameter.device.type == "meta" for parameter in offloaded.parameters())
    torch.testing.assert_close(offloaded(**inputs).logits, expected)
    assert torch.equal(offloaded.generate(**inputs, max_new_tokens=3, do_sample=False), tokens)
    whole = offloaded.generate(**inputs, max_new_tokens=3, do_sample=False, retention_ratio=1.0)
    assert torch.equal(whole, family.stock.generate(**inputs, max_new_tokens=3, do_sample=False))


@only(lambda family: not family.in_one_class)
@pytest.mark.usefixtures("one_process")
@of_representatives
def test_fsdp_can_shard_the_inner_model_as_a_separate_unit(family: Family) -> None:
    from torch.distributed.fsdp import fully_shard

    both, _ = batch_of_two(family, images=True)
    labels = labels_of(family, both)
    plain = copy.deepcopy(family.model).train()
    sharded = copy.deepcopy(family.model).train()
    for layer in sharded.get_decoder().layers:
        fully_shard(layer)
    fully_shard(sharded.model)
    fully_shard(sharded)
    losses = [model(**both, labels=labels).loss for model in (plain, sharded)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    for loss in losses:
        loss.backward()
    gradients = {name: weight.grad for name, weight in plain.named_parameters() if weight.grad is not None}
    for name, weight in sharded.named_parameters():
        if name in gradients:
            torch.testing.assert_close(weight.grad.full_tensor(), gradients[name], rtol=1e-4, atol=1e-6)
    inputs = family.one_video()  # without an image, for which Transformers' `generate` bypasses the hooks
    tokens = sharded.eval().generate(**inputs, max_new_tokens=3, do_sample=False)
    assert torch.equal(tokens, family.model.generate(**inputs, max_new_tokens=3, do_sample=False))
