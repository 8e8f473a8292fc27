"""`vision_method="changed_patches"` computes only the patches that changed: as STC-Cacher's description says, and as
the parent does where all of them changed."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, only
from models import make_video
from torch import Tensor
from transformers import CLIPVisionConfig

from vidcom2 import CompressionSettings, VidCom2LlavaOnevisionConfig
from vidcom2.modeling.encoding.vision_changed_patches import LayerOutputs, least_similar, patch_states

CLOSE = {"rtol": 0, "atol": 1e-5}


def changed_patches(update_ratio: float) -> dict[str, Any]:
    return {"vision_method": "changed_patches", "vision_update_ratio": update_ratio}


pytestmark = only(lambda family: family.siglip)


@pytest.fixture
def siglip(family: Family) -> Family:
    """Return a family whose tower supports it."""
    return family


@pytest.fixture
def tower(siglip: Family) -> Any:
    """Return a tower whose layers matter. The tiny checkpoints' layers hardly change what they are added to."""
    tower = copy.deepcopy(siglip.model.model.vision_tower)
    for layer in tower.encoder.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
                torch.nn.init.normal_(module.bias, std=0.1)
    return tower


def pixels_of(family: Family, num_frames: int, num_videos: int = 1, cut: int | None = 5) -> Tensor:
    """Return (num_videos, num_frames, 3, height, width). One frame shows another scene."""
    videos = [make_video(seed, num_frames, cut) for seed in range(num_videos)]
    inputs = family.inputs(family.prompt("?", videos=num_videos), videos=videos)
    return inputs["pixel_values_videos"]


def all_tokens(family: Family, pixels: Tensor, **settings: Any) -> Tensor:
    """Return the features (num_videos, placeholders, dim)."""
    features = family.model.get_video_features(pixels, retention_ratio=1.0, **settings)
    return torch.stack(tuple(features.pooler_output))


def by_the_description(tower: Any, frames: Tensor, group_lengths: list[int], budget: int) -> list[Tensor]:
    """Return hidden states (F, patches, dim) after each layer, by plain loops over frames and patches in float64."""
    tower = copy.deepcopy(tower).double()
    states = list(tower.embeddings(frames.double()))
    found = [torch.stack(states)]
    starts = reference_frames(tower, states, group_lengths, budget)
    for layer in tower.encoder.layers:
        attention, reference = layer.self_attn, LayerOutputs(*[torch.empty(0)] * 4)
        for number, own in enumerate(states):
            normed = layer.layer_norm1(own)
            keys = torch.stack([attention.k_proj(patch) for patch in normed])
            if number in starts:
                dynamic = list(range(len(own)))
            else:
                likeness = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(keys, reference.keys, strict=True)]
                dynamic = sorted(range(len(own)), key=lambda patch: (likeness[patch], patch))[:budget]
            values = [
                attention.v_proj(normed[patch]) if patch in dynamic else reference.values[patch]
                for patch in range(len(own))
            ]
            attended = [
                one_attention(attention, attention.q_proj(normed[patch]), keys, torch.stack(values))
                if patch in dynamic
                else reference.attention[patch]
                for patch in range(len(own))
            ]
            own = own + torch.stack(attended)
            mlp = [
                layer.mlp(layer.layer_norm2(own[patch])) if patch in dynamic else reference.mlp[patch]
                for patch in range(len(own))
            ]
            states[number] = own + torch.stack(mlp)
            if number in starts:
                reference = LayerOutputs(keys, torch.stack(values), torch.stack(attended), torch.stack(mlp))
        found.append(torch.stack(states))
    return found


def reference_frames(tower: Any, embedded: list[Tensor], group_lengths: list[int], budget: int) -> list[int]:
    """Return the first frame of each group, and frames in which more than the budget changed since the last one."""
    first, starts = tower.encoder.layers[0], []
    keys = [first.self_attn.k_proj(first.layer_norm1(own)) for own in embedded]
    for group, length in enumerate(group_lengths):
        start = sum(group_lengths[:group])
        for number in range(start, start + length):
            alike = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(keys[number], keys[max([0, *starts])])]
            if number == start or sum(each < 0.85 for each in alike) > budget:
                starts.append(number)
    return starts


