"""`max_video_tokens`: whatever a video's length and content, at most so many of its scored tokens stay."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import Family, of_representatives, only
from models import make_video
from test_conversations import QUESTION
from test_generate import answered, assert_same, run
from torch import Tensor

from vidcom2 import compress, register_compression_method, register_score_method
from vidcom2.asking.candidates import BASELINE, AllTokens, Candidate
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, CompressionSettings
from vidcom2.modeling.methods.compression import VideoCompression, VideoTokens

T, GRID, M = 8, (3, 3), 9
RATIOS = (1.0, 0.5, 0.25, 0.11)
LEAST = {"dycoke": math.ceil(T / 4) * M, "evs": M}  # what a method needs of T frames; the others need one a frame
ROUNDED = [(name, rounding) for name in ("vidcom2", "random") for rounding in ("ceil", "round", "exact")]
UNROUNDED = [(name, None) for name in COMPRESSION_METHODS if name not in ("vidcom2", "random")]


def videos() -> dict[str, VideoTokens]:
    """Return videos on which rounding frame budgets goes wrong in different ways: many frames a little above a whole
    number, one frame that takes most, and tokens that count for nothing."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(T, M, 16, generator=generator)
    still = noise[:1].expand(T, -1, -1).clone()
    cut, broken = still.clone(), noise.clone()
    cut[5] = -3 * noise[5]
    broken[2:5] = math.nan
    every = {"noise": noise, "still": still, "cut": cut, "zeros": torch.zeros_like(noise), "broken": broken}
    return {name: VideoTokens(tokens, GRID) for name, tokens in every.items()}


def of_method(name: str, rounding: str | None) -> dict[str, Any]:
    return {"compression_method": name} | ({} if rounding is None else {"compression_rounding": rounding})


def assert_equal(one: VideoCompression, other: VideoCompression) -> None:
    for name, value in vars(one).items():
        assert_same(value, getattr(other, name))


# -- the operator -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rounding"), [*ROUNDED, *UNROUNDED])
def test_a_video_keeps_what_its_ratio_does_or_else_exactly_the_budget(name: str, rounding: str | None) -> None:
    settings, least = of_method(name, rounding), LEAST.get(name, T)
    by_hand = settings | ({} if rounding is None else {"compression_rounding": "exact"})
    for video in videos().values():
        for ratio in RATIOS:
            if name == "dycoke" and ratio * T * M < least:
                continue
            free = compress(video, ratio, **settings)
            kept = len(free.indices)
            for budget in sorted({kept + 1, kept, kept - 1, least}):
                if budget < least:
                    continue
                got = compress(video, ratio, **settings, max_video_tokens=budget)
                if kept <= budget:
                    assert_equal(got, free)
                else:
                    assert len(got.indices) == budget
                    assert_equal(got, compress(video, budget / (T * M), **by_hand))
            with pytest.raises(ValueError, match=rf"is {least - 1}, but .*{name}.* needs {least} of the 72 tokens"):
                compress(video, ratio, **settings, max_video_tokens=least - 1)


@pytest.mark.parametrize("name", ["vidcom2", "evs", "coverage"])
def test_a_method_is_run_once_where_the_sizes_tell_what_it_keeps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """VidCom² rounds its budgets here, but scores a video only once too."""
    runs = []
    row = COMPRESSION_METHODS[name]
    counted = replace(row, function=lambda *given: runs.append(name) or row.function(*given))
    monkeypatch.setitem(COMPRESSION_METHODS, name, counted)
    for ratio in (1.0, 0.5):
        compress(videos()["noise"], ratio, compression_method=name, max_video_tokens=20)
    assert runs == [name] * 2


