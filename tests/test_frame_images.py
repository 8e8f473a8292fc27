"""Tests of the families whose processors pass the frames of videos as images."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import Family, only
from models import RETENTION_RATIO, make_image, make_video
from reference import compressed_embeddings
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoProcessor, BatchFeature, DynamicCache, PreTrainedTokenizerFast
from videos_as_images import as_pixels

import vidcom2
from vidcom2 import VidCom2InternVLConfig
from vidcom2.configuration import configuration_vidcom2_smolvlm as of_smolvlm
from vidcom2.configuration.compression_settings import NUM_KEPT
from vidcom2.loading.processors import shorten
from vidcom2.modeling.families.frame_images import FrameImagesModelMixin
from vidcom2.modeling.prompt.processing_short_prompts import VidCom2ProcessorMixin

pytestmark = only(lambda family: family.frames_are_images)

INTERNVL_NAMES = ("start_image_token", "end_image_token", "context_image_token")  # of the tokenizer's fields
IMAGE, VIDEO = "<image>", "<video>"
SMALL, LARGE = make_image(0)[:, :64, :64], make_image(1)[:, :40]  # InternVL: one tile, and two with a thumbnail
GREEDY: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
FIRST = {"internvl": "Frame1: ", "smolvlm": "\nFrame from 00:07:"}  # what stands before a frame


@pytest.fixture(params=["image between videos", "videos of two prompts", "numbered images"])
def prompts(request: pytest.FixtureRequest, family: Family) -> tuple[list[str], dict[str, Any]]:
    """Return prompts in which frames and images stand in turn, and the media in their order."""
    videos = [make_video(0, num_frames=12), make_video(1, num_frames=12)]
    return {
        "image between videos": ([f"{VIDEO}\n{IMAGE}\n {VIDEO}?"], {"videos": videos, "images": [LARGE]}),
        "videos of two prompts": (
            [f"{IMAGE}\n{VIDEO}?", f"(See {VIDEO}) What?"],
            {"videos": videos, "images": [SMALL]},
        ),
        # An image in several tiles and one under another word are none, whatever their numbers.
        "numbered images": (
            [f"{FIRST[family.case.name]}{IMAGE}\nImage2: {IMAGE}\n{VIDEO}\n"],
            {"videos": videos[:1], "images": [LARGE, SMALL]},
        ),
    }[request.param]


def as_processed(family: Family, prompts: tuple[list[str], dict[str, Any]]) -> BatchFeature:
    texts, media = prompts
    return family.processed([text.replace(IMAGE, family.processor.image_token) for text in texts], media)


def test_frames_among_images_are_refused_with_the_remedy(family: Family, prompts: Any) -> None:
    inputs = as_processed(family, prompts)
    for call in (family.model, family.model.model, family.model.generate):
        with pytest.raises(ValueError, match=r"frames of a video.*apply\(model, processor=processor\).*_ratio=1.0"):
            call(**inputs)
    with pytest.raises(ValueError, match="frames of a video"):
        family.uncompressing.generate(**inputs, retention_ratio=0.5)


def test_images_in_several_tiles_or_under_other_words_are_no_frames(family: Family) -> None:
    """Whatever their numbers. They run as in the stock class."""
    text = f"{FIRST[family.case.name]}{IMAGE}\nImage2: {IMAGE}\nFrame 3:\n{IMAGE}\n"
    inputs = as_processed(family, ([text], {"images": [LARGE, SMALL, SMALL]}))
    assert torch.equal(family.model(**inputs).logits, family.untouched_stock()(**inputs).logits)


@pytest.mark.parametrize("rounding", ["exact", "ceil"])
def test_prompts_with_all_tokens_by_this_projects_processor_are_shortened(family: Family, rounding: str) -> None:
    """So methods and roundings whose number of tokens depends on what a video shows have a way."""
    # Unlike SmolVLM's stock processor, it keeps the pixels of images beside videos.
    short = replace(family.writing_short, case=replace(family.case, takes_one_kind=False))
    prompt = family.prompt("What?", videos=1, images=1)
    media: dict[str, Any] = {"videos": [make_video(0)], "images": [SMALL]}
    inputs = short.processed([prompt], media, retention_ratio=1.0)
    assert inputs.pop("num_kept_video_tokens").tolist() == [72]
    answer = family.model.generate(**inputs, compression_rounding=rounding, **GREEDY)
    of_text = family.inputs(prompt, **media)
    assert torch.equal(inputs["mm_token_type_ids"], of_text["mm_token_type_ids"])
    assert torch.equal(answer, family.model.generate(**of_text, compression_rounding=rounding, **GREEDY))
    if rounding == "exact":
        embeddings, _ = compressed_embeddings(family, of_text, RETENTION_RATIO)
        expected = family.stock(inputs_embeds=embeddings).logits[:, -1]
        torch.testing.assert_close(family.model(**inputs).logits[:, -1], expected, rtol=0, atol=1e-5)


def test_where_only_the_model_can_say_how_many_stay_load_gives_a_processor_that_writes_all(
    family: Family, tmp_path: Path
) -> None:
    """A saved one, too. The stock processor, which other families get, would write prompts that are refused."""

    def ask(model: Any, processor: Any) -> tuple[torch.Tensor, int]:
        inputs = processor(text=[family.prompt("What?", videos=1)], videos=[[make_video(0)]], return_tensors="pt")
        assert NUM_KEPT not in inputs
        out = model.generate(**inputs, **GREEDY, return_dict_in_generate=True)
        return out.sequences, out.past_key_values.get_seq_length() - inputs["input_ids"].shape[1]

    def load(folder: Path, **settings: Any) -> Any:
        return vidcom2.load(str(folder), device="cpu", **settings)

    model, processor = load(family.folder, compression_rounding="ceil", retention_ratio=0.3)
    whole = family.one_video("What?")
    answer, longer = ask(model, processor)
    assert torch.equal(answer, model.generate(**whole, **GREEDY))
    kept = model.get_video_features(**family.videos_of(whole)).video_compressions[0]
    assert longer == len(kept.indices) - kept.num_placeholders + GREEDY["max_new_tokens"] - 1
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    saved = AutoProcessor.from_pretrained(tmp_path, trust_remote_code=True)
    for again in (saved, load(tmp_path)[1]):
        assert torch.equal(ask(model, again)[0], answer)
    with pytest.raises(ValueError, match="`retention_ratio` is passed to a processor that writes all placeholders"):
        saved(text=[family.prompt("What?", videos=1)], videos=[[make_video(0)]], retention_ratio=0.1)
    assert not load(tmp_path, compression_rounding="exact")[1].writes_all


def test_a_processor_of_an_older_repo_that_cannot_write_all_becomes_this_packages(family: Family) -> None:
    processor = copy.copy(family.processor)
    stock = type(processor)
    older = type("VidCom2ProcessorMixin", (), {"stock_class": classmethod(lambda cls: stock)})
    config = family.case.config_class(compression_rounding="ceil")
    processor.__class__ = type(family.case.family.processor_class.__name__, (older, stock), {})
    theirs = copy.copy(processor)
    theirs.__class__ = type("Theirs", (type(processor),), {})
    shorten(processor, config)
    assert isinstance(processor, VidCom2ProcessorMixin) and processor.writes_all
    shorten(theirs, config)
    assert type(theirs).__name__ == "Theirs"  # whose methods would be lost


def test_beams_of_prompts_that_all_have_images_equal_those_of_each_alone(family: Family) -> None:
    """`generate` repeats features for beams prompt by prompt, so it must know whose they are."""
    texts = [f"{IMAGE}\n{VIDEO}\nWhat?", f"{IMAGE}\n{VIDEO}\nWhy?"]
    videos, images = [make_video(0), make_video(1)], [SMALL, make_image(2)[:, :64, :64]]
    beams = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 1, "do_sample": False}

    def first_scores(some: slice) -> torch.Tensor:
        prompts = [text.replace(IMAGE, family.processor.image_token) for text in texts[some]]
        inputs = family.inputs(*prompts, videos=videos[some], images=images[some])
        return family.model.generate(**inputs, **beams, output_scores=True, return_dict_in_generate=True).scores[0]

    alone = torch.cat([first_scores(slice(0, 1)), first_scores(slice(1, 2))])
    torch.testing.assert_close(first_scores(slice(0, 2)), alone, rtol=0, atol=1e-5)


def test_at_ratio_1_the_processors_outputs_are_the_parents_bit_for_bit(family: Family, prompts: Any) -> None:
    inputs = as_processed(family, prompts)
    ours, theirs = family.model(**inputs, retention_ratio=1.0), family.stock(**inputs)
    assert torch.equal(ours.logits, theirs.logits)
    given = (each.image_hidden_states for each in (ours, theirs))
    of_images = (getattr(each, "pooler_output", each) for each in given)
    assert all(map(torch.equal, *of_images))
    settings: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "output_logits": True}
    settings["return_dict_in_generate"] = True
    ours, theirs = (
        model.generate(**inputs, **settings, **ratio)
        for model, ratio in ((family.model, {"retention_ratio": 1.0}), (family.stock, {}))
    )
    assert all(map(torch.equal, ours.logits, theirs.logits))


def test_at_ratio_1_a_conversation_with_the_processors_outputs_is_the_parents(family: Family) -> None:
    """The whole conversation is passed, with the pixels of the new turn alone."""
    first = as_processed(family, ([f"{VIDEO}\nWhat?"], {"videos": [make_video(0)]}))
    second = as_processed(family, ([f"{IMAGE}\n{VIDEO}\nAnd?"], {"videos": [make_video(1)], "images": [SMALL]}))

    def answers(model: Any, **ratio: float) -> torch.Tensor:
        settings = GREEDY | ratio | {"return_dict_in_generate": True}
        out = model.generate(**first, **settings)
        conversation = torch.cat([out.sequences, second["input_ids"]], dim=1)
        turn = {"pixel_values": second["pixel_values"], "past_key_values": out.past_key_values}
        return model.generate(conversation, **turn, **settings).sequences

    assert torch.equal(answers(family.model, retention_ratio=1.0), answers(family.untouched_stock()))


# -- the text before frames ------------------------------------------------------------------------------------------

IMG, END, CONTEXT, LINE, WORD, SPACED, COLON, SPACE = 151665, 151666, 151667, 198, 4369, 16321, 25, 220


def frame(number: int, word: int = WORD, tokens: int = 256) -> list[int]:
    digits = [15 + int(digit) for digit in str(number)]  # "0" has the id 15
    return [word, *digits, COLON, SPACE, IMG, *[CONTEXT] * tokens, END]


def joined(*parts: list[int]) -> list[int]:
    return [token for part in parts for token in [*part, LINE]][:-1]


def shows_frames(config: Any, ids: list[int]) -> bool:
    return FrameImagesModelMixin._shows_frames(cast(Any, SimpleNamespace(config=config)), ids)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (joined(*(frame(number) for number in range(1, 13))), True),
        (joined(frame(1)), True),
        (joined(frame(1, SPACED)), True),
        (joined(frame(1, word=7), frame(2)), True),  # the word is part of a longer token, as in "(Frame"
        (joined(frame(1, tokens=512), frame(2)), True),
        (joined(frame(1, word=7), frame(2, word=7)), False),  # "Image1: " and "Image2: "
        (joined(frame(7)), False),
        (joined(frame(1, tokens=512)), False),  # an image in two tiles
        ([CONTEXT] * 4, False),
        ([], False),
    ],
)
def test_frames_are_found_in_qwens_vocabulary(ids: list[int], expected: bool) -> None:
    config = VidCom2InternVLConfig(image_token_id=CONTEXT)
    assert (config.tokens_per_tile, shows_frames(config, ids)) == (256, expected)


FAKE, GLOBAL, ROW, IMG49190 = 49189, 49152, 49153, 49190
FRAME_FROM, AT = [198, 9967, 429, 216], 42  # "\nFrame from " and ":" in SmolLM2's vocabulary


def timed(time: str, opening: int = GLOBAL, line: list[int] = FRAME_FROM) -> list[int]:
    return [*line, *(32 + int(each) if each != ":" else AT for each in time), FAKE, opening, *[IMG49190] * 4, FAKE]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([timed("00:00:"), timed("00:01:"), timed("100:59:")], True),
        ([[30, 198], timed("00:00:")], True),
        ([timed("00:00:", ROW), timed("00:00:")], True),
        ([timed("00:00:", ROW)], False),  # a tile of an image that is in several
        ([timed("00:00:", line=[9967, 429, 216])], False),  # not at the beginning of a line
        ([timed("")], False),  # no time
        ([[198, 9967, 429, 260, FAKE, GLOBAL, *[IMG49190] * 4, FAKE]], False),  # "Frame from the"
        ([], False),
    ],
)
def test_frames_are_found_in_smollm2s_vocabulary(parts: list[list[int]], expected: bool) -> None:
    config = vidcom2.VidCom2SmolVLMConfig(image_token_id=IMG49190)
    assert shows_frames(config, [token for part in parts for token in part]) is expected


def test_marks_are_known_where_a_tokenizer_joins_lines_and_digits() -> None:
    """As Llama 3's would."""
    pieces = ["Frame", " from", " ", *"0123456789:.", *(f"{n:02}" for n in range(100)), "\n", "\n\n", " video", "."]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+|\d{1,2}| ?[A-Za-z]+|."), "isolated")
    tokenizer.add_special_tokens([of_smolvlm.AROUND, of_smolvlm.OPENING, "<image>"])
    joining = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    config = vidcom2.VidCom2SmolVLMConfig(image_token_id=joining.convert_tokens_to_ids("<image>"))
    config.read_tokenizer(joining)
    opened = f"{of_smolvlm.AROUND}{of_smolvlm.OPENING}{'<image>' * 4}{of_smolvlm.AROUND}"
    for text in (" video.\n\nFrame from 00:59:", "\nFrame from 01:07:"):
        assert shows_frames(config, joining(f"{text}{opened}").input_ids)
    assert not shows_frames(config, joining(f"\nFrame from{opened}").input_ids)


