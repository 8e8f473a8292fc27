"""Frames are encoded a few at a time, and repeated ones once, with the features of a parent that does neither."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, by_default, of_representatives, only
from models import make_video, tower_of
from torch import Tensor
from transformers import BatchFeature

from vidcom2 import CompressionSettings
from vidcom2.modeling.encoding.video_features import VidCom2VideoFeatures, VideoFrames, plan_frames
from vidcom2.modeling.families.frame_images import FramesAndImages

CLOSE = {"rtol": 0, "atol": 1e-6}


@contextmanager
def frames_per_call(family: Family) -> Iterator[list[int]]:
    """Collect how many scored frames the vision tower gets in each call."""
    tower, seen = tower_of(family.model.model), []

    def before(module: Any, args: Any, kwargs: Any) -> None:
        grid = kwargs.get("grid_thw")
        frames = kwargs.get("target_sizes", args[0] if args else kwargs.get("pixel_values"))
        is_row = "num_chunks_per_video" in family.case.video_inputs  # a scored frame, of t frames
        seen.append(len(frames) if grid is None else len(grid) if is_row else int(grid[:, 0].sum()))

    hook = tower.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def test_a_tower_that_merges_frames_is_not_taken_for_one_that_does_not() -> None:
    frames = VideoFrames(pixels=torch.zeros(4, 5), tokens_per_frame=6)
    assert frames.tokens(torch.zeros(24, 2)).tokens.shape == (4, 6, 2)
    with pytest.raises(AssertionError):
        frames.tokens(torch.zeros(12, 2))


def two_videos(family: Family) -> BatchFeature:
    """Make two videos of different lengths where the family takes them, so that they share a chunk."""
    lengths = (6, 10) if family.case.mrope else (8, 8)
    videos = [make_video(seed, length) for seed, length in enumerate(lengths)]
    return family.inputs(family.prompt("?", videos=2), videos=videos)


def split(lengths: list[int], chunk: int | None) -> list[int]:
    total = sum(lengths)
    return [total] if chunk is None else [min(chunk, total - start) for start in range(0, total, chunk)]


def all_features(encoded: Any) -> list[Tensor]:
    """Return (placeholders, dim) of each video, and what the first decoder layers add to them."""
    layers = encoded.pooler_output, *(encoded.get("deepstack_features") or [])
    return [video.flatten(0, -2) for layer in layers for video in layer]


@pytest.mark.parametrize("chunk", [3, 1, None])
@torch.no_grad()
def test_encoding_in_chunks_gives_the_parents_features(family: Family, chunk: int | None) -> None:
    inputs = family.videos_of(two_videos(family))
    expected = family.stock.model.get_video_features(**inputs, return_dict=True)
    with frames_per_call(family) as seen:
        outputs, videos = family.model.model.encode_videos(
            settings=CompressionSettings(vision_chunk_frames=chunk), **inputs
        )
    assert seen == split([len(video.tokens) for video in videos], chunk)
    for ours, theirs in zip(all_features(outputs), all_features(expected), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("chunk", [2, None])
@torch.no_grad()
def test_repeated_frames_are_encoded_once(family: Family, chunk: int | None) -> None:
    """In a slide show the first slide comes back at the end, and is encoded again. The next video starts with it."""
    per_frame = family.case.files_frames_per_frame
    first, second, third = make_video(0, 3 * per_frame).reshape(3, per_frame, *make_video(0, 1).shape[1:])
    slides = np.concatenate([first, first, first, second, second, third, first])
    again = np.concatenate([first, first, third, third, third, third, third])
    prompt = family.inputs(family.prompt("?", videos=2), videos=[slides, again])
    inputs, expected = family.videos_of(prompt), family.parents_features(prompt)
    with frames_per_call(family) as seen:
        outputs, videos = family.model.model.encode_videos(
            settings=CompressionSettings(vision_chunk_frames=chunk), **inputs
        )
    assert seen == split([4, 2], chunk)
    for ours, theirs, video in zip(outputs.pooler_output, expected, videos, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
        assert len(video.tokens) == 7


@of_representatives
def test_repeated_frames_are_each_encoded_in_training(family: Family) -> None:
    frame = make_video(0, 1)
    inputs = family.videos_of(family.inputs(family.prompt("?", videos=1), videos=[np.concatenate([frame] * 8)]))
    with frames_per_call(family) as seen:
        family.model.get_video_features(**inputs)
        with torch.no_grad():
            family.model.get_video_features(**inputs)
    assert seen == [family.case.scored_frames(8), 1]


@of_representatives
def test_training_in_chunks_gives_the_gradients_of_one_call(family: Family) -> None:
    """The newline behind a video of LLaVA-OneVision is trained as well."""
    inputs, model = family.videos_of(two_videos(family)), copy.deepcopy(family.model.model)
    gradients = []
    for chunk in (3, None):
        model.zero_grad()
        outputs, _ = model.encode_videos(settings=CompressionSettings(vision_chunk_frames=chunk), **inputs)
        sum(video.square().sum() for video in outputs.pooler_output).backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) > (10 if family.case.has_tower else 9)
    for name, expected in gradients[1].items():
        atol = 1e-5 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(gradients[0][name], expected, rtol=1e-4, atol=atol)


@of_representatives
@torch.no_grad()
def test_chunk_frames_limits_the_tower_wherever_videos_are_encoded(family: Family) -> None:
    inputs, setting = family.one_video(num_frames=8), {"vision_chunk_frames": 2}
    for call in (
        lambda: family.model(**inputs, **setting),
        lambda: family.model.model(**inputs, **setting),
        lambda: family.model.generate(**inputs, **setting, max_new_tokens=1),
        lambda: family.model.get_video_features(**family.videos_of(inputs), **setting),
    ):
        with frames_per_call(family) as seen:
            call()
        assert set(seen) == {2} and sum(seen) == family.case.scored_frames(8)


@only(lambda family: family.has_tower)
@of_representatives
@torch.no_grad()
def test_asking_for_the_towers_states_encodes_in_one_call(family: Family) -> None:
    inputs = family.videos_of(family.one_video())
    with frames_per_call(family) as seen:
        outputs = family.model.get_video_features(**inputs, vision_chunk_frames=2, output_hidden_states=True)
    assert seen == [family.case.scored_frames(8)]
    theirs = family.stock.model.get_video_features(**inputs, output_hidden_states=True, return_dict=True)
    assert torch.equal(outputs.hidden_states[-1], theirs.hidden_states[-1])


@by_default(lambda family: family.representative or family.frames_are_images)
@pytest.mark.parametrize("ratio", [0.25, 1.0])
@torch.no_grad()
def test_generate_keeps_no_states_of_the_tower(family: Family, ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, seen = family.one_video(), []
    prefill = family.model.prepare_inputs_for_generation

    def watch(*args: Any, **kwargs: Any) -> Any:
        seen.extend(kwargs["mm_encoder_outputs"].values())
        return prefill(*args, **kwargs)

    monkeypatch.setattr(family.model, "prepare_inputs_for_generation", watch)
    family.model.generate(**inputs, retention_ratio=ratio, max_new_tokens=2)
    held = [each for each in seen if each is not None]
    assert held and all(isinstance(each, VidCom2VideoFeatures | FramesAndImages) for each in held)
    assert {name for each in held for name, value in each.items() if value is not None} <= {
        "pooler_output",
        "video_compressions",
        "deepstack_features",
    }


def test_frames_without_repeats_in_one_chunk_are_planned_as_one_call() -> None:
    frames = torch.arange(6.0)[:, None]
    with torch.no_grad():
        assert plan_frames([frames], None).is_one_call and plan_frames([frames], 6).is_one_call
        assert not plan_frames([frames], 5).is_one_call
        assert not plan_frames([frames[[0, 0, 1]]], None).is_one_call
        broken = torch.full((3, 1), torch.nan)  # nan equals nothing
        assert plan_frames([broken], None).is_one_call


@of_representatives
@torch.no_grad()
def test_arguments_computed_for_all_frames_are_passed_in_one_call(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, seen = family.model.model, family.videos_of(family.one_video()), []
    encode = model.parent_video_features

    def watched(*, video_cu_seqlens: str, **arguments: Any) -> Any:
        seen.append(video_cu_seqlens)
        return encode(**arguments)

    monkeypatch.setattr(model, "parent_video_features", watched)
    model.encode_videos(settings=CompressionSettings(vision_chunk_frames=2), **inputs, video_cu_seqlens="of all")
    assert seen == ["of all"]
