"""Trainer with its losses and its evaluation, TRL's trainers, and losses that other code computes."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from models import HELD_IN_OTHER_PARTS, RETENTION_RATIO, make_image, make_video
from reference import compressed_embeddings, language_model_lengths
from test_forward import labels_of
from test_generate import batch_of_two, make_prompt
from torch import Tensor, nn
from train_on_a_rank import train_on_a_rank
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainingArguments


def all_labels(inputs: Any) -> Tensor:
    """Make labels as the shortest scripts do, with only padding masked, not placeholders."""
    return inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)


def arguments(folder: Path, **kwargs: Any) -> TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "max_steps": 1,
        "learning_rate": 0.0,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "remove_unused_columns": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_grad_norm": 1e9,
    }
    return TrainingArguments(**settings | kwargs)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_trainer_reports_and_optimises_the_models_own_loss(family: Family, tmp_path: Path, padding_side: str) -> None:
    both, _ = batch_of_two(family, padding_side=padding_side)
    batch = dict(both) | {"labels": all_labels(both)}
    model = copy.deepcopy(family.model).train()
    loss = model(**batch).loss
    loss.backward()
    trained = trained_on(family.model, [batch], tmp_path)
    assert trained.loss == pytest.approx(float(loss.detach()), rel=1e-3)
    assert_same_gradients(trained.gradients, gradients_of(model))


@dataclass
class Trained:
    loss: float
    gradients: dict[str, Tensor]


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def trained_on(model: nn.Module, batches: list[dict], folder: Path) -> Trained:
    """Accumulate these batches in `Trainer`. Return what it reports and the gradients that it would step with."""
    seen = {}

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
            seen.update(gradients_of(model))

    trainer = Trainer(
        copy.deepcopy(model),
        arguments(folder, gradient_accumulation_steps=len(batches)),
        train_dataset=[{"number": i} for i in range(len(batches))],
        data_collator=lambda rows: dict(batches[rows[0]["number"]]),
        callbacks=[Gradients()],
    )
    trainer.train()
    return Trained(trainer.state.log_history[0]["loss"], seen)


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys() and ours
    scale = max(float(each.abs().max()) for each in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-4 * scale)


def answer_labels(inputs: Any, *lengths: int) -> Tensor:
    """Return labels of each prompt's last tokens, as many as given for it."""
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, length in enumerate(lengths):
        labels[row, -length:] = inputs["input_ids"][row, -length:]
    return labels


def weighs_labels(family: Family) -> bool:
    """Say whether the stock class divides by the labels of the whole accumulated batch. Others average its parts."""
    return getattr(family.case.stock_class, "accepts_loss_kwargs", True)


@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_accumulated_batches_of_unequal_labels_are_weighted_as_in_the_stock_class(
    family: Family, tmp_path: Path, ratio: float
) -> None:
    prompts = [family.prompt(question, videos=1) for question in ("What happens, and why is that so?", "Why?")]
    videos, lengths = [make_video(0), make_video(1)], (12, 2)
    batches = []
    for prompt, video, length in zip(prompts, videos, lengths):
        inputs = family.inputs(prompt, videos=[video])
        batches.append(dict(inputs) | {"labels": answer_labels(inputs, length)})
    model = family.load(retention_ratio=ratio)
    accumulated = trained_on(model, batches, tmp_path)
    if ratio == 1.0:
        assert_same_gradients(accumulated.gradients, trained_on(family.stock, batches, tmp_path).gradients)
    if weighs_labels(family):
        both = family.inputs(*prompts, videos=videos)
        at_once = trained_on(model, [dict(both) | {"labels": answer_labels(both, *lengths)}], tmp_path)
        assert accumulated.loss == pytest.approx(at_once.loss, rel=1e-3)
        assert_same_gradients(accumulated.gradients, at_once.gradients)
    else:
        alone = [trained_on(model, [batch], tmp_path).gradients for batch in batches]
        assert_same_gradients(accumulated.gradients, {name: (alone[0][name] + alone[1][name]) / 2 for name in alone[0]})


