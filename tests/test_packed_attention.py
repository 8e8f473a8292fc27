"""Vision towers attend within windows and frames in batches: fewer calls, and the very bits of Transformers' loop."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, by_default, only
from flash_attention import put_in_place_of_the_package
from models import MODELS, make_image, tower_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import vidcom2
from vidcom2.modeling.encoding import packed_attention, whole_frame_attention
from vidcom2.modeling.encoding.packed_attention import NAME, PackedConfig, Segments, segments_of

# The families whose towers take the patches of all frames in one row: those that take a grid for it, and two others.
WITH_SEGMENTS = {case.name for case in MODELS if "video_grid_thw" in case.video_inputs}
WITH_SEGMENTS |= {"minicpmv4_6", "nemotron_h_omni"}
WINDOWS = ("qwen2_5_vl", "minicpmv4_6")  # One has windows in some of its layers, the other has a layer for windows.
SKIP = {"vision_method": "skip_repeated", "vision_tolerance": 0.8, "retention_ratio": 1.0}

# Towers call attention in their own ways, which the tests of the same bits see. The other tests ask a few of them.
A_FEW = ("qwen2_5_vl", "qwen3_5", "minicpmv4_6")

pytestmark = [
    only(lambda family: family.name in WITH_SEGMENTS),
    by_default(lambda family: family.name in A_FEW),
]


# -- videos and images ------------------------------------------------------------------------------------------------


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def large(family: Family) -> Family:
    """Return the family with a processor that makes several windows of a frame."""
    bounds = ("pixels", "frame_tokens")
    arguments = {name: value for name, value in family.case.build_arguments.items() if name not in bounds}
    return replace(family, processor=family.case.build(**arguments)[1])


def one_video(large: Family) -> dict[str, Any]:
    return large.videos_of(large.inputs(large.prompt("?", videos=1), videos=[noise(8, 3, 196, 308)]))


def videos_of_several_sizes(large: Family) -> dict[str, Any]:
    sizes = [(4, 3, 196, 308), (8, 3, 250, 140), (4, 3, 70, 60)]
    if large.case.compared_class is not None:  # The class that the tests compare with takes one size.
        sizes = sizes[:1] * 2
    return large.videos_of(large.inputs(large.prompt("?", videos=len(sizes)), videos=[noise(*each) for each in sizes]))


def images_of_several_sizes(large: Family) -> dict[str, Any]:
    images = [make_image(0), noise(3, 250, 140), make_image(1)]
    return large.images_of(large.inputs(large.prompt("?", images=3), images=images))


def features(model: Any, media: dict[str, Any], **settings: Any) -> list[Tensor]:
    kind = model.get_video_features if any("video" in name for name in media) else model.get_image_features
    encoded = kind(**media, **settings, return_dict=True)
    layers = encoded.pooler_output, *(encoded.get("deepstack_features") or [])
    return [each for layer in layers for each in (layer if isinstance(layer, list | tuple) else [layer])]


def assert_same_bits(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for each, other in zip(ours, theirs, strict=True):
        assert torch.equal(each.flatten(0, -2), other.flatten(0, -2))


def layers_of(inner: Any) -> list[Any]:
    """Return the attention layers of the vision tower."""
    return [
        each
        for each in tower_of(inner).modules()
        if type(each).__name__.endswith(("VisionAttention", "RadioAttention"))
    ]


def implementations(inner: Any) -> set[str]:
    return {each.config._attn_implementation for each in layers_of(inner)}


# -- the same bits ----------------------------------------------------------------------------------------------------


@only(lambda family: True)
@by_default(lambda family: True)
def test_it_runs_in_the_families_whose_stock_towers_loop_over_segments(family: Family) -> None:
    """If a family's stock tower no longer loops, Transformers does by itself what the file does."""
    source = inspect.getsource(inspect.getmodule(type(tower_of(family.stock.model))))
    assert (family.case.name in WITH_SEGMENTS) == ("lengths.tolist()" in source)
    packed = [each for each in family.model.modules() if isinstance(getattr(each, "config", None), PackedConfig)]
    assert packed == (layers_of(family.model.model) if family.case.name in WITH_SEGMENTS else [])


@by_default(lambda family: True)
@pytest.mark.parametrize("media", [videos_of_several_sizes, images_of_several_sizes])
@torch.no_grad()
def test_features_are_the_very_bits_of_the_stock_tower(
    family: Family, large: Family, media: Callable[[Family], dict[str, Any]]
) -> None:
    inputs = media(large)
    ours = features(family.uncompressing.model, inputs)
    assert_same_bits(ours, features(family.stock.model, inputs))


