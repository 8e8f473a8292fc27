"""A conversation's state lives with its cache, through other chats, copies and row operations."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Family, by_default, of_representatives, only
from models import RETENTION_RATIO, make_image, make_video, token_types, typed, video_places
from test_generate import NEW, answered, batch_of_two, run
from torch import Tensor
from transformers import DynamicCache, StaticCache

from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES
from vidcom2.modeling.prompt.conversation_cache import using

QUESTION = "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def first_turn(family: Family, kind: str) -> Any:
    if kind == "video":
        return family.one_video()
    if kind == "image":
        return family.inputs(family.prompt("What is it?", images=1), images=[make_image(3)])
    return family.inputs(family.prompt("Hello."))


def after_a_turn(of: Family, inputs: Any, **kwargs: Any) -> tuple[dict[str, Tensor], Any]:
    """Ask, and return the ids of the conversation with a question more, and the cache."""
    turn = run(of.model, inputs, return_dict_in_generate=True, **kwargs)
    ids = torch.cat([turn.sequences, of.inputs(QUESTION)["input_ids"]], dim=1)
    return {"input_ids": ids}, turn.past_key_values


def other_chats(family: Family, model: Any) -> None:
    """Make calls for other users between two turns."""
    run(model, family.inputs(family.prompt("Is it?", images=1), images=[make_image(5)]))
    run(model, family.one_video(seed=5, num_frames=4))
    model(**family.inputs("So?"))


@by_default(lambda family, asking: family.representative or asking == "stock")
@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        ("video", "video", "generate"),
        ("video", "text", "forward"),
        ("image", "video", "forward"),
        ("image", "text", "generate"),
        ("text", "video", "generate"),
    ],
)
def test_interleaved_chats_on_one_model_equal_each_chat_alone(asking: Family, first: str, second: str, by: str) -> None:
    inputs = first_turn(asking, first)
    other = asking.inputs(asking.prompt("And here?", videos=1), videos=[make_video(7)])

    def conversation(between: Callable[[], Any]) -> Tensor:
        model = copy.deepcopy(asking.model)  # a copy that has answered nobody yet
        if by == "generate":
            turn = run(model, inputs, return_dict_in_generate=True)
            said, cache = turn.sequences, turn.past_key_values
        else:
            said, cache = inputs["input_ids"], model(**inputs, use_cache=True).past_key_values
        between(model)
        if second == "text":
            ids = torch.cat([said, asking.inputs(QUESTION)["input_ids"]], dim=1)
            kwargs: dict[str, Any] = {}
        else:
            ids = torch.cat([said, other["input_ids"]], dim=1)
            kwargs = asking.videos_of(other)
        return torch.stack(answered(model, {"input_ids": ids} | kwargs, past_key_values=cache).logits)

    alone = conversation(lambda model: None)
    assert torch.equal(conversation(lambda model: other_chats(asking, model)), alone)


@of_representatives
@pytest.mark.skipif(not CHUNKS_FEATURES, reason="Transformers 5.19 splits no features")
@pytest.mark.parametrize("short", [False, True], ids=["stock prompt", "short prompt"])
def test_a_new_video_on_a_filled_cache_may_be_prefilled_in_chunks(family: Family, short: bool) -> None:
    of = family.writing_short if short else family
    turn = run(family.model, of.one_video(), return_dict_in_generate=True)
    new = of.inputs(of.prompt("And here?", videos=1), videos=[make_video(7)])
    ids = torch.cat([turn.sequences, new["input_ids"]], dim=1)
    inputs = {name: value for name, value in new.items() if name not in ("attention_mask", "mm_token_type_ids")}

    def answer(chunk: int | None) -> Any:
        cache = copy.deepcopy(turn.past_key_values)
        return answered(family.model, inputs | {"input_ids": ids}, past_key_values=cache, prefill_chunk_size=chunk)

    whole, chunks = answer(None), answer(16)
    assert torch.equal(chunks.sequences, whole.sequences)
    torch.testing.assert_close(torch.stack(chunks.logits), torch.stack(whole.logits), rtol=0, atol=1e-5)


@only(lambda family: family.mrope)
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
@pytest.mark.parametrize("by", ["a second turn", "a hand-written loop"])
def test_positions_after_a_long_video_of_small_frames_equal_a_run_from_scratch(
    family: Family, by: str, ratio: float
) -> None:
    """With 64 frames of few tokens, M-RoPE's largest position is the video's last frame, not the text's last token.
    With all tokens, the stock class runs the whole conversation in one go."""
    inputs = family.one_video("?", num_frames=64)
    second, turn_cache = after_a_turn(family, inputs, retention_ratio=ratio)
    ids = second["input_ids"]
    whole = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **family.videos_of(inputs)}
    whole["mm_token_type_ids"] = token_types(family.model.config, ids)
    from_scratch = (family.stock if ratio == 1.0 else family.model)(**whole).logits[:, -1]
    if by == "a second turn":
        continued = answered(family.model, second, past_key_values=turn_cache).logits[0]
    else:
        prompt = inputs["input_ids"].shape[1]
        cache = family.model(**inputs, retention_ratio=ratio, use_cache=True).past_key_values
        for i in range(prompt, ids.shape[1]):
            continued = family.model(input_ids=ids[:, i : i + 1], past_key_values=cache).logits[:, -1]
    torch.testing.assert_close(continued, from_scratch, rtol=0, atol=1e-5)


# How the rows of a cache of two prompts are changed, and which prompts its rows belong to then.
CHANGES: dict[str, tuple[str, Any, list[int]]] = {
    "reordered": ("reorder_cache", torch.tensor([1, 0, 1]), [1, 0, 1]),
    "selected": ("batch_select_indices", torch.tensor([1]), [1]),
    "repeated": ("batch_repeat_interleave", 2, [0, 0, 1, 1]),
}


# What is padding in a short prompt, only its mask tells, as with the stock class.
@of_representatives
@only(
    lambda family, change, asking, masked: (
        (not family.recurrent or change == "reordered") and (asking == "stock" or masked)
    )
)
@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_caches_memory_of_the_prompt_follows_its_rows(asking: Family, change: str, masked: bool) -> None:
    inputs, tokens = batch_of_two(asking)[0], torch.tensor([[20], [30]])
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], dim=1)
    cache = asking.model(**inputs, use_cache=True).past_key_values
    unchanged = copy.deepcopy(cache)
    method, argument, rows = CHANGES[change]
    getattr(cache, method)(argument)
    kwargs = {"attention_mask": mask[rows]} if masked else {}
    logits = asking.model(input_ids=tokens[rows], past_key_values=cache, **kwargs).logits
    expected = asking.model(input_ids=tokens, past_key_values=unchanged, attention_mask=mask).logits
    torch.testing.assert_close(logits, expected[rows], rtol=0, atol=1e-5)


@of_representatives
@only(lambda family: not family.recurrent)
def test_a_cache_cropped_into_the_prompt_is_refused_by_forward_and_generate(family: Family) -> None:
    inputs, token = family.one_video(), torch.tensor([[20]])
    cache = family.model(**inputs, use_cache=True).past_key_values
    cache.crop(10 - cache.get_seq_length())
    refused = pytest.raises(ValueError, match="cropped to 10 tokens, into a prompt")
    with refused:
        family.model(input_ids=token, past_key_values=cache)
    with refused:
        run(family.model, {"input_ids": torch.cat([inputs["input_ids"], token], dim=1)}, past_key_values=cache)
    with using(cache):  # Other tokens in place of the cropped ones do not make it whole.
        family.model.get_decoder()(token.expand(-1, 300), past_key_values=cache)
    with refused:
        family.model(input_ids=token, past_key_values=cache)


@of_representatives
@only(lambda family: not family.recurrent)
def test_an_answer_may_be_cropped_from_the_cache(asking: Family) -> None:
    inputs = asking.one_video()
    turn = run(asking.model, inputs, return_dict_in_generate=True)
    cache = turn.past_key_values
    cache.crop(-(NEW - 1))
    ids = torch.cat([inputs["input_ids"], asking.inputs(QUESTION)["input_ids"]], dim=1)
    again = run(asking.model, {"input_ids": ids}, past_key_values=cache)
    assert torch.equal(again, run(asking.model, {"input_ids": ids} | asking.videos_of(inputs)))


@of_representatives
@only(lambda family: family.mrope)  # the others have no token types
def test_token_types_left_over_from_an_earlier_turn_do_no_harm(family: Family) -> None:
    inputs = family.one_video()
    second, cache = after_a_turn(family, inputs)
    expected = run(family.model, second, past_key_values=copy.deepcopy(cache))
    stale = {name: inputs[name] for name in ("mm_token_type_ids", *family.case.video_inputs[1:]) if name in inputs}
    assert torch.equal(run(family.model, second | stale, past_key_values=cache), expected)


@only(lambda family: family.native)
@of_representatives
def test_the_stock_class_cannot_continue_a_cache_that_ours_filled(family: Family) -> None:
    inputs = family.one_video()
    second, cache = after_a_turn(family, inputs)
    length, intact = cache.get_seq_length(), copy.deepcopy(cache)
    for call in (
        lambda: run(family.stock, second, past_key_values=cache),
        lambda: family.stock(second["input_ids"][:, -1:], past_key_values=cache),
    ):
        with pytest.raises(ValueError, match="another model does not know"):
            call()
    assert cache.get_seq_length() == length, "the refused call changed the cache"
    step = {"input_ids": torch.tensor([[20]])}
    expected = family.model(**step, past_key_values=intact).logits
    assert torch.equal(family.model(**step, past_key_values=copy.deepcopy(cache)).logits, expected)
    continued = run(family.model, second, past_key_values=cache)
    assert torch.equal(continued, run(family.model, second | family.videos_of(inputs)))


# Images of two sizes in one call are taken only by M-RoPE families.
@only(
    lambda family, turns: (
        (turns != "image image" or family.mrope)
        and (not family.adds_features or turns.startswith("text"))  # media would attend to those of later turns
        and not (family.one_kind_a_call and turns in ("image video", "video image"))
    )
)
@torch.no_grad()
@pytest.mark.parametrize("by", ["generate", "forward"])
@pytest.mark.parametrize(
    ("turns", "ratio"),
    [
        ("text video", RETENTION_RATIO),
        ("text image", RETENTION_RATIO),
        ("image image", RETENTION_RATIO),
        ("image video", RETENTION_RATIO),
        ("image video", 1.0),
        ("video image", RETENTION_RATIO),
        ("video image", 1.0),
        ("video video", RETENTION_RATIO),
        ("video video", 1.0),
    ],
)
def test_media_after_any_turn_equal_a_run_from_scratch(family: Family, turns: str, ratio: float, by: str) -> None:
    """In Qwen2-VL's stock class they do not: a second turn's images and videos get positions of text."""
    first, second = turns.split()
    one, other = first_turn(family, first), first_turn(family, second)
    ids = torch.cat([one["input_ids"], other["input_ids"]], dim=1)
    media_of = {"video": family.videos_of, "image": family.images_of, "text": lambda inputs: {}}
    whole = dict(media_of[first](one))
    for name, new in media_of[second](other).items():
        whole[name] = torch.cat([whole[name], new]) if name in whole else new
    if family.case.mrope or family.case.frames_are_images:
        whole["mm_token_type_ids"] = token_types(family.model.config, ids)
    from_scratch = family.model(input_ids=ids, **whole, retention_ratio=ratio).logits[:, -1]
    cache = family.model(**one, use_cache=True, retention_ratio=ratio).past_key_values
    new = media_of[second](other) | {"past_key_values": cache, "retention_ratio": ratio}
    if by == "forward":
        logits = family.model(input_ids=other["input_ids"], **new).logits[:, -1]
    else:
        logits = answered(family.model, {"input_ids": ids} | new).logits[0]
    torch.testing.assert_close(logits, from_scratch, rtol=0, atol=1e-5)


@of_representatives
@torch.no_grad()
def test_padding_stays_masked_when_a_loop_passes_positions(family: Family) -> None:
    both, _ = batch_of_two(family)
    cache = family.model(**both, use_cache=True).past_key_values
    known = cache.conversation
    assert (known.order < 0).any()
    tokens = torch.tensor([[20], [30]])
    expected = family.model(input_ids=tokens, past_key_values=copy.deepcopy(cache)).logits
    position_ids = (known.order >= 0).sum(dim=1, keepdim=True)
    if family.case.mrope:
        position_ids = torch.stack([position_ids, *[position_ids + known.offset] * 3])
    logits = family.model(input_ids=tokens, past_key_values=cache, position_ids=position_ids).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


@of_representatives
@pytest.mark.parametrize("name", ["prompt_lookup_num_tokens", "assistant_model"])
def test_speculation_on_a_filled_cache_is_refused(family: Family, name: str) -> None:
    """Transformers would feed the prompt twice."""
    value = 3 if name == "prompt_lookup_num_tokens" else family.stock
    for kind in ("text", "video"):
        second, cache = after_a_turn(family, first_turn(family, kind))
        with pytest.raises(ValueError, match=f"`{name}` cannot continue a filled"):
            run(family.model, second, past_key_values=cache, **{name: value})


@of_representatives
@only(lambda family: not family.recurrent)
@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences"])
def test_beams_continue_a_cache_whose_rows_were_repeated(family: Family, name: str) -> None:
    inputs = family.one_video()
    second, cache = after_a_turn(family, inputs)
    second_of_short, cache_of_short = after_a_turn(family.writing_short, family.writing_short.one_video())
    kwargs = {name: 3, "do_sample": name != "num_beams"}
    for given, filled in ((second, cache), (second_of_short, cache_of_short)):
        with pytest.raises(ValueError, match=f"`{name}`.* is 3, but the KV cache has one row"):
            run(family.model, given, past_key_values=filled, **kwargs)
    cache.batch_repeat_interleave(3)
    torch.manual_seed(1)
    continued = run(family.model, second, past_key_values=cache, **kwargs)
    torch.manual_seed(1)
    whole = second | family.videos_of(inputs) | typed(family, inputs, second["input_ids"])
    assert torch.equal(continued, run(family.model, whole, **kwargs))


@by_default(lambda family, asking: family.representative or asking == "stock")
@only(lambda family: not (family.recurrent or family.adds_features))  # media would attend to those of later turns
@torch.no_grad()
@pytest.mark.parametrize("turns", ["image image", "image video", "video image", "video video"])
def test_beams_of_a_later_turn_see_the_media_of_their_own_chat(asking: Family, turns: str) -> None:
    """Both chats look alike by their ids, and so does one of them by itself."""
    kinds, question, scored = turns.split(), asking.inputs(QUESTION)["input_ids"], ("sequences", "sequences_scores")
    kwargs = {"num_beams": 3, "num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True}

    def asked_by(chats: list[int], turn: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the inputs of a turn of these chats, and its media."""
        kind, seeds = kinds[turn], [10 * turn + chat for chat in chats]
        prompt = asking.prompt("What is it?", **{f"{kind}s": 1})
        make = make_video if kind == "video" else make_image
        inputs = asking.inputs(*[prompt] * len(chats), **{f"{kind}s": [make(seed) for seed in seeds]})
        return dict(inputs), (asking.videos_of if kind == "video" else asking.images_of)(inputs)

    for chats in ([0, 1], [1]):
        one, _ = asked_by(chats, 0)
        two, new = asked_by(chats, 1)
        ids = torch.cat([one["input_ids"], question.expand(len(chats), -1), two["input_ids"]], dim=1)
        whole: dict[str, Tensor] = {}
        for chat in chats:
            for turn in (0, 1):
                for name, value in asked_by([chat], turn)[1].items():
                    whole[name] = torch.cat([whole[name], value]) if name in whole else value
        if asking.case.frames_are_images and asking.is_short:
            of_text = torch.zeros_like(question).expand(len(chats), -1)
            whole["mm_token_type_ids"] = torch.cat([one["mm_token_type_ids"], of_text, two["mm_token_type_ids"]], dim=1)
        elif asking.case.mrope or asking.case.frames_are_images:
            whole["mm_token_type_ids"] = token_types(asking.model.config, ids)
        cache = asking.model(**one, use_cache=True).past_key_values
        cache.batch_repeat_interleave(3)
        continued = run(asking.model, {"input_ids": ids} | new, past_key_values=cache, **kwargs)
        expected = run(asking.model, {"input_ids": ids} | whole, **kwargs)
        for name in scored:
            torch.testing.assert_close(continued[name], expected[name], rtol=0, atol=1e-5)


