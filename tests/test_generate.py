"""`generate` in every mode: the parent bit for bit at retention_ratio=1.0, and the compressed prompt below that."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from conftest import Family, of_representatives, only
from models import RETENTION_RATIO, make_image, make_video, placeholder_id, typed
from oracle import oracle_compress
from reference import compressed_embeddings, language_model_lengths, new_tokens, position_arguments, reading_embeddings
from torch import Tensor
from transformers import (
    BatchFeature,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    Qwen2Config,
    Qwen2ForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer

from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES

NEW = 6
PAD = 256  # the pad token of the tiny tokenizers

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.7},
    "beams": {"num_beams": 3},
    "beams_returned": {"num_beams": 3, "num_return_sequences": 2},
    "num_return_sequences": {"do_sample": True, "num_return_sequences": 3},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": NEW},
    "static_cache": {"cache_implementation": "static"},
    "no_cache": {"use_cache": False},
    "chunked_prefill": {"prefill_chunk_size": 16},
}
REPEATING = ("num_beams", "num_return_sequences")
NEED_IDS = ("repetition_penalty", "no_repeat_ngram", "no_cache")  # modes that make no sense of embeddings
PROMPTS = ("one_video", "two_videos", "image_and_video")
# Every mode runs with a prompt of one video, and those that treat several media in their own way with the others.
MODES_OF_PROMPTS = [(mode, "one_video") for mode in MODES] + [
    (mode, kind) for mode in ("greedy", "beams_returned", "chunked_prefill") for kind in PROMPTS[1:]
]


def make_prompt(family: Family, kind: str) -> BatchFeature:
    if kind == "one_video":
        return family.one_video()
    if kind == "two_videos":
        return family.inputs(family.prompt("Compare.", videos=2), videos=[make_video(0), make_video(1)])
    if kind == "image_and_video":
        prompt = family.prompt("Is this in the video?", videos=1, images=1)
        return family.inputs(prompt, videos=[make_video(0)], images=[make_image(3)])
    if kind == "image":
        return family.inputs(family.prompt("What is it?", images=1), images=[make_image(3)])
    return family.inputs(family.prompt("Hello."))


def defaults(model: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"do_sample": False, "pad_token_id": PAD}
    if model._is_stateful:  # the next turn would read a pad token as padding, which linear attention cannot hide
        settings["suppress_tokens"] = [PAD, model.config.image_token_id, model.config.video_token_id]
    return settings


def run(model: torch.nn.Module, inputs: BatchFeature, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    # A mode may name the pad token, since the tiny checkpoint has no generation config.
    settings = {"max_new_tokens": NEW} | defaults(model) | kwargs
    return model.generate(**inputs, **{name: value for name, value in settings.items() if value is not None})


def answered(model: Any, inputs: Any, **kwargs: Any) -> Any:
    """Return what `run` does with the logits and the cache."""
    return run(model, inputs, return_dict_in_generate=True, output_logits=True, **kwargs)


def assert_same(ours: Any, theirs: Any) -> None:
    """Assert equality to the last bit, through tuples and lists."""
    if isinstance(theirs, Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


@pytest.fixture
def whole_media_for_beams(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stock Qwen3.5 repeat media for beams as later releases do. Transformers 5.19 repeats each patch instead:
    see tests/test_linear_attention.py."""
    monkeypatch.setattr(family.case.stock_class, "input_modalities", family.case.model_class.input_modalities)


def fails_in_the_parent(family: Family, mode: str, kind: str) -> bool:
    """Say whether LLaVA-NeXT-Video before Transformers 5.21 repeats videos, for which it counts frames, not tokens; or
    whether one of GLM's repeats or splits videos, or has an image too; or whether VideoLLaMA3's splits videos, but not
    its mask, or PerceptionLM's features of its vision tower's own class."""
    masked = "video_compression_mask" in family.case.video_inputs
    if mode == "chunked_prefill" and (masked or family.case.own_outputs):
        return True
    repeats = not MODES[mode].keys().isdisjoint(REPEATING)
    shares_ids = family.case.shares_ids or family.case.one_kind_a_call
    if (family.case.refuses_both and kind == "image_and_video") or (shares_ids and mode == "chunked_prefill"):
        return True
    if not repeats:
        return False
    if shares_ids:
        return True
    features = family.stock.model.get_video_features(**family.videos_of(family.one_video())).pooler_output
    return features[0].ndim == 3


