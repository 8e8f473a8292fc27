"""`"vcast"` beside the authors' code, beside plain loops, and by hand.

What it promises like other methods is tested in test_own_methods.py.
"""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from oracle import OracleVcast, oracle_vcast
from torch import Tensor

from vidcom2 import VideoCompression, compress
from vidcom2.modeling.methods.method_vcast import vcast_total

# See its `provenance`: outputs of the authors' functions on the videos of `seeded_video`.
GOLDEN = json.loads(Path(__file__).with_name("data").joinpath("released_vcast.json").read_text("utf-8"))["cases"]
SCORINGS = ("paper", "released")
KINDS = ("noise", "turning")
NOISE = 1e-5  # float32 changes scores, curvatures and shares by less; what the oracle decides by less is not compared

both_scorings = pytest.mark.parametrize("scoring", SCORINGS)


def seeded_video(seed: int, shape: tuple[int, int, int], kind: str) -> Tensor:
    """Make noise, or a scene that moves in one direction, and half-way back again. Python's generator never changes."""
    num_frames, tokens_per_frame, dim = shape
    generator = random.Random(seed)

    def noise(*size: int) -> Tensor:
        return torch.tensor([generator.random() - 0.5 for _ in range(math.prod(size))]).view(size)

    video = noise(num_frames, tokens_per_frame, dim)
    if kind == "turning":
        scene, direction = noise(tokens_per_frame, dim) + noise(dim), noise(dim)
        turn = num_frames // 2
        for t in range(num_frames):
            video[t] = 0.2 * video[t] + scene + (t if t < turn else 2 * turn - t) * direction
    return video


def vcast(tokens: Tensor, ratio: float, scoring: str = "paper") -> VideoCompression:
    return compress(tokens, ratio, compression_method="vcast", compression_scoring=scoring)


def assert_agrees(got: VideoCompression, expected: OracleVcast) -> None:
    assert got.frame_budgets.tolist() == expected.frame_budgets and got.indices.tolist() == expected.indices
    scores = {"rtol": 0, "atol": NOISE, "check_dtype": False}
    torch.testing.assert_close(got.frame_uniqueness, torch.tensor(expected.curvature), **scores)
    torch.testing.assert_close(got.token_uniqueness, torch.tensor(expected.token_scores), **scores)


def test_the_released_scoring_and_the_oracle_reproduce_the_released_code() -> None:
    for case in GOLDEN:
        tokens, ratio = seeded_video(case["seed"], case["shape"], case["kind"]), case["retention_ratio"]
        got, loops = vcast(tokens, ratio, "released"), oracle_vcast(tokens, ratio, "released")
        assert got.indices.tolist() == loops.indices == case["indices"], case
        assert got.frame_budgets.tolist() == loops.frame_budgets == case["frame_budgets"], case
        assert got.frame_uniqueness.tolist() == pytest.approx(case["curvature"], abs=NOISE)
    assert sum(case["shape"][1] in case["frame_budgets"] for case in GOLDEN) > 10  # frames are full in many cases


@both_scorings
def test_the_kept_tokens_are_those_of_plain_loops(scoring: str) -> None:
    compared = 0
    for seed, kind in enumerate(KINDS * 3):
        for shape in ((3, 7, 8), (7, 9, 6), (12, 5, 10)):
            for ratio in (0.21, 0.37, 0.62, 0.93):
                tokens = seeded_video(seed, shape, kind)
                expected = oracle_vcast(tokens, ratio, scoring)
                if min(expected.budget_margin, expected.token_margin) > NOISE:
                    assert_agrees(vcast(tokens, ratio, scoring), expected)
                    compared += 1
    assert compared > 35


@both_scorings
def test_non_finite_tokens_are_kept_last_and_do_not_affect_others(scoring: str) -> None:
    for seed, bad in enumerate((math.nan, math.inf, -math.inf) * 3):
        tokens = seeded_video(seed, (6, 7, 5), "turning")
        hit = torch.rand(6, 7, generator=torch.Generator().manual_seed(seed)) < 0.3
        hit[seed % 6] = True  # a frame without a finite token
        tokens[hit, seed % 5] = bad
        for ratio in (0.2, 0.6, 0.95):
            assert_agrees(vcast(tokens, ratio, scoring), oracle_vcast(tokens, ratio, scoring))


def test_a_frame_at_which_the_path_of_the_means_turns_back_gets_the_most_tokens() -> None:
    """The means go by equal angles on a circle, stand still, and go back. Angles between their steps follow by hand."""
    angles = [0.0, 0.2, 0.4, 0.4, 0.2]
    means = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])
    # Pairs of tokens around each mean: the second is longer, the others lie 90° to either side.
    aside = torch.stack([-means[:, 1], means[:, 0]], dim=1)
    tokens = torch.stack([means - aside, 3 * means, means + aside, means], dim=1)
    got = vcast(tokens, 0.5)
    # κ: the steps of equal angle turn by 0.2; a step of length 0 has no direction, so that its cosine is 0.
    kappa = [1.0, 1 - math.cos(0.2), 1.0, 1.0, 1.0]
    assert got.frame_uniqueness.tolist() == pytest.approx(kappa, abs=1e-6)
    # 1 - cos is 1 - 1/√2 for the outer two and 0 along the mean. The lengths √2, 3, √2, 1 become √2/2 - 1/2, 1, ..., 0.
    outer = 1 - math.sqrt(0.5) + (math.sqrt(2) - 1) / 2
    for row in got.token_uniqueness.tolist():
        assert row == pytest.approx([outer, 1.0, outer, 0.0], abs=1e-5)
    # 10 tokens: one each, and shares of the other 5 by exp(κ / 0.7): 1.14 for four frames and 0.42 for the second.
    assert got.frame_budgets.tolist() == [2, 2, 2, 2, 2]
    assert got.indices.tolist() == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17]  # of the equal ones the earlier
    back = torch.cat([tokens[:3], tokens[1:2], tokens[:1]])
    assert vcast(back, 0.5).frame_budgets.tolist() == [2, 1, 4, 1, 2]  # κ is 2 at the turn: 3.02 tokens of the 5


def test_what_rounding_leaves_goes_to_many_frames_or_to_one() -> None:
    """At R = 0.25 of 8 still frames of 10 tokens, each has 12 / 8 tokens beside its first one."""
    still = torch.randn(1, 10, 8, generator=torch.Generator().manual_seed(0)).repeat(8, 1, 1)
    assert vcast(still, 0.25).frame_budgets.tolist() == [3, 3, 3, 3, 2, 2, 2, 2]
    assert vcast(still, 0.25, "released").frame_budgets.tolist() == [6, 2, 2, 2, 2, 2, 2, 2]
    assert vcast(still, 0.0875).frame_budgets.tolist() == [1] * 8  # 7 tokens, but each frame keeps one
    for scoring in SCORINGS:  # 97 whole tokens beside the first. In float32 noise makes them 96.99999.
        many = torch.ones(53, 196, 8)
        assert vcast(many, 0.5, scoring).frame_budgets.tolist() == [98] * 53


def test_the_total_is_rounded_half_to_even_and_at_least_one_token_a_frame() -> None:
    totals = {(2, 5, 0.25): 2, (2, 7, 0.25): 4, (4, 10, 0.26): 10, (32, 196, 0.25): 1568, (8, 4, 0.05): 8}
    for (num_frames, tokens_per_frame, ratio), total in totals.items():
        assert vcast_total(num_frames, tokens_per_frame, ratio) == total
        assert len(vcast(torch.randn(num_frames, tokens_per_frame, 4), ratio).indices) == total