@of_representatives
@only(lambda family: family.mrope)
def test_a_prompt_that_ends_in_a_video_is_refused_where_positions_would_be_wrong(family: Family) -> None:
    inputs = family.one_video()
    is_video = video_places(family.model.config, inputs["input_ids"][0])
    ids = inputs["input_ids"][:, : int(is_video.nonzero()[-1]) + 1]
    with pytest.raises(ValueError, match="End the prompt with text"):
        run(family.model, {"input_ids": ids} | family.videos_of(inputs))


LONG = "Tell me all that you know of it, and leave nothing out. " * 3
# What each row of a batch asks in each turn. The first row's first turn is longer than the other row's whole video.
BATCHES = {
    "long text": [[("text", LONG), ("video", "What?")], [("text", "Why?")] * 2, [("text", "And?")] * 2],
    "long image": [[("image", LONG), ("video", "What?")], [("text", "Why?")] * 2, [("video", "And here?")] * 2],
    "video later": [
        [("text", LONG), ("video", "What?"), ("text", "?")],
        [("text", "Why?"), ("text", "Where is it?"), ("video", "And here?")],
        [("text", "And?")] * 3,
        [("video", "So?"), ("text", "So, then, is it?"), ("text", "No?")],
    ],
}


def asked(family: Family, row: int, turn: int, kind: str, question: str) -> tuple[str, dict[str, list]]:
    """Return the text of a row's turn, and its media."""
    prompt = family.prompt(question, videos=int(kind == "video"), images=int(kind == "image"))
    seed = 10 * turn + row
    return prompt, {
        "videos": [make_video(seed)] if kind == "video" else [],
        "images": [make_image(seed)] if kind == "image" else [],
    }