@pytest.mark.usefixtures("whole_media_for_beams")
@pytest.mark.parametrize(("mode", "kind"), MODES_OF_PROMPTS)
def test_at_ratio_1_generate_equals_the_parents_bit_for_bit(family: Family, mode: str, kind: str) -> None:
    inputs = make_prompt(family, kind)
    if mode == "chunked_prefill" and not CHUNKS_FEATURES:
        for model, ratio in ((family.model, {"retention_ratio": 1.0}), (family.uncompressing, {})):
            with pytest.raises(ValueError, match="`prefill_chunk_size` with videos needs a newer Transformers"):
                run(model, inputs, **MODES[mode], **ratio)
        return
    kwargs = MODES[mode] | {"return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True}
    if fails_in_the_parent(family, mode, kind):
        if mode in NEED_IDS or (family.case.adds_features and mode == "chunked_prefill"):
            pytest.skip("the stock class runs this prompt only as embeddings, and ours as the stock class")
        for model, ratio in ((family.model, {"retention_ratio": 1.0}), (family.uncompressing, {})):
            ours = run(model, inputs, **MODES[mode], **ratio)[:, inputs["input_ids"].shape[1] :]
            torch.manual_seed(0)
            settings = defaults(family.stock) | MODES[mode] | {"prefill_chunk_size": None}
            assert torch.equal(ours, new_tokens(family, inputs, 1.0, NEW, **settings))
        return
    for model in (family.stock, family.model, family.uncompressing):
        vars(model).pop("_previous_max_cache_length", None)  # a longer static cache would be read in another order
    theirs = run(family.stock, inputs, **kwargs)
    for ours in (run(family.model, inputs, retention_ratio=1.0, **kwargs), run(family.uncompressing, inputs, **kwargs)):
        for name in ("sequences", "scores", "hidden_states", "sequences_scores"):
            assert_same(ours.get(name), theirs.get(name))


@pytest.mark.usefixtures("whole_media_for_beams")
@pytest.mark.parametrize(
    ("mode", "kind"), [*((mode, "image") for mode in MODES), ("greedy", "text"), ("beams", "text")]
)
def test_a_prompt_without_video_takes_the_parents_path(family: Family, mode: str, kind: str) -> None:
    """PerceptionLM's parent fails where it should split the features of an image, so it runs in one chunk."""
    inputs, whole = make_prompt(family, kind), {"prefill_chunk_size": None} if family.case.own_outputs else {}
    assert_same(run(family.model, inputs, **MODES[mode]), run(family.stock, inputs, **MODES[mode] | whole))


@pytest.mark.parametrize(("mode", "kind"), MODES_OF_PROMPTS)
def test_the_cache_and_the_tokens_are_those_of_the_prompt_compressed_by_hand(
    family: Family, short_length: Callable, mode: str, kind: str
) -> None:
    inputs = make_prompt(family, kind)
    if mode == "chunked_prefill" and not CHUNKS_FEATURES:
        with pytest.raises(ValueError, match="newer Transformers"):
            run(family.model, inputs, **MODES[mode])
        return
    ours = run(family.model, inputs, return_dict_in_generate=True, **MODES[mode])
    full_length = inputs["input_ids"].shape[1]
    assert (ours.sequences[:, :full_length] == inputs["input_ids"]).all()
    new = ours.sequences[:, full_length:]
    if mode != "no_cache":
        assert short_length(inputs) <= full_length - family.case.video_tokens(8) // 2
        assert ours.past_key_values.get_seq_length() == short_length(inputs) + new.shape[1] - 1
    if mode not in (*NEED_IDS, "chunked_prefill"):
        kwargs = defaults(family.stock) | MODES[mode]
        torch.manual_seed(0)
        assert torch.equal(new, new_tokens(family, inputs, RETENTION_RATIO, NEW, **kwargs))


def test_two_videos_and_an_image_in_a_padded_batch_give_the_tokens_that_the_slow_oracle_keeps(family: Family) -> None:
    """The stock model runs each prompt by itself, compressed by plain loops in float64."""
    exactly = partial(oracle_compress, compression_rounding="exact")
    lengths = (8, 6, 10) if family.case.mrope else (8, 8, 8)  # other families take only videos of one length in a call
    media = {"videos": [make_video(*each) for each in enumerate(lengths)], "images": [make_image(3)]}
    prompts = [family.prompt("Compare both with it.", videos=2, images=1), family.prompt("Why?", videos=1)]
    both = family.inputs(*prompts, **media)
    assert (both["attention_mask"][1, 0], both["attention_mask"][0, 0]) == (0, 1)
    ours = run(family.model, both)[:, both["input_ids"].shape[1] :]
    alone = [
        family.inputs(prompts[0], videos=media["videos"][:2], images=media["images"]),
        family.inputs(prompts[1], videos=media["videos"][2:]),
    ]
    for row, inputs in enumerate(alone):
        embeddings, remaining = compressed_embeddings(family, inputs, RETENTION_RATIO, exactly)
        positions = position_arguments(family, inputs, remaining)
        theirs = run(reading_embeddings(family.stock), {"inputs_embeds": embeddings, **positions})
        assert torch.equal(ours[row], theirs[0])


# A still video and one with a cut keep different numbers of tokens, so rows of a batch differ in compressed length.
BATCH_VIDEOS = (make_video(0), make_video(1)[[0] * 8])
UNEVEN = {"compression_rounding": "ceil"}  # with which rows of a batch keep different numbers of tokens
BATCH_QUESTIONS = ("What happens?", "And now something longer: who is there, and why?")


def batch_of_two(
    family: Family, images: bool = False, padding_side: str = "left"
) -> tuple[BatchFeature, list[BatchFeature]]:
    """Return two prompts of different lengths in a padded batch, and each alone."""
    prompts = [family.prompt(question, videos=1, images=int(images)) for question in BATCH_QUESTIONS]
    pictures = [make_image(0), make_image(1)] if images else None
    both = family.inputs(*prompts, videos=list(BATCH_VIDEOS), images=pictures, padding_side=padding_side)
    alone = [
        family.inputs(prompt, videos=[video], images=[pictures[row]] if images else None)
        for row, (prompt, video) in enumerate(zip(prompts, BATCH_VIDEOS, strict=True))
    ]
    return both, alone


@of_representatives
def test_a_batch_without_attention_mask_infers_the_padding(asking: Family) -> None:
    both, _ = batch_of_two(asking)
    unmasked = {name: value for name, value in both.items() if name != "attention_mask"}
    assert torch.equal(run(asking.model, unmasked), run(asking.model, both))


@of_representatives
def test_scores_attentions_and_hidden_states_cover_the_compressed_prompt(
    family: Family, short_length: Callable
) -> None:
    inputs = family.one_video()
    model = family.load(retention_ratio=RETENTION_RATIO, attn_implementation="eager")
    details = {"output_scores": True, "output_attentions": True, "output_hidden_states": True}
    out = answered(model, inputs, min_new_tokens=NEW, **details)
    length = short_length(inputs)
    assert len(out.scores) == len(out.logits) == len(out.attentions) == len(out.hidden_states) == NEW
    assert out.hidden_states[0][0].shape[1] == length
    assert out.attentions[0][0].shape[-2:] == (length, length)
    assert out.attentions[1][0].shape[-2:] == (1, length + 1)
    scores = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    assert scores.shape == (1, NEW)
    assert torch.equal(out.sequences, run(model, inputs, min_new_tokens=NEW))


@of_representatives
def test_a_streamer_gets_the_prompt_that_runs_then_the_new_tokens(family: Family, short_length: Callable) -> None:
    inputs, values = family.one_video(), []

    class Recorder(BaseStreamer):
        def put(self, value: Tensor) -> None:
            values.append(value)

        def end(self) -> None: ...

    out = run(family.model, inputs, streamer=Recorder())[0]
    assert values[0].shape == (1, short_length(inputs))
    new = torch.cat([value.flatten() for value in values[1:]])
    assert torch.equal(new, out[inputs["input_ids"].shape[1] :])


@of_representatives
@pytest.mark.parametrize("source", ["argument", "generation_config", "model.generation_config"])
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_max_and_min_length_count_the_callers_prompt(family: Family, source: str, ratio: float) -> None:
    inputs = family.one_video()
    prompt = inputs["input_ids"].shape[1]
    limits = {"max_length": prompt + 9, "min_length": prompt + 9}
    model = family.load(retention_ratio=ratio)
    kwargs: dict[str, Any] = {"max_new_tokens": None, "do_sample": None}
    if source == "argument":
        kwargs |= limits
    elif source == "generation_config":
        config = GenerationConfig(**limits, do_sample=False, pad_token_id=PAD)
        kwargs |= {"pad_token_id": None, "generation_config": config}
    else:
        for name, value in limits.items():
            setattr(model.generation_config, name, value)
    assert run(model, inputs, **kwargs).shape[1] == prompt + 9
    if source == "generation_config":
        assert config.max_length == limits["max_length"], "the caller's object was changed"
    with pytest.raises(ValueError, match=rf"`max_length` is {prompt - 1}, but the prompt has {prompt} tokens"):
        run(family.model, inputs, max_new_tokens=None, max_length=prompt - 1)


class Recorder(LogitsProcessor):
    """Collects the prompts and answers that logits processors see."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(input_ids)
        return scores


class Criteria(StoppingCriteria):
    """Collects what stopping criteria see, and ends answers with which a prompt is so long."""

    def __init__(self, most: int = 10**6) -> None:
        self.seen: list[Tensor] = []
        self.most = most

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        self.seen.append(input_ids)
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.most)


def hooks(processor: Recorder, criteria: Criteria) -> dict[str, Any]:
    lists = LogitsProcessorList([processor]), StoppingCriteriaList([criteria])
    return dict(zip(("logits_processor", "stopping_criteria"), lists))


@of_representatives
def test_the_callers_hooks_see_the_prompt_that_runs(family: Family, short_length: Callable) -> None:
    """Its placeholders are fewer. Its text is the caller's."""
    both, alone = batch_of_two(family)
    length = max(map(short_length, alone))
    text = [ids[ids < 256][-8:] for ids in both["input_ids"]]
    of_processor, of_criteria, of_prefix = Recorder(), Criteria(length + 3), []

    def assert_runs(sequence: Tensor, row: int) -> None:
        prompt = sequence[:length]
        assert len(sequence) >= length and torch.equal(prompt[prompt < 256][-8:], text[row])

    def allowed(batch_id: int, sequence: Tensor) -> list[int]:
        of_prefix.append((batch_id, sequence))
        return list(range(256))

    given = hooks(of_processor, of_criteria) | {"prefix_allowed_tokens_fn": allowed}
    out = run(family.model, both, num_beams=2, **given)
    assert out.shape[1] == both["input_ids"].shape[1] + 3
    for ids in of_processor.seen + of_criteria.seen:
        for row, sequence in enumerate(ids):
            assert_runs(sequence, row // (len(ids) // 2))
    for batch_id, sequence in of_prefix:
        assert_runs(sequence, batch_id)
    assert {batch_id for batch_id, _ in of_prefix} == {0, 1}


@of_representatives
def test_processors_and_criteria_see_no_ids_but_those_of_the_callers_prompt(asking: Family) -> None:
    inputs, of_processor, of_criteria = asking.one_video(), Recorder(), Criteria()
    for mode in ({}, {"num_beams": 2}, {"prefill_chunk_size": 16} if CHUNKS_FEATURES else {}):
        run(asking.model, inputs, **hooks(of_processor, of_criteria), **mode)
    for ids in of_processor.seen + of_criteria.seen:
        prompt = ids[0, : of_processor.seen[0].shape[1]]
        assert set(prompt.tolist()) == set(inputs["input_ids"][0].tolist())
        if asking.is_short:  # The model moves placeholders to the budgets of their frames.
            assert torch.equal(prompt.sort().values, inputs["input_ids"][0].sort().values)


LOOKING_BACK = {
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "sequence_bias": {"sequence_bias": [[[7, 8], 2.0]]},
    "bad_words_ids": {"bad_words_ids": [[7, 8]]},
    "min_length": {"max_new_tokens": None, "eos_token_id": 5},
    "min_new_tokens": {"min_new_tokens": 3, "eos_token_id": 5},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (1, 1.5), "eos_token_id": 5},
    "begin_suppress_tokens": {"begin_suppress_tokens": [5]},
    "forced_eos_token_id": {"forced_eos_token_id": 5},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda batch, ids: list(range(256))},
}


