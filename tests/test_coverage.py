"""`compression_method="coverage"`, against the same rule in plain loops."""

import math

import pytest
import torch
from torch import Tensor

from vidcom2 import compress
from vidcom2.modeling.methods import method_coverage
from vidcom2.modeling.methods.compression import exact_total
from vidcom2.modeling.methods.method_coverage import SKETCH, projection


def kept_by_loops(tokens: Tensor, ratio: float) -> list[int]:
    """Return the kept indices by the rule of the file's docstring, in float64, one comparison at a time."""
    num_frames, per_frame, _ = tokens.shape
    points = [[float(v) for v in token] for frame in tokens.double() for token in frame]
    lengths = [math.sqrt(sum(v * v for v in point)) for point in points]
    points = [[v / length for v in point] for point, length in zip(points, lengths)]
    number = len(points)

    def unlike(i: int, j: int) -> float:
        return 1 - sum(a * b for a, b in zip(points[i], points[j]))

    variety = sum(unlike(i, j) for i in range(number) for j in range(number)) / number**2

    def distance(i: int, j: int) -> float:
        return unlike(i, j) / variety + 2 * abs(i // per_frame - j // per_frame) / num_frames

    def to_nearest(i: int, others: list[int]) -> float:
        return min(distance(i, j) for j in others)

    mean = [sum(values) / number for values in zip(*points)]
    kept = [max(range(number), key=lambda i: sum(a * b for a, b in zip(points[i], mean)))]
    total = exact_total(num_frames, per_frame, ratio)
    while len(kept) < total:
        picks = min(max(1, len(kept) // 2), method_coverage.MOST, total - len(kept))
        free = [i for i in range(number) if i not in kept]
        offered = sorted(free, key=lambda i: to_nearest(i, kept), reverse=True)[: max(4 * picks, 64)]
        gains = {i: to_nearest(i, kept + offered[:place]) for place, i in enumerate(offered)}
        kept += sorted(offered, key=gains.__getitem__, reverse=True)[:picks]
    return sorted(kept)


@pytest.mark.parametrize(
    ("num_frames", "per_frame", "ratio"),
    [(8, 6, 0.25), (8, 6, 0.9), (3, 12, 0.3), (1, 20, 0.25), (1, 9, 0.1), (13, 4, 0.5), (10, 15, 0.4)],
)
def test_it_keeps_what_plain_loops_keep(num_frames: int, per_frame: int, ratio: float) -> None:
    torch.manual_seed(num_frames)
    tokens = torch.randn(num_frames, per_frame, 10) + torch.randn(10)
    compression = compress(tokens, ratio, compression_method="coverage")
    assert compression.indices.tolist() == kept_by_loops(tokens, ratio)
    assert compression.frame_budgets.sum() == len(compression.indices) == exact_total(num_frames, per_frame, ratio)


def test_early_rounds_are_offered_more_than_one_thing() -> None:
    """The farthest tokens may be many of one thing, so that four for each that a round keeps would be that alone."""
    torch.manual_seed(0)
    things = torch.randn(8, 12)
    tokens = things[torch.randint(8, (9, 12))] + 0.05 * torch.randn(9, 12, 12)
    kept = compress(tokens, 0.1, compression_method="coverage").indices
    assert kept.tolist() == kept_by_loops(tokens, 0.1)
    assert len(set(nearest_thing(tokens, things)[kept].tolist())) == 8


def nearest_thing(tokens: Tensor, things: Tensor) -> Tensor:
    return torch.cosine_similarity(tokens.flatten(0, 1)[:, None], things, dim=2).argmax(dim=1)


def test_a_long_videos_rounds_are_bounded_and_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round keeps at most `MOST` tokens, and computes at most `AT_ONCE` distances at a time."""
    torch.manual_seed(0)
    tokens = torch.randn(10, 12, 8) + torch.randn(8)
    at_once: list[int] = []
    to_all = method_coverage.Points._to_all

    def noted(self: method_coverage.Points, rows: Tensor) -> Tensor:
        at_once.append(len(rows))
        return to_all(self, rows)

    monkeypatch.setattr(method_coverage.Points, "_to_all", noted)
    whole = compress(tokens, 0.5, compression_method="coverage").indices
    assert at_once == [1, 1, 1, 1, 2, 3, 4, 6, 9, 14]  # Nothing asks for distances to the last 18.

    at_once.clear()
    monkeypatch.setattr(method_coverage, "AT_ONCE", 5 * 120)
    assert torch.equal(compress(tokens, 0.5, compression_method="coverage").indices, whole)
    assert sum(at_once) == 42 and max(at_once) == 5

    at_once.clear()
    monkeypatch.setattr(method_coverage, "MOST", 3)
    kept = compress(tokens, 0.5, compression_method="coverage").indices
    assert kept.tolist() == kept_by_loops(tokens, 0.5) != whole.tolist()
    assert max(at_once) == 3


def test_each_of_many_things_keeps_a_token_where_chance_would_lose_some() -> None:
    """Two thirds of the tokens are one background, and each of 20 other things is seen in a few tokens."""
    torch.manual_seed(0)
    things = torch.randn(21, 64)
    shown = torch.where(torch.rand(12, 30) < 0.66, 0, torch.randint(1, 21, (12, 30)))
    tokens = things[shown] + 2 * torch.randn(64) + 0.1 * torch.randn(12, 30, 64)
    kept = compress(tokens, 0.1, compression_method="coverage").indices
    assert set(shown.flatten()[kept].tolist()) == set(range(21))
    by_chance = compress(tokens, 0.1, compression_method="random", compression_rounding="exact").indices
    assert len(set(shown.flatten()[by_chance].tolist())) < 15


def test_a_still_video_keeps_tokens_from_all_of_its_length() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(1, 16, 32).expand(20, -1, -1)
    compression = compress(tokens, 0.25, compression_method="coverage")
    for quarter in compression.frame_budgets.split(5):
        assert 12 <= quarter.sum() <= 28  # 20 of 80 on average
    assert len(set((compression.indices % 16).tolist())) == 16


@pytest.mark.parametrize("ratio", [0.1, 0.93, 0.99])
def test_tokens_without_finite_values_are_kept_last(ratio: float) -> None:
    torch.manual_seed(0)
    tokens = torch.randn(6, 9, 8)
    tokens[2], tokens[4, 1] = float("nan"), float("inf")
    kept = compress(tokens, ratio, compression_method="coverage").indices
    total, finite = exact_total(6, 9, ratio), tokens.isfinite().all(-1).flatten()
    assert len(kept) == total and int(finite[kept].sum()) == min(total, int(finite.sum()))


def test_tokens_without_finite_values_do_not_change_which_others_are_kept() -> None:
    """Of two things, one may be kept in a frame already: a token of no direction would be farther from it."""
    torch.manual_seed(0)
    tokens = torch.randn(2, 10)[torch.randint(0, 2, (8, 6))] + 0.1 * torch.randn(8, 6, 10)
    more = torch.cat([tokens, torch.full((8, 1, 10), float("nan"))], dim=1)
    expected = compress(tokens, 12 / 48, compression_method="coverage").indices
    got = compress(more, 12 / 56, compression_method="coverage").indices
    assert [divmod(i, 7) for i in got.tolist()] == [divmod(i, 6) for i in expected.tolist()]


def test_a_video_whose_tokens_are_all_alike_keeps_some_of_every_frame() -> None:
    for tokens in (torch.ones(8, 5, 4), torch.zeros(8, 5, 4)):
        assert compress(tokens, 0.25, compression_method="coverage").frame_budgets.min() > 0
    nothing = torch.full((8, 5, 4), float("nan"))
    assert len(compress(nothing, 0.25, compression_method="coverage").indices) == 10


def test_a_sketch_keeps_the_distances_of_wide_tokens() -> None:
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(200, 3584) + 2 * torch.randn(3584), dim=1)
    exact = 1 - directions @ directions.T
    sketched = directions @ projection(3584)
    estimated = torch.cdist(sketched, sketched).square() / 2
    off = ~torch.eye(200, dtype=torch.bool)
    error = (estimated / exact - 1)[off]
    assert error.abs().mean() < 0.1 and error.abs().max() < 0.5 and abs(error.mean()) < 0.05
    assert torch.equal(projection.__wrapped__(3584), projection(3584))  # whatever random numbers were drawn before


def test_only_tokens_wider_than_a_sketch_are_compared_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    monkeypatch.setattr(method_coverage, "projection", lambda width: (widths.append(width), projection(width))[1])
    for width in (SKETCH, SKETCH + 1):
        compress(torch.randn(2, 4, width), 0.5, compression_method="coverage")
    assert widths == [SKETCH + 1]