def conversation_of(
    family: Family, rows: list[int], turns: list, answers: list[Tensor], by: str, ratio: float
) -> list[Tensor]:
    """Return the logits (rows, vocabulary) after each turn of a conversation whose answers are given.

    Args:
        answers: for each turn, the tokens (all rows, n) of the answer.
        by: "generate" or "loop".
    """
    said = torch.empty(len(rows), 0, dtype=torch.long)
    mask, cache, result = said, None, []
    for number, turn in enumerate(turns):
        texts, media = zip(*(asked(family, row, number, *turn[row]) for row in rows))
        pixels = {kind: [each for of_row in media for each in of_row[kind]] for kind in ("videos", "images")}
        new = family.inputs(*texts, **pixels)
        if "mm_token_type_ids" in new and not family.case.frames_are_images:  # There, ids alone do not tell.
            del new["mm_token_type_ids"]
        start = mask.shape[1] - (0 if cache is None else answers[number][rows].shape[1])
        said = torch.cat([said, new.pop("input_ids")], dim=1)
        new_mask = new.pop("attention_mask")
        mask = torch.cat([mask, new_mask], dim=1)
        if by == "generate":
            given = {"input_ids": said, "attention_mask": mask, "past_key_values": cache} | dict(new)
            out = answered(family.model, given, max_new_tokens=1, retention_ratio=ratio)
            result.append(out.logits[0])
        else:
            given = {"input_ids": said[:, start:], "attention_mask": mask, "past_key_values": cache} | dict(new)
            out = family.model(**given, use_cache=True, retention_ratio=ratio)
            result.append(out.logits[:, -1])
        cache = out.past_key_values
        said = torch.cat([said, answers[number][rows]], dim=1)
        mask = torch.cat([mask, torch.ones_like(answers[number][rows])], dim=1)
    return result


