"""`"uniform_frames"`, `"dycoke"` and `"evs"`: beside results by hand, beside plain loops, and in every family.

What every method whose K follows from the sizes promises is tested here for `"vcast"` too, the rest in test_vcast.py.
"""

import itertools
import math
import random
import runpy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from test_compression import DeviceReads
from torch import Tensor

from vidcom2 import VideoCompression, compress
from vidcom2.hub_upload.verification import WORKER
from vidcom2.modeling.methods import temporal_uniqueness
from vidcom2.modeling.methods.method_dycoke import dycoke_budgets
from vidcom2.modeling.methods.method_uniform_frames import evenly_spaced
from vidcom2.video.timeline import spread_over_time

METHODS = ("uniform_frames", "dycoke", "vcast", "evs")
IN_TIME = ("dycoke", "evs")  # the methods that compare tokens at the same place of two frames
RATIOS = (0.25, 0.3, 0.475, 0.5, 0.77, 0.999)

every_method = pytest.mark.parametrize("method", METHODS)
in_time = pytest.mark.parametrize("method", IN_TIME)


def video(*frames: Sequence[tuple[float, ...]]) -> Tensor:
    return torch.tensor(frames, dtype=torch.float32)


def indices(tokens: Tensor, ratio: float, method: str) -> list[int]:
    return compress(tokens, ratio, compression_method=method).indices.tolist()


def video_of_equal_lengths(num_frames: int, tokens_per_frame: int, seed: int) -> Tensor:
    """Make tokens of length 5 in whole numbers, and zeros, so that cosines are exact and many are equal."""
    generator = random.Random(seed)
    signs = itertools.product((1, -1), (1, -1), ((3, 4), (4, 3)))
    kinds = [(5, 0, 0), (0, 0, 0), *((a * first, b * second, 0) for a, b, (first, second) in signs)]
    choose = [generator.sample(generator.choice(kinds), 3) for _ in range(num_frames * tokens_per_frame)]
    return torch.tensor(choose, dtype=torch.float32).view(num_frames, tokens_per_frame, 3)


# -- plain loops in float64 -------------------------------------------------------------------------------------------


def cosine(a: list[float], b: list[float]) -> float:
    lengths = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(x * x for x in b))
    return math.fsum(x * y for x, y in zip(a, b)) / lengths if lengths > 0 else 0.0


def is_finite(token: list[float]) -> bool:
    return all(map(math.isfinite, token))


def unlike(tokens: list, t: int, m: int, other: int | None) -> float:
    """Return how much token m of frame t differs from the same token of another frame."""
    if not is_finite(tokens[t][m]):
        return -math.inf
    if other is None:
        return 1.0
    return -cosine(tokens[t][m], tokens[other][m]) if is_finite(tokens[other][m]) else 0.0


def best(scores: dict[int, float], number: int) -> list[int]:
    return sorted(sorted(scores, key=lambda i: (-scores[i], i))[:number])


def oracle(video_tokens: Tensor, ratio: float, method: str) -> list[int]:
    """Return what the method keeps, or an empty list where it cannot reach the ratio."""
    tokens = video_tokens.double().tolist()
    num_frames, per_frame = len(tokens), len(tokens[0])
    # A fraction with few digits, so that 0.3 · 100 is 30.
    total = int(round(ratio * 10**6) * num_frames * per_frame / 10**6)
    if method == "evs":
        places = itertools.product(range(num_frames), range(per_frame))
        scores = {t * per_frame + m: unlike(tokens, t, m, t - 1 if t else None) for t, m in places}
        return best(scores, max(per_frame, total))
    windows = [list(range(first, min(first + 4, num_frames))) for first in range(0, num_frames, 4)]
    left = total - len(windows) * per_frame
    if left < 0:
        return []
    pruned = [t for window in windows for t in window[1:]]
    budgets = dict.fromkeys(pruned, 0)
    for number in range(left):  # the frames get the remainder in turn
        budgets[pruned[number % len(pruned)]] += 1
    everything = []
    for first, *others in windows:
        everything += range(first * per_frame, (first + 1) * per_frame)
        for t in others:
            other = {1: first, 2: first, 3: first + 2}[t - first]
            scores = {t * per_frame + m: unlike(tokens, t, m, other) for m in range(per_frame)}
            everything += best(scores, budgets[t])
    return everything


@in_time
def test_a_method_keeps_the_tokens_that_plain_loops_keep(method: str) -> None:
    reached = 0
    for seed, ((num_frames, per_frame), ratio) in enumerate(
        itertools.product([(1, 4), (2, 5), (4, 6), (5, 3), (8, 9), (11, 4), (12, 10)], RATIOS)
    ):
        for tokens in (
            video_of_equal_lengths(num_frames, per_frame, seed),
            torch.randn(num_frames, per_frame, 16, generator=torch.Generator().manual_seed(seed)),
        ):
            expected = oracle(tokens, ratio, method)
            if expected:
                assert indices(tokens, ratio, method) == expected, (num_frames, per_frame, ratio)
                reached += 1
    assert reached > 50