@only(lambda family: family.name in WINDOWS)
@torch.no_grad()
def test_features_are_the_very_bits_in_half_precision(family: Family, large: Family) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        inputs = videos_of_several_sizes(large)
        inputs["pixel_values_videos"] = inputs["pixel_values_videos"].to(dtype)
        ours, stock = family.load(retention_ratio=1.0, dtype=dtype), family.load_stock(dtype=dtype)
        assert_same_bits(features(ours.model, inputs), features(stock.model, inputs))


@pytest.mark.parametrize("checkpointing", [None, {"use_reentrant": False}, {"use_reentrant": True}])
def test_gradients_are_the_very_bits_of_the_stock_tower(
    family: Family, large: Family, checkpointing: dict[str, bool] | None
) -> None:
    inputs = videos_of_several_sizes(large)

    def gradients(model: Any) -> list[Tensor]:
        if checkpointing is not None:
            model.gradient_checkpointing_enable(checkpointing)
            model.enable_input_require_grads()
        model.train()
        encoded = features(model.model, inputs)
        sum((each * torch.linspace(-1, 1, each.shape[-1])).sum() for each in encoded).backward()
        found = [weight.grad for weight in tower_of(model.model).parameters()]
        assert any(each is not None and each.abs().max() > 0 for each in found)
        return [torch.zeros(1, 1) if each is None else each[None] for each in found]

    ours, stock = family.load(retention_ratio=1.0), family.load_stock()
    assert_same_bits(gradients(ours), gradients(stock))


@only(lambda family: family.name == "qwen2_5_vl")
@torch.no_grad()
def test_a_compiled_tower_gives_the_stock_towers_features(family: Family, large: Family) -> None:
    model, inputs = family.load(retention_ratio=1.0).model, images_of_several_sizes(large)
    tower_of(model).compile(backend="eager")
    assert_same_bits(features(model, inputs), features(family.stock.model, inputs))
    torch.compiler.reset()


# -- fewer calls ------------------------------------------------------------------------------------------------------


class Attended(TorchDispatchMode):
    """Counts the calls of SDPA."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), by_name: Any = None) -> Any:
        self.count += "scaled_dot_product" in function.name()
        return function(*arguments, **(by_name or {}))


class Read(TorchFunctionMode):
    """Counts the values that Python reads of tensors. On a GPU, each has to wait until the device has finished."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), by_name: Any = None) -> Any:
        self.count += getattr(function, "__name__", "") in ("tolist", "item")
        return function(*arguments, **(by_name or {}))


