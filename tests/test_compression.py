"""The operator's contract, one sentence per test. It is compared with the float64 implementation in tests/oracle.py."""

import itertools
import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import OracleCompression, expected_exact_total, oracle_compress, released_reference
from safetensors import safe_open
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vidcom2 import VideoCompression, compress
from vidcom2.modeling.methods import method_vidcom2

GOLDEN = Path(__file__).parent / "data" / "released_vidcom2.safetensors"
SCORINGS = ("paper", "released")
ROUNDINGS = ("ceil", "round", "exact")
FRAME_SCORES = ("mean", "max", "uniform")
SETTINGS_OF_RELEASED_CODE = {"compression_scoring": "released", "compression_rounding": "round"}

# float32 may change scores by less than SCORE_NOISE (measured: at most 5e-7 on these sizes), the real-valued budgets,
# which multiply score noise by M·R/τ, by less than BUDGET_NOISE tokens, and variances by less than CHANNEL_NOISE of
# themselves. Only what the oracle decides by more than that is compared.
SCORE_NOISE = 1e-5
BUDGET_NOISE = 1e-3
CHANNEL_NOISE = 1e-4


# -- videos ------------------------------------------------------------------------------------------------------------


def random_video(num_frames: int, tokens_per_frame: int, dim: int, seed: int = 0) -> Tensor:
    """Return a scene that each frame changes by another amount, so that frame scores differ by a few temperatures."""
    generator = torch.Generator().manual_seed(seed)
    scene = torch.randn(1, tokens_per_frame, dim, generator=generator) + torch.randn(1, 1, dim, generator=generator)
    change = torch.randn(num_frames, tokens_per_frame, dim, generator=generator)
    return (
        scene
        + change * torch.linspace(0.1, 0.4, num_frames)[torch.randperm(num_frames, generator=generator), None, None]
    )


def still_video(num_frames: int, tokens_per_frame: int, dim: int, seed: int = 0) -> Tensor:
    return random_video(1, tokens_per_frame, dim, seed).repeat(num_frames, 1, 1)