def test_accumulated_labels_of_dropped_tokens_are_refused_where_they_would_be_counted(
    family: Family, tmp_path: Path
) -> None:
    inputs = family.one_video()
    batches = [dict(inputs) | {"labels": all_labels(inputs)}] * 2
    if not weighs_labels(family):
        trained_on(family.model, batches, tmp_path)
        return
    with pytest.raises(
        ValueError, match=r"Set the labels of video placeholders .*`model\.accepts_loss_kwargs = False`"
    ):
        trained_on(family.model, batches, tmp_path)
    averaging = copy.deepcopy(family.model)
    averaging.accepts_loss_kwargs = False
    alone = trained_on(family.model, batches[:1], tmp_path)
    assert_same_gradients(trained_on(averaging, batches, tmp_path).gradients, alone.gradients)


def test_a_number_of_items_that_counts_dropped_labels_is_refused(family: Family) -> None:
    inputs = family.one_video()
    counted = all_labels(inputs)
    of_this_batch = (counted[:, 1:] != -100).sum()
    with pytest.raises(ValueError, match=r"`num_items_in_batch` counts .* \d+ are those of dropped tokens"):
        family.model(**inputs, labels=counted, num_items_in_batch=of_this_batch + 1)
    for number in (of_this_batch, int(of_this_batch), of_this_batch[None]):  # only this batch was counted
        out = family.model(**inputs, labels=counted, num_items_in_batch=number)
        torch.testing.assert_close(out.loss.squeeze(), family.model(**inputs, labels=counted).loss)
    labels = labels_of(family, inputs)
    number = (labels[:, 1:] != -100).sum()
    out = family.model(**inputs, labels=labels, num_items_in_batch=number)
    torch.testing.assert_close(out.loss, family.model(**inputs, labels=labels).loss)
    half = family.model(**inputs, labels=labels, num_items_in_batch=2 * number)
    torch.testing.assert_close(half.loss, out.loss / 2)


def mixed_dataset(family: Family) -> list[dict[str, Tensor]]:
    """Return rows with videos, with an image and of text, in different lengths."""
    prompts = [
        family.one_video(),
        family.inputs(family.prompt("What is it?", images=1), images=[make_image(3)]),
        family.inputs(family.prompt("Hello.")),
        family.one_video("And in this one?", seed=2, num_frames=4),
    ]
    return [dict(inputs) | {"labels": labels_of(family, inputs)} for inputs in prompts]


def only_row(rows: list[dict]) -> dict:
    (row,) = rows
    return dict(row)


def test_evaluation_over_mixed_batches_aligns_logits_with_labels(family: Family, tmp_path: Path) -> None:
    seen = []

    def preprocess(logits: Tensor, labels: Tensor) -> Tensor:
        seen.append((type(logits), logits.shape[:2], labels.shape))
        return logits.argmax(-1)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:  # as in docs/using.md
        predicted, labels = prediction.predictions[:, :-1], prediction.label_ids[:, 1:]
        counted = labels != -100
        return {"accuracy": float((predicted == labels)[counted].mean()), "counted": int(counted.sum())}

    dataset = mixed_dataset(family)
    trainer = Trainer(
        copy.deepcopy(family.model),
        arguments(tmp_path),
        eval_dataset=dataset,
        data_collator=only_row,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess,
    )
    metrics = trainer.evaluate()
    assert all(kind is Tensor and logits == labels for kind, logits, labels in seen) and len(seen) == 4
    right, counted, losses = 0, 0, []
    for row in dataset:
        with torch.no_grad():
            out = family.model(**row)
        predicted, labels = out.logits.argmax(-1)[:, :-1], row["labels"][:, 1:]
        right += int(((predicted == labels) & (labels != -100)).sum())
        counted += int((labels != -100).sum())
        losses.append(float(out.loss))
    assert metrics["eval_counted"] == counted
    assert metrics["eval_accuracy"] == pytest.approx(right / counted)
    assert metrics["eval_loss"] == pytest.approx(np.mean(losses), rel=1e-4)


def smoothed(logits: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=epsilon, ignore_index=-100
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["the caller's loss function", "label smoothing"])
def test_losses_of_other_code_get_rows_that_fit_the_labels(family: Family, tmp_path: Path, smoothing: float) -> None:
    inputs = make_prompt(family, "image_and_video")
    row = dict(inputs) | {"labels": labels_of(family, inputs)}

    def loss_of(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return smoothed(outputs.logits, labels, 0.0)

    trainer = Trainer(
        copy.deepcopy(family.model),
        arguments(tmp_path, label_smoothing_factor=smoothing),
        train_dataset=[row],
        eval_dataset=[row],
        data_collator=only_row,
        compute_loss_func=None if smoothing else loss_of,
    )
    trainer.train()
    with torch.no_grad():
        short = copy.deepcopy(family.model).train()(**row)
    expected = float(smoothed(short.logits, row["labels"], smoothing))
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-3)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-3)