@pytest.fixture
def unknown(family: Family) -> Iterator[Any]:
    """Yield the model as from a stock checkpoint whose vocabulary nobody has noted."""
    known = family.model.config.frame_marks
    family.model.config.frame_marks = None
    yield family.model
    family.model.config.frame_marks = known


def test_an_unknown_tokenizer_is_refused_until_its_marks_are_set(family: Family, unknown: Any, tmp_path: Path) -> None:
    inputs = as_processed(family, ([f"{VIDEO}\nWhat?"], {"videos": [make_video(0)]}))
    for call in (unknown, unknown.model, unknown.generate):
        with pytest.raises(ValueError, match=r"`pixel_values` may hold frames.*`vidcom2.load`.*read_tokenizer"):
            call(**inputs)
    for marks in ([], [[1, 2]], "Frame1", [1, 2, 3]):
        with pytest.raises(ValueError, match="frame_marks"):
            unknown.config.frame_marks = marks
            unknown(**inputs)
    unknown.config.frame_marks = None
    assert torch.equal(unknown(**inputs, retention_ratio=1.0).logits, family.stock(**inputs).logits)
    image = as_processed(family, ([f"{IMAGE}\nWhat?"], {"images": [make_image(0)]}))
    text, cache = family.inputs("Hello. "), DynamicCache()
    theirs = family.stock(**text, past_key_values=cache)
    turn = {"input_ids": image["input_ids"], "pixel_values": image["pixel_values"]}
    expected = family.stock(**turn, past_key_values=theirs.past_key_values).logits
    ours = unknown(**text, retention_ratio=1.0, past_key_values=DynamicCache())
    assert torch.equal(unknown(**turn, retention_ratio=1.0, past_key_values=ours.past_key_values).logits, expected)
    unknown.config.read_tokenizer(family.processor.tokenizer)
    with pytest.raises(ValueError, match="frames of a video"):
        unknown(**inputs)
    known = unknown.config.frame_marks
    stock = family.case.stock_from(family.folder)
    stock.config.frame_marks = None
    for part in (stock, family.processor):
        part.save_pretrained(tmp_path)
    assert vidcom2.load(str(tmp_path), device="cpu")[0].config.frame_marks == known