@pytest.mark.usefixtures("methods_restored")
def test_methods_of_users_keep_to_the_budget_or_are_refused_by_name() -> None:
    seen = []

    @register_compression_method("content")
    def content(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        """Keeps twice its ratio of what is loud, so that only a lower ratio tells how many these are."""
        seen.append(settings.retention_ratio)
        loud = (video.tokens.norm(dim=-1) > 3).flatten().nonzero().flatten()
        kept = loud[: int(2 * settings.retention_ratio * T * M)]
        return VideoCompression(kept, (kept // M).bincount(minlength=T))

    @register_compression_method("stubborn")
    def stubborn(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        return VideoCompression.of_mask(torch.ones_like(video.tokens[..., 0], dtype=torch.bool))

    @register_score_method("ranked")
    def ranked(video: VideoTokens) -> Tensor:
        return video.tokens.norm(dim=-1)

    video = videos()["noise"]
    loud = len(compress(video, 0.9, compression_method="content").indices)
    assert (
        36 < loud < 70 and len(compress(video, 0.9, compression_method="content", max_video_tokens=70).indices) == loud
    )
    seen.clear()
    assert len(compress(video, 0.5, compression_method="ranked", max_video_tokens=11).indices) == 11
    with pytest.raises(ValueError, match="is 10, but `compression_method='content'` needs 20 of the 72 tokens"):
        compress(video, 0.5, compression_method="content", max_video_tokens=10)
    assert seen == [0.5, 10 / 72]
    with pytest.raises(ValueError, match="is 71, but `compression_method='stubborn'` needs 72"):
        compress(video, 0.5, compression_method="stubborn", max_video_tokens=71)


def test_all_tokens_are_compared_without_the_models_own_budget() -> None:
    model = CompressionSettings(max_video_tokens=9)
    for settings in (model.compression_settings(**BASELINE), AllTokens().settings_in(model)):
        assert not settings.may_drop and not settings.drops_of(10**9)
    assert Candidate("evs", 1.0).settings_in(model).max_video_tokens == 9


# -- models -----------------------------------------------------------------------------------------------------------


def scored(family: Family, num_frames: int = 8) -> int:
    return family.case.scored_frames(num_frames) * family.case.tokens_per_frame


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_a_video_beyond_its_budget_is_compressed_as_at_the_lower_ratio(family: Family, ratio: float) -> None:
    """The prompts have two videos, and the budget is that of each."""
    both = family.inputs(family.prompt("Compare.", videos=2), videos=[make_video(0), make_video(1)])
    budget = scored(family) // 4 + 1
    limited = {"retention_ratio": ratio, "max_video_tokens": budget}
    by_hand = {"retention_ratio": budget / scored(family), "compression_rounding": "exact"}
    assert torch.equal(family.model(**both, **limited).logits, family.model(**both, **by_hand).logits)
    assert torch.equal(run(family.model, both, **limited), run(family.model, both, **by_hand))
    kept = family.model.get_video_features(**family.videos_of(both), **limited).video_compressions
    assert [len(each.indices) for each in kept] == [budget, budget]


@of_representatives
def test_at_ratio_1_a_video_within_its_budget_is_the_parents_bit_for_bit(family: Family) -> None:
    inputs = family.one_video()
    model = family.load(retention_ratio=1.0, max_video_tokens=scored(family))
    theirs = family.stock(**inputs)
    ours = model(**inputs)
    assert torch.equal(ours.logits, theirs.logits)
    given = {"return_dict_in_generate": True, "output_scores": True}
    one, other = run(model, inputs, **given), run(family.stock, inputs, **given)
    assert torch.equal(one.sequences, other.sequences) and torch.equal(one.scores[-1], other.scores[-1])
    one_less = {"max_video_tokens": scored(family) - 1}
    assert not torch.equal(model(**inputs, **one_less).logits, theirs.logits)
    short = run(model, inputs, **given, **one_less).past_key_values.get_seq_length()
    assert one.past_key_values.get_seq_length() - short == 1


@only(lambda family: family.mrope)
def test_videos_of_different_lengths_in_a_batch_have_each_its_own_ratio(family: Family) -> None:
    """LLaVA's families have videos of equal lengths in a batch."""
    lengths = (4, 8)
    clips = [make_video(0, lengths[0]), make_video(1, lengths[1])]
    inputs = family.inputs(family.prompt("Compare.", videos=2), videos=clips)
    features = family.model.get_video_features(
        **family.videos_of(inputs), retention_ratio=1.0, max_video_tokens=scored(family, lengths[0])
    )
    assert [len(each.indices) for each in features.video_compressions] == [scored(family, lengths[0])] * 2
    for clip, compression in zip(clips, features.video_compressions, strict=True):
        alone = family.inputs(family.prompt("Compare.", videos=1), videos=[clip])
        share = {"retention_ratio": min(1.0, lengths[0] / clip.shape[0]), "compression_rounding": "exact"}
        (expected,) = family.model.get_video_features(**family.videos_of(alone), **share).video_compressions
        assert torch.equal(compression.indices, expected.indices)


@of_representatives
def test_a_conversations_second_video_is_held_to_the_budget_by_itself(family: Family) -> None:
    budget = {"retention_ratio": 1.0, "max_video_tokens": scored(family, 4)}
    first = family.one_video(num_frames=4)  # within the budget, so that the first turn drops nothing
    turn = answered(family.model, first, **budget)
    second = family.inputs(QUESTION + family.prompt("And here?", videos=1), videos=[make_video(7)])
    ids = torch.cat([turn.sequences, second["input_ids"]], dim=1)
    asked = {"input_ids": ids, "past_key_values": turn.past_key_values, **family.videos_of(second)}
    out = answered(family.model, asked, **budget)
    dropped = scored(family) - scored(family, 4)
    assert out.sequences.shape[1] - 1 - out.past_key_values.get_seq_length() == dropped


@of_representatives
def test_a_budget_that_a_method_cannot_keep_is_refused_in_every_call(family: Family) -> None:
    inputs, frames = family.one_video(), family.case.scored_frames(8)
    for call in (family.model, family.model.generate, family.model.model):
        with pytest.raises(ValueError, match=f"`max_video_tokens` is {frames - 1}, but .* needs {frames} of the"):
            call(**inputs, max_video_tokens=frames - 1)
        with pytest.raises(ValueError, match=r"`max_video_tokens` is 2\.5, but must be None \(no budget\) or a whole"):
            call(**inputs, max_video_tokens=2.5)
