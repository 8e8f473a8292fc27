"""Nemotron 3 Omni is one class, whose videos have the placeholders of images, and which can drop tokens by itself."""

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
from models import chat_prompt, make_image, make_video
from reference import kept_embeddings

import vidcom2
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.families.table import FAMILIES

pytestmark = pytest.mark.skipif(not FAMILIES["nemotron_h_omni"].runs_here, reason=FAMILIES["nemotron_h_omni"].needs)
RATIO, TOKENS = 0.25, 12
NEW = {"max_new_tokens": 6, "do_sample": False}
SECOND = np.sin(np.arange(16000) / 9).astype(np.float32)  # of sound


def built(rate: float = 0.0) -> Any:
    from vidcom2.tiny.nemotron import tiny_nemotron_h_omni

    return tiny_nemotron_h_omni(patch_size=10, frame_tokens=TOKENS, video_pruning_rate=rate, seed=2)


@pytest.fixture(scope="module")
def stock() -> Any:
    return built()


@pytest.fixture(scope="module")
def ours() -> Any:
    """The model and the processor, which writes short prompts."""
    model, processor = built()
    return vidcom2.apply(model, processor=processor, retention_ratio=RATIO), processor


@pytest.fixture(scope="module", params=[0.5, 0.9])
def pruning(request: pytest.FixtureRequest) -> Any:
    """The stock class, which drops tokens by itself, and ours of the same weights."""
    model, processor = built(request.param)
    return built(request.param), (vidcom2.apply(model, processor=processor, retention_ratio=RATIO), processor)


def asked(processor: Any, *lengths: int, before: str = "", **arguments: Any) -> Any:
    prompt = before + chat_prompt(processor, "What happens?", videos=len(lengths))
    videos = {"videos": [make_video(seed, length) for seed, length in enumerate(lengths)]} if lengths else {}
    return processor(text=[prompt], **videos, **arguments, return_tensors="pt")


@torch.no_grad()
def by_hand(stock: Any, inputs: Any, cache: Any = None, keeps: bool = False) -> Any:
    """Return the logits of the stock language model's last token, fed with the tokens that `compress` keeps.

    Args:
        cache: what comes before.
        keeps: whether to return the cache, too.
    """
    model, ids = stock[0], inputs["input_ids"][0]
    videos = model.get_video_features(inputs["pixel_values_videos"]).pooler_output
    frames = [video.unflatten(0, (-1, TOKENS)) for video in videos]
    embeddings, remaining = kept_embeddings(model, ids, ids == model.config.image_token_id, frames, RATIO)
    if "input_features" in inputs:
        heard = model.get_audio_features(inputs["input_features"], inputs["input_features_mask"]).pooler_output
        embeddings = embeddings.masked_scatter((ids[remaining] == model.config.audio_token_id)[None, :, None], heard)
    outputs = model.language_model(inputs_embeds=embeddings, cache=cache, use_cache=keeps or cache is not None)
    return (outputs.logits[0, -1], outputs.cache) if keeps else outputs.logits[0, -1]


