"""Tests of the families whose processors pass the frames of videos as images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from models import RETENTION_RATIO, make_image, make_video, video_places
from reference import compressed_embeddings
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import BatchFeature, DynamicCache, PreTrainedTokenizerFast
from videos_as_images import as_pixels, tiles_in

import vidcom2
from vidcom2 import VidCom2InternVLConfig
from vidcom2.configuration import configuration_vidcom2_smolvlm as of_smolvlm
from vidcom2.configuration.configuration_vidcom2_internvl import KNOWN_FRAME_MARKS
from vidcom2.modeling.families.frame_marks import NumberedFrames, TimedFrames

pytestmark = only(lambda family: family.frames_are_images)

INTERNVL_NAMES = ("start_image_token", "end_image_token", "context_image_token")  # of the tokenizer's fields
IMAGE, VIDEO = "<image>", "<video>"
SMALL, LARGE = make_image(0)[:, :64, :64], make_image(1)[:, :40]  # InternVL: one tile, and two with a thumbnail
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


def test_rows_of_pixels_are_frames_where_the_text_before_them_says_so(family: Family, prompts: Any) -> None:
    """What `describe` takes out are the pixels that the processors make of the videos alone and the images alone."""
    inputs, media = as_processed(family, prompts), prompts[1]
    found = family.model.model.with_videos(dict(inputs), family.model.config.compression_settings())
    assert found["num_frames"].tolist() == [len(video) for video in media["videos"]]
    alone = next(iter(family.processor.video_processor(videos=media["videos"], return_tensors="pt").values()))
    assert torch.equal(found["pixel_values_videos"], alone.flatten(0, 1))
    cropping = {"crop_to_patches": True} if family.case.name == "internvl" else {}
    images = family.processor.image_processor(images=media["images"], return_tensors="pt", **cropping)
    assert torch.equal(found["pixel_values"].flatten(0, -4), torch.stack(tiles_in(images["pixel_values"])))
    of_frames = family.model.model.is_video(inputs["input_ids"])
    assert of_frames.sum() == 9 * len(alone.flatten(0, 1))
    assert torch.equal(of_frames, video_places(family.stock.config, inputs["input_ids"]))


def test_the_processors_own_outputs_answer_as_compressed_by_hand(family: Family, prompts: Any) -> None:
    inputs = as_processed(family, prompts)
    split = family.model.model.with_videos(dict(inputs), family.model.config.compression_settings())
    logits = family.model(**inputs).logits
    assert torch.equal(logits, family.model(**split).logits)
    inner = family.model.model(**inputs).last_hidden_state
    torch.testing.assert_close(family.model.lm_head(inner), logits, rtol=0, atol=1e-5)
    if len(inputs["input_ids"]) == 1:
        embeddings, _ = compressed_embeddings(family, BatchFeature(split), RETENTION_RATIO)
        expected = family.stock(inputs_embeds=embeddings).logits
        torch.testing.assert_close(logits[:, -1], expected[:, -1], rtol=0, atol=1e-5)
    greedy = {"max_new_tokens": 4, "do_sample": False, "num_beams": 2}
    assert torch.equal(family.model.generate(**inputs, **greedy), family.model.generate(**split, **greedy))


def test_beams_of_prompts_that_all_have_images_equal_those_of_each_alone(family: Family) -> None:
    """`generate` repeats features for beams prompt by prompt, so it must know whose they are."""
    texts = [f"{IMAGE}\n{VIDEO}\nWhat?", f"{IMAGE}\n{VIDEO}\nWhy?"]
    videos, images = [make_video(0), make_video(1)], [SMALL, make_image(2)[:, :64, :64]]
    beams = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 1, "do_sample": False}

    def first_scores(some: slice) -> torch.Tensor:
        inputs = as_processed(family, (texts[some], {"videos": videos[some], "images": images[some]}))
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


def test_a_conversation_goes_on_with_the_processors_outputs(family: Family) -> None:
    """The whole conversation is passed, with the pixels of the new turn alone."""
    greedy: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True}
    first = as_processed(family, ([f"{VIDEO}\nWhat?"], {"videos": [make_video(0)]}))
    second = as_processed(family, ([f"{IMAGE}\n{VIDEO}\nAnd?"], {"videos": [make_video(1)], "images": [SMALL]}))
    for ratio in (RETENTION_RATIO, 1.0):
        out = family.model.generate(**first, **greedy)
        conversation = torch.cat([out.sequences, second["input_ids"]], dim=1)
        of_turns = [tile for turn in (first, second) for tile in tiles_in(turn["pixel_values"])]
        pixels = as_pixels(family.stock.config, of_turns)["pixel_values"]
        again = {"past_key_values": out.past_key_values, "retention_ratio": ratio}
        continued = family.model.generate(conversation, pixel_values=second["pixel_values"], **greedy, **again)
        if ratio == RETENTION_RATIO:
            whole = family.model.generate(conversation, pixel_values=pixels, **greedy)
            assert torch.equal(continued.sequences, whole.sequences)
        assert continued.past_key_values.get_seq_length() < conversation.shape[1]


smolvlm = only(lambda family: family.takes_one_kind)  # its processor pads the images of a prompt


@smolvlm
def test_frames_of_which_pixels_are_hidden_are_refused(family: Family) -> None:
    inputs = as_processed(family, ([f"{VIDEO}\nWhat?"], {"videos": [make_video(0)]}))
    inputs["pixel_attention_mask"][0, 3, :, 60:] = 0
    with pytest.raises(ValueError, match="`pixel_attention_mask` hides pixels of frames"):
        family.model(**inputs)
    assert torch.equal(family.model(**inputs, retention_ratio=1.0).logits, family.stock(**inputs).logits)


@smolvlm
def test_pixels_of_another_shape_than_their_mask_are_refused(family: Family) -> None:
    inputs = family.processed_video()
    for name in ("pixel_values", "pixel_attention_mask"):
        for bad in (inputs[name][:, :-1], inputs[name][0], torch.cat([inputs[name]] * 2)):
            with pytest.raises(ValueError, match=r"`pixel_values` has shape .* and `pixel_attention_mask` .*"):
                family.model(**inputs | {name: bad})


@smolvlm
def test_videos_of_different_lengths_may_share_a_call(family: Family) -> None:
    """The processor pads the shorter one's frames with zeros."""
    videos = [make_video(0), make_video(1, num_frames=3)]
    prompts = [f"{VIDEO}What?", f"{VIDEO}And who is there?"]
    inputs = as_processed(family, (prompts, {"videos": videos}))
    assert len(inputs["pixel_values"].flatten(0, 1)) == 16
    together = family.model(**inputs).logits[:, -1]
    for row, video in enumerate(videos):
        prompt = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        alone = family.model(prompt[None], pixel_values=inputs["pixel_values"][row, None, : len(video)]).logits[0, -1]
        torch.testing.assert_close(together[row], alone, rtol=0, atol=1e-5)


