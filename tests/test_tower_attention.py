"""Methods may ask how much attention each patch receives in the vision tower.

The reference is a tower that computes all of its attention weights, by Transformers' eager attention or by one that is
registered here."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Family, only, use_method
from models import MODELS, RETENTION_RATIO, tower_of
from test_inner_model import one_process
from torch import Tensor, nn
from transformers import AttentionInterface, LlavaOnevisionModel, PreTrainedModel
from transformers.vision_utils import get_vision_window_index

from vidcom2 import CompressionSettings, VideoTokens
from vidcom2.modeling.encoding import tower_attention
from vidcom2.modeling.encoding.tower_attention import summed_weights
from vidcom2.modeling.families.modeling_vidcom2_llava_video import pooled_rows

__all__ = ["one_process"]  # a fixture

CLOSE = {"rtol": 1e-4, "atol": 1e-7}
NEEDS = ("tower_attention",)
pytestmark = only(lambda family: family.has_tower)
WHOLE = CompressionSettings()


@pytest.fixture(scope="module")
def attentive(family: Family) -> Family:
    """Give the tower's attention preferences. With random weights it hardly has any."""
    stock, ours = copy.deepcopy(family.stock), copy.deepcopy(family.model)
    for model in (stock, ours):
        with torch.no_grad():
            for name, weight in tower_of(model.model).named_parameters():
                if name.endswith(("q_proj.weight", "k_proj.weight", ".q.weight", ".k.weight")):
                    weight.mul_(20)
                elif name.endswith("qkv.weight"):
                    weight[: 2 * weight.shape[1]].mul_(20)  # those of queries and keys
    changed = Family(family.case, family.folder, stock, family.processor)
    changed.__dict__["model"] = ours
    return changed


@pytest.fixture
def weights(attentive: Family) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Collect the attention weights (B, heads, n, n) of each call of an attention of the stock tower, in float64."""
    seen = []

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, scaling: float, **__: Any) -> Any:
        of_call = torch.softmax(q.double() @ k.double().mT * scaling, dim=-1)
        seen.append((module, of_call))
        return (of_call @ v.double()).to(v).transpose(1, 2), None

    AttentionInterface.register("weighed", attend)
    config = tower_of(attentive.stock.model).config
    before, config._attn_implementation = config._attn_implementation, "weighed"
    yield seen
    config._attn_implementation = before


def of_clip_or_siglip(stock: PreTrainedModel, pixels: Tensor) -> Tensor:
    """Return the attention received (F, P) in frames (F, 3, H, W), from the weights of Transformers' eager tower."""
    tower = copy.deepcopy(tower_of(stock.model))
    tower.set_attn_implementation("eager")
    layers = getattr(stock.config, "vision_feature_layer", -1)  # SmolVLM has no such field
    last = max(layer % 3 for layer in ([layers] if isinstance(layers, int) else layers))  # 2 layers and the embeddings
    of_layer = tower(pixels, output_attentions=True).attentions[last - 1].double()  # (F, heads, n, n)
    if getattr(stock.config, "vision_feature_select_strategy", "full") == "default":
        return torch.stack([sum(head[0, 1:] for head in frame) / len(frame) for frame in of_layer])
    return torch.stack([sum(row for head in frame for row in head) / len(frame) / frame.shape[1] for frame in of_layer])