@of_representatives
@pytest.mark.parametrize("kind", LOOKING_BACK)
def test_processors_that_generate_makes_see_the_prompt_that_runs(family: Family, kind: str) -> None:
    """So a prompt that the model shortens gives the tokens of one that was written short."""
    settings = dict(LOOKING_BACK[kind])
    outputs = []
    for inputs in (family.one_video(), family.writing_short.one_video()):
        if kind == "min_length":
            length = inputs["input_ids"].shape[1]
            settings |= {"min_length": length + 3, "max_length": length + NEW}
        outputs.append(run(family.model, inputs, **settings)[:, inputs["input_ids"].shape[1] :])
    assert torch.equal(*outputs)


@of_representatives
def test_at_ratio_1_processors_that_read_ids_score_as_the_parents_do(family: Family) -> None:
    inputs, of_scores = family.one_video(), {"return_dict_in_generate": True, "output_scores": True}
    read_ids = ("repetition_penalty", "no_repeat_ngram_size", "encoder_repetition_penalty", "sequence_bias")
    no_placeholder = {"bad_words_ids": [[placeholder_id(family.stock.config)]]}
    for settings in (*(LOOKING_BACK[name] for name in read_ids), no_placeholder):
        ours, theirs = (run(model, inputs, **settings, **of_scores) for model in (family.uncompressing, family.stock))
        assert_same(ours.sequences, theirs.sequences)
        assert_same(ours.scores, theirs.scores)