# Short prompts are written for one ratio. In a loop, the stock class counts the padding between their turns.
@by_default(lambda family, asking: family.representative or asking == "stock")
@only(
    lambda family, asking, by, ratio: (
        not family.recurrent and (asking == "stock" or (by == "generate" and ratio == RETENTION_RATIO))
    )
)
@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "by", "ratio"),
    [
        ("long text", "generate", RETENTION_RATIO),
        ("long image", "generate", RETENTION_RATIO),
        ("video later", "generate", RETENTION_RATIO),
        ("video later", "generate", 1.0),
        ("long image", "loop", RETENTION_RATIO),
        ("video later", "loop", RETENTION_RATIO),
    ],
)
def test_a_batch_whose_longest_prompt_is_not_shortened_continues_as_each_row_alone(
    asking: Family, kind: str, by: str, ratio: float
) -> None:
    """Such a compressed batch is as long as the caller's, so a mask's width does not tell what it covers."""
    turns = BATCHES[kind]
    rows = list(range(len(turns[0])))
    answers = [torch.randint(20, 100, (len(rows), 3)) for _ in turns]
    together = conversation_of(asking, rows, turns, answers, by, ratio)
    for row in rows:
        alone = conversation_of(asking, [row], turns, answers, by, ratio)
        for ours, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[row], expected[0], rtol=0, atol=1e-5)