@st.composite
def videos(draw: st.DrawFn) -> Tensor:
    """Draw small videos of whole numbers. Tokens repeat, cancel, are zero and are not finite, and float32 sums over
    them are exact."""
    num_frames, tokens_per_frame, dim = draw(st.integers(1, 7)), draw(st.integers(1, 12)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    largest = draw(st.sampled_from([1, 3, 50]))
    size = (num_frames, tokens_per_frame, dim)
    tokens = torch.randint(-largest, largest + 1, size, generator=generator).float()
    if draw(st.booleans()):
        tokens[:-1] = tokens[0].clone()  # a still scene with a cut at its end
    hit = torch.rand(num_frames, tokens_per_frame, generator=generator) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    channel, bad = draw(st.integers(0, dim - 1)), draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    tokens[..., channel] = tokens[..., channel].masked_fill(hit, bad)
    return tokens


any_settings = st.fixed_dictionaries(
    {
        "retention_ratio": st.one_of(st.sampled_from([0.25, 0.5, 0.8, 1.0]), st.floats(1e-9, 1.0)),
        "compression_scoring": st.sampled_from(SCORINGS),
        "compression_rounding": st.sampled_from(ROUNDINGS),
        "compression_frame_score": st.sampled_from(FRAME_SCORES),
        "compression_window": st.one_of(st.none(), st.integers(1, 7)),
        "compression_temperature": st.sampled_from([0.01, 0.1, 1.0]),
        "compression_frame_weight": st.sampled_from([1.0, 0.5, 0.0, -1.0]),
        "compression_video_weight": st.sampled_from([1.0, 2.0, -1.0]),
    }
)
# Every run has the same examples, so that a test fails only because the code has changed.
examples = settings(max_examples=100, deadline=None, derandomize=True)


# -- comparisons -------------------------------------------------------------------------------------------------------


def kept_by_frame(result: VideoCompression) -> list[list[int]]:
    """Return the positions of each frame's kept tokens within the frame."""
    kept: list[list[int]] = [[] for _ in result.frame_budgets]
    for index in result.indices.tolist():
        kept[index // result.tokens_per_frame].append(index % result.tokens_per_frame)
    return kept


def tensors_of(result: VideoCompression) -> dict[str, Tensor]:
    return {name: value for name, value in vars(result).items() if isinstance(value, Tensor)}


def highest(scores: list[float], count: int) -> list[int]:
    """Return the positions of the `count` highest scores. Of equal scores the earlier one wins."""
    return sorted(sorted(range(len(scores)), key=lambda m: (-scores[m], m))[:count])


def assert_same(got: VideoCompression, expected: VideoCompression, exactly: bool = True) -> None:
    """Assert the same selection, and the same scores bit for bit or up to float32 noise."""
    assert torch.equal(got.indices, expected.indices)
    assert torch.equal(got.frame_budgets, expected.frame_budgets)
    tolerance = 0.0 if exactly else SCORE_NOISE
    for name in ("frame_uniqueness", "token_uniqueness"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=0, atol=tolerance)


def assert_agrees_with_oracle(got: VideoCompression, expected: OracleCompression) -> None:
    """Assert equality wherever the oracle decides by more than float32 noise, and elsewhere up to that noise."""
    if expected.channel_margin < CHANNEL_NOISE:
        return
    noise = {"rtol": 0, "atol": SCORE_NOISE, "check_dtype": False}
    torch.testing.assert_close(got.token_uniqueness, torch.tensor(expected.token_uniqueness).double(), **noise)
    torch.testing.assert_close(got.frame_uniqueness, torch.tensor(expected.frame_uniqueness).double(), **noise)
    if expected.budget_margin > BUDGET_NOISE:
        assert got.frame_budgets.tolist() == expected.frame_budgets
    for kept, scores, budget in zip(kept_by_frame(got), expected.token_uniqueness, got.frame_budgets.tolist()):
        best = highest(scores, budget)
        last_kept = min(scores[m] for m in best)
        for m in set(kept) ^ set(best):
            assert abs(scores[m] - last_kept) < SCORE_NOISE, f"token {m}: kept {kept}, but the oracle keeps {best}"


@cache
def decided_video(shape: tuple[int, int, int], **settings: Any) -> tuple[Tensor, OracleCompression]:
    """Find a video on which the oracle always decides by more than float32 noise, so that everything is compared."""
    for seed in range(20):
        tokens = random_video(*shape, seed=seed)
        expected = oracle_compress(tokens, **settings)
        if expected.budget_margin > BUDGET_NOISE and expected.channel_margin > CHANNEL_NOISE:
            return tokens, expected
    raise AssertionError(f"no seed gives clear margins for {shape}, {settings}")


# -- the released code and the oracle ----------------------------------------------------------------------------------


def golden_cases() -> list[dict[str, Any]]:
    with safe_open(GOLDEN, "pt") as file:
        cases = json.loads(file.metadata()["cases"])
        names = ("tokens", "indices", "frame_budgets", "frame_uniqueness")
        return [case | {name: file.get_tensor(f"{case['case']}.{name}") for name in names} for case in cases]


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: f"{case['case']}-{case['kind']}")
def test_the_operator_the_oracle_and_the_benchmarks_baseline_reproduce_the_released_code(case: dict[str, Any]) -> None:
    tokens, ratio = case["tokens"], case["retention_ratio"]
    for got in (compress(tokens, ratio, **SETTINGS_OF_RELEASED_CODE), released_reference(tokens, ratio)):
        assert torch.equal(got.indices, case["indices"])
        assert torch.equal(got.frame_budgets, case["frame_budgets"])
        torch.testing.assert_close(got.frame_uniqueness, case["frame_uniqueness"], rtol=0, atol=1e-6)
    oracle = oracle_compress(tokens, ratio, **SETTINGS_OF_RELEASED_CODE)
    assert oracle.indices == case["indices"].tolist()
    assert oracle.frame_budgets == case["frame_budgets"].tolist()
    assert oracle.frame_uniqueness == pytest.approx(case["frame_uniqueness"].tolist(), abs=1e-6)


# Shape, ratio, temperature, and the weights of the frame and the video
SIZES = (
    ((6, 9, 8), 0.3, 0.01, (1.0, 1.0)),
    ((5, 16, 12), 0.05, 0.05, (0.25, 2.0)),
    ((8, 4, 31), 0.9, 0.3, (-1.0, 0.0)),
)


@pytest.mark.parametrize("frame_score", FRAME_SCORES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scoring", SCORINGS)
def test_compress_agrees_with_the_oracle(scoring: str, rounding: str, frame_score: str) -> None:
    for window, (shape, ratio, temperature, weights) in zip((None, 1, 3, 4), itertools.cycle(SIZES)):
        settings = {
            "retention_ratio": ratio,
            "compression_scoring": scoring,
            "compression_rounding": rounding,
            "compression_temperature": temperature,
            "compression_frame_score": frame_score,
            "compression_window": window,
            "compression_frame_weight": weights[0],
            "compression_video_weight": weights[1],
        }
        tokens, expected = decided_video(shape, **settings)
        assert_agrees_with_oracle(compress(tokens, **settings), expected)


@examples
@given(tokens=videos(), settings=any_settings)
def test_compress_agrees_with_the_oracle_on_any_video(tokens: Tensor, settings: dict[str, Any]) -> None:
    assert_agrees_with_oracle(compress(tokens, **settings), oracle_compress(tokens, **settings))


# -- budgets and indices -----------------------------------------------------------------------------------------------


@examples
@given(tokens=videos(), settings=any_settings)
def test_each_frame_keeps_its_budget_of_the_highest_scores_and_the_earlier_of_equal_ones(
    tokens: Tensor, settings: dict[str, Any]
) -> None:
    num_frames, tokens_per_frame, _ = tokens.shape
    got = compress(tokens, **settings)
    rows, budgets = got.token_uniqueness.tolist(), got.frame_budgets.tolist()
    assert len(budgets) == num_frames and all(1 <= budget <= tokens_per_frame for budget in budgets)
    kept = [highest(row, budget) for row, budget in zip(rows, budgets)]
    assert got.indices.tolist() == [t * tokens_per_frame + m for t, frame in enumerate(kept) for m in frame]
    if settings["compression_rounding"] == "exact":
        assert sum(budgets) == expected_exact_total(num_frames, tokens_per_frame, settings["retention_ratio"])


@pytest.mark.parametrize("scoring", SCORINGS)
def test_the_earlier_of_equal_tokens_are_kept(scoring: str) -> None:
    # An unstable sort of as many as 64 equal tokens does not keep their order.
    got = compress(torch.ones(3, 64, 8), 0.25, compression_scoring=scoring)
    assert kept_by_frame(got) == [list(range(16))] * 3


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_static_video_keeps_exactly_the_ratio_of_each_frame(dtype: torch.dtype, rounding: str, scoring: str) -> None:
    # R·M is a whole number in each case, but in floats 0.07 · 100 = 7.000000000000001, 0.29 · 100 = 28.999999999999996.
    sizes = [(196, 0.25, 49), (169, 1 / 13, 13), (100, 0.07, 7), (100, 0.29, 29), (4, 0.75, 3), (2, 0.5, 1)]
    videos = [(frames, *size, 16) for size in sizes for frames in (1, 3, 32)]
    # 32 frames of 896 channels make several blocks, the last of them smaller, where float32 noise would show.
    for num_frames, tokens_per_frame, ratio, budget, dim in (*videos, (32, 196, 0.25, 49, 896)):
        tokens = still_video(num_frames, tokens_per_frame, dim).to(dtype)
        got = compress(tokens, ratio, compression_scoring=scoring, compression_rounding=rounding)
        assert got.frame_budgets.tolist() == [budget] * num_frames, (tokens_per_frame, ratio, num_frames)


def test_ceil_rounds_a_fraction_up_and_round_rounds_it_half_to_even() -> None:
    def budget(tokens_per_frame: int, rounding: str) -> int:
        tokens = still_video(4, tokens_per_frame, 8)
        return compress(tokens, 0.25, compression_rounding=rounding).frame_budgets.unique().item()

    assert [budget(size, "ceil") for size in (2, 5, 6, 7, 10)] == [1, 2, 2, 2, 3]
    assert [budget(size, "round") for size in (2, 5, 6, 7, 10)] == [1, 1, 2, 2, 2]


def test_exact_rounding_gives_tokens_that_a_full_frame_cannot_take_to_the_others() -> None:
    tokens = still_video(8, 20, 16)
    tokens[3] = random_video(1, 20, 16, seed=1)[0]
    ceil = compress(tokens, 0.75, compression_rounding="round").frame_budgets
    exact = compress(tokens, 0.75, compression_rounding="exact").frame_budgets
    assert ceil[3] == exact[3] == 20  # σ_3 is nearly 1: frame 3 asks for 0.75 · (2 - 1/8) · 20 = 28
    assert ceil.sum() < 0.75 * 8 * 20 == exact.sum()
    # 7 equal frames share the 100 tokens that are left, 14.29 each. Equal remainders go to the earlier frames.
    assert exact.tolist() == [15, 15, 14, 20, 14, 14, 14, 14]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.4])
