"""Users' methods that only score tokens: what they keep, beside plain loops, and what is refused."""

import math
from collections.abc import Callable

import pytest
import torch
from oracle import frame_score, whole_budgets
from torch import Tensor

from vidcom2 import CompressionSettings, VideoTokens, compress, register_score_method
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS

pytestmark = pytest.mark.usefixtures("methods_restored")
T, M = 5, 7
TOKENS = torch.zeros(T, M, 2)
FRAME_BUDGETS = {"compression_rounding", "compression_temperature", "compression_frame_score"}


def scores_of_video(seed: int = 0) -> Tensor:
    return torch.rand(T, M, generator=torch.Generator().manual_seed(seed))


def best(values: list[float], number: int) -> list[int]:
    """Return the places of the highest values. Of equal values the earlier one wins."""
    return sorted(sorted(range(len(values)), key=lambda place: (-values[place], place))[:number])


def in_frames(scores: Tensor, settings: CompressionSettings) -> list[int]:
    """Run Algorithm 1 with these scores, in plain loops and float64."""
    rows = [[value if math.isfinite(value) else -math.inf for value in row] for row in scores.double().tolist()]
    lowest = min(value for row in rows for value in row if value > -math.inf)
    u = [frame_score(row, settings.compression_frame_score, lowest) for row in rows]
    weights = [math.exp((each - max(u)) / settings.compression_temperature) for each in u]
    ratios = [settings.retention_ratio * (1 + weight / (sum(weights) + 1e-8) - 1 / T) for weight in weights]
    if settings.compression_frame_score == "uniform":
        ratios = [settings.retention_ratio] * T
    budgets, _ = whole_budgets([r * M for r in ratios], M, settings.retention_ratio, settings.compression_rounding)
    return [t * M + m for t, row in enumerate(rows) for m in best(row, budgets[t])]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.6])