@of_representatives
def test_assisted_decoding_gives_the_greedy_tokens(family: Family) -> None:
    text = family.stock.config.text_config
    own = ("rope_parameters", "layer_types", "per_layer_config", "head_dim")  # not every language model's are Qwen2's
    config = Qwen2Config(**{k: v for k, v in text.to_dict().items() if k not in own})
    assistant = Qwen2ForCausalLM(config).eval()
    inputs = family.one_video()
    if family.case.recurrent and family.case.name != "lfm3_vl":  # The states of convolutions can be cropped.
        with pytest.raises(ValueError, match="assisted generation is not supported"):
            run(family.model, inputs, assistant_model=assistant)
        return
    greedy = run(family.model, inputs, max_new_tokens=16)
    assert torch.equal(run(family.model, inputs, max_new_tokens=16, assistant_model=assistant), greedy)


@of_representatives
@only(lambda family: not family.recurrent)
@pytest.mark.parametrize("kind", ["text", "image", "one_video"])
def test_a_compressing_assistant_drafts_what_the_stock_class_drafts(family: Family, kind: str) -> None:
    """Transformers lets an assistant draft from the prompt as text, so it has no videos to compress."""
    inputs, stock = make_prompt(family, kind), family.untouched_stock()
    stock.generation_config.num_assistant_tokens = family.model.generation_config.num_assistant_tokens = 3
    mains = [(stock, family.for_stock(inputs)), (family.uncompressing, inputs)]
    if kind != "one_video" or not family.case.mrope:
        mains.append((family.model, inputs))
    for main, given in mains:
        steps = []
        greedy = run(main, given, max_new_tokens=12)
        for assistant in (family.load(), family.case.stock_from(family.folder).eval()):
            with language_model_lengths(main) as lengths:
                assert torch.equal(run(main, given, max_new_tokens=12, assistant_model=assistant), greedy)
            steps.append(lengths)
        assert steps[0] == steps[1]