def test_the_marks_of_a_tokenizer_that_puts_a_space_before_a_text_are_those_of_a_prompt() -> None:
    """As Llama's, which InternVL2.5 and some of InternVL3 have."""
    special = ["<img>", "</img>", "<IMG_CONTEXT>"]
    letters = sorted({*"".join(map(str, range(10))), *"userFrame:\n▁"})
    tokenizer = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(special)
    llama = PreTrainedTokenizerFast(tokenizer_object=tokenizer, extra_special_tokens=dict(zip(INTERNVL_NAMES, special)))
    config = VidCom2InternVLConfig(image_token_id=llama.convert_tokens_to_ids("<IMG_CONTEXT>"))
    config.read_tokenizer(llama)
    for before in ("user\nFrame1: ", "user: Frame1: ", "</img>Frame1: ", "</img>\nFrame2: "):
        ids = llama(f"{before}<img>{'<IMG_CONTEXT>' * 4}</img>", add_special_tokens=False).input_ids
        assert shows_frames(config, ids)


def test_what_does_not_fit_or_cannot_be_compressed_is_refused(family: Family) -> None:
    inputs = as_processed(family, ([f"{VIDEO}\nWhat?"], {"videos": [make_video(0)]}))
    rest = {name: value for name, value in inputs.items() if not name.startswith("pixel_")}
    embeddings = {"inputs_embeds": family.model.get_input_embeddings()(inputs["input_ids"])}
    embeddings |= {name: inputs[name] for name in ("pixel_values", "attention_mask")}
    encoded = rest | {
        "mm_encoder_outputs": {"image": family.stock.get_image_features(pixel_values=inputs["pixel_values"])}
    }
    untyped = family.inputs(family.prompt("?", videos=1, images=1), videos=[make_video(0)], images=[SMALL])
    untyped.pop("mm_token_type_ids")
    with pytest.raises(ValueError, match="`inputs_embeds` cannot be passed with frames of videos"):
        family.model(**embeddings)
    for call in (family.model, family.model.generate):
        with pytest.raises(ValueError, match="`mm_token_type_ids` is missing"):
            call(**untyped)
        with pytest.raises(ValueError, match="frames of a video"):
            call(**encoded)
    stock = family.case.stock_from(family.folder).eval()
    for given in (embeddings, encoded):
        assert torch.equal(family.model(**given, retention_ratio=1.0).logits, stock(**given).logits)
    for lengths in ([7], [8, 0], []):
        with pytest.raises(ValueError, match=r"`num_frames` is \["):
            family.model(**family.one_video() | {"num_frames": torch.tensor(lengths, dtype=torch.long)})