def test_exact_rounding_gives_a_frame_what_the_paper_does_or_one_token_less(ratio: float, scoring: str) -> None:
    """docs/methods.md says so of videos in which no frame is full or down to its last token."""
    seen = set()
    for seed in range(4):
        tokens = random_video(12, 49, 16, seed=seed) + torch.linspace(0, seed, 12)[:, None, None]
        settings = {"compression_scoring": scoring, "compression_temperature": 0.1}
        ceil, exact = (
            compress(tokens, ratio, compression_rounding=rounding, **settings).frame_budgets
            for rounding in ("ceil", "exact")
        )
        assert exact.min() > 1 and ceil.max() < 49
        seen |= set((ceil - exact).tolist())
    assert seen == {0, 1}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("ratio", [5e-324, 1e-310, 1e-9, 0.001])  # 1 / 5e-324, the smallest float, is inf
def test_tiny_ratio_keeps_one_token_per_frame(ratio: float, rounding: str) -> None:
    got = compress(random_video(6, 9, 8), ratio, compression_rounding=rounding)
    assert got.frame_budgets.tolist() == [1] * 6
    assert kept_by_frame(got) == [[m] for m in got.token_uniqueness.argmax(dim=1).tolist()]


# -- scores ------------------------------------------------------------------------------------------------------------


