"""`vidcom2.apply` and `vidcom2.remove` turn a model, in place, into what loading it in that class gives."""

import copy
import inspect
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, as_taken, only
from models import RETENTION_RATIO, tower_of, video_places
from packaging import version
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedModel
from transformers.integrations.peft import MIN_PEFT_VERSION

import vidcom2
from vidcom2.modeling.hosting.in_transformers import CACHE, FORMER_NAME

NEW = {"max_new_tokens": 5, "do_sample": False}


def stock_of(family: Family, **kwargs: Any) -> PreTrainedModel:
    return family.case.stock_from(family.folder, **kwargs).eval()


def weights(model: nn.Module) -> dict[str, int]:
    """Return the address of each weight by its name. Tied weights are there under each of their names."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor.data_ptr() for name, tensor in named}


def inner_of(model: Any) -> Any:
    """Return the inner model; Nemotron 3 Omni's is the model itself."""
    return getattr(model, "model", model)


def assert_equal(model: Any, expected: Any, inputs: Any, **call: Any) -> None:
    inputs = as_taken(model, inputs)
    with torch.no_grad():
        assert torch.equal(model(**inputs, **call).logits, expected(**inputs, **call).logits)
    assert torch.equal(model.generate(**inputs, **call, **NEW), expected.generate(**inputs, **call, **NEW))


# -- apply and remove -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_an_applied_model_equals_what_the_vidcom2_class_loads(family: Family, ratio: float) -> None:
    model = stock_of(family)
    before = weights(model)
    assert vidcom2.apply(model, retention_ratio=ratio) is model
    assert weights(model) == before
    loaded = family.model if ratio == RETENTION_RATIO else family.uncompressing
    assert type(model) is family.case.model_class and type(model.model) is family.case.model_class.inner_class
    assert type(model.config) is family.case.config_class and model.model.config is model.config
    assert model.config.to_dict() == loaded.config.to_dict()
    assert model.generation_config.to_dict() == loaded.generation_config.to_dict()
    assert_equal(model, loaded, family.processed_video())
    if ratio == 1.0:
        assert_equal(model, family.stock, family.processed_video())


def test_a_removed_model_equals_the_stock_model_bit_for_bit(family: Family, tmp_path: Path) -> None:
    model = stock_of(family)
    config, fields, attributes, before = model.config, model.config.to_dict(), set(vars(model)), weights(model)
    vidcom2.apply(model, retention_ratio=0.4, compression_frame_score="max")
    model.generate(**family.one_video(), **NEW)
    model.save_pretrained(tmp_path)  # writes fields about the code of a repo into the config
    assert vidcom2.remove(model) is model
    assert type(model) is family.case.stock_class and type(inner_of(model)) is type(inner_of(family.untouched_stock()))
    assert model.config is config is inner_of(model).config and config.to_dict() == fields
    assert set(vars(model)) == attributes and weights(model) == before
    assert_equal(model, family.untouched_stock(), family.processed_video())
    assert_equal(vidcom2.apply(model), family.model, family.processed_video())


def test_a_model_that_was_loaded_as_ours_becomes_the_stock_model(family: Family, tmp_path: Path) -> None:
    model = family.load(retention_ratio=0.4)
    model.save_pretrained(tmp_path)
    vidcom2.remove(model)
    assert type(model) is family.case.stock_class
    if family.case.native:  # LLaVA-Video's parent class has the same config
        assert type(model.config) is type(family.stock.config)
        assert model.config.to_dict() == family.stock.config.to_dict()
    assert_equal(model, family.stock, family.processed_video())


def test_removing_keeps_other_changes_to_the_config(family: Family) -> None:
    model = vidcom2.apply(stock_of(family))
    model.resize_token_embeddings(300)
    model.config.return_dict = False
    vidcom2.remove(model)
    assert model.config.get_text_config().vocab_size == 300 and not model.config.return_dict
    assert not hasattr(model.config, "retention_ratio") or not family.case.native


