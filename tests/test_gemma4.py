"""Gemma 4 and Gemma 4 Unified beyond what all families share: windows, tokens of a frame that attend to each other,
layers that read ids or the keys and values of others, and sound. The stock class runs the prompt that plain loops
compressed."""

from typing import Any

import numpy as np
import pytest
import torch
from models import chat_prompt, make_image, make_video
from torch import Tensor
from transformers import BatchFeature, DynamicCache, PreTrainedModel, StaticCache
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vidcom2 import VidCom2Gemma4ForConditionalGeneration, VidCom2Gemma4UnifiedForConditionalGeneration, apply
from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES
from vidcom2.tiny.gemma4 import tiny_gemma4, tiny_gemma4_unified

RATIO = 0.25
NEW = 6
WINDOW = 24  # narrower than a compressed video
VIDEO = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
# As in the released models: E2B, and those of 26B (a mixture of experts) and 31B, where frames are seen as a whole.
E2B: dict[str, Any] = {}
LARGE = {
    "use_bidirectional_attention": "vision",
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}
UNIFIED = None  # a model of its own


needs_forward = pytest.mark.skipif(not CHUNKS_FEATURES, reason="Transformers 5.19 loses what `forward` needs")


class Pair:
    """A stock model and ours with the same weights, and their processor."""

    def __init__(self, text: dict[str, Any] | None, **kwargs: Any):
        """`text`: other fields of the language model's config; None for Gemma 4 Unified."""
        self.text = text
        arguments: dict[str, Any] = {"patch_size": 4, "sliding_window": WINDOW, "text": text} | kwargs
        build = tiny_gemma4 if text is not None else tiny_gemma4_unified
        self.stock: PreTrainedModel = build(**arguments)[0]
        model, self.processor = build(**arguments)
        self.model: VidCom2Gemma4ForConditionalGeneration | VidCom2Gemma4UnifiedForConditionalGeneration = apply(
            model, retention_ratio=RATIO
        )
        self.assistant: PreTrainedModel = build(patch_size=4, seed=3)[0]

    def inputs(self, question: str = "What happens?", images: int = 0, seed: int = 0) -> BatchFeature:
        media: dict[str, Any] = {"videos": [make_video(seed, 4, unique_frame=2)]}
        if images:
            media["images"] = [[make_image(seed)] * images]
        return self.processor(text=[self.prompt(question, images)], return_tensors="pt", **media)

    def prompt(self, question: str, images: int = 0) -> str:
        return chat_prompt(self.processor, question, videos=1, images=images)

    def by_hand(self, inputs: BatchFeature, ratio: float = RATIO) -> dict[str, Any]:
        """Return the inputs of the stock class without the dropped tokens, and with the features of the others."""
        videos = {name: inputs[name] for name in VIDEO}
        every = self.stock.model.get_video_features(**videos).pooler_output
        kept = self.model.get_video_features(**videos, retention_ratio=ratio).video_compressions
        config, features, remaining = self.stock.config, [], []
        of_videos = [(video, set(each.indices.tolist())) for video, each in zip(every, kept, strict=True)]
        number = at = 0
        for position, token in enumerate(inputs["input_ids"][0].tolist()):
            if token != config.video_token_id:
                remaining.append(position)
                continue
            video, indices = of_videos[number]
            if at in indices:
                remaining.append(position)
                features.append(video[at])
            number, at = (number + 1, 0) if at + 1 == len(video) else (number, at + 1)
        short = {name: inputs[name][:, remaining] for name in ("input_ids", "attention_mask", "mm_token_type_ids")}
        encoded = {"video": BaseModelOutputWithPooling(pooler_output=(torch.stack(features),))}
        if "pixel_values" in inputs:
            images = {name: inputs[name] for name in ("pixel_values", "image_position_ids")}
            encoded["image"] = self.stock.get_image_features(**images)
        others = {name: inputs[name] for name in ("input_features", "input_features_mask") if name in inputs}
        return short | others | {"mm_encoder_outputs": encoded}