@examples
@given(tokens=videos(), settings=any_settings, exponent=st.integers(-30, 30))
def test_scaling_any_video_by_a_power_of_two_changes_nothing(
    tokens: Tensor, settings: dict[str, Any], exponent: int
) -> None:
    # Powers of two are exact in float32, so no bit of a score may change.
    assert_same(compress(tokens * 2.0**exponent, **settings), compress(tokens, **settings))


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("weight", [2.0**99, 2.0**-60])  # about the largest accepted weight; powers of two are exact
def test_weights_of_any_size_rank_the_tokens(weight: float, scoring: str) -> None:
    tokens = random_video(4, 9, 8)
    weights = {"compression_frame_weight": weight, "compression_video_weight": weight}
    got = compress(tokens, compression_scoring=scoring, **weights)
    assert got.token_uniqueness.isfinite().all()
    assert torch.equal(got.indices, compress(tokens, compression_scoring=scoring).indices)


# -- inputs: dtypes, memory, gradients, devices ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_every_float_dtype_is_scored_in_float32(scoring: str, dtype: torch.dtype) -> None:
    tokens = random_video(6, 9, 32).to(dtype)
    got = compress(tokens, compression_scoring=scoring)
    assert got.token_uniqueness.dtype == torch.float32
    assert_same(got, compress(tokens.float(), compression_scoring=scoring))