def of_qwen(stock: PreTrainedModel, seen: list, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return the attention received (t, h·w) by the frames of each video, from the weights of each frame or window.
    VideoLLaMA3's tower orders patches as Qwen's do."""
    tower, grids = tower_of(stock.model), inputs["video_grid_thw"]
    last_layer = tower.encoder.layers[-1].self_attn if hasattr(tower, "encoder") else tower.blocks[-1].attn
    seen.clear()
    stock.get_video_features(**inputs)
    last = [of_part[0] for module, of_part in seen if module is last_layer]
    paid = torch.cat([sum(row for head in part for row in head) / len(part) for part in last])  # in the tower's order
    blocks = list(paid.view(-1, 4))
    if hasattr(tower, "window_size"):
        order, _ = get_vision_window_index(grids, 2, tower.window_size, tower.patch_size)
        blocks = [blocks[order.tolist().index(place)] for place in range(len(blocks))]
    videos = []
    for frames, height, width in grids.tolist():
        video = torch.zeros(frames, height, width, dtype=torch.float64)
        for frame in video:
            for y in range(0, height, 2):
                for x in range(0, width, 2):
                    frame[y : y + 2, x : x + 2] = blocks.pop(0).view(2, 2)
        videos.append(video.flatten(1) / (height * width))
    return videos


def of_minicpmv(stock: PreTrainedModel, seen: list, inputs: dict[str, Tensor]) -> Tensor:
    """Return the attention received (F, P) in the last layer, whose patches stand for 2 × 2 of the first."""
    seen.clear()
    stock.model.get_video_features(**inputs)
    last = [of_frame[0] for module, of_frame in seen if module is stock.model.vision_tower.encoder.layers[-1].self_attn]
    return torch.stack([sum(row for head in part for row in head) / len(part) / part.shape[1] for part in last])


@only(lambda family: family.has_tower and not family.shares_kv)  # that of Gemma 4's tower is in tests/test_gemma4.py
@torch.no_grad()
def test_it_is_the_mean_of_the_towers_own_weights(attentive: Family, weights: list) -> None:
    inputs = attentive.videos_of(attentive.one_video())
    _, (video,) = attentive.model.model.encode_videos(settings=WHOLE, needs=NEEDS, **inputs)
    if "video_grid_thw" in inputs:
        (expected,) = of_qwen(attentive.stock, weights, inputs)
    elif "target_sizes_videos" in inputs:
        expected = of_minicpmv(attentive.stock, weights, inputs)
    else:
        frames = inputs["pixel_values_videos"].flatten(0, -4)
        expected = of_clip_or_siglip(attentive.stock, frames)
    assert video.tower_attention.dtype == torch.float32 and video.tower_states is None
    # MiniCPM-V's tower norms its states several times on the way, which magnifies what rounding changes in them.
    close = {"rtol": 1e-3, "atol": 1e-6} if "target_sizes_videos" in inputs else CLOSE
    torch.testing.assert_close(video.tower_attention, expected.float(), **close)
    assert (expected.amax(dim=1) > 1.5 * expected.mean(dim=1)).all(), "the reference tower has no preferences"
    rows, columns = video.tower_grid
    assert rows * columns == video.tower_attention.shape[1]


@only(lambda family: family.mrope)
@torch.no_grad()
def test_it_is_row_by_row_in_videos_of_two_shapes_and_within_windows(attentive: Family, weights: list) -> None:
    """In Qwen2.5-VL's tower the last layer may attend within windows: patches elsewhere pay a patch nothing."""
    side = attentive.processor.video_processor.patch_size
    videos = [torch.randint(256, (4, 3, rows * side, columns * side)) for rows, columns in ((6, 8), (8, 6))]
    prompt = attentive.inputs(
        attentive.prompt("?", videos=2), videos=[video.numpy().astype("uint8") for video in videos]
    )
    inputs = attentive.videos_of(prompt)
    seen = []
    for full in ([1], []) if hasattr(attentive.stock.model.visual, "fullatt_block_indexes") else (None,):
        ours, stock = copy.deepcopy(attentive.model.model), attentive.stock
        for tower in (ours.visual, stock.model.visual):
            tower.fullatt_block_indexes = full
        _, encoded = ours.encode_videos(settings=WHOLE, needs=NEEDS, **inputs)
        expected = of_qwen(stock, weights, inputs)
        assert [video.tower_grid for video in encoded] == [(6, 8), (8, 6)]
        for video, of_video in zip(encoded, expected, strict=True):
            torch.testing.assert_close(video.tower_attention, of_video.float(), **CLOSE)
            torch.testing.assert_close(video.tower_attention.sum(dim=1), torch.ones(len(of_video)))
        seen.append(encoded[0].tower_attention)
    assert len(seen) == 1 or not torch.allclose(*seen)


@only(lambda family, layers: family.name == ("llava_next_video" if isinstance(layers, list) else "llava_onevision"))
@pytest.mark.parametrize("layers", [-1, 1, [-3, -2], [-1, 1]], ids=str)
@torch.no_grad()
def test_it_is_of_the_last_layer_whose_output_is_used(attentive: Family, layers: int | list[int]) -> None:
    pixels = attentive.videos_of(attentive.one_video())["pixel_values_videos"]
    stock, ours = copy.deepcopy(attentive.stock), copy.deepcopy(attentive.model)
    stock.config.vision_feature_layer = layers
    if isinstance(layers, list):
        ours.model.multi_modal_projector = nn.Identity()
    _, (video,) = ours.model.encode_videos(pixels, settings=WHOLE, needs=NEEDS, vision_feature_layer=layers)
    torch.testing.assert_close(video.tower_attention, of_clip_or_siglip(stock, pixels[0]).float(), **CLOSE)


@torch.no_grad()
def test_it_changes_no_token_leaves_no_hook_and_is_not_computed_unless_asked_for(
    attentive: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = attentive.model.model, attentive.videos_of(attentive.one_video())
    _, (asked,) = model.encode_videos(settings=WHOLE, needs=NEEDS, **inputs)
    monkeypatch.setattr(tower_attention, "summed_weights", None)
    _, (unasked,) = model.encode_videos(settings=WHOLE, needs=(), **inputs)
    assert torch.equal(asked.tokens, unasked.tokens)
    assert unasked.tower_attention is None and unasked.tower_grid is None
    assert not any(module._forward_pre_hooks for module in tower_of(attentive.model.model).modules())
    with pytest.raises(TypeError):
        model.encode_videos(settings=WHOLE, needs=NEEDS, **inputs)
    assert not any(module._forward_pre_hooks for module in tower_of(attentive.model.model).modules())


def test_weights_are_summed_in_blocks_in_float32_under_autocast_too(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = 3 * torch.randn(2, 7, 4), torch.randn(2, 5, 4)
    expected = torch.softmax(queries.double() @ keys.double().mT * 0.5, dim=-1).mean(dim=0).sum(dim=0).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(summed_weights(queries, keys, 0.5), expected)
        for rows in (0, 3):
            monkeypatch.setattr(tower_attention, "BLOCK_BYTES", rows * 4 * 2 * 5)
            torch.testing.assert_close(summed_weights(queries, keys, 0.5), expected)


def test_no_gradient_flows_through_it_and_checkpointed_layers_give_it(family: Family, methods_restored: None) -> None:
    """The method keeps the same tokens as without gradients, and the towers' weights are trained."""
    model, inputs = copy.deepcopy(family.model), family.videos_of(family.one_video())
    settings = {"compression_method": use_method("inner_contrast")}
    with torch.inference_mode():
        expected = model.get_video_features(**inputs, **settings)
    model.train()
    model.gradient_checkpointing_enable()
    trained = model.get_video_features(**inputs, **settings)
    assert torch.equal(trained.video_compressions[0].indices, expected.video_compressions[0].indices)
    torch.testing.assert_close(trained.pooler_output[0], expected.pooler_output[0].clone())
    trained.pooler_output[0].square().sum().backward()
    tower = tower_of(model.model).named_parameters()
    first = next(weight for name, weight in tower if "merger" not in name)
    assert first.grad is not None and first.grad.abs().sum() > 0
    _, (video,) = model.model.encode_videos(settings=WHOLE, needs=NEEDS, **inputs)
    assert video.tokens.requires_grad and not video.tower_attention.requires_grad


@pytest.mark.slow
@only(lambda family: family.name in ("llava_onevision", "qwen2_5_vl"))
def test_a_compiled_model_gives_it_in_every_call(family: Family, methods_restored: None) -> None:
    settings = {"compression_method": use_method("inner_contrast")}
    model = copy.deepcopy(family.model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    for seed in range(2):
        inputs = family.one_video(seed=seed)
        with torch.no_grad():
            expected = family.model(**inputs, **settings)
            torch.testing.assert_close(compiled(**inputs, **settings).logits, expected.logits, rtol=0, atol=1e-5)


@only(lambda family: family.name in ("llava_next_video", "qwen2_5_vl"))
@torch.no_grad()
def test_towers_whose_weights_are_elsewhere_give_it(family: Family, one_process: None) -> None:
    """accelerate and FSDP have a module's weights in place only while it runs."""
    from torch.distributed.fsdp import fully_shard

    inputs, settings = family.one_video(), {"compression_method": "visionzip"}
    expected = family.model(**inputs, **settings).logits
    offloaded, sharded = family.load(retention_ratio=RETENTION_RATIO), copy.deepcopy(family.model)
    pytest.importorskip("accelerate").cpu_offload(offloaded, execution_device="cpu")
    tower = tower_of(sharded.model)
    for layer in tower.blocks if family.case.mrope else tower.encoder.layers:
        fully_shard(layer)
    fully_shard(sharded.model)
    fully_shard(sharded)
    for model in (offloaded, sharded):
        torch.testing.assert_close(model(**inputs, **settings).logits, expected)


# -- what cannot be done ----------------------------------------------------------------------------------------------


ONEVISION = next(case for case in MODELS if case.name == "llava_onevision")


@pytest.fixture
def onevision() -> Any:
    stock, _ = ONEVISION.build(**ONEVISION.build_arguments)
    config = ONEVISION.config_class(**{k: v for k, v in stock.config.to_dict().items() if k != "model_type"})
    return ONEVISION.model_class(config).eval().model


PIXELS = torch.randn(1, 4, 3, 84, 84)


def test_a_tower_that_computes_some_of_the_patches_is_refused(onevision: Any) -> None:
    settings = CompressionSettings(vision_method="skip_repeated")
    with pytest.raises(ValueError, match=r"`vision_method` is 'skip_repeated', .* but the compression method needs"):
        onevision.encode_videos(PIXELS, settings=settings, needs=NEEDS)


def test_a_tower_of_another_kind_and_embeddings_alone_are_refused(onevision: Any) -> None:
    reason = r"layer {} of a {}, the last one .* has no attention as CLIP and SigLIP have it\. Choose another"
    with pytest.raises(ValueError, match=reason.format(0, "SiglipVisionModel")):
        onevision.encode_videos(PIXELS, settings=WHOLE, needs=NEEDS, vision_feature_layer=0)
    onevision.vision_tower.encoder.layers[1].self_attn = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=reason.format(2, "SiglipVisionModel")):
        onevision.encode_videos(PIXELS, settings=WHOLE, needs=NEEDS)
    onevision.vision_tower = nn.Flatten()
    with pytest.raises(ValueError, match=reason.format(0, "Flatten")):
        onevision.encode_videos(PIXELS, settings=WHOLE, needs=NEEDS)


def test_a_tower_whose_layer_was_replaced_is_refused(onevision: Any) -> None:
    onevision.vision_tower.encoder.layers[1].forward = lambda hidden_states, *_, **__: hidden_states
    with pytest.raises(ValueError, match=r"called the attention of its last layer 0 times, not once.*choose another"):
        onevision.encode_videos(PIXELS, settings=WHOLE, needs=NEEDS)


# -- from patches to tokens -------------------------------------------------------------------------------------------


def bilinear(side: int) -> Any:
    """Return LLaVA-OneVision's pooling of projected patches (F, side², dim)."""
    config = SimpleNamespace(vision_config=SimpleNamespace(image_size=14 * side, patch_size=14))
    return lambda features: LlavaOnevisionModel.apply_pooling(SimpleNamespace(config=config), features)


def rows_without_newlines(mode: str, side: int) -> Any:
    """Return LLaVA-Video's pooling of projected patches (F, side², 1)."""

    def pool(features: Tensor) -> Tensor:
        config = SimpleNamespace(spatial_pool_mode=mode, patches_per_side=side)
        rows = pooled_rows(features, config, bilinear(side), torch.full((1,), torch.inf))
        return rows[rows.isfinite()].view(len(features), -1, 1)

    return pool


@pytest.mark.parametrize(
    ("pool", "patches", "tokens"),
    [
        pytest.param(bilinear(27), 27, 14, id="LLaVA-OneVision"),
        pytest.param(bilinear(24), 24, 12, id="LLaVA-OneVision, even"),
        pytest.param(rows_without_newlines("average", 27), 27, 13, id="LLaVA-Video"),
        pytest.param(rows_without_newlines("bilinear", 27), 27, 14, id="LLaVA-Video, bilinear"),
        pytest.param(lambda features: features, 5, 5, id="not pooled"),
    ],
)
def test_values_of_patches_are_pooled_to_tokens_as_the_model_pools_features(
    pool: Any, patches: int, tokens: int
) -> None:
    of_patches = torch.rand(3, patches**2)
    video = VideoTokens(torch.zeros(3, tokens**2, 2), (tokens,) * 2, tower_grid=(patches,) * 2)
    torch.testing.assert_close(video.per_token(of_patches), pool(of_patches[..., None])[..., 0])


def test_values_of_patches_are_means_of_blocks_in_frames_that_are_not_square() -> None:
    of_patches = torch.rand(2, 4 * 6, dtype=torch.float64)
    video = VideoTokens(torch.zeros(2, 6, 2), (2, 3), tower_grid=(4, 6))
    for t, frame in enumerate(of_patches.view(2, 4, 6)):
        expected = [frame[y : y + 2, x : x + 2].mean() for y in (0, 2) for x in (0, 2, 4)]
        torch.testing.assert_close(video.per_token(of_patches)[t], torch.stack(expected).float())
