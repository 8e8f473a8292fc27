"""FastVID, FlashVID, VisionZip and HoliTom of benchmarks/methods: beside their authors' code, by hand, and with the
attention of the toys' towers."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tower_of
from oracle import expected_exact_total
from scenes import scenes
from torch import Tensor, nn
from transformers import AttentionInterface

from benchmarks.methods import METHODS, method_flashvid, method_holitom, register
from benchmarks.methods.attended_tokens import AttendedTokens, with_attention
from benchmarks.methods.dynamic_segments import dynamic_segments
from benchmarks.methods.method_holitom import static_segments
from benchmarks.needle.candidates import SEEN_ALL
from vidcom2 import VideoCompression, compress
from vidcom2.asking import generation
from vidcom2.asking.generation import EncodedVideos, run_tower
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.modeling.methods import method_vidcom2, users_methods
from vidcom2.modeling.methods.method_vidcom2 import frame_means
from vidcom2.toys import PREFIX, TOYS
from vidcom2.video.reading import read_video

DATA = Path(__file__).parent / "data"
FASTVID = json.loads((DATA / "released_fastvid.json").read_text("utf-8"))
FLASHVID = json.loads((DATA / "released_flashvid.json").read_text("utf-8"))
VISIONZIP = json.loads((DATA / "released_visionzip.json").read_text("utf-8"))["cases"]
HOLITOM = json.loads((DATA / "released_holitom.json").read_text("utf-8"))["cases"]
OF_TOYS = json.loads((DATA / "attended_toys.json").read_text("utf-8"))["cases"]
EACH_FRAME, REPEATS = list(range(16)), [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7, 6, 7, 8, 9]  # in Qwen3-VL's, pairs repeat
SIZES = ("num_frames", "tokens_per_frame", "dim")
CONTENT = ("seed", "num_scenes", "common", "change")
every_method = pytest.mark.parametrize("method", METHODS)


def of_case(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Make the tokens and the attention of a golden case."""
    return scenes(*(case[name] for name in SIZES), **{name: case[name] for name in CONTENT})


@pytest.fixture(autouse=True)
def _registered(methods_restored: None) -> None:
    register()


def compressed(tokens: Tensor, attention: Tensor, ratio: float, method: str) -> VideoCompression:
    return compress(AttendedTokens(tokens, attention=attention), ratio, compression_method=method)


def lengths_of(segments: list[slice]) -> list[int]:
    return [each.stop - each.start for each in segments]


# -- beside the authors' code -----------------------------------------------------------------------------------------


RELEASED = [("fastvid", case, case["per_frame"] / case["tokens_per_frame"]) for case in FASTVID["cases"]]
RELEASED += [("flashvid", case, case["retention_ratio"]) for case in FLASHVID["whole"]]