def rebuilt(cache: Any) -> DynamicCache:
    """Rebuild a cache from its keys and values, as if it had been stored or moved to another process."""
    filled = [layer for layer in cache.layers if layer.keys is not None]  # Later layers of Gemma 4 have no own ones.
    return DynamicCache(ddp_cache_data=[(layer.keys.clone(), layer.values.clone()) for layer in filled])


@of_representatives
@only(lambda family: not family.recurrent)
@pytest.mark.parametrize("ratio", [RETENTION_RATIO, 1.0])
def test_a_cache_that_was_rebuilt_is_refused_where_its_tokens_cannot_be_known(family: Family, ratio: float) -> None:
    inputs = family.one_video()
    second, filled = after_a_turn(family, inputs, retention_ratio=ratio)
    expected = run(family.model, second, past_key_values=copy.deepcopy(filled), retention_ratio=ratio)
    stored = pickle.loads(pickle.dumps(filled))
    assert torch.equal(run(family.model, second, past_key_values=stored, retention_ratio=ratio), expected)
    cache = rebuilt(filled)
    with pytest.raises(ValueError, match="or it was rebuilt from keys and values"):
        run(family.model, second, past_key_values=copy.deepcopy(cache))
    if ratio == 1.0 and not family.case.mrope:
        assert torch.equal(run(family.model, second, past_key_values=cache, retention_ratio=ratio), expected)


