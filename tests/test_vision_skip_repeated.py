"""`vision_method="skip_repeated"` leaves out patches that repeat: what it computes equals the full tower where whole
frames repeat, and otherwise plain loops over frames, layers and patches."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, by_default, of_representatives, only
from flash_attention import put_in_place_of_the_package
from models import make_video, tower_of
from test_generate import answered
from torch import Tensor
from transformers import Dinov2Config

from vidcom2 import CompressionSettings, VidCom2LlavaOnevisionConfig, register_vision_method
from vidcom2.configuration.compression_settings import VISION_METHODS
from vidcom2.modeling.encoding.left_out_patches import groups_to_compute, tokens_of_patches
from vidcom2.modeling.encoding.vision_skip_repeated import changed_groups

CLOSE = {"rtol": 0, "atol": 1e-5}
SKIP = {"vision_method": "skip_repeated"}

pytestmark = only(lambda family: family.grouped)


def takes_grids(family: Family) -> bool:
    """Return whether the tower takes patches with a grid for each video, as Qwen's and GLM's do."""
    return "video_grid_thw" in family.case.video_inputs


def pixels_of(family: Family, num_frames: int, num_videos: int = 1) -> dict[str, Tensor]:
    """Return the arguments that describe videos of noise, in which nothing repeats."""
    step = family.case.files_frames_per_frame
    videos = [make_video(seed, num_frames * step) for seed in range(num_videos)]
    described = family.videos_of(family.inputs(family.prompt("?", videos=num_videos), videos=videos))
    return {name: value for name, value in described.items() if "second_per_grid" not in name}


def groups_of(family: Family, described: dict[str, Tensor]) -> Tensor:
    """Return a view (T, G, ...) of one video's pixels: each group of patches is an entry of the first two axes."""
    pixels = described["pixel_values_videos"]
    if "video_grid_thw" in described:
        t, h, w = described["video_grid_thw"][0].tolist()
        return pixels.view(t, h * w // 4, 4, -1)
    size = family.model.config.vision_config.patch_size
    rows = pixels[0].unfold(2, size, size).unfold(3, size, size)  # (T, channels, rows, columns, size, size)
    return rows.permute(0, 2, 3, 1, 4, 5)


def repeating(family: Family, described: dict[str, Tensor], changed: Tensor) -> dict[str, Tensor]:
    """Return the video with every group but the changed ones, (T, G) bool, as it was in the frame before."""
    described = {name: value.clone() for name, value in described.items()}
    groups = groups_of(family, described)
    changed = changed.view(groups.shape[:3] if groups.ndim == 6 else groups.shape[:2])
    for t in range(1, len(groups)):
        groups[t][~changed[t]] = groups[t - 1][~changed[t]]
    return described


def partly_repeating(family: Family, num_frames: int) -> dict[str, Tensor]:
    """Return a video of noise with `some_changes`."""
    described = pixels_of(family, num_frames)
    return repeating(family, described, some_changes(num_frames, num_groups(family, described)))


def some_changes(num_frames: int, num_groups: int) -> Tensor:
    """Return (T, G) bool: everything in the first frame, less than half of the others, and nothing in one of them."""
    changed = torch.rand(num_frames, num_groups, generator=torch.Generator().manual_seed(0)) < 0.4
    changed[0], changed[2] = True, False
    return changed


def num_groups(family: Family, described: dict[str, Tensor]) -> int:
    groups = groups_of(family, described)
    return groups.shape[1] * groups.shape[2] if groups.ndim == 6 else groups.shape[1]


@pytest.fixture
def strong(family: Family) -> Any:
    """Return an inner model whose tower's layers matter. The tiny checkpoints' hardly change what they are added to."""
    model = family.load().model
    generator = torch.Generator().manual_seed(0)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.startswith("language_model"):
            torch.nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
    return model


def encoded(model: Any, described: dict[str, Tensor], **settings: Any) -> tuple[Any, Any]:
    return model.encode_videos(**described, settings=CompressionSettings(**settings))


def features(model: Any, described: dict[str, Tensor], **settings: Any) -> list[Tensor]:
    """Return the features of each video, and after them those that the first decoder layers add."""
    outputs = model.get_video_features(**described, retention_ratio=1.0, **settings)
    return [*outputs.pooler_output, *(video for layer in outputs.get("deepstack_features") or [] for video in layer)]


def assert_equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    for each, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(each, expected, **CLOSE)


# -- what is computed -------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_frames_that_repeat_have_the_parents_features(family: Family, strong: Any) -> None:
    described = pixels_of(family, 6)
    changed = torch.tensor([True, False, True, False, False, True])[:, None].expand(-1, num_groups(family, described))
    described = repeating(family, described, changed)
    expected = features(strong, described)
    for chunk in (1, 32):
        assert_equal(features(strong, described, vision_chunk_frames=chunk, **SKIP), expected)


@torch.no_grad()
def test_what_is_computed_attends_to_what_was_computed_last_at_every_place(family: Family, strong: Any) -> None:
    described = pixels_of(family, 5)
    changed, windows = some_changes(5, num_groups(family, described)), None
    # A window of these has 2 × 2 tokens of the 3 × 4.
    if family.case.name in ("qwen2_5_vl", "qwen2_5_omni_thinker", "hyperclovax_vision_v2"):
        windows = torch.tensor([row // 2 * 2 + column // 2 for row in range(3) for column in range(4)])
        changed = some_changes(5, 4)[:, windows]
    described = repeating(family, described, changed)
    expected = tokens_by_loops(family, strong, described, changed, windows)
    for chunk in (1, None):
        (tokens,) = encoded(strong, described, vision_chunk_frames=chunk, **SKIP)[0].pooler_output
        torch.testing.assert_close(tokens[: len(expected)], expected, **CLOSE)  # without a newline after all frames
    (whole,) = encoded(strong, described)[0].pooler_output
    difference = (expected - whole[: len(expected)]).norm() / expected.norm()
    assert difference > 0.01, "leaving out patches makes no difference"


def tokens_by_loops(
    family: Family, model: Any, described: dict[str, Tensor], changed: Tensor, windows: Tensor | None
) -> Tensor:
    """Return the tokens of all frames if the tower computes only the changed groups (T, G), in plain loops.

    Args:
        windows: (G,) the window of each group, if there are windows. Only some layers then look at whole frames.
    """
    tower, per_group, order = tower_of(model), 4 if takes_grids(family) else 1, torch.arange(changed.shape[1])
    if windows is not None:  # the tower goes window by window
        order = windows.argsort(stable=True)
        windows = windows[order].repeat_interleave(per_group)
    if takes_grids(family):
        layers = list(tower.blocks)
    else:
        layers = list(tower.encoder.layers)
        layers = layers[: range(len(layers) + 1)[model.config.vision_feature_layer]]
    looks_at_frames = getattr(tower, "fullatt_block_indexes", range(len(layers)))
    keys: dict[tuple[int, int], Tensor] = {}  # (heads, dim) by layer and place
    values: dict[tuple[int, int], Tensor] = {}
    latest: dict[int, Tensor] = {}  # the states by place
    frames = []
    for t in range(len(changed)):
        embedded, rotary = first_layers_input(family, model, layers[0], described, t)
        in_order = changed[t][order].repeat_interleave(per_group).tolist()
        first = len(embedded) - len(in_order)  # 1 if there is a class token, which is always computed
        places = [place for place in range(len(embedded)) if place < first or in_order[place - first]]
        states = {place: embedded[place] for place in places}
        for number, layer in enumerate(layers):
            norm, norm_2 = (layer.norm1, layer.norm2) if rotary else (layer.layer_norm1, layer.layer_norm2)
            queries: dict[int, Tensor] = {}
            for place in places:
                at_place = None if rotary is None else [each[place] for each in rotary]
                projected = projections(layer, norm(states[place]), at_place)
                queries[place], keys[number, place], values[number, place] = projected
            for place in places:
                seen = [
                    other
                    for other in range(len(embedded))
                    if windows is None or number in looks_at_frames or windows[other] == windows[place]
                ]
                of_heads = []
                for head, query in enumerate(queries[place]):
                    weights = torch.stack([query @ keys[number, other][head] for other in seen]) * len(query) ** -0.5
                    of_heads.append(weights.softmax(0) @ torch.stack([values[number, other][head] for other in seen]))
                project = layer.attn.proj if rotary else layer.self_attn.out_proj
                state = states[place] + project(torch.cat(of_heads))
                states[place] = state + layer.mlp(norm_2(state))
        # GLM's tower makes its tokens of normed states.
        norm = getattr(tower, "post_layernorm", None) if takes_grids(family) else None
        latest |= {place: norm(state) for place, state in states.items()} if norm else states
        of_frame = torch.stack([latest[place] for place in range(first, len(embedded))])
        if takes_grids(family):
            of_frame = of_frame.unflatten(0, (-1, 4))[order.argsort()]  # blocks of patches, row by row
            if hasattr(tower, "downsample"):  # GLM's
                blocks = of_frame.view(-1, 2, 2, of_frame.shape[-1]).permute(0, 3, 1, 2)
                of_frame = tower.downsample(blocks).flatten(1)
            of_frame = tower.merger(of_frame)
            of_frame = model.projector(of_frame) if hasattr(model, "projector") else of_frame  # HyperCLOVA X's
        frames.append(of_frame)
    return torch.cat(frames) if takes_grids(family) else tokens_of_patches(model, torch.stack(frames)).flatten(0, 1)


def first_layers_input(
    family: Family, model: Any, layer: torch.nn.Module, described: dict[str, Tensor], t: int
) -> tuple[Tensor, Sequence[Tensor] | None]:
    """Return what the parent's tower gives to its first layer for frame t, (patches, dim), and rotary positions."""
    pixels = described["pixel_values_videos"]
    if takes_grids(family):
        frames, h, w = described["video_grid_thw"][0].tolist()
        one = {"pixel_values_videos": pixels.unflatten(0, (frames, -1))[t], "video_grid_thw": torch.tensor([[1, h, w]])}
    else:
        one = {"pixel_values_videos": pixels[:, t : t + 1]}
    given: list[Any] = []
    hook = layer.register_forward_pre_hook(lambda _, args, kwargs: given.append((args, kwargs)), with_kwargs=True)
    encoded(model, one)
    hook.remove()
    (states, *_), kwargs = given[0]
    return (states, kwargs["position_embeddings"]) if takes_grids(family) else (states[0], None)


def projections(layer: Any, state: Tensor, rotary: Sequence[Tensor] | None) -> list[Tensor]:
    """Return the query, key and value (heads, dim) of one patch."""
    if rotary is None:
        attention = layer.self_attn
        parts = [attention.q_proj(state), attention.k_proj(state), attention.v_proj(state)]
        return [each.view(attention.num_heads, -1) for each in parts]
    attention = layer.attn
    if hasattr(attention, "qkv"):
        query, key, value = attention.qkv(state).view(3, attention.num_heads, -1)
    else:  # Qwen2.5-Omni's
        parts = (attention.q(state), attention.k(state), attention.v(state))
        query, key, value = (part.view(attention.num_heads, -1) for part in parts)
    cos, sin = (each[: len(each) // 2] for each in rotary)  # the halves are alike
    turn = torch.complex(cos, sin)
    turned = [torch.complex(*each.chunk(2, dim=-1)) * turn for each in (query, key)]
    return [*(torch.cat([each.real, each.imag], dim=-1) for each in turned), value]


@only(lambda family: family.name == "qwen2_5_vl")
@torch.no_grad()
def test_windows_are_left_out_whole(family: Family) -> None:
    """A window of Qwen2.5-VL's, 2 × 2 tokens, is computed if any token of it changed."""
    described = pixels_of(family, 2)
    changed = torch.zeros(2, 12, dtype=torch.bool)
    changed[0], changed[1, 6] = True, True  # the third token of the second row
    described = repeating(family, described, changed)
    (computed,) = family.model.model.partial_encoding(settings=CompressionSettings(**SKIP), **described).computed
    assert computed[1].view(3, 4).int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]


@torch.no_grad()
def test_a_video_in_which_nothing_repeats_is_left_to_the_parent(family: Family) -> None:
    described = pixels_of(family, 4)
    assert all(map(torch.equal, features(family.model, described, **SKIP), features(family.model, described)))


@torch.no_grad()
def test_neither_chunks_nor_other_videos_change_the_features(family: Family, strong: Any) -> None:
    videos = [pixels_of(family, 5)] * 2
    changed = some_changes(5, num_groups(family, videos[0]))
    videos = [repeating(family, video, each) for video, each in zip(videos, (changed, changed[[0, 3, 2, 4, 1]]))]
    alone = [features(strong, video, **SKIP) for video in videos]
    axis = {"pixel_values_videos": 0, "video_grid_thw": 0}
    both = {name: torch.cat([video[name] for video in videos], dim=axis[name]) for name in videos[0]}
    expected = [each for of_videos in zip(*alone, strict=True) for each in of_videos]
    for chunk in (1, 3, None):
        assert_equal(features(strong, both, vision_chunk_frames=chunk, **SKIP), expected)


@of_representatives
@torch.no_grad()
def test_patches_are_left_out_though_no_frame_repeats_as_a_whole(family: Family, strong: Any) -> None:
    """The tower then encodes every frame, all of them in one call, as the parent does."""
    described = pixels_of(family, 2)
    changed = torch.ones(2, num_groups(family, described), dtype=torch.bool)
    changed[1, changed.shape[1] // 3 :] = False
    described = repeating(family, described, changed)
    ours = features(strong, described, **SKIP)
    assert_equal(ours, features(strong, described, vision_chunk_frames=1, **SKIP))
    assert (ours[0] - features(strong, described)[0]).norm() > 1e-3 * ours[0].norm()


# -- which groups are computed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tolerance", "expected"),
    [(0.0, [1, 1, 1, 1, 0]), (0.15, [1, 0, 1, 0, 0]), (0.25, [1, 0, 0, 1, 0]), (1.0, [1, 0, 0, 0, 0])],
)
def test_a_group_is_compared_with_the_last_computed_one(tolerance: float, expected: list[int]) -> None:
    """A slow drift is noticed once it has gone too far. The other groups of the frame repeat."""
    frames = torch.zeros(5, 20, 6)
    frames[:, 0] = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.3])[:, None]
    settings = CompressionSettings(vision_tolerance=tolerance, **SKIP)
    computed = groups_to_compute(frames, changed_groups, settings)
    assert computed[0].all() and not computed[1:, 1:].any()
    assert computed[:, 0].int().tolist() == expected


def test_few_pixels_that_change_much_count_for_more_than_noise() -> None:
    settings = CompressionSettings(vision_tolerance=0.05, **SKIP)
    before = torch.zeros(2, 1000)
    after = torch.stack([0.04 * torch.ones(1000), torch.eye(1000)[0] * 2.0])
    assert changed_groups(after, before, settings).tolist() == [False, True]
    assert changed_groups(after.bfloat16(), before.bfloat16(), settings).tolist() == [False, True]


@pytest.mark.parametrize(("changing", "computed"), [(17, 17), (18, 20)])
def test_a_frame_of_which_nine_tenths_changed_is_computed_whole(changing: int, computed: int) -> None:
    frames = torch.zeros(2, 20, 3)
    frames[1, :changing] = 1.0
    found = groups_to_compute(frames, changed_groups, CompressionSettings(**SKIP))
    assert found.sum(dim=1).tolist() == [20, computed]


# -- in a model -------------------------------------------------------------------------------------------------------


@of_representatives
@torch.no_grad()
def test_every_call_of_the_model_leaves_patches_out(family: Family, tmp_path: Path) -> None:
    """So do calls with all tokens, which the parent would encode otherwise, and a model that was saved with it."""
    inputs = family.one_video()
    tolerant = {"vision_tolerance": 1.0, **SKIP}  # noise of the same scene repeats
    ours = family.model(**inputs, **tolerant).logits
    assert not torch.equal(ours, family.model(**inputs).logits)
    whole = family.model(**inputs, retention_ratio=1.0, **tolerant).logits
    assert not torch.equal(whole, family.model(**inputs, retention_ratio=1.0).logits)
    family.load(**tolerant).save_pretrained(tmp_path)
    loaded = family.case.model_class.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**inputs).logits, family.load()(**inputs, **tolerant).logits)
    generated = answered(family.model, inputs, **tolerant)
    torch.testing.assert_close(generated.logits[0], ours[:, -1], **CLOSE)


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
@only(lambda family: family.representative or family.name == "llava_next_video")
@torch.no_grad()
def test_it_works_in_half_precision(family: Family, precision: str) -> None:
    described = partly_repeating(family, 5)
    expected = features(family.model, described, **SKIP)
    if precision == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            ours = features(family.model, described, **SKIP)
    else:
        half = described | {"pixel_values_videos": described["pixel_values_videos"].bfloat16()}
        ours = features(family.load(dtype=torch.bfloat16), half, **SKIP)
    for each, theirs in zip(ours, expected, strict=True):
        assert (each.float() - theirs).abs().max() < 0.05 * theirs.abs().max()