@contextmanager
def seen_by_layers(inner: Any) -> Iterator[list[Tensor]]:
    """Collect where the segments of each layer end."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, __, named: seen.append(named["cu_seqlens"]), with_kwargs=True)
        for layer in layers_of(inner)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


@only(lambda family: family.name in WITH_SEGMENTS and family.name != "nemotron_h_omni")
@torch.no_grad()
def test_a_layer_calls_sdpa_once_for_each_length_and_a_pass_reads_the_lengths_once(
    family: Family, large: Family
) -> None:
    inputs, counts = videos_of_several_sizes(large), []
    for model in (family.uncompressing.model, family.stock.model):
        parents = getattr(model, "parent_video_features", model.get_video_features)
        with seen_by_layers(model) as of_layers, Read() as read, Attended() as attended:
            parents(**inputs)
        counts.append((attended.count, read.count))
    (our_calls, our_reads), (stock_calls, stock_reads) = counts
    assert our_calls == sum(len(ends.diff().unique()) for ends in of_layers)
    assert stock_calls == sum(len(ends.diff()) for ends in of_layers)
    assert stock_reads - our_reads == 3 * len(of_layers) - len({id(ends) for ends in of_layers})


@only(lambda family: family.name in WITH_SEGMENTS and family.grouped)
@torch.no_grad()
def test_what_is_left_out_of_frames_runs_in_batches_too(family: Family, large: Family) -> None:
    """Frames that changed in as many patches share a batch. A group of patches in each frame has changed much."""
    inputs, layers = one_video(large), layers_of(family.model.model)
    if "video_grid_thw" in inputs:  # Frames 1 and 3 differ from frame 0 in their first 64 patches.
        t, h, w = inputs["video_grid_thw"][0].tolist()
        frames = inputs["pixel_values_videos"].view(t, h * w, -1)
        other = frames[1, :64].clone()
        frames[:] = frames[0].clone()
        frames[1, :64] = other
        frames[3, :64] = -other
    with Attended() as attended:
        features(family.model.model, inputs, **SKIP)
    assert attended.count < 5 * len(layers)


# -- what users set ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_another_implementation_stays_what_the_user_set(
    family: Family, large: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = one_video(large)
    eager, stock = family.load(attn_implementation="eager", retention_ratio=1.0), family.load_stock()
    assert implementations(eager.model) == {"eager"}
    stock.set_attn_implementation("eager")
    expected = features(stock.model, inputs)
    assert_same_bits(features(eager.model, inputs), expected)

    model = family.load(retention_ratio=1.0)
    assert implementations(model.model) == {NAME}
    model.set_attn_implementation("eager")
    assert implementations(model.model) == {"eager"}
    assert_same_bits(features(model.model, inputs), expected)
    model.set_attn_implementation("sdpa")
    assert implementations(model.model) == {NAME}
    put_in_place_of_the_package(monkeypatch)
    flash = family.load(attn_implementation={"": "sdpa", "vision_config": "flash_attention_2"})
    assert implementations(flash.model) == {"flash_attention_2"}


def test_no_config_names_it(family: Family, tmp_path: Path) -> None:
    model = family.load()
    for config in (model.config, model.config.vision_config, tower_of(model.model).config):
        assert config._attn_implementation == "sdpa" and not isinstance(config, PackedConfig)
        assert "packed" not in str(config.to_dict()) + repr(config)
    model.save_pretrained(tmp_path)
    assert not [path for path in tmp_path.glob("*.json") if "packed_flash" in path.read_text("utf-8")]
    loaded = family.case.model_class.from_pretrained(tmp_path)
    assert loaded.config.vision_config.to_dict() == model.config.vision_config.to_dict()


@only(lambda family: family.name in WINDOWS)
@torch.no_grad()
def test_copies_follow_their_own_config(family: Family, large: Family) -> None:
    inputs, model = one_video(large), family.load(retention_ratio=1.0)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied.set_attn_implementation("eager")
        assert implementations(copied.model) == {"eager"} and implementations(model.model) == {NAME}
        copied.set_attn_implementation("sdpa")
        assert_same_bits(features(copied.model, inputs), features(family.stock.model, inputs))


@torch.no_grad()
def test_apply_switches_it_on_and_remove_leaves_the_stock_tower(family: Family, large: Family) -> None:
    inputs, model = one_video(large), family.case.stock_from(family.folder).eval()
    expected = features(family.stock.model, inputs)
    for _ in range(2):
        vidcom2.apply(model, retention_ratio=1.0)
        assert implementations(model.model) == {NAME}
        assert_same_bits(features(model.model, inputs), expected)
    vidcom2.remove(model)
    inner: Any = getattr(model, "model", model)
    assert implementations(inner) == {"sdpa"}
    for layer in layers_of(inner):
        assert type(layer.config) is type(model.config.vision_config) and not layer._forward_pre_hooks


# -- segments ---------------------------------------------------------------------------------------------------------


def in_a_loop(query: Tensor, key: Tensor, value: Tensor, lengths: Any, of_keys: Any) -> Tensor:
    """Let the queries (N, heads, dim) of each segment attend to its keys, one segment after the other."""
    parts = zip(query.split(lengths), key.split(of_keys), value.split(of_keys), strict=True)
    attended = [scaled_dot_product_attention(*(each.transpose(0, 1)[None] for each in part)) for part in parts]
    return torch.cat([each[0].transpose(0, 1) for each in attended])


@pytest.mark.parametrize("lengths", [[4, 4, 4], [3, 1, 3, 2, 1], [2, 2, 5], [7], [3, 0, 3, 2]])
@pytest.mark.parametrize("is_bounded", [False, True])
def test_batches_give_what_each_segment_gives(
    lengths: list[int], is_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_bounded:
        monkeypatch.setattr(packed_attention, "MOST_SEGMENTS", 2)
        monkeypatch.setattr(packed_attention, "MOST_SCORES", 10)
    longer = [length + number % 2 for number, length in enumerate(lengths)]
    shapes = []

    def attend(*of_batch: Tensor) -> Tensor:
        shapes.append(of_batch[0].shape)
        return scaled_dot_product_attention(*of_batch).transpose(1, 2)

    for of_keys in (None, longer):
        segments = Segments(lengths, of_keys)
        query = torch.randn(sum(lengths), 2, 8)
        key, value = torch.randn(2, sum(of_keys or lengths), 2, 8).unbind()
        shapes.clear()
        assert torch.equal(
            segments.attend(query, key, value, attend), in_a_loop(query, key, value, lengths, of_keys or lengths)
        )
        if is_bounded:
            assert all(shape[0] == 1 or (shape[0] <= 2 and shape[0] * shape[2] ** 2 <= 10) for shape in shapes)
        else:
            assert len(shapes) == len({*zip(lengths, of_keys or lengths)})
        assert (segments.most_queries, segments.most_keys) == (max(lengths), max(of_keys or lengths))


def test_ends_that_change_in_place_are_read_again() -> None:
    ends = torch.tensor([0, 2, 4], dtype=torch.int32)
    assert segments_of(ends) is segments_of(ends) and segments_of(ends).batches == [(2, 2, 2)]
    ends[1] = 1
    assert segments_of(ends).batches == [(1, 1, 1), (1, 3, 3)]


# -- PyTorch's own function for segments of any lengths ---------------------------------------------------------------


def has_equal_heads(query: Any, key: Any) -> bool:
    """PyTorch's function refuses fewer heads of keys than of queries, as EXAONE 4.5's tower has."""
    return query.shape[1] == key.shape[1]


@pytest.fixture
def varlen_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a plain loop in place of PyTorch's function, which runs on CUDA alone, and collect what it is given."""
    calls = []

    def stand_in(*given: Any) -> Tensor:
        query, key, value, query_ends, key_ends, longest, most_keys = given
        assert query_ends.dtype == key_ends.dtype == torch.int32 and query.shape[1] == key.shape[1]
        lengths, of_keys = query_ends.diff().tolist(), key_ends.diff().tolist()
        assert (longest, most_keys) == (max(lengths), max(of_keys))
        calls.append(given)
        return in_a_loop(query, key, value, lengths, of_keys)

    monkeypatch.setattr(packed_attention, "varlen_attn", stand_in)
    for module in (packed_attention, whole_frame_attention):
        monkeypatch.setattr(module, "takes_varlen", lambda query, key, *_: has_equal_heads(query, key))
    return calls