def test_shifted_labels_give_the_loss_of_the_labels(family: Family) -> None:
    """Context parallelism passes them: the label of the next token stands at each token."""
    inputs = make_prompt(family, "image_and_video")
    labels = labels_of(family, inputs)
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    expected = family.model(**inputs, labels=labels).loss
    unused = torch.full_like(labels, -100)  # the parent reads only the shifted ones
    torch.testing.assert_close(family.model(**inputs, labels=unused, shift_labels=shifted).loss, expected)


@pytest.mark.parametrize("name", ["labels", "shift_labels"])
@pytest.mark.parametrize("change", [1, -1], ids=["longer", "shorter"])
def test_labels_of_the_wrong_length_are_refused(family: Family, name: str, change: int) -> None:
    inputs = family.one_video()
    labels = labels_of(family, inputs)
    wrong = nn.functional.pad(labels, (0, change), value=-100)
    given = {"labels": labels} | {name: wrong}
    with pytest.raises(ValueError, match=rf"`{name}` is .*the prompt is .*its label"):
        family.model(**inputs, **given)


def test_labels_beside_logits_to_keep_are_refused(family: Family) -> None:
    inputs = family.one_video()
    with pytest.raises(ValueError, match="`logits_to_keep` is 2"):
        family.model(**inputs, labels=labels_of(family, inputs), logits_to_keep=2)


# TRL reads the experts of these GLMs under a name that their configs do not have, and the states of an inner model.
@only(lambda family: family.name not in ("glm4v_moe", "glm5_next") and not family.in_one_class)
def test_trls_sft_trainer_trains_on_the_compressed_prompt(family: Family, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    inputs = family.one_video()
    row = dict(inputs) | {"labels": labels_of(family, inputs)}
    model = copy.deepcopy(family.model)
    settings = arguments(tmp_path).to_dict()
    names = ("output_dir", "per_device_train_batch_size", "max_steps", "learning_rate", "logging_steps", "report_to")
    names += ("use_cpu", "remove_unused_columns", "save_strategy", "disable_tqdm")
    config = trl.SFTConfig(
        **{name: settings[name] for name in names},
        bf16=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,
    )
    trainer = trl.SFTTrainer(
        model,
        config,
        train_dataset=datasets.Dataset.from_dict({"number": [0]}),
        data_collator=lambda rows: dict(row),
        processing_class=family.processor,
    )
    with language_model_lengths(model) as lengths:
        trainer.train()
    with torch.no_grad(), language_model_lengths(family.model) as expected_lengths:
        expected = copy.deepcopy(family.model).train()(**row)
        family.model(**inputs)
    assert set(lengths) == set(expected_lengths) and max(lengths) < inputs["input_ids"].shape[1]
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert logged["loss"] == pytest.approx(float(expected.loss), rel=1e-3)


def test_labels_of_dropped_tokens_do_not_change_the_models_own_loss(family: Family) -> None:
    """Labels of dropped tokens are dropped. Those of kept placeholders count, as in the parent."""
    inputs = family.one_video()
    labels = all_labels(inputs)
    _, remaining = compressed_embeddings(family, inputs, RETENTION_RATIO)
    kept = torch.full_like(labels, -100).index_copy(1, remaining, labels[:, remaining])
    with_all, with_kept = (family.model(**inputs, labels=each).loss for each in (labels, kept))
    torch.testing.assert_close(with_all, with_kept)
    short = family.model(**inputs).logits[:, remaining]
    torch.testing.assert_close(with_all, smoothed(short, labels[:, remaining], 0.0), rtol=1e-5, atol=1e-6)


# -- PEFT's prefix tuning --------------------------------------------------------------------------------------------


# Gemma 4's stock class takes no embeddings of a compressed prompt without its ids, which PEFT does not pass on.
# PEFT's prefix has no states of linear attention, and leaves out layers of Gemma 4 Unified. Molmo2's stock class takes
# the types of tokens in training, which the prompt by hand has not. PEFT's keys do not fit Kimi-K2.5's cache.
@only(
    lambda family: (
        not (family.padded_frames or family.adds_features or family.keys_are_latent)
        and (family.mrope or not family.recurrent)
    )
)
def test_prefix_tuning_gets_the_gradients_of_the_prompt_compressed_by_hand(family: Family) -> None:
    """PEFT passes its learned keys and values as a filled cache, which a video then follows."""
    peft = pytest.importorskip("peft")
    inputs = family.one_video()
    labels = labels_of(family, inputs)

    def tuned(model: Any) -> Any:
        torch.manual_seed(0)
        config = peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
        return peft.get_peft_model(copy.deepcopy(model).train(), config)

    if family.case.mrope:  # the stock class raises an IndexError
        with pytest.raises(ValueError, match=r"not known where their positions end.*: another model filled it"):
            tuned(family.model)(**inputs, labels=labels)
        return
    embeddings, remaining = compressed_embeddings(family, inputs, RETENTION_RATIO)
    models = tuned(family.model), tuned(family.stock)
    by_hand = {"inputs_embeds": embeddings, "labels": labels[:, remaining]}
    mask = torch.ones_like(by_hand["labels"])
    losses = models[0](**inputs, labels=labels).loss, models[1](**by_hand, attention_mask=mask).loss
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
    gradients = []
    for model, loss in zip(models, losses, strict=True):
        loss.backward()
        gradients.append(model.prompt_encoder["default"].embedding.weight.grad)
    assert gradients[0].any()
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


# -- two processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_average_their_gradients_although_one_has_no_video(family: Family, tmp_path: Path) -> None:
    if family.case.name not in ("llava_onevision", "qwen2_5_vl"):
        pytest.skip("one family of each kind is enough")
    batches = []
    for rank, inputs in enumerate((family.one_video(), family.inputs(family.prompt("Hello, who is there?")))):
        batches.append(dict(inputs) | {"labels": labels_of(family, inputs)})
        torch.save(batches[-1], tmp_path / f"batch{rank}.pt")
    (tmp_path / "model").symlink_to(family.folder)
    torch.multiprocessing.spawn(train_on_a_rank, (family.case.model_class, tmp_path, RETENTION_RATIO), nprocs=2)

    alone = copy.deepcopy(family.model).train()
    losses = [alone(**batch).loss for batch in batches]
    sum(losses).div(2).backward()
    weights = {name: weight for name, weight in alone.named_parameters() if weight.grad is not None}
    for kind in ("DDP", "FSDP2"):
        trained = [torch.load(tmp_path / f"{kind}{rank}.pt", weights_only=True) for rank in (0, 1)]
        for (loss, _), expected in zip(trained, losses, strict=True):
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
        _, gradients = trained[0]
        assert gradients.keys() == {name for name in weights if kind == "DDP" or ".language_model." in name}
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, weights[name].grad, rtol=1e-4, atol=1e-6)


