"""Prompts of this project's processors, which have a placeholder for each video token that stays.

The oracle is the prompt of the stock processor, which the model shortens, and what an earlier commit answered to it.
"""

import json
from functools import cache

import pytest
import transformers
from digests import CHECKS, FILE, Subject, alike
from models import MODELS, ModelCase, make_video

CASES = {case.name: case for case in MODELS if case.loads_here}
RECORDED = json.loads(FILE.read_text())["exact"]  # of families that came later, nothing is recorded
IS_RECORDED = transformers.__version__.startswith("5.24.")
# Checks of which each family has a part of its own: its features and their gradients, padding, and positions.
OF_FAMILIES = ("gradients", "beams_of_a_batch", "image_beside", "second_turn_with_a_video")


@cache
def subject(name: str, short: bool) -> Subject:
    return Subject(CASES[name], short=short)


def every_check(case: ModelCase) -> list:
    """The representatives stand for the other families in most checks."""
    shared = [check for check in CHECKS if not (case.representative or check in OF_FAMILIES)]
    return [
        pytest.param(
            case.name,
            check,
            id=f"{case.name}-{check}",
            marks=[pytest.mark.slow] * case.slow + [pytest.mark.product] * (check in shared),
        )
        for check in CHECKS
    ]


def found_by(check: str, of: Subject) -> dict:
    try:
        return CHECKS[check](of)
    except ValueError as error:
        return {"error": str(error)}


@pytest.mark.skipif(not IS_RECORDED, reason="the digests are those of Transformers 5.24")
@pytest.mark.parametrize(
    ("name", "check"), [each for row in CASES if row in RECORDED for each in every_check(CASES[row])]
)
def test_a_short_prompt_is_answered_as_the_shortened_one_was(name, check):
    found, expected = found_by(check, subject(name, short=True)), RECORDED[name][check]
    assert alike(found, expected), (found, expected)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        each
        for row in CASES.values()
        if row.name not in RECORDED or (row.representative and not IS_RECORDED)
        for each in every_check(row)
    ],
)
def test_a_short_prompt_is_answered_as_the_shortened_one_is(name, check):
    found = [found_by(check, subject(name, short)) for short in (False, True)]
    assert alike(*found), found


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"compression_rounding": "ceil"}, "`compression_rounding` is 'ceil' in a call of the processor.*to the model"),
        ({"retention_rate": 0.1}, "`retention_rate` is not a setting"),
        ({"retention_ratio": 2.0}, "`retention_ratio` is 2.0"),
    ],
)
@pytest.mark.parametrize("how", ["argument", "videos_kwargs"])
def test_a_call_of_the_processor_takes_the_settings_that_say_how_many(setting, match, how):
    of = subject("llava_onevision", short=True)
    given = setting if how == "argument" else {"videos_kwargs": setting}
    with pytest.raises(ValueError, match=match):
        of.processor(text="<video>", videos=[make_video(0)], return_tensors="pt", **given)


@pytest.mark.parametrize("given", [{}, {"retention_ratio": 0.5}, {"max_video_tokens": 20}], ids=str)
@pytest.mark.parametrize("name", ["llava_onevision", "llava_video", "llava_next_video", "perception_lm"])
def test_an_engine_is_told_as_many_tokens_as_are_written(name, given):
    """The processors of these families also say it of images, which the stock class counts."""
    processor, video = subject(name, short=True).processor, make_video(0)
    (length, height, width), text = video.shape[:3], processor.video_token
    written = processor(text=[text], videos=[video], add_special_tokens=False, return_tensors="pt", **given)
    for images in (None, [(70, 90)]):
        counts = processor._get_num_multimodal_tokens(images, video_sizes=[(length, height, width)], **given)
        places = (written["input_ids"] == processor.tokenizer.convert_tokens_to_ids(text)).sum()
        assert counts.num_video_tokens == [places] and (counts.num_image_tokens is None) == (images is None)


def test_a_part_of_a_loaded_processor_names_the_number_for_engines(tmp_path):
    processor = subject("llava_onevision", short=True).processor
    processor.save_pretrained(tmp_path)
    again = type(processor).from_pretrained(tmp_path)
    assert again.video_processor.model_input_names == ["pixel_values_videos", "num_kept_video_tokens"]
    again.save_pretrained(tmp_path / "again")
    assert "model_input_names" not in (tmp_path / "again" / "processor_config.json").read_text()


def test_a_budget_at_loading_is_no_setting_of_the_parts(tmp_path):
    """Qwen3-VL's video processor has a `max_video_tokens` of its own, by which it sizes frames."""
    processor = subject("qwen3_vl", short=True).processor
    processor.save_pretrained(tmp_path)
    of_frame = processor.video_processor.max_video_tokens
    again = type(processor).from_pretrained(tmp_path, max_video_tokens=20)
    assert (again.max_video_tokens, again.video_processor.max_video_tokens) == (20, of_frame) != (20, 20)


@pytest.mark.parametrize("name", ["llava_onevision", "llava_next_video"])
def test_videos_may_follow_each_other_without_text_between(name):
    """M-RoPE families take them for one video, as the stock classes do, and refuse them."""
    found = []
    for short in (True, False):
        of = subject(name, short)
        text, video = of.prompt(videos=2), of.processor.video_token
        inputs = of.inputs([text.replace(f"{video}\n{video}", video * 2)], [make_video(1), make_video(2)])
        found.append(of.new_tokens(inputs))
    assert alike(*found), found