@pytest.mark.parametrize(
    "context", [torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)], ids=["inference", "autocast"]
)
@pytest.mark.parametrize("scoring", SCORINGS)
def test_inference_mode_and_autocast_change_no_score(scoring: str, context: Any) -> None:
    """Autocast runs matrix products in half precision. Mixed-precision training would then choose other tokens."""
    tokens = random_video(6, 49, 64)
    with context:
        got = compress(tokens, compression_scoring=scoring)
    assert_same(got, compress(tokens, compression_scoring=scoring))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_strides_do_not_change_the_result_nor_the_result_the_input(scoring: str, dtype: torch.dtype) -> None:
    tokens = random_video(6, 9, 32).to(dtype)
    tokens[1, 2, 3], tokens[4, 5] = math.nan, 0
    before = tokens.clone()
    expected = compress(tokens, compression_scoring=scoring)
    assert torch.equal(tokens.nan_to_num(7), before.nan_to_num(7))
    wider = torch.cat([tokens, tokens], dim=-1)
    for view in (
        tokens.transpose(0, 1).contiguous().transpose(0, 1),
        tokens.transpose(1, 2).contiguous().transpose(1, 2),
        wider[..., :32],
        torch.stack([tokens, tokens], dim=-1)[..., 1],
    ):
        assert not view.is_contiguous()
        assert_same(compress(view, compression_scoring=scoring), expected, exactly=False)
    still = tokens[:1].expand(6, -1, -1)
    assert_same(compress(still, compression_scoring=scoring), compress(still.clone(), compression_scoring=scoring))


def test_gradient_flows_through_the_kept_features_and_not_through_the_selection() -> None:
    tokens = random_video(4, 9, 8).requires_grad_()
    got = compress(tokens, 0.25)
    assert not any(value.requires_grad for value in tensors_of(got).values())
    tokens.flatten(0, 1)[got.indices].sum().backward()
    kept = torch.zeros(4 * 9, 8)
    kept[got.indices] = 1
    assert torch.equal(tokens.grad, kept.view(4, 9, 8))