@torch.no_grad()
@only(lambda family: family.name == "smolvlm")  # InternVL's stock processor refuses them
def test_short_prompts_of_videos_of_different_lengths_keep_what_each_alone_keeps(family: Family) -> None:
    short, videos = family.writing_short, [make_video(0, 8), make_video(1, 6)]
    both = short.inputs(short.prompt("Compare.", videos=2), videos=videos)
    assert both["num_frames"].tolist() == [8, 6]
    together = family.model.get_video_features(**family.videos_of(both)).pooler_output
    for ours, video in zip(together, videos, strict=True):
        alone = short.inputs(short.prompt("What?", videos=1), videos=[video])
        (expected,) = family.model.get_video_features(**family.videos_of(alone)).pooler_output
        torch.testing.assert_close(ours, expected)
    assert short.model(**both).logits.shape[1] == both["input_ids"].shape[1]


@torch.no_grad()
def test_tokens_are_made_row_by_row(family: Family) -> None:
    """Another noise in a part of a frame changes most the token at its place."""
    frame = torch.randn(1, 3, 84, 84)

    def tokens_of(frame: torch.Tensor) -> torch.Tensor:
        pixels = as_pixels(family.stock.config, [*frame])
        return family.stock.get_image_features(**pixels).pooler_output[0]

    before = tokens_of(frame)
    for row, column in np.ndindex(3, 3):
        changed = frame.clone()
        changed[..., 28 * row : 28 * row + 28, 28 * column : 28 * column + 28].normal_()
        after = tokens_of(changed)
        assert (after - before).norm(dim=-1).argmax() == 3 * row + column