@pytest.mark.parametrize("lengths", [(8,), (7,), (1,), (8, 8), (5, 6, 5)], ids=str)
@torch.no_grad()
def test_the_tokens_that_compress_keeps_of_the_stock_towers_tubelets_are_read(
    stock: Any, ours: Any, lengths: tuple[int, ...]
) -> None:
    inputs, (model, processor) = asked(stock[1], *lengths), ours
    expected, short = by_hand(stock, inputs), asked(processor, *lengths)
    assert short["num_kept_video_tokens"].tolist() == [-(-length // 2) * TOKENS // 4 for length in lengths]
    for prompt in (short, inputs):
        for chunk in (1, 3, None):
            logits = model(**prompt, vision_chunk_frames=chunk).logits[0, -1]
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [1, 7, 8])
def test_a_short_prompt_has_the_labels_and_marks_of_the_stock_one(stock: Any, ours: Any, length: int) -> None:
    metadata = [{"fps": 4.0, "total_num_frames": 40, "duration": 10.0, "frames_indices": [*range(0, 5 * length, 5)]}]
    texts = []
    for _, processor in (stock, ours):
        ids = asked(processor, length, video_metadata=metadata)["input_ids"][0]
        texts.append(processor.decode(ids))
    whole, short = texts
    groups = [re.findall(r"<img>((?:<image>)+)</img>", text) for text in texts]
    assert [len(group) for group in groups] == [-(-length // 2)] * 2
    assert sum(map(len, groups[1])) * 4 == sum(map(len, groups[0]))
    assert short.replace("<image>", "") == whole.replace("<image>", "")
    assert (f"Frame {length} sampled at" in short) is (length % 2 == 1)  # the last one has no second


@torch.no_grad()
def test_its_own_pruning_acts_where_all_tokens_stay_and_nowhere_else(stock: Any, ours: Any, pruning: Any) -> None:
    (theirs, stock_processor), (model, processor) = pruning
    whole, every = asked(stock_processor, 8), asked(processor, 8, retention_ratio=1.0)
    assert torch.equal(every["input_ids"], whole["input_ids"]) and "num_kept_video_tokens" in every
    expected = theirs(**whole).logits
    assert expected.shape[1] < whole["input_ids"].shape[1]
    for inputs in (whole, every):
        assert torch.equal(model(**inputs, retention_ratio=1.0).logits, expected)
        for modes in ({}, {"num_beams": 2}):
            found = model.generate(**inputs, **NEW, **modes, retention_ratio=1.0)
            assert torch.equal(found, theirs.generate(**whole, **NEW, **modes))
    for inputs in (whole, asked(processor, 8)):
        torch.testing.assert_close(model(**inputs).logits[0, -1], by_hand(stock, whole), rtol=0, atol=1e-5)
        assert torch.equal(model.generate(**inputs, **NEW), ours[0].generate(**inputs, **NEW))
    budget = model(**whole, retention_ratio=1.0, max_video_tokens=20).logits  # ours again
    assert torch.equal(budget, ours[0](**whole, retention_ratio=1.0, max_video_tokens=20).logits)


@torch.no_grad()
def test_our_evs_keeps_what_its_own_keeps(pruning: Any) -> None:
    (theirs, stock_processor), (model, _) = pruning
    rate, inputs = theirs.config.video_pruning_rate, asked(stock_processor, 8)
    ratio = max(1 - rate, TOKENS / (4 * TOKENS))  # Its own always keeps the first tubelet.
    logits = model(**inputs, compression_method="evs", retention_ratio=ratio).logits[0, -1]
    torch.testing.assert_close(logits, theirs(**inputs).logits[0, -1], rtol=0, atol=1e-5)


@torch.no_grad()
def test_sound_beside_a_video_is_heard(stock: Any, ours: Any) -> None:
    heard = {"audio": [SECOND], "before": "<so_embedding>"}
    whole, short = asked(stock[1], 8, **heard), asked(ours[1], 8, **heard)
    expected = by_hand(stock, whole)
    for inputs in (whole, short):
        torch.testing.assert_close(ours[0](**inputs).logits[0, -1], expected, rtol=0, atol=1e-5)
        deaf = dict(inputs) | {"input_features": inputs["input_features"].flip(1)}
        assert not torch.allclose(ours[0](**deaf).logits[0, -1], expected, atol=1e-4)
    answers = [ours[0].generate(**inputs, **NEW)[0, -6:] for inputs in (whole, short)]
    assert torch.equal(*answers)
    found = ours[0].generate(**whole, **NEW, retention_ratio=1.0)
    assert torch.equal(found, stock[0].generate(**whole, **NEW))


def test_images_and_videos_in_one_call_are_refused(ours: Any) -> None:
    """The stock class refuses them, too. Which placeholders are whose is not in the prompt."""
    model, processor = ours
    prompt = chat_prompt(processor, "What happens?", videos=1, images=1)
    inputs = processor(text=[prompt], videos=[make_video(0)], images=[make_image(0)], return_tensors="pt")
    features = {"video": model.get_video_features(inputs["pixel_values_videos"])}
    given = {name: value for name, value in inputs.items() if name != "pixel_values_videos"}
    for call in (model, model.generate):
        for arguments in (dict(inputs), given | {"mm_encoder_outputs": features}):
            for ratio in ({}, {"retention_ratio": 1.0}):
                with pytest.raises(ValueError, match="Images and videos are given in one call"):
                    call(**arguments, **ratio)


@torch.no_grad()
@pytest.mark.parametrize("first", ["image", "video"])
def test_a_chat_may_have_an_image_in_one_turn_and_a_video_in_another(stock: Any, ours: Any, first: str) -> None:
    model, kinds = ours[0], (first, "video" if first == "image" else "image")

    def turn(processor: Any, kind: str) -> Any:
        media = {"images": [make_image(1)]} if kind == "image" else {"videos": [make_video(1)]}
        return processor(text=[chat_prompt(processor, "What?", **{f"{kind}s": 1})], **media, return_tensors="pt")

    whole, turns = ([turn(each[1], kind) for kind in kinds] for each in (stock, ours))
    if first == "image":
        expected = by_hand(stock, whole[1], stock[0](**whole[0], use_cache=True).cache)
    else:
        _, cache = by_hand(stock, whole[0], keeps=True)
        rest = {name: value for name, value in whole[1].items() if name != "attention_mask"}
        expected = stock[0](**rest, cache=cache).logits[0, -1]
    for one, two in (turns, whole):
        media = {name: value for name, value in two.items() if name not in ("input_ids", "attention_mask")}
        cache = model(**one, use_cache=True).cache
        by_forward = model(input_ids=two["input_ids"], cache=copy.deepcopy(cache), **media).logits[0, -1]
        torch.testing.assert_close(by_forward, expected, rtol=0, atol=1e-5)
        ids, told = torch.cat([one["input_ids"], two["input_ids"]], dim=1), {"output_logits": True}
        out = model.generate(input_ids=ids, cache=cache, **media, **NEW, **told, return_dict_in_generate=True)
        torch.testing.assert_close(out.logits[0][0], expected, rtol=0, atol=1e-5)


def test_several_prompts_with_videos_are_refused_by_the_processor_as_by_the_stock_one(stock: Any, ours: Any) -> None:
    for _, processor in (stock, ours):
        prompt = chat_prompt(processor, "What happens?", videos=1)
        with pytest.raises(ValueError, match="Videos are only supported with a single prompt"):
            processor(text=[prompt] * 2, videos=[make_video(0), make_video(1)], return_tensors="pt")


def test_pixels_in_another_form_are_refused(stock: Any, ours: Any) -> None:
    inputs = asked(stock[1], 8)
    pixels = inputs["pixel_values_videos"]
    for wrong in (pixels[0], pixels[:, :, :3], pixels[:, :0], pixels[..., :-10]):
        for call in (ours[0], ours[0].generate):
            with pytest.raises(ValueError, match=r"must be \(num_videos, frames, 6, height, width\)"):
                call(**dict(inputs) | {"pixel_values_videos": wrong})


def test_several_sounds_of_a_prompt_are_not_repeated_for_beams(ours: Any) -> None:
    """The stock class repeats each by itself, so a beam would hear one sound twice."""
    inputs = asked(ours[1], 8, audio=[SECOND, SECOND[:9000]], before="<so_embedding><so_embedding>")
    assert len(ours[0].generate(**inputs, **NEW))
    with pytest.raises(ValueError, match=r"is 2, but the prompts have \[2\] sounds"):
        ours[0].generate(**inputs, **NEW, num_beams=2)
    one = asked(ours[1], 8, audio=[SECOND], before="<so_embedding>")
    assert len(ours[0].generate(**one, **NEW, num_beams=2))


def test_sound_beside_embeddings_is_refused(ours: Any) -> None:
    """The stock class would leave it out."""
    inputs = dict(asked(ours[1], 8, audio=[SECOND], before="<so_embedding>"))
    embeddings = ours[0].get_input_embeddings()(inputs.pop("input_ids"))
    for call in (ours[0], ours[0].generate):
        with pytest.raises(ValueError, match="beside which the parent hears no sound"):
            call(inputs_embeds=embeddings, **inputs)


@torch.no_grad()
def test_a_config_may_name_no_id_of_videos(stock: Any) -> None:
    """Released ones name an id beyond the vocabulary, and the stock class reads none."""
    model, processor = built()
    assert model.config.video_token_id >= model.config.text_config.vocab_size
    model.config.video_token_id = None
    model = vidcom2.apply(model, processor=processor, retention_ratio=RATIO)
    inputs = asked(processor, 8)
    expected = by_hand(stock, asked(stock[1], 8))
    torch.testing.assert_close(model(**inputs).logits[0, -1], expected, rtol=0, atol=1e-5)
    embeddings = model.get_input_embeddings()(inputs["input_ids"])
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    logits = model(inputs_embeds=embeddings, **given).logits[0, -1]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("times", [[0, 0.5, 1, 1.5], [0, 0.2, 1.3, 7.05]], ids=["even", "uneven"])
def test_times_on_a_fine_clock_are_written(stock: Any, times: list[float]) -> None:
    """The stock processor takes a whole number of milliseconds for a step of the clock, which is 0 of a finer one."""
    frames = make_video(0, 4).transpose(0, 2, 3, 1)
    video = vidcom2.Video.from_frames(frames, times=times)
    text = stock[1].decode(prepare_inputs(stock[1], "What?", video)["input_ids"][0])
    assert [float(found) for found in re.findall(r"rame \d+ sampled at ([0-9.]+) seconds", text)] == times