@torch.no_grad()
@of_representatives
@only(lambda family: not (family.mrope or family.recurrent))
def test_a_loop_at_original_positions_refuses_a_cache_that_was_rebuilt(family: Family) -> None:
    """It cannot tell where the positions of the kept tokens end. A chat of text alone goes on."""
    model, step = family.load(compression_positions="original"), {"input_ids": torch.tensor([[7]])}
    for inputs in (family.one_video(), family.inputs(QUESTION)):
        cache = model(**inputs, use_cache=True).past_key_values
        model(**step, past_key_values=copy.deepcopy(cache))
        with pytest.raises(ValueError, match="or it was rebuilt from keys and values"):
            model(**step, past_key_values=rebuilt(cache))


@torch.no_grad()
@of_representatives
@only(lambda family: not family.recurrent)
@pytest.mark.parametrize("kind", ["short", "stock"])
def test_a_turn_with_a_video_can_be_undone_but_not_halved(family: Family, kind: str) -> None:
    asking = family.writing_short if kind == "short" else family
    turn = run(family.model, family.inputs(QUESTION), return_dict_in_generate=True)
    cache = turn.past_key_values
    length = cache.get_seq_length()
    video = dict(asking.one_video())
    video["input_ids"] = torch.cat([turn.sequences, video["input_ids"]], dim=1)
    video["attention_mask"] = torch.ones_like(video["input_ids"])
    run(asking.model, video, past_key_values=cache, compression_positions="original")
    halved = copy.deepcopy(cache)
    halved.crop(length + 12 - halved.get_seq_length())
    second = {"input_ids": torch.cat([turn.sequences, family.inputs("And then?")["input_ids"]], dim=1)}
    with pytest.raises(ValueError, match=f"was cropped to {length + 12} tokens, into a prompt"):
        run(family.model, second, past_key_values=halved)
    cache.crop(length - cache.get_seq_length())
    assert torch.equal(run(family.model, second, past_key_values=cache), run(family.model, second))