@in_time
def test_non_finite_tokens_are_kept_last_and_do_not_affect_others(method: str) -> None:
    for seed, bad in enumerate((math.nan, math.inf, -math.inf) * 4):
        tokens = video_of_equal_lengths(8, 9, seed)
        places = torch.Generator().manual_seed(seed)
        tokens[torch.rand(8, 9, generator=places) < 0.2, torch.randint(3, (), generator=places)] = bad
        for ratio in RATIOS:
            assert indices(tokens, ratio, method) == oracle(tokens, ratio, method)
        got = compress(tokens, 0.5, compression_method=method)
        assert torch.equal(got.token_uniqueness.isfinite(), tokens.isfinite().all(dim=-1))
        assert not got.token_uniqueness.isnan().any()
    indices(torch.full((4, 3, 2), math.nan), 0.5, method)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_evs_keeps_the_first_frame_and_then_tokens_unlike_those_of_the_frame_before() -> None:
    tokens = video(
        [(1, 0), (0, 1)],
        [(2, 0), (3, 4)],  # cosines 1 and 0.8
        [(-1, 0), (3, 4)],  # -1 and 1
    )
    got = compress(tokens, 0.5, compression_method="evs")
    assert got.indices.tolist() == [0, 1, 4] and got.frame_budgets.tolist() == [2, 0, 1]
    torch.testing.assert_close(got.token_uniqueness, torch.tensor([[1.0, 1.0], [-1.0, -0.8], [1.0, -1.0]]))
    assert got.frame_uniqueness is None and got.merge is None
    assert indices(tokens, 4 / 6, "evs") == [0, 1, 3, 4]
    assert indices(tokens, 5 / 6, "evs") == [0, 1, 2, 3, 4]  # the earlier of equal tokens
    assert indices(tokens, 0.01, "evs") == [0, 1]  # never less than the first frame


def test_dycoke_prunes_the_second_and_third_frame_by_the_first_and_the_fourth_by_the_third() -> None:
    tokens = video(
        [(1, 0), (1, 0)],
        [(1, 0), (0, 1)],  # cosines 1 and 0 with the first frame
        [(3, 4), (1, 0)],  # 0.6 and 1 with the first; 0.6 and 0 with the second
        [(3, 4), (4, 3)],  # 1 and 0.8 with the third; 0.6 and 0.8 with the first
        [(1, 0), (3, 4)],  # a new window
    )
    got = compress(tokens, 0.7, compression_method="dycoke")
    assert got.indices.tolist() == [0, 1, 3, 4, 7, 8, 9] and got.frame_budgets.tolist() == [2, 1, 1, 1, 2]
    u = [[1.0, 1.0], [-1.0, 0.0], [-0.6, -1.0], [-1.0, -0.8], [1.0, 1.0]]
    torch.testing.assert_close(got.token_uniqueness, torch.tensor(u))
    assert got.merge is None and got.frame_uniqueness is None
    assert indices(tokens, 0.4, "dycoke") == [0, 1, 8, 9]
    assert indices(tokens, 0.8, "dycoke") == [0, 1, 2, 3, 4, 7, 8, 9]  # the earlier frame gets the token that is left


def test_dycoke_at_the_papers_rate_keeps_that_share_of_each_pruned_frame() -> None:
    # K = 0.7 prunes 137.2 of a frame's 196 tokens, so R = 1 - 3/4 · 0.7.
    budgets = dycoke_budgets(32, 196, 0.475)
    assert budgets[::4] == [196] * 8 and set(budgets) == {196, 58, 59} and sum(budgets) == 0.475 * 32 * 196 // 1
    assert dycoke_budgets(32, 196, 0.25) == [196, 0, 0, 0] * 8  # prunes all, K = 1
    assert dycoke_budgets(6, 10, 0.5) == [10, 3, 3, 2, 10, 2]
    assert dycoke_budgets(1, 10, 1.0) == [10]


@pytest.mark.parametrize(
    ("num_frames", "ratio", "reach", "whole"),
    [(8, 0.24, "0.25", "2 of 8"), (6, 0.3333, "0.3334", "2 of 6"), (1, 0.9, "1", "1 of 1"), (5, 0.25, "0.4", "2 of 5")],
)
def test_dycoke_refuses_a_ratio_out_of_its_reach(num_frames: int, ratio: float, reach: str, whole: str) -> None:
    tokens = torch.randn(num_frames, 12, 4)
    message = rf"`retention_ratio` is {ratio}, but must be in \[{reach}, 1\] .*'dycoke'.* whole, here {whole}\. Choose"
    with pytest.raises(ValueError, match=message):
        compress(tokens, ratio, compression_method="dycoke")
    compress(tokens, float(reach), compression_method="dycoke")


