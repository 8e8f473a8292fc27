"""Features that Qwen's families share: tower states per patch, and positions that follow the times of videos."""

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, of_representatives, only
from models import RETENTION_RATIO, make_image, make_video, token_types
from reference import compressed_embeddings, new_tokens
from test_generate import MODES, answered, batch_of_two, run
from torch import Tensor, nn
from transformers import BatchFeature

from vidcom2 import CompressionSettings
from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES

TIMES = "second_per_grid_ts"


pytestmark = only(lambda family: family.mrope)
has_times = only(lambda family: TIMES in family.video_inputs)  # the other families' positions count frames


@pytest.fixture(scope="module")
def attentive(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """Build a family whose attention depends on other tokens and positions. With random weights it hardly does."""
    stock = copy.deepcopy(family.stock)
    with torch.no_grad():
        for layer in stock.get_decoder().layers:
            for weight in getattr(layer, "self_attn", nn.Module()).parameters():
                weight.mul_(10)
    folder = tmp_path_factory.mktemp("attentive")
    stock.save_pretrained(folder)
    return Family(family.case, folder, stock, family.processor)


@contextmanager
def seen_positions(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the (3, B, n) positions of each call of the language model."""
    seen: list[Tensor] = []

    def look(module: nn.Module, args: tuple, kwargs: dict) -> None:
        seen.append(kwargs["position_ids"][-3:])

    hook = model.get_decoder().register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


# -- grids ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_each_video_has_the_grid_of_its_own_shape(family: Family) -> None:
    rng, side = np.random.default_rng(0), family.processor.video_processor.patch_size
    videos = [
        rng.integers(0, 256, (frames, 3, height * side, width * side), dtype=np.uint8)
        for frames, height, width in ((4, 6, 8), (6, 8, 6))
    ]
    inputs = family.videos_of(family.inputs(family.prompt("?", videos=2), videos=videos))
    _, encoded = family.model.model.encode_videos(settings=CompressionSettings(), **inputs)
    assert [video.grid for video in encoded] == [(3, 4), (4, 3)]
    assert [video.tokens.shape[:2] for video in encoded] == [(family.case.scored_frames(n), 12) for n in (4, 6)]


# -- deepstack features -----------------------------------------------------------------------------------------------


@only(lambda family: family.deepstack)
@pytest.mark.parametrize("mode", ["greedy", "beams_returned", "static_cache", "chunked_prefill"])
def test_deepstack_features_are_added_at_the_kept_tokens(attentive: Family, mode: str) -> None:
    """Each row of a batch, with an image in one prompt, equals the prompt compressed by hand."""
    if mode == "chunked_prefill" and not CHUNKS_FEATURES:
        pytest.skip("this Transformers cannot split video features")
    loud, folder = copy.deepcopy(attentive.stock), attentive.folder.parent / f"loud-{mode}"
    with torch.no_grad():
        for merger in loud.model.visual.deepstack_merger_list:
            list(merger.parameters())[-2].mul_(50)  # the weight of its last layer
    loud.save_pretrained(folder)
    family = Family(attentive.case, folder, loud, attentive.processor)
    settings = MODES[mode] | {"do_sample": False}
    both, alone = batch_of_two(family, images=True)
    ours = run(family.model, both, **settings)[:, both["input_ids"].shape[1] :]
    settings.pop("prefill_chunk_size", None)  # the stock class cannot split embeddings
    theirs = [new_tokens(family, inputs, RETENTION_RATIO, 6, pad_token_id=256, **settings) for inputs in alone]
    assert torch.equal(ours, torch.cat(theirs))
    assert not torch.equal(ours, run(attentive.model, both, **settings)[:, both["input_ids"].shape[1] :])


# -- frames that stand apart in the prompt ----------------------------------------------------------------------------


@only(lambda family: family.frames_stand_apart and family.mrope)
def test_grids_that_do_not_fit_the_frames_of_the_prompt_are_refused(family: Family) -> None:
    inputs = family.inputs(family.prompt("Compare.", videos=2), videos=[make_video(0), make_video(1, 6)])
    encoded = family.model.get_video_features(**family.videos_of(inputs))
    rest = {name: value for name, value in inputs.items() if name != "pixel_values_videos"}
    rest["mm_encoder_outputs"] = {"video": encoded}
    expected = family.model(**rest).logits
    assert torch.equal(expected, family.model(**inputs).logits)
    num_frames = family.case.scored_frames(8) + family.case.scored_frames(6)
    reason = rf"has {num_frames} frames of videos, but `video_grid_thw` is .*\. Pass it as the processor"
    for grids in (inputs["video_grid_thw"][:1], inputs["video_grid_thw"] + 1, None):
        with pytest.raises(ValueError, match=reason):
            family.model(**rest | {"video_grid_thw": grids, "image_grid_thw": torch.tensor([[1, 2, 2]])})


# -- times of videos --------------------------------------------------------------------------------------------------


def two_videos(family: Family, *seconds: float) -> BatchFeature:
    """Return a prompt with an image and two videos, of 4 and 3 scored frames that are so many seconds long."""
    prompt = family.prompt("Compare.", videos=2, images=1)
    inputs = family.inputs(prompt, videos=[make_video(0), make_video(1, 6)], images=[make_image(3)])
    inputs[TIMES] = torch.tensor(seconds)
    return inputs


def positions_by_hand(family: Family, inputs: BatchFeature) -> Tensor:
    """Return positions (3, L). Text counts up, and a frame's t is its time, at so many positions per second."""
    config = family.model.config
    media = {config.image_token_id: [], config.video_token_id: []}
    for grid in inputs["image_grid_thw"].tolist():
        media[config.image_token_id].append((grid, 0.0))
    for grid, seconds in zip(inputs["video_grid_thw"].tolist(), inputs[TIMES].tolist(), strict=True):
        media[config.video_token_id].append((grid, seconds))
    positions, place = [], 0
    for token, group in itertools.groupby(inputs["input_ids"][0].tolist()):
        if token not in media:
            for _ in group:
                positions.append((place, place, place))
                place += 1
            continue
        (frames, height, width), seconds = media[token].pop(0)
        for t, y, x in itertools.product(range(frames), range(height // 2), range(width // 2)):
            time = int(t * seconds * config.vision_config.tokens_per_second)
            positions.append((place + time, place + y, place + x))
        place += max(height, width) // 2
    return torch.tensor(positions).T


@has_times
def test_positions_of_frames_are_as_far_apart_as_their_times(attentive: Family) -> None:
    inputs = two_videos(attentive, 0.4375, 1.3125)
    expected = positions_by_hand(attentive, inputs)
    _, remaining = compressed_embeddings(attentive, inputs, RETENTION_RATIO)
    for ratio, rows in ((RETENTION_RATIO, remaining), (1.0, torch.arange(expected.shape[1]))):
        with seen_positions(attentive.model) as seen:
            attentive.model(**inputs, retention_ratio=ratio)
            run(attentive.model, inputs, max_new_tokens=1, retention_ratio=ratio)
        assert len(seen) == 2 and all(torch.equal(positions[:, 0], expected[:, rows]) for positions in seen)
    assert not torch.equal(positions_by_hand(attentive, two_videos(attentive, 1.3125, 0.4375)), expected)


@has_times
def test_times_may_be_a_list_and_a_frame_without_times_is_one_second_long(attentive: Family) -> None:
    for seconds, given in (((0.4375, 1.3125), {TIMES: [0.4375, 1.3125]}), ((1.0, 1.0), {})):
        inputs = two_videos(attentive, *seconds)
        other = {name: value for name, value in inputs.items() if name != TIMES} | given
        assert torch.equal(attentive.model(**other).logits, attentive.model(**inputs).logits)
        assert torch.equal(run(attentive.model, other), run(attentive.model, inputs))


@has_times
def test_rows_of_a_padded_batch_keep_the_times_of_their_own_videos(attentive: Family) -> None:
    both, alone = batch_of_two(attentive)
    seconds = [0.4375, 1.3125]
    assert (both["attention_mask"][:, 0] == 0).any() and len(both[TIMES]) == 2
    both[TIMES] = torch.tensor(seconds)
    together = attentive.model(**both)
    generated = run(attentive.model, both)[:, both["input_ids"].shape[1] :]
    for row, inputs in enumerate(alone):
        inputs[TIMES] = torch.tensor(seconds[row : row + 1])
        own = both["attention_mask"][row].bool()
        torch.testing.assert_close(together.logits[row, own], attentive.model(**inputs).logits[0], rtol=0, atol=1e-5)
        assert torch.equal(generated[row], run(attentive.model, inputs)[0, inputs["input_ids"].shape[1] :])


@has_times
@torch.no_grad()
@pytest.mark.parametrize("times", ["the video's own", "those of all turns"])
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_a_second_turns_video_has_its_own_times(attentive: Family, ratio: float, times: str) -> None:
    first, second = attentive.one_video(seed=0), attentive.one_video(seed=1, num_frames=6)
    first[TIMES], second[TIMES] = torch.tensor([0.4375]), torch.tensor([1.3125])
    turn = run(attentive.model, first, retention_ratio=ratio, return_dict_in_generate=True)
    whole = {"input_ids": torch.cat([turn.sequences, second["input_ids"]], dim=1)}
    whole["mm_token_type_ids"] = token_types(attentive.model.config, whole["input_ids"])
    whole |= {name: torch.cat([first[name], second[name]]) for name in attentive.case.video_inputs}
    from_scratch = attentive.model(**whole, retention_ratio=ratio).logits[:, -1]

    media = attentive.videos_of(second)
    if times == "those of all turns":
        media[TIMES] = torch.tensor([0.4375, 1.3125])
    given = {"input_ids": whole["input_ids"], **media, "past_key_values": turn.past_key_values}
    out = answered(attentive.model, given, retention_ratio=ratio)
    torch.testing.assert_close(out.logits[0], from_scratch, rtol=0, atol=1e-5)

    cache = attentive.model(**first, use_cache=True, retention_ratio=ratio).past_key_values
    new = whole["input_ids"][:, first["input_ids"].shape[1] :]
    by_loop = attentive.model(input_ids=new, **media, past_key_values=cache, retention_ratio=ratio)
    torch.testing.assert_close(by_loop.logits[:, -1], from_scratch, rtol=0, atol=1e-5)


@has_times
@pytest.mark.parametrize("times", [torch.tensor([1.0]), [], 1.0, torch.tensor(1.0)], ids=str)
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_fewer_times_than_videos_are_refused(attentive: Family, times: Any, ratio: float) -> None:
    inputs = {**two_videos(attentive, 1.0, 1.0), TIMES: times}
    for call in (attentive.model, attentive.model.model, attentive.model.generate):
        with pytest.raises(ValueError, match=rf"has 2 videos, but `{TIMES}` is .*1?.*\. Pass it as the processor"):
            call(**inputs, retention_ratio=ratio)


# -- media on a filled cache, as features -----------------------------------------------------------------------------


@of_representatives
@only(lambda family: family.mrope)
@torch.no_grad()
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
@pytest.mark.parametrize("kind", ["image", "whole video", "the parent's video", "kept video"])
def test_features_after_a_cached_turn_get_the_positions_of_pixels(attentive: Family, kind: str, ratio: float) -> None:
    """Token types are given as well, from which the parent would count again."""
    model, first = attentive.model, attentive.one_video(seed=0)
    cache = model(**first, use_cache=True, retention_ratio=ratio).past_key_values
    call: dict[str, Any] = {} if kind in ("image", "kept video") else {"retention_ratio": 1.0}
    if kind == "image":
        second = attentive.inputs(attentive.prompt("?", images=1), images=[make_image(1)])
        pixels = "pixel_values"
        encoded = {"image": model.get_image_features(**attentive.images_of(second))}
    else:
        second, pixels = attentive.one_video("?", seed=1, num_frames=6), "pixel_values_videos"
        by = attentive.stock if kind == "the parent's video" else model
        encoded = {"video": by.get_video_features(**attentive.videos_of(second), **call)}
    inputs = {**second, "attention_mask": None}
    expected = model(**inputs, **call, past_key_values=copy.deepcopy(cache)).logits
    rest = {name: value for name, value in inputs.items() if name != pixels} | {"mm_encoder_outputs": encoded}
    if kind == "the parent's video":
        rest["retention_ratio"] = 1.0
    torch.testing.assert_close(model(**rest, past_key_values=cache).logits[:, -1], expected[:, -1], rtol=0, atol=1e-5)