@torch.no_grad()
def test_flash_attention_is_told_where_the_parts_of_frames_end(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place_of_the_package(monkeypatch)
    described, model = partly_repeating(family, 5), family.load(attn_implementation="flash_attention_2")
    assert_equal(features(model.model, described, **SKIP), features(family.model, described, **SKIP))


def hooks(tower: torch.nn.Module) -> list[Any]:
    return [hook for each in tower.modules() for hook in (*each._forward_hooks, *each._forward_pre_hooks)]


@only(lambda family: family.grouped and not family.reads_outside)  # GLM's stock classes fail, too
@of_representatives
@torch.no_grad()
def test_weights_that_are_elsewhere_are_in_place_when_they_are_needed(family: Family) -> None:
    accelerate = pytest.importorskip("accelerate")
    offloaded = accelerate.cpu_offload(family.load(), execution_device="cpu")
    assert all(weight.is_meta for weight in offloaded.parameters())
    call = dict(family.one_video()) | SKIP | {"vision_tolerance": 0.8}
    assert torch.equal(offloaded(**call).logits, family.model(**call).logits)


@of_representatives
@torch.no_grad()
def test_threads_that_share_a_model_do_not_see_each_others_frames(family: Family, strong: Any) -> None:
    described = pixels_of(family, 5)
    changed = some_changes(5, num_groups(family, described))
    videos = [repeating(family, described, each) for each in (changed, changed[[0, 3, 2, 4, 1]])] * 3
    tower = tower_of(strong)
    before = hooks(tower)
    expected = [features(strong, video, **SKIP) for video in videos]
    with ThreadPoolExecutor(4) as pool:
        of_threads = list(pool.map(lambda video: features(strong, video, vision_chunk_frames=1, **SKIP), videos))
    for ours, alone in zip(of_threads, expected, strict=True):
        assert_equal(ours, alone)
    assert hooks(tower) == before


@of_representatives
@torch.no_grad()
def test_a_layer_whose_attention_was_replaced_is_refused(family: Family) -> None:
    """Otherwise its patches would attend to less than they should, without a word."""
    model = family.load().model
    tower = tower_of(model)
    layers = tower.blocks if hasattr(tower, "blocks") else tower.encoder.layers
    for layer in layers:
        layer.register_forward_pre_hook(
            lambda layer, arguments, by_name: (arguments, {**by_name, "whole_frames": None}), with_kwargs=True
        )
    with pytest.raises(ValueError, match=r"only 0 of \d layers of the vision tower .*`vision_method='full'`"):
        features(model, partly_repeating(family, 3), **SKIP)


@of_representatives
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # pixels have none; re-entrant ones ask
def test_gradients_flow_through_what_is_computed(family: Family) -> None:
    """They equal the parent's where whole frames repeat. Gradient checkpointing changes none, also where parts repeat
    and patches attend to what an earlier chunk computed."""
    described, partly = pixels_of(family, 4), partly_repeating(family, 4)
    changed = torch.tensor([True, False, True, False])[:, None].expand(-1, num_groups(family, described))
    described = repeating(family, described, changed)
    model = family.load().train()
    tower = tower_of(model.model)
    names = [name for name, each in tower.named_parameters() if "encoder" in name or "blocks" in name]

    def gradients(described: dict[str, Tensor], **settings: Any) -> list[Tensor]:
        model.zero_grad()
        torch.cat([each.flatten() for each in features(model, described, **settings)]).square().mean().backward()
        found = [tower.get_parameter(name).grad for name in names]
        return [each.clone() for each in found if each is not None]  # LLaVA-NeXT-Video does not read the last layer.

    plain = gradients(described, **SKIP)
    assert sum(each.abs().sum() for each in plain) > 0
    for ours, theirs in zip(plain, gradients(described), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-7)
    plain, in_one_chunk = gradients(partly, vision_chunk_frames=1, **SKIP), gradients(partly, **SKIP)
    model.gradient_checkpointing_enable()
    before = hooks(tower)
    for ours, theirs in zip(gradients(partly, vision_chunk_frames=1, **SKIP), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-8)
    assert hooks(tower) == before, "hooks outlive the backward pass"

    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="would lose the gradients between chunks of `vision_chunk_frames`"):
        features(model, partly, vision_chunk_frames=1, **SKIP)
    for ours, theirs in zip(gradients(partly, **SKIP), in_one_chunk, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-8)
    tower.requires_grad_(False)
    features(model, partly, vision_chunk_frames=1, **SKIP)