@pytest.mark.parametrize(("method", "case", "ratio"), RELEASED)
def test_fastvid_and_flashvid_keep_and_merge_what_the_released_code_does(
    method: str, case: dict[str, Any], ratio: float
) -> None:
    tokens, attention = of_case(case)
    assert lengths_of(dynamic_segments(frame_means(tokens)[2])) == case["segment_lengths"]
    got = compressed(tokens, attention, ratio, method)
    assert got.indices.tolist() == case["indices"]
    sums = got.kept(tokens.flatten(0, 1)).sum(dim=-1)
    torch.testing.assert_close(sums, torch.tensor(case["sums"]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", FLASHVID["segments"], ids=lambda case: f"seed{case['seed']}")
def test_a_video_is_cut_where_flashvids_code_cuts_it(case: dict[str, Any]) -> None:
    assert lengths_of(dynamic_segments(frame_means(of_case(case)[0])[2])) == case["segment_lengths"]


@pytest.mark.parametrize("case", FLASHVID["selection"], ids=lambda case: f"seed{case['seed']}")
def test_flashvid_selects_the_diverse_tokens_that_the_released_code_selects(case: dict[str, Any]) -> None:
    tokens, attention = of_case(case)
    norms, finite, means = frame_means(tokens)
    relevance = method_flashvid.event_relevance(tokens, finite, means, [slice(0, len(tokens))])
    budgets = [case["num_selected"]] * len(tokens)
    chosen = method_flashvid.diverse_tokens(tokens, norms, finite, attention * relevance, budgets)
    assert [frame.nonzero().flatten().tolist() for frame in chosen] == case["indices"]


@pytest.mark.parametrize("case", FLASHVID["trees"], ids=lambda case: f"seed{case['seed']}")
def test_flashvids_trees_begin_where_those_of_the_released_code_do(case: dict[str, Any]) -> None:
    tokens, attention = of_case(case)
    norms, finite, _ = frame_means(tokens)
    left = torch.ones_like(finite).scatter_(1, attention.topk(case["num_selected"], dim=1).indices, False)
    whole, shares = [slice(0, len(tokens))], [case["num_selected"] + case["num_left"]] * len(tokens)
    similarity, parents = method_flashvid.links(tokens, norms, left, whole)
    merged = method_flashvid.linked(similarity, whole, shares)
    assert [frame.nonzero().flatten().tolist() for frame in left & ~merged] == case["roots"]
    if "sums" in case:
        roots = method_flashvid.tree_roots(merged, parents)
        for frame, (places, sums) in enumerate(zip(case["roots"], case["sums"], strict=True)):
            means = [tokens.flatten(0, 1)[roots.flatten() == roots[frame, place]].mean(dim=0) for place in places]
            assert [float(each.sum()) for each in means] == pytest.approx(sums, abs=1e-4)


@pytest.mark.parametrize("case", FLASHVID["clusters"], ids=lambda case: f"seed{case['seed']}")
def test_trees_are_clustered_as_in_flashvids_code(case: dict[str, Any]) -> None:
    tokens, _ = of_case(case)
    every = torch.ones(case["tokens_per_frame"], dtype=torch.bool)
    got = method_flashvid.nearest_centres(tokens[0], every, every, case["num_clusters"])
    assert got.tolist() == case["centres"]


@pytest.mark.parametrize("case", VISIONZIP, ids=lambda case: f"seed{case['seed']}")
def test_visionzip_keeps_and_merges_what_the_released_code_does(case: dict[str, Any]) -> None:
    """Its contextual tokens are sums of two, and ours are their means."""
    tokens, attention = of_case(case)
    got = compressed(tokens, attention, case["per_frame"] / case["tokens_per_frame"], "visionzip")
    assert got.indices.tolist() == case["indices"] and got.merge is not None
    sums = got.kept(tokens.flatten(0, 1)).sum(dim=-1)
    is_mean = torch.zeros_like(sums, dtype=torch.bool).index_fill(0, got.merge.outputs[got.merge.weights == 0.5], True)
    assert not is_mean[torch.isin(got.indices, torch.tensor(case["dominant"]))].any() and is_mean.any()
    torch.testing.assert_close(torch.where(is_mean, 2 * sums, sums), torch.tensor(case["sums"]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", HOLITOM, ids=lambda case: f"seed{case['seed']}")
def test_holitom_keeps_and_merges_what_the_released_code_does(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own roundings of the shares, which keep some more."""
    tokens, attention = of_case(case)
    cosines = torch.cosine_similarity(tokens[1:], tokens[:-1], dim=-1)
    segments, static = static_segments(cosines > 0.8)
    assert [[segment.start, segment.stop - 1] for segment in segments] == case["segments"]
    firsts = static[[segment.start for segment in segments]]
    assert int(static.sum() - firsts.sum()) == case["reduced"]
    monkeypatch.setattr(method_holitom, "shares", lambda *_: (case["of_static"], case["of_dynamic"]))
    monkeypatch.setattr(method_holitom, "exact_total", lambda *_: len(case["indices"]))
    unchecked = replace(COMPRESSION_METHODS["holitom"], function=method_holitom.holitom, count=None)
    monkeypatch.setitem(COMPRESSION_METHODS, "holitom", unchecked)
    got = compressed(tokens, attention, case["ratio"], "holitom")
    assert got.indices.tolist() == case["indices"]
    sums = got.kept(tokens.flatten(0, 1)).sum(dim=-1)
    torch.testing.assert_close(sums, torch.tensor(case["sums"]), rtol=0, atol=1e-4)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_segments_end_at_the_least_similar_transitions_and_the_earlier_of_equal_ones() -> None:
    # Cosines of neighbours: 1, 0.6, 1, then 1 until the end.
    means = torch.tensor([[3.0, 4.0]] * 2 + [[5.0, 0.0]] * 12)
    assert lengths_of(dynamic_segments(means)) == [1, 1, 1, 1, 1, 1, 1, 7]  # 7 cuts, at the cosine of 0.6 and early
    means[[9, 11]] = torch.tensor([0.0, 5.0])  # cut, though 7 cuts were made
    assert lengths_of(dynamic_segments(means)) == [1, 1, 1, 6, 1, 1, 1, 2]
    assert lengths_of(dynamic_segments(torch.zeros(1, 2))) == [1]
    assert lengths_of(dynamic_segments(torch.zeros(3, 2))) == [1, 1, 1]


def test_fastvid_keeps_the_earlier_of_equally_attended_tokens_and_merges_into_the_earlier_of_equal_anchors() -> None:
    token, other = [3.0, 4.0], [4.0, -3.0]
    tokens = torch.tensor([[token, token, other, other, token, other]])
    got = compressed(tokens, torch.full((1, 6), 0.5), 5 / 6, "fastvid")
    # Salient are the first 3 of 5. Of the others, 3 and 4 become anchors, and 5 joins the one that it equals.
    assert got.indices.tolist() == [0, 1, 2, 3, 4]
    assert got.merge is not None
    entries = sorted(zip(*(part.tolist() for part in got.merge)))
    assert [entry[:2] for entry in entries] == [(0, 0), (1, 1), (2, 2), (3, 3), (3, 5), (4, 4)]
    assert [entry[2] for entry in entries] == pytest.approx([1, 1, 1, 0.6, 0.4, 1])


def test_flashvid_begins_with_the_token_farthest_from_its_nearest_finite_neighbour() -> None:
    tokens = torch.tensor([[[5.0, 0.0], [-5.0, 0.0], [3.0, 4.0], [math.nan, 0.0]]])
    norms, finite, _ = frame_means(tokens)
    # The neighbours are 0.4, 1.6 and 0.4 · 3 away. To a token of no direction, it would be 1, 1 and 3.
    chosen = method_flashvid.diverse_tokens(tokens, norms, finite, torch.tensor([[1.0, 1.0, 3.0, 0.0]]), [1])
    assert chosen.tolist() == [[False, True, False, False]]


def test_flashvid_clusters_trees_by_the_mean_of_all_their_tokens() -> None:
    # The tree at 0 goes on to 0 and 30 in the frames after it, so that its mean is 10, beside trees at 11 and 1.
    tokens = torch.tensor([[0.0, 11.0, 1.0], [0.0, 5.0, 5.0], [30.0, 5.0, 5.0]])[..., None]
    merged = torch.tensor([[False] * 3, [True, False, False], [True, False, False]])
    selected = torch.tensor([[False] * 3, [False, True, True], [False, True, True]])
    roots = torch.tensor([[0, 1, 2], [0, 4, 5], [0, 7, 8]])
    parents, whole = torch.zeros(3, 3, dtype=torch.int64), [slice(0, 3)]
    finite = torch.ones_like(merged)
    got = method_flashvid.cluster_centres(tokens, finite, selected, merged, parents, roots, whole, [2, 0, 0])
    assert got[0].tolist() == [0, 1, 0]  # 10 and 11 are the dense ones, and 1 is nearer to 10


def test_holitom_keeps_static_tokens_of_later_frames_where_the_budget_is_larger_than_what_is_left() -> None:
    frame = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    tokens = torch.stack([frame, frame + 0.1, frame + 0.2])
    attention = torch.tensor([[0.5, 0.4], [0.1, 0.3], [0.2, 0.1]])
    got = compressed(tokens, attention, 0.5, "holitom")  # 3 tokens, of 2 static ones
    assert got.indices.tolist() == [0, 1, 3] and got.frame_budgets.tolist() == [2, 1, 0]
    expected = torch.tensor([[1.1, 0.1], [0.1, 1.1], [0.1, 1.1]])
    torch.testing.assert_close(got.kept(tokens.flatten(0, 1)), expected)


# -- what all promise ------------------------------------------------------------------------------------------------


@every_method
def test_as_many_weighted_means_are_kept_as_the_sizes_tell(method: str) -> None:
    for num_frames, per_frame, num_scenes in ((1, 1, 1), (1, 9, 1), (5, 1, 2), (9, 2, 9), (16, 7, 1), (20, 9, 3)):
        tokens, attention = scenes(num_frames, per_frame, 4, seed=num_frames, num_scenes=num_scenes, common=2, change=1)
        for ratio in (0.001, 0.1, 0.25, 0.29, 0.5, 0.77, 0.999):
            total = expected_exact_total(num_frames, per_frame, ratio)
            for video in (tokens, tokens[:1].expand(num_frames, -1, -1)):
                got = compressed(video, attention, ratio, method)
                assert len(got.indices) == total == got.frame_budgets.sum() and bool((got.indices.diff() > 0).all())
                if got.merge is not None:
                    weights = torch.zeros(total).index_add(0, got.merge.outputs, got.merge.weights)
                    torch.testing.assert_close(weights, torch.ones(total))
                    assert bool((got.merge.weights >= 0).all())


@every_method
def test_a_selection_is_the_same_in_every_call_and_for_any_size_of_blocks(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, attention = scenes(21, 9, 16, seed=2, num_scenes=2, common=1.5, change=0.3)
    tokens = tokens.bfloat16()
    expected = compressed(tokens, attention, 0.4, method)
    features = expected.kept(tokens.flatten(0, 1))
    for limit in ("CPU_BUFFER_BYTES", "ONE_THREAD_BUFFER_BYTES"):
        monkeypatch.setattr(method_vidcom2, limit, 3 * 4 * 9 * 16)
    monkeypatch.setattr(users_methods, "MERGE_BYTES", 7 * 4 * 16)
    torch.manual_seed(1)
    for each in (tokens, tokens.float()):
        got = compressed(each, attention, 0.4, method)
        assert torch.equal(got.indices, expected.indices)
        torch.testing.assert_close(got.kept(tokens.flatten(0, 1)), features)


@every_method
def test_a_tensor_without_the_towers_attention_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="the video is a VideoTokens, but this method chooses by the attention"):
        compress(torch.randn(4, 4, 3), 0.5, compression_method=method)


@every_method
def test_non_finite_tokens_are_merged_into_no_other(method: str) -> None:
    for seed, bad in enumerate((math.nan, math.inf, -math.inf)):
        tokens, attention = scenes(13, 9, 6, seed=seed, num_scenes=2, common=1.5, change=0.3)
        hit = torch.rand(13, 9, generator=torch.Generator().manual_seed(seed)) < 0.3
        tokens[..., seed] = tokens[..., seed].masked_fill(hit, bad)
        tokens[7] = bad
        finite = tokens.isfinite().all(dim=-1).flatten()
        for ratio in (0.2, 0.5, 0.9):
            got = compressed(tokens, attention, ratio, method)
            assert torch.equal(got.kept(tokens.flatten(0, 1)).isfinite().all(dim=-1), finite[got.indices])
    compressed(torch.full((4, 3, 2), math.nan), torch.rand(4, 3), 0.5, method)


# -- the attention of the toys' towers --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SEEN_ALL)
def toy(request: pytest.FixtureRequest) -> Checkpoint:
    return load_checkpoint(f"{PREFIX}{request.param}", device="cpu")


def encoded(toy: Checkpoint, name: str, frames: list[int]) -> EncodedVideos:
    """Encode the first clip of a toy, with these of its 16 frames."""
    video = read_video(str(TOYS[name].clips[0].path), 16)
    inputs = prepare_inputs(toy.processor, "?", replace(video, frames=video.frames[frames]), toy.model)
    return run_tower(toy.model, inputs, toy.model.config.compression_settings())


def name_of(toy: Checkpoint) -> str:
    return toy.model.config.model_type


@pytest.fixture
def weights(toy: Checkpoint) -> Iterator[list[Tensor]]:
    """Collect the weights (B, heads, patches, patches) of each call of the attention of the tower's last layer."""
    seen: list[Tensor] = []
    tower: Any = tower_of(toy.model.model)
    last = tower.blocks[-1].attn if hasattr(tower, "blocks") else tower.encoder.layers[-1].self_attn

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, scaling: float, **__: Any) -> Any:
        of_call = torch.softmax(q.double() @ k.double().mT * scaling, dim=-1)
        if module is last:
            seen.append(of_call)
        return (of_call @ v.double()).to(v).transpose(1, 2), None

    AttentionInterface.register("weighed", attend)
    before, tower.config._attn_implementation = tower.config._attn_implementation, "weighed"
    yield seen
    tower.config._attn_implementation = before


def test_the_attention_of_a_token_is_the_mean_of_the_towers_own_weights(toy: Checkpoint, weights: list[Tensor]) -> None:
    video = encoded(toy, name_of(toy), EACH_FRAME)
    weights.clear()
    (attended,) = with_attention(toy.model, video).tokens
    received = torch.cat(weights).mean(dim=(1, 2))  # (frames, 100), over the heads and the patches that pay
    assert len(received) == len(video.tokens[0].tokens)
    is_by_blocks = name_of(toy) == "qwen3_vl"
    for frame, of_patches in zip(attended.attention, received, strict=True):
        for token, got in enumerate(frame.tolist()):
            row, column = token // 5, token % 5
            places = [10 * y + x for y in (2 * row, 2 * row + 1) for x in (2 * column, 2 * column + 1)]
            places = [4 * token + n for n in range(4)] if is_by_blocks else places
            assert got == pytest.approx(float(of_patches[places].mean()), rel=1e-4)
    assert attended.attention.dtype == torch.float32 and (received.amax(dim=1) > 1.5 * received.mean(dim=1)).all()


def test_reading_it_changes_no_token_leaves_no_hook_and_reaches_frames_that_repeat(toy: Checkpoint) -> None:
    video = encoded(toy, name_of(toy), REPEATS)
    hooks_before = [[*module._forward_pre_hooks] for module in tower_of(toy.model.model).modules()]
    (before,), (after,) = video.tokens, with_attention(toy.model, video).tokens
    assert torch.equal(before.tokens, after.tokens) and after.grid == before.grid
    assert hooks_before == [[*module._forward_pre_hooks] for module in tower_of(toy.model.model).modules()]
    (whole,) = with_attention(toy.model, encoded(toy, name_of(toy), EACH_FRAME)).tokens
    step = 16 // len(before.tokens)
    shown = [REPEATS[place] // step for place in range(0, 16, step)]
    torch.testing.assert_close(after.attention, whole.attention[shown])


def test_the_methods_keep_of_the_toys_clips_what_they_kept_as_part_of_the_package(toy: Checkpoint) -> None:
    for repeats in (False, True):
        video = encoded(toy, name_of(toy), REPEATS if repeats else EACH_FRAME)
        video = with_attention(toy.model, video)
        tokens = video.tokens[0].tokens.flatten(0, 1)
        cases = {case["method"]: case for case in OF_TOYS if (case["toy"], case["repeats"]) == (name_of(toy), repeats)}
        assert cases.keys() == METHODS.keys()
        for method, case in cases.items():
            settings = toy.model.config.compression_settings(compression_method=method, retention_ratio=0.1)
            (kept,) = generation.keep_tokens(toy.model, video, settings).video_compressions
            assert kept.indices.tolist() == case["indices"], method
            torch.testing.assert_close(kept.kept(tokens).sum(dim=-1), torch.tensor(case["sums"]), rtol=0, atol=1e-3)
