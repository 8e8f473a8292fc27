"""`"fastvid"` and `"flashvid"`: beside their authors' code, beside plain loops, and what both promise."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import expected_exact_total
from scenes import scenes
from segment_oracles import oracle_fastvid, oracle_flashvid
from torch import Tensor

from vidcom2 import VideoCompression, VideoTokens, compress
from vidcom2.modeling.methods import method_fastvid, method_flashvid, video_compression
from vidcom2.modeling.methods.density_peaks import NOT_A_CANDIDATE, density_peaks
from vidcom2.modeling.methods.dynamic_segments import dynamic_segments, frame_means
from vidcom2.modeling.methods.exact_totals import equal_shares

DATA = Path(__file__).parent / "data"
FASTVID = json.loads((DATA / "released_fastvid.json").read_text("utf-8"))
FLASHVID = json.loads((DATA / "released_flashvid.json").read_text("utf-8"))
SIZES = ("num_frames", "tokens_per_frame", "dim")
CONTENT = ("seed", "num_scenes", "common", "change")
ORACLES = {"fastvid": oracle_fastvid, "flashvid": oracle_flashvid}

every_method = pytest.mark.parametrize("method", ORACLES)


def of_case(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Make the tokens and the attention of a golden case."""
    return scenes(*(case[name] for name in SIZES), **{name: case[name] for name in CONTENT})


def compressed(tokens: Tensor, attention: Tensor, ratio: float, method: str) -> VideoCompression:
    grid = (1, tokens.shape[1])
    video = VideoTokens(tokens, grid, tower_attention=attention, tower_grid=grid)
    return compress(video, ratio, compression_method=method)


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
    assert len(indices) == expected_exact_total(*tokens.shape[:2], ratio) == got.frame_budgets.sum()


@every_method
def test_a_method_keeps_and_merges_what_plain_loops_do(method: str) -> None:
    for seed, (sizes, content, ratios) in enumerate(VIDEOS):
        tokens, attention = scenes(*sizes, **{"seed": seed, "common": 1.5, "change": 0.5} | content)
        for ratio in ratios:
            assert_as_plain_loops(tokens, attention, ratio, method)


@every_method
def test_non_finite_tokens_are_kept_last_and_do_not_affect_others(method: str) -> None:
    for seed, bad in enumerate((math.nan, math.inf, -math.inf)):
        tokens, attention = scenes(13, 9, 6, seed=seed, num_scenes=2, common=1.5, change=0.3)
        hit = torch.rand(13, 9, generator=torch.Generator().manual_seed(seed)) < 0.3
        tokens[..., seed] = tokens[..., seed].masked_fill(hit, bad)
        tokens[7] = bad
        for ratio in (0.2, 0.5, 0.9):
            assert_as_plain_loops(tokens, attention, ratio, method)
        compressed(tokens, attention.masked_fill(hit, math.nan), 0.3, method)
    compressed(torch.full((4, 3, 2), math.nan), torch.rand(4, 3), 0.5, method)
