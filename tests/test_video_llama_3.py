"""VideoLLaMA3's stock processor leaves out of the prompt what does not change between frames. The stock class runs the
prompt that plain loops compressed further."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import use_method
from models import chat_prompt, make_image
from reference import EXACT, kept_features
from torch import Tensor
from transformers import BatchFeature, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vidcom2 import (
    CompressionSettings,
    VidCom2VideoLlama3ForConditionalGeneration,
    VideoCompression,
    VideoTokens,
    apply,
    compress,
    register_compression_method,
)
from vidcom2.asking.generation import keep_tokens, run_tower
from vidcom2.asking.prepared_video import prepare_video
from vidcom2.asking.prompting import prompt_text
from vidcom2.loading.processors import shorten
from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES
from vidcom2.tiny.video_llama_3 import tiny_video_llama_3
from vidcom2.video.reading import Video

RATIO = 0.25
NEW = 6
FRAMES, PER_FRAME = 8, 12
VIDEO = ("pixel_values_videos", "video_grid_thw", "video_merge_sizes", "video_compression_mask")
IMAGE = ("pixel_values", "image_grid_thw", "image_merge_sizes")
ARGUMENTS: dict[str, Any] = {"pixels": (84 * 84, 2**30)}
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 256}


def nearly_still(seed: int) -> np.ndarray:
    """Return (frames, 3, height, width) uint8: a scene of which one corner changes, and one frame of another scene."""
    rng = np.random.default_rng(seed)
    video = np.repeat(rng.integers(0, 256, (1, 3, 60, 80), dtype=np.uint8), FRAMES, axis=0)
    video[:, :, :20, :30] = rng.integers(0, 256, (FRAMES, 3, 20, 30))
    video[5] = rng.integers(0, 256, (3, 60, 80))
    return video


@pytest.mark.parametrize("ratio", [1.0, RATIO])
def test_ask_and_the_like_offer_all_tokens_as_this_projects_processor_does(ratio: float) -> None:
    pair = Pair()
    video = Video(nearly_still(0).transpose(0, 2, 3, 1), np.arange(FRAMES), 1.0, FRAMES)
    prepared, inputs = prepare_video(pair.processor, video, pair.model)
    settings = pair.model.config.compression_settings(retention_ratio=ratio)
    features = keep_tokens(pair.model, run_tower(pair.model, inputs, settings), settings)
    short = prepared.prompt(pair.processor, "What?").inputs(pair.processor, pair.model, features)
    got = pair.model(**short, mm_encoder_outputs={"video": features}).logits[:, -1]
    shorten(pair.processor, pair.model.config)
    asked = {"text": [prompt_text(pair.processor, "What?")], "videos": [[video.frames]], "return_tensors": "pt"}
    of_video = {"video_metadata": [video.metadata], "do_sample_frames": False, "retention_ratio": ratio}
    expected = pair.processor(**asked, **of_video)
    assert torch.equal(short["input_ids"], expected["input_ids"])
    torch.testing.assert_close(got, pair.model(**expected).logits[:, -1], rtol=0, atol=1e-5)


class Pair:
    """A stock model and ours with the same weights, and their processor."""

    def __init__(self) -> None:
        self.stock: PreTrainedModel = tiny_video_llama_3(**ARGUMENTS)[0]
        model, self.processor = tiny_video_llama_3(**ARGUMENTS)
        self.model: VidCom2VideoLlama3ForConditionalGeneration = apply(model, retention_ratio=RATIO)

    def inputs(self, *seeds: int, images: int = 0, videos: int = 1, **arguments: Any) -> BatchFeature:
        """Return a batch with a prompt for each seed. The questions differ in length."""
        prompts = [chat_prompt(self.processor, f"What{' now' * seed}?", videos, images) for seed in seeds]
        media: dict[str, Any] = {"videos": [nearly_still(10 * seed + n) for seed in seeds for n in range(videos)]}
        if images:
            media["images"] = [make_image(seed) for seed in seeds for _ in range(images)]
        return self.processor(text=prompts, padding=True, return_tensors="pt", **media, **arguments)

    def videos_of(self, inputs: Any) -> dict[str, Any]:
        return {name: inputs[name] for name in VIDEO}

    def by_hand(self, inputs: BatchFeature, ratio: float = RATIO, **settings: Any) -> list[dict[str, Any]]:
        """Return for each video what stays of it: by plain loops over the stock model's features of all tokens, what
        the published operator chooses, and the processor's mask."""
        described = self.videos_of(inputs)
        mask = described.pop("video_compression_mask").tolist()
        every = self.stock.model.get_video_features(**described).pooler_output
        _, seen = self.model.model.encode_videos(settings=CompressionSettings(), **described)
        videos = []
        for tokens, of_tower in zip(every, seen, strict=True):
            assert torch.equal(of_tower.tokens.flatten(0, 1), tokens)
            compression = compress(of_tower, ratio, **EXACT | settings)
            in_prompt, mask = mask[: len(tokens)], mask[len(tokens) :]
            chosen = dict(zip(compression.indices.tolist(), kept_features(compression, tokens), strict=True))
            left = {index: feature for index, feature in chosen.items() if in_prompt[index]}
            videos.append({"in_prompt": in_prompt, "kept": list(left), "features": list(left.values())})
        assert not mask
        return videos

    @torch.no_grad()
    def short(self, inputs: BatchFeature, ratio: float = RATIO, **settings: Any) -> tuple[Tensor, list[int]]:
        """Return the embeddings (1, L', dim) of one prompt without its dropped tokens, and the positions left."""
        ids = inputs["input_ids"][0]
        embeddings = list(self.stock.get_input_embeddings()(ids))
        if "pixel_values" in inputs:
            encoded = self.stock.get_image_features(**{name: inputs[name] for name in IMAGE}).pooler_output
            places = (ids == self.stock.config.image_token_id).nonzero().flatten().tolist()
            for place, feature in zip(places, torch.cat(list(encoded)), strict=True):
                embeddings[place] = feature
        stays: list[Tensor | None] = []
        for video in self.by_hand(inputs, ratio, **settings):
            feature_of = dict(zip(video["kept"], video["features"], strict=True))
            stays += [feature_of.get(i) for i, is_left in enumerate(video["in_prompt"]) if is_left]
        left = []
        for position, token in enumerate(ids.tolist()):
            if token == self.stock.config.video_token_id:
                feature = stays.pop(0)
                if feature is None:
                    continue
                embeddings[position] = feature
            if inputs["attention_mask"][0, position]:
                left.append(position)
        assert not stays
        return torch.stack([embeddings[i] for i in left])[None], left

    def answer(self, inputs: BatchFeature, ratio: float = RATIO, settings: Any = None, **kwargs: Any) -> Tensor:
        """Return the new tokens of the stock model on a prompt compressed by hand."""
        embeddings, _ = self.short(inputs, ratio, **settings or {})
        return self.stock.generate(inputs_embeds=embeddings, **GREEDY | kwargs)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()