@torch.no_grad()
@only(lambda family: family.frames_stand_apart and not family.recurrent)
def test_text_that_is_hidden_between_frames_stays_hidden_in_later_steps(family: Family) -> None:
    """The model moves it, with the placeholders around it, to the budgets of the frames."""
    short = family.writing_short
    inputs, step = dict(short.one_video()), torch.tensor([[7]])
    places = video_places(short.model.config, inputs["input_ids"][0]).nonzero().flatten()
    gap = int(places[int((places.diff() > 1).nonzero()[-1])]) + 1
    inputs["attention_mask"][0, gap] = 0
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1)
    cache = short.model(**inputs, use_cache=True).past_key_values
    stepped = short.model(input_ids=step, attention_mask=mask, past_key_values=cache).logits[:, -1]
    whole = inputs | {"input_ids": torch.cat([inputs["input_ids"], step], dim=1), "attention_mask": mask}
    if "mm_token_type_ids" in whole:
        whole["mm_token_type_ids"] = torch.nn.functional.pad(whole["mm_token_type_ids"], (0, 1))
    torch.testing.assert_close(stepped, short.model(**whole).logits[:, -1], rtol=0, atol=1e-5)


@torch.no_grad()
@of_representatives
@only(lambda family: not family.recurrent)  # linear attention takes no such mask
def test_a_custom_mask_of_a_turn_is_kept_on_a_cache_whose_prompt_was_shortened(family: Family) -> None:
    cache = family.model(**family.one_video(), use_cache=True).past_key_values
    length, lowest = cache.get_seq_length(), torch.finfo(torch.float32).min
    seeing = torch.zeros(1, 1, 3, length + 3)
    seeing[..., length:] = torch.full((3, 3), lowest).triu(1)
    blind = seeing.clone()
    blind[..., :length] = lowest
    turn, caches = {"input_ids": torch.tensor([[5, 6, 7]])}, (cache, copy.deepcopy(cache))
    one, other = (
        family.model(**turn, attention_mask=mask, past_key_values=each).logits
        for mask, each in zip((seeing, blind), caches, strict=True)
    )
    assert (one - other).abs().max() > 1e-3


@torch.no_grad()
@of_representatives
@only(lambda family: not (family.mrope or family.recurrent or family.adds_features))
def test_an_image_on_a_static_cache_takes_a_mask_as_long_as_the_cache(family: Family) -> None:
    inputs, text = first_turn(family, "image"), torch.tensor([[5, 6, 7]])
    inputs.pop("attention_mask")
    most = 3 + inputs["input_ids"].shape[1] + 5
    caches = [StaticCache(config=family.model.config.get_text_config(), max_cache_len=most) for _ in range(2)]
    for model, cache in zip((family.model, family.stock), caches, strict=True):
        model(input_ids=text, past_key_values=cache)
    mask = torch.ones(1, most, dtype=torch.int64)
    ours = family.model(**inputs, attention_mask=mask, past_key_values=caches[0]).logits
    theirs = family.stock(**inputs, attention_mask=mask, past_key_values=caches[1]).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