def run(model: PreTrainedModel, inputs: Any, **kwargs: Any) -> Any:
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False} | kwargs
    torch.manual_seed(0)
    return model.generate(**inputs, **settings)


def new_tokens(model: PreTrainedModel, inputs: Any, **kwargs: Any) -> Tensor:
    return run(model, inputs, **kwargs)[:, inputs["input_ids"].shape[1] :]


@pytest.fixture(scope="module", params=[E2B, LARGE, UNIFIED], ids=["e2b", "large", "unified"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "static cache": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
    "beams": {"num_beams": 2},
    "chunks": {"prefill_chunk_size": 40},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("mode", MODES)
def test_windows_frames_and_shared_layers_see_the_prompt_that_is_left(pair: Pair, mode: str) -> None:
    """The stock class gets the short prompt itself, so its windows, frames and shared keys are those of that prompt."""
    inputs = pair.inputs(images=1)
    if mode == "chunks" and not CHUNKS_FEATURES:
        pytest.skip("Transformers 5.19 does not split features")
    # The stock class does not keep lookup from copying an image's placeholders.
    theirs = new_tokens(pair.stock, pair.by_hand(inputs), **MODES["greedy" if mode == "prompt lookup" else mode])
    assert torch.equal(new_tokens(pair.model, inputs, **MODES[mode]), theirs)


def test_videos_of_two_lengths_share_a_padded_batch(pair: Pair) -> None:
    questions, videos = ("What happens?", "And who is to be seen here?"), [make_video(0, 4), make_video(1, 6)]
    prompts = [pair.prompt(question) for question in questions]
    made = {"return_tensors": "pt", "padding": True, "padding_side": "left"}
    both = pair.processor(text=prompts, videos=[[video] for video in videos], **made)
    together = new_tokens(pair.model, both)
    for row, (prompt, video) in enumerate(zip(prompts, videos)):
        alone = pair.processor(text=[prompt], videos=[[video]], **made)
        assert torch.equal(new_tokens(pair.model, alone)[0], together[row])


def test_an_assistant_drafts_from_the_first_step_on(pair: Pair) -> None:
    inputs, assistant = pair.inputs(), pair.assistant
    for ratio in (RATIO, 1.0):
        drafted = new_tokens(pair.model, inputs, retention_ratio=ratio, assistant_model=assistant)
        assert torch.equal(drafted, new_tokens(pair.model, inputs, retention_ratio=ratio))


@needs_forward
@pytest.mark.parametrize("text", [LARGE, UNIFIED], ids=["large", "unified"])
def test_the_tokens_of_a_frame_attend_to_each_other_only_where_types_are_passed(text: dict[str, Any] | None) -> None:
    pair = Pair(text)
    inputs = pair.inputs()
    logits = pair.model(**inputs, compression_positions="consecutive").logits[:, -1]
    by_hand = pair.by_hand(inputs)
    torch.testing.assert_close(logits, pair.stock(**by_hand).logits[:, -1], rtol=0, atol=1e-5)
    causal = {name: value for name, value in inputs.items() if name != "mm_token_type_ids"}
    by_hand = {name: value for name, value in pair.by_hand(inputs).items() if name != "mm_token_type_ids"}
    without = pair.model(**causal, compression_positions="consecutive").logits[:, -1]
    torch.testing.assert_close(without, pair.stock(**by_hand).logits[:, -1], rtol=0, atol=1e-5)
    assert not torch.allclose(without, logits, atol=1e-3)
    with pytest.raises(ValueError, match=r"`mm_token_type_ids` is \(1, 9\), but there are \d+ new tokens"):
        pair.model(**inputs | {"mm_token_type_ids": inputs["mm_token_type_ids"][:, :9]})


@pytest.mark.skipif(not CHUNKS_FEATURES, reason="Transformers 5.19 changes those of the 26B and 31B models, too")
def test_a_static_cache_changes_the_stock_logits_of_gemma_4_unified_alone(pair: Pair) -> None:
    """docs/limits.md says so. Ours, which is the stock class on the short prompt, differs alike."""
    inputs, of_logits = pair.inputs(images=1), {"return_dict_in_generate": True, "output_logits": True}
    for model in (pair.stock, pair.model):
        static, dynamic = (
            run(model, inputs, cache_implementation=kind, **of_logits).logits[0] for kind in ("static", None)
        )
        assert torch.allclose(static, dynamic, rtol=0, atol=1e-5) == (pair.text is not UNIFIED)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_second_turn_with_a_video_equals_a_run_from_scratch(pair: Pair, kind: str) -> None:
    """The first turn is longer than the window. Types are passed for the whole conversation, as a processor makes
    them."""
    first, other = pair.inputs(), pair.inputs("And here?", seed=1)
    text = pair.model.config.get_text_config()

    def empty_cache() -> StaticCache | DynamicCache:
        return StaticCache(config=text, max_cache_len=700) if kind == "static" else DynamicCache(config=text)

    cache = empty_cache()
    turn = run(pair.model, first, return_dict_in_generate=True, past_key_values=cache)
    answer = turn.sequences[:, first["input_ids"].shape[1] :]
    ids = torch.cat([turn.sequences, other["input_ids"]], dim=1)
    types = [first["mm_token_type_ids"], torch.zeros_like(answer), other["mm_token_type_ids"]]
    second = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": torch.cat(types, dim=1)}
    of_both = {name: torch.cat([first[name], other[name]]) for name in VIDEO}
    whole = run(pair.model, second | of_both, past_key_values=empty_cache())
    videos = {name: other[name] for name in VIDEO}
    if (
        kind == "static"
        and pair.model.model.config.get_text_config().use_bidirectional_attention == "vision"
        and not CHUNKS_FEATURES
    ):
        with pytest.raises(ValueError, match=r"On Transformers 5\.19, images and videos cannot follow"):
            run(pair.model, second | videos, past_key_values=cache)
        return
    assert torch.equal(run(pair.model, second | videos, past_key_values=cache), whole)


@needs_forward
@pytest.mark.parametrize("text", [E2B, UNIFIED], ids=["e2b", "unified"])
def test_images_videos_and_sound_share_a_prompt_and_the_sound_stays_whole(text: dict[str, Any] | None) -> None:
    pair = Pair(text, audio=True)
    parts = [{"type": "audio"}, {"type": "image"}, {"type": "video"}, {"type": "text", "text": "What?"}]
    prompt = pair.processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
    sound = np.random.default_rng(0).normal(size=8000).astype(np.float32)
    inputs = pair.processor(
        text=[prompt], audio=[sound], images=[[make_image(0)]], videos=[make_video(0, 4)], return_tensors="pt"
    )
    assert (inputs["input_ids"] == pair.stock.config.audio_token_id).sum() > 4
    theirs = new_tokens(pair.stock, pair.by_hand(inputs))
    assert torch.equal(new_tokens(pair.model, inputs), theirs)
    assert torch.equal(new_tokens(pair.model, inputs, prompt_lookup_num_tokens=3), theirs)
    silent = inputs | {"input_features": torch.zeros_like(inputs["input_features"])}
    last = [pair.model(**each).logits[:, -1] for each in (inputs, silent)]
    assert not torch.allclose(*last, atol=1e-4)


@pytest.mark.parametrize(("text", "grid"), [(E2B, "21 × 27"), (UNIFIED, "7 × 9")], ids=["e2b", "unified"])
def test_frames_without_a_common_grid_are_refused(text: dict[str, Any] | None, grid: str) -> None:
    pair = Pair(text)
    videos = {name: pair.inputs()[name] for name in VIDEO}
    places = videos["video_position_ids"].clone()
    places[1, 50:] = -1  # the second frame has fewer patches
    for bad, error in (
        ({"video_position_ids": places}, f"are not all grids of the same {grid} patches"),
        ({"num_frames_per_video": torch.tensor([3])}, r"`num_frames_per_video` is \[3\], but .* holds 4 frames"),
        ({"num_frames_per_video": None}, "`num_frames_per_video` a NoneType"),
    ):
        with pytest.raises(ValueError, match=error):
            pair.model.get_video_features(**videos | bad)