@pytest.mark.parametrize("frames_per_block", [0.1, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_block_size_does_not_change_the_result(
    scoring: str, dtype: torch.dtype, frames_per_block: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that is larger than a block is one block. With 3 frames in a block, the last block is smaller."""
    num_frames, tokens_per_frame, dim = 7, 9, 32
    tokens = random_video(num_frames, tokens_per_frame, dim)
    # Every other channel varies little within a frame and much between frames, so only all blocks show its variance.
    tokens[..., ::2] = 0.1 * tokens[..., ::2] + torch.arange(num_frames)[:, None, None]
    tokens[3, 4] = math.nan
    tokens = tokens.to(dtype)
    expected = compress(tokens, compression_scoring=scoring)
    for limit in ("BLOCK_BYTES", "CPU_BUFFER_BYTES", "ONE_THREAD_BUFFER_BYTES"):
        monkeypatch.setattr(method_vidcom2, limit, int(4 * tokens_per_frame * dim * frames_per_block))
    sizes = [len(block) for _, block in method_vidcom2.float32_blocks(tokens)]
    assert sizes[0] == max(1, frames_per_block) and sum(sizes) == num_frames
    assert_same(compress(tokens, compression_scoring=scoring), expected, exactly=False)


@pytest.mark.parametrize("non_finite", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_channel_variance_is_the_float64_variance_of_the_finite_tokens(dtype: torch.dtype, non_finite: bool) -> None:
    tokens = 4 + random_video(6, 49, 64) * torch.logspace(-1, 0, 64)  # small beside the mean, as in real channels
    if non_finite:
        tokens[1, 2, 3], tokens[4, 5] = math.nan, math.inf
    tokens = tokens.to(dtype)  # float8_e4m3fn has no inf, which becomes nan there
    finite = tokens.double().isfinite().all(dim=-1)
    expected = tokens.double()[finite].var(dim=0, correction=0)
    for layout in (tokens, tokens.transpose(0, 1).contiguous().transpose(0, 1)):
        got = method_vidcom2.channel_variance(layout)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=CHANNEL_NOISE, atol=0)


class DeviceReads(TorchDispatchMode):
    """Count the values that Python reads from tensors, and the operations whose output size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        waits = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        # Whether a block holds non-finite tokens is a bool, which is read only on the CPU, where it costs nothing.
        if waits and args[0].dtype != torch.bool:
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize(("rounding", "reads"), [("ceil", 1), ("round", 1), ("exact", 0)])
def test_only_the_number_of_kept_tokens_is_read_from_the_device(rounding: str, reads: int, scoring: str) -> None:
    tokens = random_video(6, 9, 8)
    for window in (None, 3):
        settings = {"compression_scoring": scoring, "compression_rounding": rounding, "compression_window": window}
        with DeviceReads() as device_reads:
            compress(tokens, **settings)
        assert device_reads.count == reads


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scoring", SCORINGS)
def test_gpu_keeps_the_tokens_that_the_cpu_keeps(scoring: str, rounding: str) -> None:
    settings = {"retention_ratio": 0.3, "compression_scoring": scoring, "compression_rounding": rounding}
    tokens, expected = decided_video((6, 9, 8), **settings)
    got = compress(tokens.cuda(), **settings)
    assert {value.device.type for value in tensors_of(got).values()} == {"cuda"}
    on_cpu = {name: value.cpu() for name, value in tensors_of(got).items()}
    assert_agrees_with_oracle(replace(got, **on_cpu), expected)


# -- the random baseline, and refusals ---------------------------------------------------------------------------------


def test_random_baseline_keeps_the_same_share_of_each_frame_and_the_same_tokens_in_every_call() -> None:
    tokens = random_video(6, 20, 8)
    got = compress(tokens, 0.25, compression_method="random")
    assert got.frame_budgets.tolist() == [5] * 6
    assert len({tuple(kept) for kept in kept_by_frame(got)}) > 1
    before = torch.random.get_rng_state()
    assert_same(compress(tokens + 1, 0.25, compression_method="random"), got)
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's random state is not touched


@pytest.mark.parametrize(
    ("video_tokens", "got"),
    [
        (torch.ones(4, 8), "(4, 8)"),
        (torch.tensor(1.0), "()"),
        (torch.ones(4, 8, 3, dtype=torch.int64), "torch.int64"),
        (torch.ones(4, 8, 3, dtype=torch.complex64), "torch.complex64"),
        (torch.ones(0, 8, 3), "(0, 8, 3)"),
        (torch.ones(4, 0, 3), "(4, 0, 3)"),
        (torch.ones(4, 8, 0), "(4, 8, 0)"),
        (torch.ones(4, 8, 3).numpy(), "ndarray"),
        (None, "NoneType"),
    ],
    ids=repr,
)
def test_compress_refuses_anything_but_a_float_video(video_tokens: Any, got: str) -> None:
    with pytest.raises(ValueError, match=f"`video_tokens`.*{re.escape(got)}"):
        compress(video_tokens)


def test_meta_tensors_are_accepted_only_where_their_sizes_determine_the_total() -> None:
    sizes = torch.ones(8, 9, 4, device="meta")
    got = compress(sizes, compression_rounding="exact")
    assert len(got.indices) == 18 and {value.device.type for value in tensors_of(got).values()} == {"meta"}
    for more in ({}, {"retention_ratio": 1.0}, {"compression_method": "random"}):
        with pytest.raises(ValueError, match=r"`video_tokens` is on the device 'meta'.* Pass a tensor with values"):
            compress(sizes, **more)