@of_representatives
@pytest.mark.parametrize("mode", ["repetition_penalty", "no_repeat_ngram"])
def test_penalties_of_a_second_turn_see_the_whole_conversation(family: Family, mode: str) -> None:
    first = family.one_video()
    turn = run(family.model, first, return_dict_in_generate=True)
    ids = torch.cat([turn.sequences, family.inputs(family.prompt("Why?"))["input_ids"]], dim=1)
    whole = run(family.model, {"input_ids": ids} | family.videos_of(first) | typed(family, first, ids), **MODES[mode])
    assert torch.equal(
        run(family.model, {"input_ids": ids}, past_key_values=turn.past_key_values, **MODES[mode]), whole
    )


@of_representatives
def test_a_cache_of_another_batch_or_beside_a_part_of_the_conversation_is_refused(family: Family) -> None:
    turn = run(family.model, family.one_video(), return_dict_in_generate=True)
    ids = torch.cat([turn.sequences, turn.sequences[:, :3]], dim=1)
    with pytest.raises(ValueError, match=r"KV cache.*rows"):
        run(family.model, {"input_ids": ids.expand(2, -1)}, past_key_values=turn.past_key_values)
    with pytest.raises(ValueError, match="whole conversation"):
        run(family.model, {"input_ids": ids[:, :5]}, past_key_values=turn.past_key_values)