def test_applying_again_changes_all_given_settings_or_none(family: Family) -> None:
    model = vidcom2.apply(stock_of(family), retention_ratio=0.5)
    config = model.config
    assert vidcom2.apply(model, retention_ratio=RETENTION_RATIO) is model
    assert model.config is config and config.retention_ratio == RETENTION_RATIO
    assert_equal(model, family.model, family.processed_video())
    vidcom2.apply(model, compression_window=4)
    with pytest.raises(ValueError, match="`compression_window` is 3, but `compression_method='random'`"):
        vidcom2.apply(model, retention_ratio=0.1, compression_method="random", compression_window=3)
    assert (config.retention_ratio, config.compression_method) == (RETENTION_RATIO, "vidcom2")
    assert config.compression_window == 4
    vidcom2.apply(model)
    assert config.retention_ratio == RETENTION_RATIO


def test_the_stock_config_which_another_model_may_share_stays_as_it_is(family: Family) -> None:
    config = stock_of(family).config
    first, second = (family.case.stock_class(config).eval() for _ in range(2))
    fields = config.to_dict()
    assert first.config is second.config is config
    vidcom2.apply(first)
    vidcom2.apply(first, retention_ratio=0.7)
    assert second.config is config and type(config) is type(family.stock.config) and config.to_dict() == fields
    vidcom2.remove(first)
    assert first.config is config and config.to_dict() == fields


def test_an_applied_model_saves_the_same_files_as_a_loaded_one(family: Family, tmp_path: Path) -> None:
    vidcom2.apply(stock_of(family), retention_ratio=RETENTION_RATIO).save_pretrained(tmp_path / "applied")
    family.load(retention_ratio=RETENTION_RATIO).save_pretrained(tmp_path / "loaded")
    applied, loaded = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("applied", "loaded")
    )
    assert applied.keys() == loaded.keys()
    assert [name for name in applied if applied[name] != loaded[name]] == []
    assert json.loads(applied["config.json"])["retention_ratio"] == RETENTION_RATIO


@only(lambda family: family.native)
def test_our_checkpoint_in_the_stock_class_keeps_its_settings_when_applied_and_removed(
    family: Family, tmp_path: Path
) -> None:
    family.load(retention_ratio=0.4).save_pretrained(tmp_path)
    model = family.case.stock_from(tmp_path).eval()
    fields = model.config.to_dict()
    vidcom2.apply(model)
    assert model.config.retention_ratio == 0.4
    vidcom2.apply(model, retention_ratio=0.6)
    vidcom2.remove(model)
    assert model.config.to_dict() == fields and fields["retention_ratio"] == 0.4


@only(lambda family: not family.in_one_class)
def test_an_inner_model_alone_can_be_applied_and_removed(family: Family) -> None:
    model = stock_of(family).model
    fields = model.config.to_dict()
    vidcom2.apply(model, retention_ratio=RETENTION_RATIO)
    assert type(model) is family.case.model_class.inner_class
    inputs = family.processed_video()
    with torch.no_grad():
        short = as_taken(model, inputs)
        assert torch.equal(model(**short).last_hidden_state, family.model.model(**short).last_hidden_state)
        vidcom2.remove(model)
        assert torch.equal(model(**inputs).last_hidden_state, family.stock.model(**inputs).last_hidden_state)
    assert model.config.to_dict() == fields


# -- training ---------------------------------------------------------------------------------------------------------


def test_an_applied_model_trains_as_a_loaded_one(family: Family) -> None:
    """Training mode and gradient checkpointing, which are on before, stay on."""
    inputs = family.one_video()
    labels = inputs["input_ids"].masked_fill(video_places(family.model.config, inputs["input_ids"]), -100)
    gradients = []
    for model in (stock_of(family), family.load(retention_ratio=RETENTION_RATIO)):
        model.gradient_checkpointing_enable()
        model.train()
        vidcom2.apply(model, retention_ratio=RETENTION_RATIO)
        assert model.training and model.is_gradient_checkpointing
        model(**inputs, labels=labels).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    assert all(torch.equal(*pair) for pair in zip(*gradients))