def test_evenly_spaced_frames_are_those_that_the_sampling_of_videos_takes() -> None:
    assert evenly_spaced(8, 3) == [0, 3, 7] and evenly_spaced(6, 4) == [0, 2, 3, 5]  # 3.5 is as near to 3 as to 4
    for length in range(1, 40):
        for number in range(1, length + 1):
            exact = [i * (length - 1) / max(number - 1, 1) for i in range(number)]
            sampled = spread_over_time(np.arange(length), number).tolist()
            for ours, theirs, place in zip(evenly_spaced(length, number), sampled, exact, strict=True):
                assert ours == theirs or abs(place % 1 - 0.5) < 1e-9  # float noise decides such a tie


def test_uniform_frames_keeps_whole_frames_and_a_part_of_one_where_they_do_not_fit() -> None:
    got = compress(torch.randn(8, 5, 4), 0.25, compression_method="uniform_frames")
    assert got.indices.tolist() == [*range(5), *range(35, 40)] and got.frame_budgets.tolist() == [5, *[0] * 6, 5]
    assert got.token_uniqueness is None and got.frame_uniqueness is None
    assert indices(torch.randn(8, 5, 4), 0.375, "uniform_frames") == [*range(5), *range(15, 20), *range(35, 40)]
    # 8 of 20 tokens make one frame, and 3 of another frame's 5.
    assert indices(torch.randn(4, 5, 4), 0.4, "uniform_frames") == [0, 1, 2, 3, 4, 15, 17, 19]
    # The ratio asks for 1 of 20 tokens, but there are never fewer than frames, as with "exact" rounding.
    assert indices(torch.randn(4, 5, 4), 0.05, "uniform_frames") == [0, 1, 3, 4]
    assert indices(torch.randn(1, 5, 4), 0.4, "uniform_frames") == [0, 4]


# -- what all of them promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        *({"compression_method": name} for name in (*IN_TIME, "vcast")),
        {"compression_method": "vcast", "compression_scoring": "released"},
    ],
)
def test_nothing_is_read_from_the_device(settings: dict[str, str]) -> None:
    with DeviceReads() as reads:
        compress(torch.randn(8, 9, 4), 0.5, **settings)
    assert reads.count == 0


def agree(got: VideoCompression, expected: VideoCompression) -> None:
    assert torch.equal(got.indices, expected.indices) and torch.equal(got.frame_budgets, expected.frame_budgets)
    if expected.token_uniqueness is not None:
        assert got.token_uniqueness.dtype == torch.float32
        assert torch.equal(got.token_uniqueness, expected.token_uniqueness)


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scored_in_float32_whatever_the_default(method: str, dtype: torch.dtype) -> None:
    # Squares of 300 exceed float16, and sums over 999 channels exceed bfloat16's precision.
    tokens = (torch.randn(8, 9, 999) * 300).to(dtype)
    got = compress(tokens, 0.4, compression_method=method)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        agree(got, compress(tokens.float(), 0.4, compression_method=method))
    finally:
        torch.set_default_dtype(before)
    if method in IN_TIME:
        assert got.indices.tolist() == oracle(tokens, 0.4, method)


@in_time
def test_block_size_does_not_change_the_selection(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randn(11, 9, 33).bfloat16()
    expected = compress(tokens, 0.5, compression_method=method)
    for frames in (1, 2, 5):
        monkeypatch.setattr(temporal_uniqueness, "CPU_BLOCK_BYTES", frames * 4 * 9 * 33)
        agree(compress(tokens, 0.5, compression_method=method), expected)


# -- in models --------------------------------------------------------------------------------------------------------


def test_verify_compares_the_number_of_kept_tokens_with_the_ratio() -> None:
    bounds = runpy.run_path(str(WORKER))["bounds"]
    every = [(method, "exact") for method in (*METHODS, "vidcom2", "random")]
    every += itertools.product(("vidcom2", "random"), ("ceil", "round"))
    sizes = ((8, 9), (4, 196), (32, 7))
    for (method, rounding), (frames, per_frame), ratio in itertools.product(every, sizes, (0.02, *RATIOS)):
        if method == "dycoke" and ratio * frames < math.ceil(frames / 4):
            continue
        tokens, settings = torch.randn(frames, per_frame, 2), {"compression_rounding": rounding}
        kept = len(compress(tokens, ratio, compression_method=method, **settings).indices)
        least, most = bounds(method, rounding, ratio, frames, per_frame)
        assert least <= kept <= most
        assert rounding != "exact" or most <= max(ratio * frames * per_frame + 1, frames, per_frame)
    for method in ("vidcom2", "random"):
        least, most = bounds(method, "ceil", 0.25, frames=8, per_frame=100)
        assert 196 <= least <= 200 <= most <= 208
    assert bounds("a user's", "exact", 0.25, frames=8, per_frame=100) == (1, 208)
