"""Molmo2 beyond what all families share: what its processor and its patches must be."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Family, only

import vidcom2
from vidcom2.families import FAMILIES

MOLMO2 = FAMILIES["molmo2"]


@pytest.mark.skipif(MOLMO2.runs_here, reason="this Transformers has the family")
def test_a_transformers_without_the_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "molmo2"}')
    for make in (lambda: MOLMO2.config_class, lambda: MOLMO2.build_tiny, lambda: vidcom2.load(tmp_path)):
        with pytest.raises(ValueError, match=r"Molmo2 needs Transformers 5\.20 or newer, but 5\.19"):
            make()


@only(lambda family: family.adds_features)
@pytest.mark.parametrize("wrong", [{"video_use_col_tokens": True}, {"use_frame_special_tokens": False}], ids=str)
def test_a_processor_that_marks_frames_otherwise_is_refused(family: Family, wrong: dict[str, bool]) -> None:
    of = replace(family.writing_short, processor=copy.copy(family.writing_short.processor))
    for name, value in wrong.items():
        setattr(of.processor, name, value)
    with pytest.raises(ValueError, match=r"`video_use_col_tokens` is .* Set them to False and True"):
        of.one_video()


@only(lambda family: family.adds_features)
def test_patches_that_differ_between_frames_or_belong_to_others_are_refused(family: Family) -> None:
    inputs = family.one_video()
    pooling = inputs["video_token_pooling"]
    for wrong in (pooling + 1, pooling.flip(0), pooling - 81):
        with pytest.raises(ValueError, match="does not take the same patches of each frame of video 0"):
            family.model(**inputs | {"video_token_pooling": wrong})
    for wrong in ({"video_token_pooling": pooling[1:]}, {"video_grids": inputs["video_grids"] * 2}):
        with pytest.raises(ValueError, match="they must describe at least one frame, of 81 patches"):
            family.model(**inputs | wrong)