# -- the text before frames ------------------------------------------------------------------------------------------

IMG, END, CONTEXT, LINE, WORD, SPACED, COLON, SPACE = 151665, 151666, 151667, 198, 4369, 16321, 25, 220


def frame(number: int, word: int = WORD, tokens: int = 4) -> list[int]:
    digits = [15 + int(digit) for digit in str(number)]  # "0" has the id 15
    return [word, *digits, COLON, SPACE, IMG, *[CONTEXT] * tokens, END]


def joined(*parts: list[int]) -> list[int]:
    return [token for part in parts for token in [*part, LINE]][:-1]


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [
        (joined(*(frame(number) for number in range(1, 13))), [12]),
        (joined(frame(1), frame(2), frame(1), frame(1), frame(2)), [2, 1, 2]),
        (joined(frame(1, SPACED)), [1]),
        (joined(frame(1, word=7), frame(2)), [2]),  # the word is part of a longer token, as in "(Frame"
        (joined(frame(1, word=7), frame(2, word=7)), []),  # "Image1: " and "Image2: "
        (joined(frame(2), frame(3)), []),  # no first one
        (joined(frame(1), [7], frame(2)), [1]),  # something stands between
        (joined(frame(1, tokens=8), frame(2)), []),  # an image in two tiles
        (joined(frame(1), frame(2, tokens=8), frame(3)), [1]),
        ([CONTEXT] * 4, []),
        ([], []),
    ],
)
def test_frames_are_found_in_qwens_vocabulary(ids: list[int], lengths: list[int]) -> None:
    videos = list(NumberedFrames([list(mark) for mark in KNOWN_FRAME_MARKS[CONTEXT]]).videos_of(ids, 4, CONTEXT))
    assert [len(video) for video in videos] == lengths
    assert all(ids[at] == CONTEXT for video in videos for run in video for at in run)


FAKE, GLOBAL, ROW, IMG49190 = 49189, 49152, 49153, 49190
FRAME_FROM, AT = [198, 9967, 429, 216], 42  # "\nFrame from " and ":" in SmolLM2's vocabulary