# -- what is refused --------------------------------------------------------------------------------------------------


@of_representatives
@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_outputs_of_a_whole_tower_are_refused(family: Family, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is True"):
        family.model.get_video_features(**pixels_of(family, 2), **SKIP, **{name: True})


@of_representatives
@only(lambda family: family.mrope and family.grouped)
def test_descriptions_of_all_patches_are_refused(family: Family) -> None:
    with pytest.raises(ValueError, match=r"`video_cu_seqlens` is.*`vision_method='skip_repeated'`"):
        family.model.get_video_features(**pixels_of(family, 2), **SKIP, video_cu_seqlens=torch.tensor([0, 1]))


@by_default(lambda family: family.name in ("internvl", "gemma4", "kimi_k25"))
@only(lambda family: not family.grouped)
def test_a_family_whose_tower_it_cannot_run_refuses_it(family: Family, tmp_path: Path) -> None:
    inputs, config = family.one_video(), family.case.config_class()
    config.vision_method = "skip_repeated"
    for call in (
        lambda: family.model(**inputs, **SKIP),
        lambda: family.model.generate(**inputs, **SKIP),
        lambda: family.model.model(**inputs, **SKIP),
        lambda: family.model.get_video_features(**family.videos_of(inputs), **SKIP),
        lambda: family.load(**SKIP),
        lambda: family.case.config_class(**SKIP),
        lambda: config.save_pretrained(tmp_path),
        lambda: family.case.model_class(config),
    ):
        with pytest.raises(ValueError, match="`vision_method` is 'skip_repeated', but the vision tower of this"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_llava_with_another_tower_refuses_it() -> None:
    dinov2 = Dinov2Config().to_dict()
    with pytest.raises(ValueError, match=r"'dinov2'.*'siglip_vision_model' or 'clip_vision_model'"):
        VidCom2LlavaOnevisionConfig(vision_config=dinov2, **SKIP)
    VidCom2LlavaOnevisionConfig(vision_config=dinov2)


# -- methods of users -------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(methods_restored: None) -> list[Any]:
    """Register a vision method that finds nothing changed, and return what it was called with."""
    calls: list[Any] = []

    @register_vision_method("nothing_changes", settings=("vision_tolerance",))
    def nothing_changes(groups: Tensor, computed: Tensor, settings: CompressionSettings) -> Tensor:
        calls.append((groups, computed, settings.vision_tolerance))
        return torch.zeros(len(groups), dtype=torch.bool)

    return calls


@of_representatives
@torch.no_grad()
def test_a_users_vision_method_decides_what_is_computed(family: Family, recorded: list[Any]) -> None:
    """Here each frame takes the features of the first."""
    described = pixels_of(family, 3)
    ours = features(family.model.model, described, vision_method="nothing_changes", vision_tolerance=0.5)
    groups = groups_of(family, described)
    groups = groups.flatten(1, 2).flatten(2) if groups.ndim == 6 else groups.flatten(2)
    for (given, computed, tolerance), frame in zip(recorded, groups[1:], strict=True):
        assert torch.equal(given, frame) and torch.equal(computed, groups[0]) and tolerance == 0.5
    changed = torch.zeros(3, num_groups(family, described), dtype=torch.bool)
    assert_equal(ours, features(family.model.model, repeating(family, described, changed), **SKIP))


@of_representatives
@pytest.mark.usefixtures("methods_restored")
def test_what_a_users_vision_method_returns_is_checked(family: Family) -> None:
    for returned in (None, torch.ones(3), torch.ones(2, dtype=torch.bool)):
        VISION_METHODS.pop("mine", None)
        register_vision_method("mine")(lambda groups, computed, settings, returned=returned: returned)
        with pytest.raises(ValueError, match="`vision_method='mine'` returned"):
            family.model.get_video_features(**pixels_of(family, 2), vision_method="mine")


@pytest.mark.usefixtures("methods_restored")
def test_wrong_registrations_are_refused() -> None:
    for name in ("", 3):
        with pytest.raises(ValueError, match="a string that is not empty"):
            register_vision_method(name)
    for settings in ("vision_tolerance", ("retention_ratio",)):
        with pytest.raises(ValueError, match="`settings` of method 'mine' is"):
            register_vision_method("mine", settings=settings)
    with pytest.raises(ValueError, match="'skip_repeated' is taken by this project"):
        register_vision_method("skip_repeated")(lambda groups, computed, settings: None)
    with pytest.raises(ValueError, match="must be a function"):
        register_vision_method("mine")(torch.nn.Identity())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`vision_method` is 'mine'"):
        CompressionSettings(vision_method="mine")