def one_attention(attention: Any, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return what one patch gathers by attention."""
    gathered, width = [], len(query) // attention.num_heads
    for head in range(attention.num_heads):
        part = slice(head * width, (head + 1) * width)
        weights = torch.softmax(keys[:, part] @ query[part] / math.sqrt(width), dim=0)
        gathered.append(weights @ values[:, part])
    return attention.out_proj(torch.cat(gathered))


@contextmanager
def frames_per_call(family: Family) -> Iterator[list[int]]:
    """Collect how many frames the tower gets in each call."""
    seen: list[int] = []
    embeddings = family.model.model.vision_tower.embeddings
    hook = embeddings.register_forward_pre_hook(lambda _, arguments: seen.append(len(arguments[0])))
    try:
        yield seen
    finally:
        hook.remove()


# -- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.75])
@torch.no_grad()
def test_hidden_states_equal_those_of_the_published_description(siglip: Family, tower: Any, ratio: float) -> None:
    groups = [4, 3, 1]
    frames = pixels_of(siglip, 8)[0]
    budget = max(1, math.ceil(ratio * tower.embeddings.num_patches))
    expected = by_the_description(tower, frames, groups, budget)
    states = patch_states(tower, frames, groups, ratio, range(len(expected)))
    for ours, theirs in zip(states.chunk(len(expected), dim=-1), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, **CLOSE)
    whole = tower(frames, output_hidden_states=True).hidden_states[-1]
    assert (expected[-1] - whole).norm() > 0.05 * whole.norm(), "the setting makes no difference"


@torch.no_grad()
def test_features_equal_the_parents_where_all_patches_are_dynamic(siglip: Family) -> None:
    pixels = pixels_of(siglip, 9, num_videos=2)
    expected = siglip.stock.get_video_features(pixels, return_dict=True).pooler_output
    torch.testing.assert_close(all_tokens(siglip, pixels, **changed_patches(1.0)), expected, **CLOSE)


@pytest.mark.parametrize("layers", [[-1], [0], [-2, 1], [1, -1, 0]])
@torch.no_grad()
def test_hidden_states_come_from_the_requested_layers(siglip: Family, tower: Any, layers: list[int]) -> None:
    frames = pixels_of(siglip, 5)[0]
    theirs = tower(frames, output_hidden_states=True).hidden_states
    ours = patch_states(tower, frames, [4, 1], 1.0, layers)
    torch.testing.assert_close(ours, torch.cat([theirs[layer] for layer in layers], dim=-1), **CLOSE)
    with pytest.raises(IndexError):
        patch_states(tower, frames, [4, 1], 0.5, [len(theirs)])


@pytest.mark.parametrize(("cut", "references"), [(None, [0, 4, 8]), (5, [0, 4, 5, 6, 8]), (3, [0, 3, 4, 8])])
@torch.no_grad()
def test_every_fourth_frame_and_the_frames_at_a_cut_are_references(
    siglip: Family, cut: int | None, references: list[int]
) -> None:
    """Reference frames are those computed in full."""
    pixels = pixels_of(siglip, 10, cut=cut)
    encode, settings = siglip.model.model.encode_videos, CompressionSettings(**changed_patches(0.1))
    _, videos = encode(pixels, settings=settings)
    _, whole = encode(pixels, settings=CompressionSettings())
    same = [torch.allclose(a, b, **CLOSE) for a, b in zip(videos[0].tokens, whole[0].tokens, strict=True)]
    assert [number for number, each in enumerate(same) if each] == references


@torch.no_grad()
def test_only_the_set_share_of_patches_is_computed_between_references(siglip: Family) -> None:
    tower, rows = siglip.model.model.vision_tower, {}
    layer = tower.encoder.layers[-1]
    named = {name: layer.self_attn.get_submodule(name) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, arguments, name=name: rows.setdefault(name, []).append(arguments[0].flatten(0, -2).shape[0])
        )
        for name, module in (named | {"mlp": layer.mlp}).items()
    ]
    siglip.model.get_video_features(pixels_of(siglip, 8, cut=None), **changed_patches(0.3))
    for hook in hooks:
        hook.remove()
    patches = tower.embeddings.num_patches
    some = 6 * math.ceil(0.3 * patches)
    assert {name: sum(each) for name, each in rows.items()} == {
        "k_proj": 8 * patches,
        **dict.fromkeys(("q_proj", "v_proj", "out_proj", "mlp"), 2 * patches + some),
    }


@torch.no_grad()
def test_frames_that_do_not_change_have_the_states_of_their_reference(siglip: Family, tower: Any) -> None:
    frames = pixels_of(siglip, 1)[0].expand(4, -1, -1, -1)
    states = patch_states(tower, frames, [4], 0.1, [-1])
    torch.testing.assert_close(states, tower(frames, output_hidden_states=True).hidden_states[-1], **CLOSE)


@torch.no_grad()
def test_only_the_patch_that_moves_is_computed(siglip: Family, tower: Any) -> None:
    patch = 8
    frames = pixels_of(siglip, 1)[0].repeat(3, 1, 1, 1)
    side, size = tower.embeddings.image_size // tower.embeddings.patch_size, tower.embeddings.patch_size
    row, column = divmod(patch, side)
    where = slice(row * size, (row + 1) * size), slice(column * size, (column + 1) * size)
    for number in (1, 2):
        frames[number, :, where[0], where[1]] = torch.randn(3, size, size)
    states = patch_states(tower, frames, [3], 1e-6, [-1])
    others = [each for each in range(side**2) if each != patch]
    torch.testing.assert_close(states[1:, others], states[:1, others].expand(2, -1, -1), **CLOSE)
    assert (states[1:, patch] - states[0, patch]).abs().amax(dim=-1).min() > 0.01
    expected = by_the_description(tower, frames, [3], 1)[-1]
    torch.testing.assert_close(states.double(), expected, **CLOSE)


def test_the_least_similar_patches_are_dynamic_and_the_earlier_of_equal_ones() -> None:
    reference = torch.eye(4)[None]
    keys = reference.clone()
    keys[0, 2] = -keys[0, 2]
    assert least_similar(keys, reference, 3).tolist() == [[2, 0, 1]]
    assert least_similar(5 * reference, reference, 2).tolist() == [[0, 1]], "the length of a patch's state counts"
    assert least_similar(reference.bfloat16(), reference.bfloat16(), 4).tolist() == [[0, 1, 2, 3]]


@torch.no_grad()
def test_a_frame_with_more_changed_patches_than_may_be_computed_is_a_reference(siglip: Family, tower: Any) -> None:
    patches = tower.embeddings.num_patches
    frames, size = pixels_of(siglip, 1)[0].repeat(2, 1, 1, 1), tower.embeddings.patch_size
    frames[1, :, :size, : 4 * size] = -2 * frames[1, :, :size, : 4 * size]
    in_full = tower(frames, output_hidden_states=True).hidden_states[-1][1]
    of_budget = {
        budget: torch.allclose(patch_states(tower, frames, [2], budget / patches, [-1])[1], in_full, **CLOSE)
        for budget in (3, 4)
    }
    assert of_budget == {3: True, 4: False}


@torch.no_grad()
def test_the_share_is_rounded_up_from_its_exact_value(siglip: Family, tower: Any) -> None:
    frames, patches, counts = pixels_of(siglip, 2)[0], tower.embeddings.num_patches, []
    hook = tower.encoder.layers[0].mlp.register_forward_pre_hook(lambda _, given: counts.append(given[0].shape[-2]))
    for ratio in (1e-9, 7 / patches, math.nextafter(7 / patches, 1), 7.1 / patches):
        patch_states(tower, frames, [2], ratio, [1])
    hook.remove()
    assert counts[1::2] == [1, 7, 7, 8]


# -- groups, chunks and repeats ----------------------------------------------------------------------------------------


@torch.no_grad()
def test_videos_of_a_batch_equal_each_alone(siglip: Family) -> None:
    pixels, setting = pixels_of(siglip, 6, num_videos=2), changed_patches(0.2)
    alone = torch.cat([all_tokens(siglip, pixels[number : number + 1], **setting) for number in (0, 1)])
    torch.testing.assert_close(all_tokens(siglip, pixels, **setting), alone, **CLOSE)


@pytest.mark.parametrize(("chunk", "seen"), [(1, [4, 2, 4, 2]), (3, [4, 2, 4, 2]), (6, [6, 6]), (9, [6, 6])])
@torch.no_grad()
def test_chunks_hold_whole_groups_and_do_not_change_the_features(siglip: Family, chunk: int, seen: list[int]) -> None:
    pixels, setting = pixels_of(siglip, 6, num_videos=2), changed_patches(0.2)
    with frames_per_call(siglip) as given:
        parts = all_tokens(siglip, pixels, vision_chunk_frames=chunk, **setting)
    assert given == seen
    torch.testing.assert_close(parts, all_tokens(siglip, pixels, vision_chunk_frames=None, **setting), **CLOSE)


@torch.no_grad()
def test_repeated_frames_are_encoded_once_and_groups_hold_the_other_frames(siglip: Family) -> None:
    pixels = pixels_of(siglip, 6)
    with frames_per_call(siglip) as seen:
        tokens = all_tokens(siglip, pixels[:, [0, 0, 1, 2, 2, 3, 4, 5, 5]], **changed_patches(0.2))
    assert seen == [6]
    once = all_tokens(siglip, pixels, **changed_patches(0.2))
    end = None if siglip.case.structure_tokens == 0 else -1
    of_frames, expected = tokens[0, :end].unflatten(0, (9, -1)), once[0, :end].unflatten(0, (6, -1))
    torch.testing.assert_close(of_frames, expected[[0, 0, 1, 2, 2, 3, 4, 5, 5]], **CLOSE)


# -- in a model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.25, 1.0])
@torch.no_grad()
def test_every_call_of_the_model_uses_the_vision_method(siglip: Family, ratio: float) -> None:
    """That holds with all tokens too, which the parent would encode otherwise."""
    inputs, setting = siglip.one_video(), {"retention_ratio": ratio, **changed_patches(0.1)}
    features = siglip.model.get_video_features(inputs["pixel_values_videos"], **setting)
    rest = {name: value for name, value in inputs.items() if name != "pixel_values_videos"}
    expected = siglip.model(**rest, mm_encoder_outputs={"video": features}).logits
    assert torch.equal(siglip.model(**inputs, **setting).logits, expected)
    whole = siglip.model(**inputs, retention_ratio=ratio).logits
    assert not torch.allclose(whole[:, -1], expected[:, -1], atol=1e-4)
    output = {"max_new_tokens": 2, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    generated = siglip.model.generate(**inputs, **setting, **output)
    torch.testing.assert_close(generated.logits[0], expected[:, -1], **CLOSE)


@torch.no_grad()
def test_the_default_leaves_the_computation_to_the_parent(siglip: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("the parent's tower runs")

    module = "vidcom2.modeling.encoding.vision_changed_patches.patch_states"
    monkeypatch.setattr(module, forbidden)
    inputs = siglip.one_video()
    siglip.model(**inputs)
    expected = siglip.stock(**inputs).logits
    assert torch.equal(siglip.model(**inputs, retention_ratio=1.0, vision_method="full").logits, expected)
    with pytest.raises(AssertionError, match="the parent's tower runs"):
        siglip.model(**inputs, **changed_patches(0.5))


def test_the_vision_method_is_saved_and_loaded(siglip: Family, tmp_path: Path) -> None:
    inputs = siglip.one_video()
    siglip.load(**changed_patches(0.1)).save_pretrained(tmp_path)
    loaded = siglip.case.model_class.from_pretrained(tmp_path).eval()
    assert loaded.config.vision_update_ratio == 0.1
    assert torch.equal(loaded(**inputs).logits, siglip.load()(**inputs, **changed_patches(0.1)).logits)


def test_a_share_without_the_method_is_refused_even_at_its_default(siglip: Family) -> None:
    inputs, default = siglip.one_video(), CompressionSettings().vision_update_ratio
    for call in (lambda **each: siglip.model(**inputs, **each), siglip.load):
        with pytest.raises(ValueError, match=rf"`vision_update_ratio` is {default}, but `vision_method='full'`"):
            call(vision_update_ratio=default)


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_outputs_that_only_a_whole_tower_has_are_refused(siglip: Family, name: str) -> None:
    with pytest.raises(ValueError, match=rf"`{name}` is True.*`vision_method='changed_patches'`.*='full'"):
        siglip.model.get_video_features(pixels_of(siglip, 4), **changed_patches(0.5), **{name: True})


@pytest.mark.parametrize("name", ["bfloat16", "autocast"])
@torch.no_grad()
def test_the_vision_method_works_in_half_precision(siglip: Family, name: str) -> None:
    pixels, expected = pixels_of(siglip, 6), all_tokens(siglip, pixels_of(siglip, 6))
    if name == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            ours = [all_tokens(siglip, pixels, **changed_patches(ratio)) for ratio in (1.0, 0.2)]
    else:
        model = siglip.load(dtype=torch.bfloat16)
        settings = [{"retention_ratio": 1.0, **changed_patches(ratio)} for ratio in (1.0, 0.2)]
        ours = [torch.stack(model.get_video_features(pixels.bfloat16(), **each).pooler_output) for each in settings]
    scale = expected.abs().max()
    assert (ours[0].float() - expected).abs().max() < 0.05 * scale
    assert ours[1].isfinite().all() and not torch.equal(ours[0], ours[1])


@pytest.mark.parametrize("ratio", [0.2, 1.0])
def test_gradients_flow_through_the_computed_patches(siglip: Family, ratio: float) -> None:
    """They equal the parent's where all is computed. Gradient checkpointing, which computes twice, changes none."""
    pixels, calls = pixels_of(siglip, 5), []
    model = siglip.load(retention_ratio=1.0)
    tower = model.model.vision_tower
    names = [name for name, _ in tower.encoder.named_parameters()]

    def gradients(**settings: Any) -> list[Tensor]:
        calls.clear()
        model.zero_grad()
        torch.stack(tuple(model.get_video_features(pixels, **settings).pooler_output)).square().mean().backward()
        return [tower.encoder.get_parameter(name).grad.clone() for name in names]

    tower.encoder.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    model.train()
    plain = gradients(**changed_patches(ratio))
    assert len(calls) == 2 and all(
        each.abs().max() > 0 for each, name in zip(plain, names) if "k_proj.bias" not in name
    )
    if ratio == 1.0:
        for ours, theirs in zip(plain, gradients(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-7)
    model.gradient_checkpointing_enable()
    for ours, theirs in zip(gradients(**changed_patches(ratio)), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-8)
    assert len(calls) == 4


@torch.no_grad()
def test_offloaded_weights_are_loaded_when_needed(siglip: Family) -> None:
    accelerate = pytest.importorskip("accelerate")
    setting = {"retention_ratio": 1.0, **changed_patches(0.2)}
    model = accelerate.cpu_offload(siglip.load(), execution_device="cpu")
    assert model.model.vision_tower.encoder.layers[0].mlp.fc1.weight.is_meta
    inputs = siglip.one_video()
    assert torch.equal(model(**inputs, **setting).logits, siglip.model(**inputs, **setting).logits)


# -- where it is refused ----------------------------------------------------------------------------------------------


@only(lambda family: not family.siglip)
def test_other_towers_refuse_the_vision_method(family: Family, tmp_path: Path) -> None:
    name = family.case.config_class.model_type
    refused = pytest.raises(
        ValueError, match=rf"`vision_method` is 'changed_patches', but the vision tower of this '{name}'.*'full'"
    )
    inputs = family.one_video()
    for call in (family.model, family.model.generate, family.model.model):
        with refused:
            call(**inputs, **changed_patches(0.5))
    with refused:
        family.model.get_video_features(**family.videos_of(inputs), **changed_patches(0.5))
    with refused:
        family.load(**changed_patches(0.5))
    with refused:
        family.case.config_class(**changed_patches(0.5))
    config = family.case.config_class()
    config.vision_method = "changed_patches"
    with refused:
        config.save_pretrained(tmp_path)
    with refused:
        family.case.model_class(config)
    assert not list(tmp_path.iterdir())
    expected = family.model(**inputs).logits
    assert torch.equal(family.model(**inputs, vision_method="full").logits, expected)


def test_a_llava_with_another_tower_refuses_the_vision_method() -> None:
    with pytest.raises(ValueError, match=r"'clip_vision_model'.*'siglip_vision_model'"):
        VidCom2LlavaOnevisionConfig(vision_config=CLIPVisionConfig().to_dict(), **changed_patches(0.5))
    VidCom2LlavaOnevisionConfig(vision_config=CLIPVisionConfig().to_dict())


def test_every_compression_method_accepts_the_vision_method() -> None:
    for method in ("vidcom2", "random", "uniform_frames", "dycoke", "evs", "vcast", "coverage"):
        assert CompressionSettings(compression_method=method, **changed_patches(0.5)).vision_update_ratio == 0.5