# -- what other libraries put on a model ------------------------------------------------------------------------------


def arguments(model: PreTrainedModel) -> list[str]:
    """Return the arguments of `forward`, which `generate`, `Trainer` and the pipelines read."""
    return [name for name in inspect.signature(model.forward).parameters if name != "self"]


def offloaded(model: PreTrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("accelerate").cpu_offload(model, execution_device="cpu")


def on_disk(model: PreTrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("accelerate").disk_offload(model, tmp_path / "weights", execution_device="cpu")


def unhooked(model: PreTrainedModel, tmp_path: Path) -> None:
    """Add accelerate's hooks and remove them again, which leaves a `forward` on each object."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.cpu_offload(model, execution_device="cpu")
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert "forward" in vars(inner_of(model)) or "forward" in vars(model)


def hooked(model: PreTrainedModel, tmp_path: Path) -> None:
    """Add hooks to both modules whose class changes, even if they have no weights of their own."""
    hooks = pytest.importorskip("accelerate.hooks")
    for module in {id(each): each for each in (model, inner_of(model))}.values():
        hooks.add_hook_to_module(module, hooks.AlignDevicesHook("cpu", io_same_device=True))


# GLM's, MiniCPM-V's, Cosmos 3 Edge's and Gemma 4's stock classes cannot run with the weights of their learned places
# elsewhere, nor Gemma 4's with those of its decoder, in which it looks up what layers add to a token.
@only(lambda family, spread: not ((family.reads_outside or family.name == "gemma4") and spread in (offloaded, on_disk)))
@pytest.mark.parametrize("spread", [offloaded, on_disk, unhooked, hooked], ids=lambda each: each.__name__)
def test_accelerates_hooks_run_the_new_class(family: Family, spread: Callable[..., None], tmp_path: Path) -> None:
    model = stock_of(family)
    spread(model, tmp_path)
    inputs = family.processed_video()
    vidcom2.apply(model, retention_ratio=RETENTION_RATIO)
    assert_equal(model, family.model, inputs)
    assert arguments(model) == arguments(family.model)
    vidcom2.remove(model)
    with torch.no_grad():  # `generate` of LLaVA's stock classes does not find offloaded weights of the inner model
        assert torch.equal(model(**inputs).logits, family.stock(**inputs).logits)
    assert arguments(model) == arguments(family.stock)


def targets(model: PreTrainedModel) -> list[str]:
    """Return the projections of queries and values that are plain `nn.Linear`. Those of Gemma 4's tower are not, and
    PEFT has no adapter for them."""
    named = model.named_modules()
    return [name for name, each in named if name.endswith(("q_proj", "v_proj")) and isinstance(each, nn.Linear)]


def lora(model: PreTrainedModel) -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=targets(model), r=2, init_lora_weights=False, task_type="CAUSAL_LM")
    torch.manual_seed(3)
    return peft.get_peft_model(model, config).eval()


def is_old_peft() -> bool:
    """Whether PEFT is older than what this Transformers asks for."""
    return version.parse(pytest.importorskip("peft").__version__) < version.parse(MIN_PEFT_VERSION)


def adapter(model: PreTrainedModel) -> Any:
    peft = pytest.importorskip("peft")
    if is_old_peft():
        pytest.skip(f"Transformers adds adapters of PEFT {MIN_PEFT_VERSION} or newer")
    torch.manual_seed(3)
    model.add_adapter(peft.LoraConfig(target_modules=targets(model), r=2, init_lora_weights=False))
    return model.eval()


@pytest.mark.parametrize("add", [lora, adapter], ids=lambda each: each.__name__)
def test_a_model_with_an_adapter_can_be_applied_and_removed(
    family: Family, add: Callable[[PreTrainedModel], Any]
) -> None:
    stock, model, loaded = (
        add(stock_of(family)),
        add(stock_of(family)),
        add(family.load(retention_ratio=RETENTION_RATIO)),
    )
    inputs = family.processed_video()
    assert_equal(model, stock, inputs)
    before = weights(model)
    assert vidcom2.apply(model, retention_ratio=RETENTION_RATIO) is model
    assert weights(model) == before and model.config.retention_ratio == RETENTION_RATIO
    assert_equal(model, loaded, inputs)
    taken = as_taken(model, inputs)
    assert not torch.equal(model(**taken).logits, family.model(**taken).logits)
    vidcom2.remove(model)
    assert_equal(model, stock, inputs)


# PEFT's prefix has no states of linear attention, and leaves out layers whose heads are larger than those of the first,
# as Gemma 4 Unified's are. Its keys do not fit Kimi-K2.5's cache.
@only(lambda family: not (family.mrope or family.recurrent or family.keys_are_latent) and family.has_tower)
@pytest.mark.filterwarnings("ignore:Prefix tuning injected into layers")  # PEFT, where layers share keys
def test_pefts_prefix_tuning_works_after_applying(family: Family) -> None:
    """PEFT keeps the `prepare_inputs_for_generation` that the model had when PEFT wrapped it."""
    peft = pytest.importorskip("peft")
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    models = []
    for model in (stock_of(family), family.load(retention_ratio=RETENTION_RATIO), stock_of(family)):
        torch.manual_seed(3)
        models.append(peft.get_peft_model(model, config).eval())
    vidcom2.apply(models[0], retention_ratio=RETENTION_RATIO)
    inputs = family.processed_video()
    if CACHE == FORMER_NAME or not is_old_peft():
        assert_equal(*models[:2], inputs)
        return
    # In `generate`, PEFT 0.21 passes its prefix under the former name beside a cache. The stock class warns, and goes
    # on without the prefix.
    with torch.no_grad():
        taken = as_taken(models[0], inputs)
        assert torch.equal(models[0](**taken).logits, models[1](**taken).logits)
    assert torch.equal(models[2].generate(**inputs, **NEW), family.stock.generate(**inputs, **NEW))
    for model in models[:2]:
        with pytest.raises(ValueError, match="two names of the KV cache, and both are given"):
            model.generate(**taken, **NEW)


def test_a_quantized_model_can_be_applied_and_removed(family: Family) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    models = [stock_of(family), family.load(retention_ratio=RETENTION_RATIO), stock_of(family)]
    for model in models:
        torchao.quantize_(model.get_decoder(), torchao.Int8WeightOnlyConfig())
    quantized = [type(parameter) for parameter in models[0].parameters()]
    assert set(quantized) != {nn.Parameter}
    inputs = family.processed_video()
    vidcom2.apply(models[0], retention_ratio=RETENTION_RATIO)
    assert_equal(models[0], models[1], inputs)
    assert [type(parameter) for parameter in models[0].parameters()] == quantized
    vidcom2.remove(models[0])
    assert_equal(models[0], models[2], inputs)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # Molmo2's `masked_scatter`
@pytest.mark.slow
@pytest.mark.parametrize("part", ["language_model", "model", "whole"])
def test_a_model_with_compiled_parts_can_be_applied_and_removed(family: Family, part: str) -> None:
    model = stock_of(family)
    compiled = {"language_model": model.get_decoder(), "model": inner_of(model), "whole": model}[part]
    compiled.compile(backend="eager")
    inputs = family.processed_video()
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, family.stock(**inputs).logits)
        vidcom2.apply(model, retention_ratio=RETENTION_RATIO)
        taken = as_taken(model, inputs)
        torch.testing.assert_close(model(**taken).logits, family.model(**taken).logits)
        assert torch.equal(model.generate(**taken, **NEW), family.model.generate(**taken, **NEW))
        vidcom2.remove(model)
        torch.testing.assert_close(model(**inputs).logits, family.stock(**inputs).logits)


# -- conversations ----------------------------------------------------------------------------------------------------


def second_turn(family: Family, inputs: Any, out: Any) -> dict[str, torch.Tensor]:
    """Return the inputs of the whole conversation: the first turn, its answer and more text."""
    more = family.processor.tokenizer(" And then?", return_tensors="pt", add_special_tokens=False)["input_ids"]
    ids = torch.cat([out.sequences, more], dim=1)
    second = dict(inputs) | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name in ("pixel_values_videos", "pixel_values"):
        second.pop(name, None)
    if "mm_token_type_ids" in second:
        given = second["mm_token_type_ids"]
        second["mm_token_type_ids"] = nn.functional.pad(given, (0, ids.shape[1] - given.shape[1]))
    return second


@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_generate_refuses_a_stock_cache_or_continues_it_as_the_stock_class_does(family: Family, ratio: float) -> None:
    model, inputs = stock_of(family), family.processed_video()
    out, of_stock = (each.generate(**inputs, **NEW, return_dict_in_generate=True) for each in (model, family.stock))
    second = second_turn(family, inputs, out)
    vidcom2.apply(model, retention_ratio=ratio)
    if ratio < 1.0 or family.case.mrope:
        with pytest.raises(ValueError, match=r"it is not known whe.*before `vidcom2.apply`"):
            model.generate(**second, **NEW, past_key_values=out.past_key_values)
        return
    expected = family.stock.generate(**second, **NEW, past_key_values=of_stock.past_key_values)
    assert torch.equal(model.generate(**second, **NEW, past_key_values=out.past_key_values), expected)


@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_a_loop_refuses_a_stock_cache_or_continues_it_as_the_stock_class_does(family: Family, ratio: float) -> None:
    inputs, step = family.processed_video(), torch.tensor([[7]])
    model, stock = stock_of(family), stock_of(family)
    with torch.no_grad():
        caches = [each(**inputs, use_cache=True).past_key_values for each in (model, stock)]
        vidcom2.apply(model, retention_ratio=ratio)
        for _ in range(3):
            try:
                logits = model(input_ids=step, past_key_values=caches[0]).logits
            except ValueError as error:
                assert family.case.mrope and "before `vidcom2.apply`" in str(error)
                return
            assert torch.equal(logits, stock(input_ids=step, past_key_values=caches[1]).logits)
    assert not family.case.mrope


@pytest.mark.parametrize("by", ["generate", "forward"])
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_our_cache_is_refused_or_continued_right_after_removing(family: Family, ratio: float, by: str) -> None:
    model, inputs = stock_of(family), family.processed_video()
    model.generate(**family.processed_video(seed=4, num_frames=4), **NEW)  # Qwen's stock classes keep its `rope_deltas`
    vidcom2.apply(model, retention_ratio=ratio)
    out = model.generate(**as_taken(model, inputs), **NEW, return_dict_in_generate=True)
    reference = stock_of(family)
    before = reference.generate(**inputs, **NEW, return_dict_in_generate=True)
    vidcom2.remove(model)
    second, step = second_turn(family, inputs, out), {"input_ids": torch.tensor([[7]])}

    def continued(of: PreTrainedModel, cache: Any) -> torch.Tensor:
        with torch.no_grad():
            if by == "forward":
                return of(**step, past_key_values=cache).logits
            return of.generate(**second, **NEW, past_key_values=cache)

    try:
        found = continued(model, out.past_key_values)
    except ValueError as error:
        assert ratio < 1.0 or family.case.mrope, error
        assert "of a conversation with images or videos that a VidCom² model ran" in str(error)
        return
    assert ratio == 1.0 and torch.equal(found, continued(reference, before.past_key_values))


# -- refused ----------------------------------------------------------------------------------------------------------


def assert_refused(model: Any, match: str, function: Callable[..., Any] = vidcom2.apply, **settings: Any) -> None:
    """Check that `function` refuses the model with this message, and leaves it as it was."""
    inside = [(module, type(module), dict(vars(module))) for module in model.modules()]
    config = copy.deepcopy(getattr(model, "config", None))
    with pytest.raises(ValueError, match=match):
        function(model, **settings)
    assert all(type(module) is before and vars(module) == attributes for module, before, attributes in inside)
    if config is not None:
        assert model.config.to_dict() == config.to_dict()


def test_models_of_no_supported_family_are_refused(family: Family) -> None:
    bert = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
    assert_refused(bert, "`model`, a BertModel, is of type 'bert', but VidCom² has classes for 'qwen3_5'")
    assert_refused(nn.Linear(1, 1), "`model` is a Linear, but must be a model of Transformers")
    if family.case.has_tower:
        assert_refused(tower_of(family.stock.model), "VidCom² has classes for")
    assert_refused(bert, "is a BertModel, which is not a VidCom² model", vidcom2.remove)
    assert_refused(family.stock, f"is a {type(family.stock).__name__}, which is not a VidCom² model", vidcom2.remove)


def test_settings_that_are_not_accepted_are_refused(family: Family) -> None:
    model = stock_of(family)
    assert_refused(model, "`retention_ratio` is 1.5", retention_ratio=1.5)
    assert_refused(model, "'compresion_rounding' is not a setting", compresion_rounding="exact")
    assert_refused(model, "does not read it", compression_method="random", compression_window=4)
    assert_refused(model, "`vision_tolerance` is 0.25, but `vision_method='full'`", vision_tolerance=0.25)
    if family.case.name != "llava_video":
        assert_refused(model, "`compression_newlines` is not a setting of the model", compression_newlines="all")


def test_a_subclass_whose_methods_would_be_lost_is_refused(family: Family) -> None:
    class Mine(family.case.stock_class):
        def forward(self, **kwargs: Any) -> Any:
            return super().forward(**kwargs)

    class MyOurs(family.case.model_class):
        pass

    model = stock_of(family)
    model.__class__ = Mine
    assert_refused(model, f"is a Mine, a subclass of .*would be lost.*{family.case.model_class.__name__}. Derive")
    model.__class__ = family.case.stock_class
    if not family.case.in_one_class:
        model.model.__class__ = type("MyInner", (type(family.stock.model),), {})
        assert_refused(model, "`model.model` is a MyInner, a subclass of")
    ours = copy.copy(family.model)
    ours.__class__ = MyOurs
    assert_refused(ours, "is a MyOurs, a subclass of", vidcom2.remove)


def test_models_that_are_already_wrapped_are_refused(family: Family) -> None:
    model = stock_of(family)
    for function in (vidcom2.apply, vidcom2.remove):
        assert_refused(
            torch.compile(model, backend="eager"), "is a OptimizedModule: `torch.compile` is around", function
        )
        assert_refused(nn.DataParallel(model), "is a DataParallel: a wrapper for several devices is around", function)
    if family.case.in_one_class:
        return
    inner = copy.copy(model)
    inner._modules = dict(model._modules)
    inner._modules["model"] = torch.compile(model.model, backend="eager")
    assert_refused(inner, "`model.model` is a OptimizedModule, but must be a .*before it is wrapped")


def test_models_with_replaced_methods_are_refused(family: Family) -> None:
    def replaced(self: Any, **kwargs: Any) -> None: ...

    for name in ("forward", "generate", "_old_forward"):
        model = stock_of(family)
        model.__dict__[name] = replaced.__get__(model)
        assert_refused(
            model, f"`{name.removeprefix('_old_')}` of this {type(model).__name__} was replaced on the object"
        )
        del model.__dict__[name]
        vidcom2.apply(model)
        model.__dict__[name] = replaced.__get__(model)
        assert_refused(model, "was replaced on the object", vidcom2.remove)
    model = stock_of(family)
    inner_of(model).__dict__["get_video_features"] = replaced.__get__(inner_of(model))
    assert_refused(model, "`get_video_features` of this")


@pytest.mark.usefixtures("one_process")
def test_models_that_are_spread_over_processes_are_refused(family: Family) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = stock_of(family)
    assert_refused(DistributedDataParallel(model), "is a DistributedDataParallel: a wrapper for several devices")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fully_shard(model)
    assert_refused(model, "is a FSDP.*: a wrapper for several devices is around")
