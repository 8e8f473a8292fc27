"""benchmarks/methods reads what FastVID, FlashVID, HoliTom and VisionZip choose by from the towers of the two toys."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tower_of
from torch import Tensor, nn
from transformers import AttentionInterface

from benchmarks.methods import METHODS, register
from benchmarks.methods.attended_tokens import with_attention
from vidcom2.answering.generation import EncodedVideos, compress, encode
from vidcom2.answering.prompting import prepare_inputs
from vidcom2.checkpoints import Checkpoint, load_checkpoint
from vidcom2.toys import PREFIX, TOYS
from vidcom2.video.reading import read_video

GOLDEN = json.loads(Path(__file__).parent.joinpath("data", "attended_toys.json").read_text("utf-8"))["cases"]
EACH_FRAME, REPEATS = list(range(16)), [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7, 6, 7, 8, 9]  # in Qwen3-VL's, pairs repeat


@pytest.fixture(scope="module", params=TOYS)
def toy(request: pytest.FixtureRequest) -> Checkpoint:
    return load_checkpoint(f"{PREFIX}{request.param}", device="cpu")


def encoded(toy: Checkpoint, name: str, frames: list[int]) -> EncodedVideos:
    """Encode the first clip of a toy, with these of its 16 frames."""
    video = read_video(str(TOYS[name].clips[0].path), 16)
    inputs = prepare_inputs(toy.processor, "?", replace(video, frames=video.frames[frames]), toy.model)
    return encode(toy.model, inputs, toy.model.config.compression_settings())


def name_of(toy: Checkpoint) -> str:
    return toy.model.config.model_type


@pytest.fixture
def weights(toy: Checkpoint) -> Iterator[list[Tensor]]:
    """Collect the weights (B, heads, patches, patches) of each call of the attention of the tower's last layer."""
    seen: list[Tensor] = []
    tower: Any = tower_of(toy.model.model)
    last = tower.blocks[-1].attn if hasattr(tower, "blocks") else tower.encoder.layers[-1].self_attn

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, scaling: float, **__: Any) -> Any:
        of_call = torch.softmax(q.double() @ k.double().mT * scaling, dim=-1)
        if module is last:
            seen.append(of_call)
        return (of_call @ v.double()).to(v).transpose(1, 2), None

    AttentionInterface.register("weighed", attend)
    before, tower.config._attn_implementation = tower.config._attn_implementation, "weighed"
    yield seen
    tower.config._attn_implementation = before


def test_the_attention_of_a_token_is_the_mean_of_the_towers_own_weights(toy: Checkpoint, weights: list[Tensor]) -> None:
    video = encoded(toy, name_of(toy), EACH_FRAME)
    weights.clear()
    (attended,) = with_attention(toy.model, video).tokens
    received = torch.cat(weights).mean(dim=(1, 2))  # (frames, 100), over the heads and the patches that pay
    assert len(received) == len(video.tokens[0].tokens)
    is_by_blocks = name_of(toy) == "qwen3_vl"
    for frame, of_patches in zip(attended.attention, received, strict=True):
        for token, got in enumerate(frame.tolist()):
            row, column = token // 5, token % 5
            places = [10 * y + x for y in (2 * row, 2 * row + 1) for x in (2 * column, 2 * column + 1)]
            places = [4 * token + n for n in range(4)] if is_by_blocks else places
            assert got == pytest.approx(float(of_patches[places].mean()), rel=1e-4)
    assert attended.attention.dtype == torch.float32 and (received.amax(dim=1) > 1.5 * received.mean(dim=1)).all()


def test_reading_it_changes_no_token_leaves_no_hook_and_reaches_frames_that_repeat(toy: Checkpoint) -> None:
    video = encoded(toy, name_of(toy), REPEATS)
    (before,), (after,) = video.tokens, with_attention(toy.model, video).tokens
    assert torch.equal(before.tokens, after.tokens) and after.grid == before.grid
    assert not any(module._forward_pre_hooks for module in tower_of(toy.model.model).modules())
    (whole,) = with_attention(toy.model, encoded(toy, name_of(toy), EACH_FRAME)).tokens
    step = 16 // len(before.tokens)
    shown = [REPEATS[place] // step for place in range(0, 16, step)]
    torch.testing.assert_close(after.attention, whole.attention[shown])


@pytest.mark.usefixtures("methods_restored")
def test_the_methods_keep_of_the_toys_clips_what_they_kept_as_part_of_the_package(toy: Checkpoint) -> None:
    register()
    for repeats in (False, True):
        video = encoded(toy, name_of(toy), REPEATS if repeats else EACH_FRAME)
        video = with_attention(toy.model, video)
        tokens = video.tokens[0].tokens.flatten(0, 1)
        cases = {case["method"]: case for case in GOLDEN if (case["toy"], case["repeats"]) == (name_of(toy), repeats)}
        assert cases.keys() == METHODS.keys()
        for method, case in cases.items():
            settings = toy.model.config.compression_settings(compression_method=method, retention_ratio=0.1)
            (kept,) = compress(toy.model, video, settings).video_compressions
            assert kept.indices.tolist() == case["indices"], method
            torch.testing.assert_close(kept.kept(tokens).sum(dim=-1), torch.tensor(case["sums"]), rtol=0, atol=1e-3)