@pytest.mark.parametrize("rounding", ["ceil", "round", "exact"])
@pytest.mark.parametrize("frame_score", ["mean", "max", "uniform"])
def test_scores_select_tokens_as_in_the_paper(ratio: float, rounding: str, frame_score: str) -> None:
    scores = scores_of_video()
    scores[1, 2:4], scores[3], scores[4, 0] = 0.5, torch.nan, -torch.inf
    register_score_method("mine")(lambda video: scores)
    settings = {"compression_rounding": rounding, "compression_frame_score": frame_score, "retention_ratio": ratio}
    settings |= {"compression_temperature": 0.1}
    got = compress(TOKENS, compression_method="mine", **settings)
    assert got.indices.tolist() == in_frames(scores, CompressionSettings(**settings, compression_method="mine"))
    assert got.frame_budgets.tolist() == (got.indices // M).bincount(minlength=T).tolist()
    finite = scores.isfinite()
    assert torch.equal(got.token_uniqueness, scores.masked_fill(~finite, -torch.inf))
    assert got.frame_uniqueness[3] == scores[finite].min()


@pytest.mark.parametrize("ratio", [0.001, 0.25, 0.5, 0.99])
def test_a_ranking_over_the_video_keeps_the_highest_scores(ratio: float) -> None:
    scores = scores_of_video()
    scores[2], scores[4] = torch.nan, 0.5
    register_score_method("mine", ranking="video")(lambda video: scores.double())
    got = compress(TOKENS, ratio, compression_method="mine")
    values = [value if value == value else -math.inf for value in scores.flatten().tolist()]
    assert got.indices.tolist() == best(values, max(1, math.floor(ratio * T * M + 1e-9)))
    assert got.frame_uniqueness is None and torch.equal(got.token_uniqueness[4], scores[4])


def test_the_temperature_scales_with_the_scores() -> None:
    scores = torch.arange(0.0, 1.0, 0.2)[:, None].expand(5, 100)
    register_score_method("of_one")(lambda video: scores)
    register_score_method("of_thousand")(lambda video: 1000 * scores)
    tokens = torch.zeros(5, 100, 2)
    small, large, alone = (
        compress(tokens, 0.5, compression_method=method, compression_temperature=temperature).frame_budgets.tolist()
        for method, temperature in (("of_one", 0.2), ("of_thousand", 200.0), ("of_thousand", 0.01))
    )
    assert small == large == sorted(set(small))  # the larger the score, the larger the budget
    assert alone == [40, 40, 40, 40, 90]  # one frame takes all it can: R·M more than the others' R·M·(1 - 1/T)


def test_the_function_gets_its_settings_and_the_method_reads_no_others() -> None:
    seen = []

    @register_score_method("mine", ranking="video", settings=("compression_window", "retention_ratio"))
    def mine(video: VideoTokens, retention_ratio: float, compression_window: int | None) -> Tensor:
        seen.append((video.tokens.shape, retention_ratio, compression_window))
        return video.tokens[..., 0]

    compress(TOKENS, 0.5, compression_method="mine", compression_window=3)
    assert seen == [(TOKENS.shape, 0.5, 3)]
    with pytest.raises(ValueError, match=r"`compression_temperature` is 1\.0, but .* does not read it"):
        compress(TOKENS, compression_method="mine", compression_temperature=1.0)
    register_score_method("in_frames")(lambda video: video.tokens[..., 0])
    assert set(COMPRESSION_METHODS["in_frames"].settings) == FRAME_BUDGETS
    for name, rounding, by_sizes in (
        ("in_frames", "ceil", False),
        ("in_frames", "exact", True),
        ("mine", "ceil", True),
    ):
        assert COMPRESSION_METHODS[name].keeps_by_sizes(rounding) == by_sizes  # vLLM asks this


@pytest.mark.parametrize("ranking", ["frame", "video"])
def test_an_empty_video_keeps_as_many_tokens_as_any_other(ranking: str) -> None:
    """vLLM counts in this way before it has seen a video. There, 0 / 0 is no score."""
    register_score_method("mine", ranking=ranking)(lambda video: (norms := video.tokens.norm(dim=-1)) / norms.max())
    exact = {"compression_rounding": "exact"} if ranking == "frame" else {}
    kept = [
        len(compress(tokens, 0.3, compression_method="mine", **exact).indices)
        for tokens in (torch.randn(T, M, 4), torch.zeros(T, M, 2))
    ]
    assert kept == [10, 10]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda video: None, "returned a NoneType, but must return scores: a float tensor of shape (5, 7) on cpu"),
        (lambda video: video.tokens[..., 0].T, "returned torch.float32 of shape (7, 5) on cpu"),
        (lambda video: video.tokens[..., 0] > 0, "returned torch.bool of shape (5, 7) on cpu"),
        (lambda video: video.tokens[..., 0].to("meta"), "returned torch.float32 of shape (5, 7) on meta"),
        (lambda video: 1 / video.tokens[..., 0], "returned a score of +inf"),
        (lambda video: video.tokens[..., 0].add_(1), "wrote into the video's tokens"),
    ],
)
def test_a_function_that_does_not_return_a_score_per_token_is_refused(function: Callable, message: str) -> None:
    register_score_method("mine")(function)
    with pytest.raises(ValueError) as refused:
        compress(TOKENS.clone(), compression_method="mine")
    assert f"`compression_method='mine'` {message}" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "function", "message"),
    [
        ({"ranking": "row"}, len, "`ranking` of method 'mine' is 'row'"),
        ({"settings": ("window",)}, len, "`settings` of method 'mine' is"),
        ({}, len, "must be a function"),
        ({}, lambda video, settings: 0, "cannot be called with a `VideoTokens` and the settings"),
    ],
)
def test_a_bad_registration_is_refused(arguments: dict, function: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        register_score_method("mine", **arguments)(function)
    assert "mine" not in COMPRESSION_METHODS
    with pytest.raises(ValueError, match="'evs' is taken by this project"):
        register_score_method("evs")(lambda video: 0)
