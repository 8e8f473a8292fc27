"""FastVID and FlashVID of benchmarks/methods beside their authors' code, and what they, VisionZip and HoliTom promise,
beside plain loops."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_oracles import oracle_holitom, oracle_visionzip
from oracle import expected_exact_total
from scenes import scenes
from segment_oracles import oracle_fastvid, oracle_flashvid
from torch import Tensor

from benchmarks.methods import method_fastvid, method_flashvid, register
from benchmarks.methods.attended_tokens import AttendedTokens
from benchmarks.methods.density_peaks import NOT_A_CANDIDATE, density_peaks
from benchmarks.methods.dynamic_segments import dynamic_segments
from benchmarks.methods.token_means import equal_shares
from vidcom2 import VideoCompression, compress
from vidcom2.modeling.methods import method_vidcom2, users_methods
from vidcom2.modeling.methods.method_vidcom2 import frame_means

DATA = Path(__file__).parent / "data"
FASTVID = json.loads((DATA / "released_fastvid.json").read_text("utf-8"))
FLASHVID = json.loads((DATA / "released_flashvid.json").read_text("utf-8"))
SIZES = ("num_frames", "tokens_per_frame", "dim")
CONTENT = ("seed", "num_scenes", "common", "change")
ORACLES = {
    "fastvid": oracle_fastvid,
    "flashvid": oracle_flashvid,
    "visionzip": oracle_visionzip,
    "holitom": oracle_holitom,
}

every_method = pytest.mark.parametrize("method", ORACLES)


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


@pytest.mark.parametrize("case", FASTVID["cases"], ids=lambda case: f"seed{case['seed']}")
def test_fastvid_keeps_and_merges_what_the_released_code_does(case: dict[str, Any]) -> None:
    tokens, attention = of_case(case)
    assert lengths_of(dynamic_segments(frame_means(tokens)[2])) == case["segment_lengths"]
    got = compressed(tokens, attention, case["per_frame"] / case["tokens_per_frame"], "fastvid")
    assert got.indices.tolist() == case["indices"]
    sums = got.kept(tokens.flatten(0, 1)).sum(dim=-1)
    torch.testing.assert_close(sums, torch.tensor(case["sums"]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", FLASHVID["whole"], ids=lambda case: f"seed{case['seed']}")
def test_flashvid_keeps_and_merges_what_the_released_code_does(case: dict[str, Any]) -> None:
    tokens, attention = of_case(case)
    got = compressed(tokens, attention, case["retention_ratio"], "flashvid")
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


# -- beside plain loops -----------------------------------------------------------------------------------------------

# Among them: one frame, one token per frame, fewer tokens than frames, anchors that do not fit into every 4th frame.
VIDEOS = [
    ((1, 9, 4), {"num_scenes": 1}, (0.3, 0.9)),
    ((6, 1, 4), {"num_scenes": 2}, (0.5,)),
    ((12, 5, 8), {"num_scenes": 3}, (0.05, 0.2, 0.33)),
    ((19, 12, 8), {"num_scenes": 2, "change": 0.2}, (0.1, 0.25, 0.5, 0.8, 0.99)),
    ((24, 7, 6), {"num_scenes": 1, "common": 3.0, "change": 0.1}, (0.15, 0.3, 0.7)),
    ((30, 6, 16), {"num_scenes": 12, "common": 0.0}, (0.25, 0.5)),
]


def assert_as_plain_loops(tokens: Tensor, attention: Tensor, ratio: float, method: str) -> None:
    indices, features = ORACLES[method](tokens, attention, ratio)
    got = compressed(tokens, attention, ratio, method)
    assert got.indices.tolist() == indices
    expected = torch.tensor(features)
    torch.testing.assert_close(got.kept(tokens.flatten(0, 1)), expected, rtol=0, atol=1e-5, equal_nan=True)
    assert len(indices) == expected_exact_total(len(tokens), tokens.shape[1], ratio) == got.frame_budgets.sum()


@every_method
def test_a_method_keeps_and_merges_what_plain_loops_do(method: str) -> None:
    for seed, (sizes, content, ratios) in enumerate(VIDEOS):
        tokens, attention = scenes(*sizes, **{"seed": seed, "common": 1.5, "change": 0.5} | content)
        for ratio in ratios:
            assert_as_plain_loops(tokens, attention, ratio, method)


@every_method
def test_non_finite_tokens_are_kept_last_and_do_not_affect_others(method: str) -> None:
    for seed, (bad, common) in enumerate(((math.nan, 1.5), (math.inf, 0.0), (-math.inf, 1.5))):
        tokens, attention = scenes(13, 9, 6, seed=seed, num_scenes=2, common=common, change=0.3)
        hit = torch.rand(13, 9, generator=torch.Generator().manual_seed(seed)) < 0.3
        tokens[..., seed] = tokens[..., seed].masked_fill(hit, bad)
        tokens[7] = bad
        for ratio in (0.2, 0.5, 0.9):
            assert_as_plain_loops(tokens, attention, ratio, method)
    compressed(torch.full((4, 3, 2), math.nan), torch.rand(4, 3), 0.5, method)


@every_method
def test_attention_that_is_not_a_number_counts_as_none(method: str) -> None:
    tokens, attention = scenes(9, 8, 6, seed=3, num_scenes=2, common=1.5, change=0.3)
    hit = torch.rand(9, 8, generator=torch.Generator().manual_seed(3)) < 0.5
    got = compressed(tokens, attention.masked_fill(hit, math.nan), 0.4, method)
    assert torch.equal(got.indices, compressed(tokens, attention.masked_fill(hit, 0.0), 0.4, method).indices)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_segments_end_at_the_least_similar_transitions_and_the_earlier_of_equal_ones() -> None:
    # Cosines of neighbours: 1, 0.6, 1, then 1 until the end.
    means = torch.tensor([[3.0, 4.0]] * 2 + [[5.0, 0.0]] * 12)
    assert lengths_of(dynamic_segments(means)) == [1, 1, 1, 1, 1, 1, 1, 7]  # 7 cuts, at the cosine of 0.6 and early
    means[[9, 11]] = torch.tensor([0.0, 5.0])  # cut, though 7 cuts were made
    assert lengths_of(dynamic_segments(means)) == [1, 1, 1, 6, 1, 1, 1, 2]
    assert lengths_of(dynamic_segments(torch.zeros(1, 2))) == [1]
    assert lengths_of(dynamic_segments(torch.zeros(3, 2))) == [1, 1, 1]


def test_of_still_scenes_the_first_transitions_are_cut_whatever_float32_makes_of_their_similarity() -> None:
    for seed in range(5):
        tokens, _ = scenes(20, 7, 33, seed=seed, num_scenes=5, common=1.0, change=0.0)
        assert lengths_of(dynamic_segments(frame_means(tokens)[2])) == [1, 1, 1, 1, 4, 4, 4, 4]


def test_a_dense_token_scores_by_its_distance_to_a_denser_one_and_the_earlier_of_two_is_denser() -> None:
    # On a line of one channel: a pair at 0 and 1, another at 10 and 11, and a token that does not count.
    tokens = torch.tensor([[0.0], [1.0], [10.0], [11.0], [50.0]])
    scores, distances = density_peaks(tokens, torch.tensor([True] * 4 + [False]), neighbours=2)
    density = math.exp(-0.5)  # the mean of 0 and 1
    torch.testing.assert_close(scores, torch.tensor([11 * density, density, 9 * density, density, NOT_A_CANDIDATE]))
    assert distances[0].tolist() == [0, 1, 10, 11, math.inf]


def test_fastvid_puts_anchors_into_every_fourth_frame_from_the_end_of_a_segment() -> None:
    budgets = method_fastvid.segment_budgets
    # 10 frames of 5 tokens: 50, of which 20 are anchors, in 3 frames. The later frames get what is left over.
    assert budgets([slice(0, 10)], [5] * 10, 20) == ([3] * 10, [0, 6, 0, 0, 0, 7, 0, 0, 0, 7])
    # Those of 8 of 10 tokens are 32 in 2 frames, which have room for 10 - 5 each.
    assert budgets([slice(0, 10)], [8] * 10, 10) == ([5] * 2 + [5] * 6 + [4] * 2, [3, 3, 3, 3, 3, 3, 3, 3, 4, 4])
    # 12 anchors do not fit into 2 frames of 10 with 5 others, but into 3 of them, every third frame.
    assert budgets([slice(0, 7)], [4] * 7, 6) == ([3] * 3 + [2] * 4, [3, 0, 0, 4, 0, 0, 4])
    assert budgets([slice(0, 1), slice(1, 3)], [1, 1, 2], 9) == ([1, 1, 1], [0, 0, 1])


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


def test_flashvid_merges_a_still_scene_into_its_first_frame() -> None:
    tokens, attention = scenes(1, 20, 16, seed=0, num_scenes=1, common=1.0, change=0.0)
    tokens, attention = tokens.repeat(15, 1, 1), attention.repeat(15, 1)
    got = compressed(tokens, attention, 0.25, "flashvid")
    # Segments: 7 of one frame, 1 of 8 frames. ADTS keeps 4 tokens of each frame, and the same ones.
    assert len(got.indices) == 75 and got.merge is not None
    in_last = got.frame_budgets[7:]
    assert in_last.tolist() == [12] + [4] * 7
    features = got.kept(tokens.flatten(0, 1))
    alone = [got.merge.outputs.tolist().count(number) == 1 for number in range(75)]
    torch.testing.assert_close(features[alone], tokens.flatten(0, 1)[got.indices][alone])


def test_flashvids_clusters_are_divided_by_largest_remainders() -> None:
    divided = method_flashvid.cluster_budgets
    assert divided([8, 0, 0], 3) == [3, 0, 0]
    assert divided([5, 5, 5], 5) == [2, 2, 1]  # the earlier of equal remainders
    assert divided([10, 1, 1], 2) == [2, 0, 0]
    assert divided([3, 4], 7) == [3, 4] and divided([0, 0], 0) == [0, 0]


def test_shares_of_frames_are_evenly_spaced() -> None:
    assert equal_shares(6, 4) == [1, 2, 1, 2] and equal_shares(5, 4) == [1, 1, 1, 2] and equal_shares(8, 4) == [2] * 4
    assert equal_shares(40, 16) == [2, 3] * 8


# -- what both promise ------------------------------------------------------------------------------------------------


@every_method
def test_the_number_of_kept_tokens_depends_only_on_the_sizes(method: str) -> None:
    for num_frames, per_frame, num_scenes in ((1, 1, 1), (1, 9, 1), (5, 1, 2), (9, 2, 9), (16, 7, 1), (20, 9, 3)):
        tokens, attention = scenes(num_frames, per_frame, 4, seed=num_frames, num_scenes=num_scenes, common=2, change=1)
        for ratio in (0.001, 0.1, 0.25, 0.29, 0.5, 0.77, 0.999):
            got = compressed(tokens, attention, ratio, method)
            assert len(got.indices) == expected_exact_total(num_frames, per_frame, ratio) == got.frame_budgets.sum()
            assert bool((got.indices.diff() > 0).all())
            still = compressed(tokens[:1].expand(num_frames, -1, -1), attention, ratio, method)
            assert len(still.indices) == len(got.indices)


@every_method
def test_each_kept_token_is_a_weighted_mean(method: str) -> None:
    tokens, attention = scenes(20, 16, 8, seed=1, num_scenes=3, common=1.5, change=0.3)
    for ratio in (0.25, 0.6, 0.95):
        got = compressed(tokens, attention, ratio, method)
        assert got.merge is not None
        sums = torch.zeros(len(got.indices)).index_add(0, got.merge.outputs, got.merge.weights)
        torch.testing.assert_close(sums, torch.ones_like(sums))
        assert bool((got.merge.weights >= 0).all())


@every_method
def test_at_ratio_one_everything_stays_as_it_is(method: str) -> None:
    tokens, attention = scenes(5, 4, 3, seed=0, num_scenes=2, common=1.0, change=1.0)
    got = compressed(tokens, attention, 1.0, method)
    assert got.indices.tolist() == list(range(20)) and got.frame_budgets.tolist() == [4] * 5 and got.merge is None


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
def test_settings_of_other_methods_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match=rf"`compression_rounding` is 'exact', but .*'{method}'` does not read it"):
        compress(torch.randn(4, 4, 3), 0.5, compression_method=method, compression_rounding="exact")
