"""How many tokens stay: what each method's `count` says from the sizes is what its selector keeps."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scenes import scenes
from torch import Tensor

from benchmarks import methods as published
from benchmarks.methods.attended_tokens import AttendedTokens
from vidcom2 import (
    CompressionSettings,
    VideoCompression,
    VideoTokens,
    compress,
    exact_total,
    register_compression_method,
    register_score_method,
)
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.modeling.methods.compression import compress_with, keeping, num_kept_tokens

OWN = tuple(COMPRESSION_METHODS)
RANKED = ("ranked_in_frames", "ranked_over_video")
FEWER, FIXED = "first_tokens", "a_token_a_frame"
COUNTED = (*OWN, *published.METHODS, *RANKED, FEWER, FIXED)
# (T, M, R, budget): each ratio, size and kind of budget at least once; a frame, a token, and less than a token a frame.
# Of these, 0.475 is DyCoke's own ratio.
CASES = (
    *((1, 1, 0.25, None), (1, 9, 0.5, None), (1, 196, 0.001, None), (2, 1, 0.5, None), (4, 25, 0.999, None)),
    *((5, 7, 0.26, None), (8, 9, 0.25, None), (8, 9, 1e-9, None), (8, 49, 0.475, None), (9, 6, 1 / 3, None)),
    *((16, 25, 0.15, None), (32, 4, 0.5, None), (8, 9, 1.0, None), (8, 9, 1.0, 72), (8, 9, 1.0, 71), (8, 9, 1.0, 20)),
    *((8, 9, 1.0, 3), (8, 9, 0.5, 36), (8, 9, 0.5, 35), (8, 9, 0.5, 9), (8, 9, 0.01, 4), (8, 9, 0.01, 9)),
    *((1, 9, 0.5, 1), (16, 25, 0.25, 10**6)),
)


@pytest.fixture(autouse=True)
def _registered(methods_restored: None) -> Iterator[None]:
    published.register()

    def loudness(video: VideoTokens) -> Tensor:
        return video.tokens.float().norm(dim=-1)

    register_score_method(RANKED[0])(loudness)
    register_score_method(RANKED[1], ranking="video")(loudness)

    def first_tokens(video: VideoTokens, number: int) -> VideoCompression:
        kept = torch.zeros_like(video.tokens[..., 0], dtype=torch.bool)
        kept[:, :number] = True
        return VideoCompression.of_mask(kept)

    @register_compression_method(FEWER, count=lambda frames, tokens, ratio: frames * math.ceil(ratio * tokens))
    def fewer(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        return first_tokens(video, math.ceil(settings.retention_ratio * video.tokens.shape[1]))

    @register_compression_method(FIXED, count=lambda frames, tokens, ratio: frames)
    def fixed(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        return first_tokens(video, 1)

    yield


def videos(num_frames: int, tokens_per_frame: int) -> list[VideoTokens]:
    """Return videos of a size that differ as much as they can: scenes, and frames without a finite or any value."""
    tokens, attention = scenes(num_frames, tokens_per_frame, 8, seed=0, num_scenes=2, common=1.0, change=0.1)
    broken = tokens.clone()
    broken[::2] = math.nan
    every = (tokens, broken, torch.zeros_like(tokens))
    return [AttendedTokens(each, (1, tokens_per_frame), attention=attention) for each in every]


def outcome(call: Callable[[], int]) -> int | str:
    """Return what a call returns, or the text of its refusal."""
    try:
        return call()
    except ValueError as error:
        return str(error)


def least(name: str, num_frames: int, tokens_per_frame: int) -> int:
    """Return how many tokens of a video a method needs, as docs/methods.md says."""
    needed = {"dycoke": math.ceil(num_frames / 4) * tokens_per_frame, "evs": tokens_per_frame, RANKED[1]: 1}
    return needed.get(name, num_frames)


@pytest.mark.parametrize("name", COUNTED)
def test_a_count_from_the_sizes_is_what_the_selector_keeps_or_refuses(name: str) -> None:
    for num_frames, tokens_per_frame, ratio, budget in CASES:
        of = CompressionSettings(compression_method=name, retention_ratio=ratio, max_video_tokens=budget)
        counted = outcome(lambda of=of, T=num_frames, M=tokens_per_frame: num_kept_tokens(of, T, M))
        for video in videos(num_frames, tokens_per_frame):
            assert outcome(lambda of=of, video=video: len(compress_with(of, video).indices)) == counted
        if name != FEWER:  # at a lower ratio it may still keep more than the budget
            needed, num_tokens = least(name, num_frames, tokens_per_frame), num_frames * tokens_per_frame
            asked = min(num_tokens, budget or num_tokens, math.floor(ratio * num_tokens) if name == "dycoke" else 10**9)
            assert isinstance(counted, str) == (asked < needed)


@pytest.mark.parametrize("name", COUNTED)
def test_a_method_that_is_asked_for_k_tokens_counts_and_keeps_k(name: str) -> None:
    """A prompt has room for K tokens, whatever ratio, budget and rounding the config has."""
    given = CompressionSettings(compression_method=name, max_video_tokens=40, compression_rounding="ceil")
    video, possible = videos(8, 9)[0], {FEWER: range(8, 73, 8), FIXED: (8, 72)}
    for number in possible.get(name, range(least(name, 8, 9), 73)):
        exactly = keeping(number, 72, given)
        assert num_kept_tokens(exactly, 8, 9) == len(compress_with(exactly, video).indices) == number


@pytest.mark.parametrize("name", ["vidcom2", "random", RANKED[0]])
@pytest.mark.parametrize("rounding", ["ceil", "round"])
def test_a_rounding_that_depends_on_the_content_is_not_counted(name: str, rounding: str) -> None:
    of = CompressionSettings(compression_method=name, compression_rounding=rounding)
    with pytest.raises(ValueError, match=rf"'{rounding}'` does not say .* Set the rounding to .exact., or .* stock"):
        num_kept_tokens(of, 8, 9)
    kept = {len(compress_with(of, video).indices) for video in videos(8, 9)}
    assert len(kept) > 1 or name == "random"  # whose budgets are equal


@pytest.mark.parametrize("count", [0, 73, 12.5, None])
def test_a_count_that_is_no_number_of_tokens_is_refused(count: Any) -> None:
    @register_compression_method("mine", count=lambda *sizes: count)
    def mine(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        return VideoCompression.of_mask(torch.ones_like(video.tokens[..., 0], dtype=torch.bool))

    for budget in (None, 5):
        settings = CompressionSettings(compression_method="mine", max_video_tokens=budget)
        with pytest.raises(ValueError, match=rf"`count` of .*'mine'` is {count} for 8 frames of 9 .* from 1 to 72"):
            num_kept_tokens(settings, 8, 9)


def test_a_method_that_does_not_keep_what_its_count_says_is_refused() -> None:
    def every_second(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        kept = torch.zeros(video.tokens.shape[:2], dtype=torch.bool)
        kept[:, ::2] = True
        return VideoCompression.of_mask(kept)

    register_compression_method("mine")(every_second)
    mine, video = CompressionSettings(compression_method="mine"), videos(8, 9)[0]
    assert len(compress_with(mine, video).indices) == 40
    with pytest.raises(ValueError, match=r"'mine'` with .* does not say how many .*Register .*, or .*stock"):
        num_kept_tokens(mine, 8, 9)
    register_compression_method("mine", count=exact_total)(every_second)
    with pytest.raises(ValueError, match="'mine'` returned 40 tokens, but its `count` says 18"):
        compress_with(mine, video)
    with pytest.raises(ValueError, match="`count` of method 'mine' is 40, but must be a function of T, M and R"):
        register_compression_method("mine", count=40)  # pyright: ignore[reportArgumentType]


def test_a_budget_above_what_the_ratio_keeps_changes_nothing_though_it_is_below_a_token_a_frame() -> None:
    kept = [
        compress(videos(8, 9)[0], 0.02, compression_method=RANKED[1], max_video_tokens=budget).indices.tolist()
        for budget in (None, 4)
    ]
    assert kept[0] == kept[1] and len(kept[0]) == 1