def timed(time: str, opening: int = GLOBAL, line: list[int] = FRAME_FROM) -> list[int]:
    return [*line, *(32 + int(each) if each != ":" else AT for each in time), FAKE, opening, *[IMG49190] * 4, FAKE]


@pytest.mark.parametrize(
    ("parts", "lengths"),
    [
        ([timed("00:00:"), timed("00:01:"), timed("100:59:")], [3]),
        ([[30, 198], timed("00:00:"), [198, 198, 30, 198], timed("00:00:")], [1, 1]),
        ([timed("00:00:"), [FAKE, GLOBAL, *[IMG49190] * 4, FAKE], timed("00:01:")], [1, 1]),  # an image between
        ([timed("00:00:", ROW), timed("00:00:")], [1]),  # a tile of an image that is in several
        ([timed("00:00:", line=[9967, 429, 216])], []),  # not at the beginning of a line
        ([timed("")], []),  # no time
        ([[198, 9967, 429, 260, FAKE, GLOBAL, *[IMG49190] * 4, FAKE]], []),  # "Frame from the"
        ([], []),
    ],
)
def test_frames_are_found_in_smollm2s_vocabulary(parts: list[list[int]], lengths: list[int]) -> None:
    ids = [token for part in parts for token in part]
    marks = [list(mark) for mark in of_smolvlm.KNOWN_FRAME_MARKS[IMG49190]]
    assert [len(video) for video in TimedFrames(marks).videos_of(ids, 4, IMG49190)] == lengths


def test_marks_are_known_where_a_tokenizer_joins_lines_and_digits() -> None:
    """As Llama 3's would."""
    pieces = ["Frame", " from", " ", *"0123456789:.", *(f"{n:02}" for n in range(100)), "\n", "\n\n", " video", "."]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+|\d{1,2}| ?[A-Za-z]+|."), "isolated")
    tokenizer.add_special_tokens([of_smolvlm.AROUND, of_smolvlm.OPENING, "<image>"])
    joining = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    marks = vidcom2.VidCom2SmolVLMConfig.marks_of(joining)
    opened = f"{of_smolvlm.AROUND}{of_smolvlm.OPENING}{'<image>' * 4}{of_smolvlm.AROUND}"
    ids = joining(f" video.\n\nFrame from 00:59:{opened}\nFrame from 01:07:{opened}").input_ids
    (video,) = TimedFrames(marks).videos_of(ids, 4, joining.convert_tokens_to_ids("<image>"))
    assert len(video) == 2


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
    assert not torch.equal(unknown(**inputs).logits, unknown(**inputs, retention_ratio=1.0).logits)
    known = unknown.config.frame_marks
    stock = family.case.stock_class.from_pretrained(family.folder)
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
    config = VidCom2InternVLConfig()
    config.read_tokenizer(llama)
    frames = "\n".join(f"Frame{i}: <img>{'<IMG_CONTEXT>' * 4}</img>" for i in range(1, 13))
    for before in ("user\n", "user: ", "</img>"):
        ids = llama(before + frames, add_special_tokens=False).input_ids
        marks = config.known_frame_marks
        assert marks is not None
        (video,) = NumberedFrames(marks).videos_of(ids, 4, llama.convert_tokens_to_ids("<IMG_CONTEXT>"))
        assert len(video) == 12


def test_what_does_not_fit_or_cannot_be_compressed_is_refused(family: Family) -> None:
    inputs = as_processed(family, ([f"{VIDEO}\nWhat?"], {"videos": [make_video(0)]}))
    rest = {name: value for name, value in inputs.items() if not name.startswith("pixel_")}
    embeddings = {"inputs_embeds": family.model.get_input_embeddings()(inputs["input_ids"])}
    embeddings |= {name: inputs[name] for name in ("pixel_values", "attention_mask")}
    encoded = rest | {
        "mm_encoder_outputs": {"image": family.stock.get_image_features(pixel_values=inputs["pixel_values"])}
    }
    too_few = rest | as_pixels(family.stock.config, tiles_in(inputs["pixel_values"])[1:])
    with pytest.raises(ValueError, match="`inputs_embeds` cannot be passed with frames of videos"):
        family.model(**embeddings)
    for call in (family.model, family.model.generate):
        with pytest.raises(ValueError, match="72 of them of frames, but `pixel_values` holds 7 rows of 9 tokens"):
            call(**too_few)
        with pytest.raises(ValueError, match=r"`mm_encoder_outputs\['image'\]` holds frames of 1 videos"):
            call(**encoded)
    stock = family.case.stock_class.from_pretrained(family.folder).eval()
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