def test_a_static_cache_has_room_for_the_compressed_prompt_and_gives_the_logits_of_a_dynamic_one(
    family: Family, short_length: Callable
) -> None:
    """Where the stock class's differ, no default may choose a static cache. tests/test_gemma4.py has the known case."""
    for model, inputs in ((family.stock, family.for_stock(family.one_video())), (family.model, family.one_video())):
        vars(model).pop("_previous_max_cache_length", None)  # a model remembers its longest static cache
        static, dynamic = (answered(model, inputs, cache_implementation=kind) for kind in ("static", None))
        torch.testing.assert_close(static.logits, dynamic.logits, rtol=0, atol=1e-5)
    assert static.past_key_values.get_max_length() == short_length(inputs) + NEW - 1


@of_representatives
@only(lambda family: family.tokens_per_frame < 20)  # so that the cache has room for the whole prompt
def test_a_static_cache_forgets_the_compressed_prompt_when_it_is_reused(family: Family) -> None:
    inputs = family.one_video()
    kwargs = {"cache_implementation": "static", "return_dict_in_generate": True, "max_new_tokens": 100}
    cache = run(family.model, inputs, **kwargs).past_key_values
    cache.reset()
    assert torch.equal(run(family.stock, inputs, past_key_values=cache), run(family.stock, inputs))
    cache.reset()
    turn = run(family.model, inputs, retention_ratio=1.0, past_key_values=cache, return_dict_in_generate=True)
    ids = torch.cat([turn.sequences, turn.sequences[:, :3]], dim=1)
    ours = run(family.model, {"input_ids": ids}, retention_ratio=1.0, past_key_values=turn.past_key_values)
    again = run(family.stock, inputs, return_dict_in_generate=True)
    theirs = run(family.stock, {"input_ids": ids}, past_key_values=again.past_key_values)
    assert torch.equal(ours, theirs)


@of_representatives
def test_features_encoded_beforehand_can_be_passed(family: Family) -> None:
    inputs = family.one_video()
    prompt = {name: value for name, value in inputs.items() if name != "pixel_values_videos"}
    for ratio in (RETENTION_RATIO, 1.0):
        features = family.model.get_video_features(**family.videos_of(inputs), retention_ratio=ratio)
        expected = run(family.model, inputs, num_beams=2, retention_ratio=ratio)
        kept = features.pooler_output
        for _ in range(2):
            assert torch.equal(run(family.model, prompt, mm_encoder_outputs={"video": features}, num_beams=2), expected)
            assert features.pooler_output is kept, "the caller's features were changed"
    stocks = {"mm_encoder_outputs": {"video": family.stock.model.get_video_features(**family.videos_of(inputs))}}
    with pytest.raises(ValueError, match="uncompressed features"):
        run(family.model, prompt, **stocks)
    assert torch.equal(run(family.model, prompt, **stocks, retention_ratio=1.0), run(family.stock, inputs))


@of_representatives
def test_the_callers_features_of_an_image_stay_as_they_are(family: Family) -> None:
    inputs = make_prompt(family, "image")
    features = family.model.model.get_image_features(**family.images_of(inputs), return_dict=True)
    kept = features.pooler_output
    prompt = {name: value for name, value in inputs.items() if name != "pixel_values"}
    expected = run(family.model, inputs, num_beams=2)
    assert torch.equal(run(family.model, prompt, mm_encoder_outputs={"image": features}, num_beams=2), expected)
    assert features.pooler_output is kept