@by_default(lambda family: True)
@torch.no_grad()
def test_torchs_function_for_segments_gives_the_stock_towers_features(
    family: Family, large: Family, varlen_calls: list[Any]
) -> None:
    inputs = videos_of_several_sizes(large)
    pairs = zip(features(family.uncompressing.model, inputs), features(family.stock.model, inputs), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs.flatten(0, -2), rtol=0, atol=1e-5)
    takes_none = family.case.name in ("exaone4_5", "nemotron_h_omni")
    assert len(varlen_calls) == (0 if takes_none else len(layers_of(family.model.model)))


@only(lambda family: family.name in WITH_SEGMENTS and family.grouped)
@torch.no_grad()
def test_what_is_left_out_of_frames_uses_torchs_function_too(family: Family, varlen_calls: list[Any]) -> None:
    inputs = family.videos_of(family.one_video())
    ours = features(family.model.model, inputs, **SKIP)
    num_calls = len(varlen_calls)
    family.model.set_attn_implementation("eager")  # which stays as it was
    try:
        theirs = features(family.model.model, inputs, **SKIP)
    finally:
        family.model.set_attn_implementation("sdpa")
    for each, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(each, other, rtol=0, atol=1e-5)
    assert num_calls == len(varlen_calls) > 0


@pytest.mark.parametrize(
    ("changed", "takes"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"is_cuda": False}, False),
        ({"shape": (1, 2, 9, 20)}, False),
        ({"shape": (1, 2, 9, 264)}, False),
        ({"scale": 0.5}, False),
        ({"scale": 80**-0.5}, True),
        ({"dropout": 0.1}, False),
        ({"capability": (7, 5)}, False),
        ({"function": None}, False),
        ({"key_heads": 1}, False),
        ({"allowed": [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]}, False),
        ({"has_flash": False}, False),
    ],
)
def test_torchs_function_is_called_where_it_runs(
    changed: dict[str, Any], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = {"shape": (1, 2, 9, 80), "dtype": torch.bfloat16, "is_cuda": True, "device": "cuda:0"} | {
        name: value for name, value in changed.items() if name in ("shape", "dtype", "is_cuda")
    }
    monkeypatch.setattr(packed_attention, "varlen_attn", changed.get("function", print))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: changed.get("capability", (9, 0)))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: changed.get("has_flash", True))
    query: Any = SimpleNamespace(**described)
    key: Any = SimpleNamespace(shape=(1, changed.get("key_heads", 2), 9, 80))
    with sdpa_kernel(changed.get("allowed", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])):
        found = packed_attention.takes_varlen(query, key, changed.get("scale"), changed.get("dropout", 0.0))
    assert found == takes