def test_the_processor_leaves_out_a_part_of_these_videos(pair: Pair) -> None:
    inputs = pair.inputs(1)
    left = int(inputs["video_compression_mask"].sum())
    assert PER_FRAME + FRAMES <= left < 2 * FRAMES * PER_FRAME / 3
    assert int((inputs["input_ids"] == pair.stock.config.video_token_id).sum()) == left


@pytest.mark.usefixtures("methods_restored")
@pytest.mark.parametrize(
    ("method", "chunk"), [("vidcom2", None), ("vidcom2", 3), ("uniform_frames", None), ("merged_in_time", None)]
)
def test_of_the_chosen_tokens_those_stay_that_have_a_placeholder(pair: Pair, method: str, chunk: int | None) -> None:
    if method == "merged_in_time":
        use_method(method)
    inputs = pair.inputs(1, 2, videos=2)
    settings = {"compression_method": method}
    found = pair.model.get_video_features(**pair.videos_of(inputs), vision_chunk_frames=chunk, **settings)
    expected = pair.by_hand(inputs, **settings)
    assert len(expected) == len(found.video_compressions) == len(found.pooler_output) == 4
    for video, features, compression in zip(expected, found.pooler_output, found.video_compressions, strict=True):
        assert compression.indices.tolist() == video["kept"]
        assert compression.frame_budgets.tolist() == [
            sum(index // PER_FRAME == frame for index in video["kept"]) for frame in range(FRAMES)
        ]
        assert compression.num_tokens == FRAMES * PER_FRAME
        torch.testing.assert_close(features, torch.stack(video["features"]), rtol=1e-4, atol=1e-5)
    assert any(len(video["kept"]) < RATIO * FRAMES * PER_FRAME for video in expected)


@pytest.mark.parametrize(("videos", "images"), [(1, 0), (2, 1)])
def test_forward_runs_what_is_left(pair: Pair, videos: int, images: int) -> None:
    inputs = pair.inputs(1, videos=videos, images=images)
    embeddings, left = pair.short(inputs)
    with torch.no_grad():
        theirs = pair.stock(inputs_embeds=embeddings)
        ours = pair.model(**inputs)
    torch.testing.assert_close(ours.logits[:, left], theirs.logits, rtol=1e-4, atol=1e-5)
    assert ours.past_key_values.get_seq_length() == len(left)


BEAMS = {"num_beams": 2, "num_return_sequences": 2}
MODES: dict[str, dict[str, Any]] = {  # Apart from beams, all are other ways to the greedy tokens.
    "greedy": {},
    "beams": BEAMS,
    "static": {"cache_implementation": "static"},
    "no_cache": {"use_cache": False},
    "chunks": {"prefill_chunk_size": 7},
    "lookup": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize(
    ("mode", "side", "ratio"),
    [*((mode, "left", RATIO) for mode in MODES), ("greedy", "right", RATIO), ("beams", "left", 1.0)],
)
def test_each_prompt_of_a_batch_answers_as_alone(pair: Pair, mode: str, side: str, ratio: float) -> None:
    if mode == "chunks" and not CHUNKS_FEATURES:
        pytest.skip("Transformers 5.19 splits no features")
    seeds = (1,) if mode == "lookup" else (1, 2)
    inputs = pair.inputs(*seeds, padding_side=side)
    ours = pair.model.generate(**inputs, retention_ratio=ratio, **GREEDY | MODES[mode])
    rows = MODES[mode].get("num_return_sequences", 1)
    for number, seed in enumerate(seeds):
        theirs = pair.answer(pair.inputs(seed), ratio, **BEAMS if mode == "beams" else {})
        of_prompt = ours[number * rows : (number + 1) * rows, inputs["input_ids"].shape[1] :]
        assert torch.equal(of_prompt, theirs)


def test_at_ratio_1_the_parent_runs_mask_and_all(pair: Pair) -> None:
    inputs = pair.inputs(1, 2, videos=2, images=1)
    with torch.no_grad():
        ours, theirs = pair.model(**inputs, retention_ratio=1.0), pair.stock(**inputs)
    assert torch.equal(ours.logits, theirs.logits)
    settings = GREEDY | {"output_scores": True, "return_dict_in_generate": True}
    ours, theirs = (
        pair.model.generate(**inputs, retention_ratio=1.0, **settings),
        pair.stock.generate(**inputs, **settings),
    )
    assert torch.equal(ours.sequences, theirs.sequences)
    assert all(map(torch.equal, ours.scores, theirs.scores))


def test_a_chat_goes_on_with_another_video(pair: Pair) -> None:
    first = pair.inputs(1)
    answered = pair.model.generate(**first, return_dict_in_generate=True, **GREEDY)
    second = pair.inputs(2)
    ids = torch.cat([answered.sequences, second["input_ids"]], dim=1)
    turn = second | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for ratio in (RATIO, 1.0):
        cache = pair.model.generate(**first, return_dict_in_generate=True, **GREEDY).past_key_values
        ours = pair.model.generate(**turn, past_key_values=cache, retention_ratio=ratio, **GREEDY)[:, -NEW:]
        said = pair.stock.get_input_embeddings()(answered.sequences[:, -NEW:])
        whole = torch.cat([pair.short(first)[0], said, pair.short(second, ratio)[0]], dim=1)
        assert torch.equal(ours, pair.stock.generate(inputs_embeds=whole, **GREEDY))


@pytest.mark.parametrize("ratio", [RATIO, 1.0])
def test_features_may_be_encoded_beforehand(pair: Pair, ratio: float) -> None:
    inputs = pair.inputs(1, 2)
    encoded = pair.model.get_video_features(**pair.videos_of(inputs), retention_ratio=ratio)
    given = {name: value for name, value in inputs.items() if name not in VIDEO}
    expected = pair.model.generate(**inputs, retention_ratio=ratio, **GREEDY)
    for also in ({}, {"video_compression_mask": inputs["video_compression_mask"]}):
        answered = pair.model.generate(**given, **also, mm_encoder_outputs={"video": encoded}, **GREEDY)
        assert torch.equal(answered, expected)


def test_the_parents_features_come_with_the_mask(pair: Pair) -> None:
    inputs = pair.inputs(1)
    described = {name: inputs[name] for name in VIDEO[:3]}
    tokens = pair.stock.model.get_video_features(**described).pooler_output
    given = {name: value for name, value in inputs.items() if name not in VIDEO[:3]}
    given["mm_encoder_outputs"] = {"video": BaseModelOutputWithPooling(pooler_output=tokens)}
    with torch.no_grad():
        ours, theirs = pair.model(**given, retention_ratio=1.0), pair.stock(**inputs)
    assert torch.equal(ours.logits, theirs.logits)
    for mode in ({}, {"num_beams": 2}, {"prefill_chunk_size": 7}, {"cache_implementation": "static"}):
        if "prefill_chunk_size" in mode and not CHUNKS_FEATURES:
            continue
        call = {"max_new_tokens": 6, "do_sample": False, "retention_ratio": 1.0} | mode
        assert torch.equal(pair.model.generate(**given, **call), pair.model.generate(**inputs, **call)), mode


def test_a_budget_counts_the_tokens_that_the_processor_leaves_out_too(pair: Pair) -> None:
    inputs = pair.inputs(1)
    found = pair.model.get_video_features(**pair.videos_of(inputs), retention_ratio=1.0, max_video_tokens=48)
    expected = pair.by_hand(inputs, 48 / (FRAMES * PER_FRAME), max_video_tokens=48)
    assert found.video_compressions[0].indices.tolist() == expected[0]["kept"]


def only_the_last_token(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    last = torch.zeros(video.tokens.shape[:2], dtype=torch.bool)
    last[-1, -1] = True
    return VideoCompression.of_mask(last)


@pytest.mark.usefixtures("methods_restored")
def test_something_of_a_video_stays(pair: Pair) -> None:
    register_compression_method("only_the_last_token")(only_the_last_token)
    inputs, method = pair.inputs(1), {"compression_method": "only_the_last_token"}
    assert not inputs["video_compression_mask"][-1]
    found = pair.model.get_video_features(**pair.videos_of(inputs), **method)
    assert found.video_compressions[0].indices.tolist() == [0]
    assert found.video_compressions[0].frame_budgets.tolist() == [1] + [0] * (FRAMES - 1)
    tokens = pair.stock.model.get_video_features(**{name: inputs[name] for name in VIDEO[:3]}).pooler_output
    torch.testing.assert_close(found.pooler_output[0], tokens[0][:1])
    assert pair.model.generate(**inputs, **method, **GREEDY).shape[0] == 1


@pytest.mark.parametrize(
    ("name", "wrong", "error"),
    [
        ("video_compression_mask", lambda mask: mask[:-1], r"bool of shape \(95,\), but must be bool .* 96 tokens"),
        ("video_compression_mask", lambda mask: mask.long(), "torch.int64 of shape"),
        ("video_compression_mask", torch.zeros_like, r"leaves \[0\] placeholders"),
        ("video_merge_sizes", lambda sizes: None, "`video_merge_sizes` is None, but all must describe"),
        ("video_merge_sizes", lambda sizes: sizes[:0], "holds 384 patches, but .* asks for 0"),
    ],
)
def test_masks_and_sizes_that_do_not_fit_are_refused(pair: Pair, name: str, wrong: Any, error: str) -> None:
    inputs = pair.inputs(1)
    with pytest.raises(ValueError, match=error):
        pair.model(**inputs | {name: wrong(inputs[name])})