@of_representatives
def test_continuous_batching_is_refused_before_it_begins(family: Family) -> None:
    for call in (family.model.generate_batch, family.model.init_continuous_batching):
        with pytest.raises(ValueError, match="run token ids alone, without videos"):
            call([[20, 30]])


@of_representatives
def test_input_ids_may_be_positional(family: Family) -> None:
    inputs = family.one_video()
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    out = family.model.generate(inputs["input_ids"], max_new_tokens=NEW, do_sample=False, **rest)
    assert torch.equal(out, run(family.model, inputs))


@of_representatives
def test_a_custom_generation_loop_gets_the_prompt_that_runs(family: Family, short_length: Callable) -> None:
    inputs = family.one_video()
    given = []

    def custom(model: Any, input_ids: Tensor, generation_config: Any, **kwargs: Any) -> Any:
        given.append(input_ids)
        return type(model)._sample(model, input_ids, generation_config=generation_config, **kwargs)

    out = run(family.model, inputs, custom_generate=custom, return_dict_in_generate=True, min_new_tokens=NEW)
    assert torch.equal(out.sequences, run(family.model, inputs, min_new_tokens=NEW))
    assert given[0].shape == (1, short_length(inputs))
    assert out.past_key_values.get_seq_length() == short_length(inputs) + NEW - 1


@of_representatives
def test_a_custom_loop_may_call_the_model_itself(family: Family) -> None:
    def custom(model: Any, input_ids: Tensor, generation_config: Any, **kwargs: Any) -> Any:
        names = ("logits_processor", "stopping_criteria", "streamer", "synced_gpus")
        return model(input_ids, **{name: value for name, value in kwargs.items() if name not in names})

    inputs = family.one_video()
    logits = run(family.model, inputs, custom_generate=custom).logits
    torch.testing.assert_close(logits[:, -1], family.model(**inputs).logits[:, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_attention_kernel_and_dtype_generates(
    family: Family, short_length: Callable, attention: str, dtype: torch.dtype
) -> None:
    inputs = family.one_video()
    kwargs = {"attn_implementation": attention, "dtype": dtype}
    stock = family.load_stock(**kwargs)
    model = family.load(retention_ratio=RETENTION_RATIO, **kwargs)
    cast = inputs.to(dtype)
    assert torch.equal(run(model, cast, retention_ratio=1.0), run(stock, cast))
    out = run(model, cast, return_dict_in_generate=True, min_new_tokens=NEW)
    features = model.get_video_features(**family.videos_of(cast))
    assert all(video.dtype == dtype for video in features.pooler_output)
    dropped = family.case.video_tokens(8) - len(features.pooler_output[0])
    assert out.past_key_values.get_seq_length() == inputs["input_ids"].shape[1] - dropped + NEW - 1
    if dtype == torch.float32 and attention == "eager":
        assert torch.equal(out.sequences, run(family.model, inputs, min_new_tokens=NEW))


def skip_without_flash_attention(family: Family) -> None:
    """Skip a test where the package is missing, or where Transformers' own class does not run with it, as those of
    PerceptionLM, Gemma 4 and Molmo2."""
    pytest.importorskip("flash_attn")
    try:
        stock = family.load_stock(attn_implementation="flash_attention_2", dtype=torch.bfloat16).to("cuda")
        run(stock, family.one_video().to("cuda", torch.bfloat16), max_new_tokens=2)
    except (ValueError, RuntimeError, ImportError, NotImplementedError) as error:
        pytest.skip(f"the stock class does not run with FlashAttention-2: {str(error).splitlines()[0]}")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs CUDA")
def test_flash_attention_2_generates_over_a_padded_batch(family: Family) -> None:
    skip_without_flash_attention(family)
    kwargs = {"attn_implementation": "flash_attention_2", "dtype": torch.bfloat16, "device_map": "cuda"}
    model = family.load(retention_ratio=RETENTION_RATIO, **kwargs)
    both, _ = batch_of_two(family)
    assert run(model, both.to("cuda", torch.bfloat16)).shape[0] == 2