def test_a_trainer_restores_the_weights_of_its_checkpoints(family: Family, tmp_path: Path) -> None:
    """Training that resumes from a checkpoint ends with the weights of one run. The best are those of the first step,
    by a metric that counts steps. Weights that checkpoints
    hold in other parts need the remedy that docs/training.md names."""
    inputs = family.one_video()
    rows = [{"labels": labels_of(family, inputs), **inputs}]

    def trained(folder: Path, resume: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        of_steps = {"max_steps": 2, "learning_rate": 1e-2, "save_strategy": "steps", "save_steps": 1}
        start = resume if resume and family.case.name in HELD_IN_OTHER_PARTS else family.folder
        model = family.case.model_class.from_pretrained(start, retention_ratio=RETENTION_RATIO)
        trainer = Trainer(
            model,
            arguments(folder, **of_steps | kwargs),
            train_dataset=rows,
            eval_dataset=rows,
            data_collator=only_row,
            compute_metrics=lambda _: {"step": trainer.state.global_step},
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        )
        trainer.train(resume_from_checkpoint=resume)
        return {name: value.clone() for name, value in model.state_dict().items()}

    expected = trained(tmp_path)
    resumed = trained(tmp_path / "resumed", resume=str(tmp_path / "checkpoint-1"))
    best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    of_first = trained(tmp_path / "best", metric_for_best_model="step", greater_is_better=False, **best)
    saved = family.case.model_class.from_pretrained(tmp_path / "best" / "checkpoint-1").state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-6)
        assert torch.equal(of_first[name], saved[name]) or any(
            part in name for part in HELD_IN_OTHER_PARTS.get(family.case.name, ())
        )
    assert any(not torch.equal(of_first[name], value) for name, value in expected.items())
