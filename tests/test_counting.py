"""`vidcom2.count_tokens` says, without weights, what `ask` and the KV cache then show."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from make_clips import write_clip
from typer.testing import CliRunner

import vidcom2
from vidcom2.asking.counting import cache_bytes
from vidcom2.cli.app import app

QUESTION = "What happens?"
KNOWN = ("llava_onevision", "qwen2_vl", "qwen3_vl", "qwen3_5", "lfm3_vl", "internvl")


@pytest.fixture(scope="module")
def video() -> vidcom2.Video:
    frames = np.random.default_rng(0).integers(0, 255, (6, 60, 80, 3), dtype=np.uint8)
    return vidcom2.Video.from_frames(frames, fps=1.0)


def test_a_count_is_what_the_answer_tells(family: Family, video: vidcom2.Video) -> None:
    for settings in ({"retention_ratio": 0.4}, {"max_video_tokens": 30}, {"retention_ratio": 1.0}):
        if settings == {"retention_ratio": 1.0} and not family.case.representative:
            continue  # where nothing is dropped, there is nothing to count
        counted = vidcom2.count_tokens(video, family.folder, question=QUESTION, **settings)
        given = {"processor": family.processor, "max_new_tokens": 1, **settings}
        answer = vidcom2.ask(video, QUESTION, family.model, **given)
        assert (counted.frames, counted.seconds) == (6, video.duration)
        assert counted.video_tokens == answer.video_tokens and counted.prompt_tokens == answer.prompt_tokens
        assert counted.full_video_tokens == answer.full_video_tokens
        assert counted.full_prompt_tokens == answer.full_prompt_tokens


def test_no_frame_is_prepared_to_be_counted(
    family: Family, video: vidcom2.Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes say how many tokens there are: the video processor is given frames without values, once for each prompt."""
    kind, given = type(family.processor.video_processor), []
    preprocess = kind.preprocess

    def listening(self: Any, videos: Any, **arguments: Any) -> Any:
        given.extend(videos)
        return preprocess(self, videos, **arguments)

    monkeypatch.setattr(kind, "preprocess", listening)
    vidcom2.count_tokens(video, family.folder, question=QUESTION)
    assert len(given) == 2
    assert all(isinstance(each, torch.Tensor) and (each.is_meta or not any(each.stride())) for each in given)


def test_the_command_shows_the_count(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", [0.0, 20.0, 41.0, 60.0], rate=10)
    counted = vidcom2.count_tokens(clip, num_frames=3)
    shown = CliRunner().invoke(app, ["count", str(clip), "--num-frames", "3"]).output
    for number in (counted.full_video_tokens, counted.video_tokens, counted.full_prompt_tokens, counted.prompt_tokens):
        assert f" {number:,} " in shown
    assert "3 frames of" in shown and " kB" in shown
    told = CliRunner().invoke(app, ["count", str(clip), "--num-frames", "3", "--json"])
    assert json.loads(told.stdout) == {"schema": 1} | dataclasses.asdict(counted)
    assert f"are one in {counted.seconds / 3:.0f} seconds" in told.stderr and "take more (--num-frames)" in told.stderr
    assert "are one in" not in CliRunner().invoke(app, ["count", str(clip)]).stderr  # which has no more
    shown = CliRunner().invoke(app, ["count", str(clip), "--compression-rounding", "ceil"]).output
    assert shown.count("depends on the video") == 2


@only(lambda family: family.name == "llava_onevision")
def test_a_number_that_depends_on_the_video_is_not_told(family: Family, video: vidcom2.Video) -> None:
    counted = vidcom2.count_tokens(video, family.folder, compression_rounding="ceil")
    assert (counted.video_tokens, counted.prompt_tokens, counted.cache_bytes) == (None, None, None)
    assert counted.full_video_tokens > 0


@pytest.mark.parametrize("window", [None, 8])
def test_the_cache_is_as_large_as_it_says(family: Family, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it says nothing, layers keep something else than keys and values of all heads."""
    text: Any = family.stock.config.get_text_config()
    if window is not None and "sliding_attention" not in (getattr(text, "layer_types", None) or ()):
        return
    if window is not None:
        monkeypatch.setattr(text, "sliding_window", window)
    inputs: Any = family.one_video()
    with torch.no_grad():
        cache = family.stock(**inputs, use_cache=True).past_key_values
    held = [each for layer in cache.layers for each in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    size = sum(each.numel() * each.element_size() for each in held if each is not None)
    said = cache_bytes(family.stock.config, inputs["input_ids"].shape[1])
    assert said in (size, None)
    assert said is not None or family.case.name not in KNOWN
