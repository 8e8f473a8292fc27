"""What every setting accepts and refuses, wherever it is set, and what its errors say."""

import inspect
import math
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vidcom2 import compress
from vidcom2.configuration.compression_settings import SETTING_NAMES, CompressionSettings, checked_setting

# The settings table of the design.
DEFAULTS = {
    "retention_ratio": 0.25,
    "compression_method": "vidcom2",
    "compression_scoring": "paper",
    "compression_rounding": "exact",
    "compression_temperature": 0.01,
    "compression_frame_score": "mean",
    "compression_window": None,
    "compression_positions": "consecutive",
    "compression_frame_weight": 1.0,
    "compression_video_weight": 1.0,
    "max_video_tokens": None,
    "vision_method": "full",
    "vision_chunk_frames": 32,
    "vision_tolerance": 0.0,
}

WRONG_RATIOS = [0, -0.25, 1.0000001, 25, "0.25", math.nan, math.inf, None, True, [0.25], 0.25j, 10**400]
WRONG_NUMBERS = [math.nan, math.inf, -math.inf, "1", None, True, [1.0], 10**400]
WRONG_WEIGHTS = [*WRONG_NUMBERS, 1e39, -1e31]  # larger weights would make the float32 scores inf or nan
WRONG_FRAMES = [0, -1, 2.5, 4.0, True, False, "4", math.nan, math.inf, [4], np.int64(0)]
WRONG_NAMES = ["unknown", "", "Paper", " ceil", None, True, 0, ["paper"], {}, np.array(["paper", "ceil"])]

# name -> (values it refuses, what the message must say it accepts)
REFUSED: dict[str, tuple[list[Any], list[str]]] = {
    "retention_ratio": (WRONG_RATIOS, ["number", "(0, 1]"]),
    "compression_method": (WRONG_NAMES, ["'random'", "'vidcom2'"]),
    "compression_scoring": (WRONG_NAMES, ["'paper'", "'released'"]),
    "compression_rounding": (WRONG_NAMES, ["'ceil'", "'round'", "'exact'"]),
    "compression_temperature": ([0, 0.0, -0.01, *WRONG_NUMBERS], ["number", "> 0"]),
    "compression_frame_score": (WRONG_NAMES, ["'mean'", "'max'", "'uniform'"]),
    "compression_window": (WRONG_FRAMES, ["None", ">= 1"]),
    "compression_positions": (WRONG_NAMES, ["'consecutive'", "'original'"]),
    "compression_frame_weight": (WRONG_WEIGHTS, ["finite number", "1e30"]),
    "compression_video_weight": (WRONG_WEIGHTS, ["finite number", "1e30"]),
    "max_video_tokens": ([*WRONG_FRAMES, "many"], ["None (no budget)", ">= 1"]),
    "vision_method": (WRONG_NAMES, ["'full'", "'skip_repeated'"]),
    "vision_chunk_frames": (WRONG_FRAMES, ["None", ">= 1"]),
    "vision_tolerance": ([-0.1, *WRONG_NUMBERS], ["number", ">= 0"]),
}

# name -> (value, value as stored)
ACCEPTED: dict[str, list[tuple[Any, Any]]] = {
    "retention_ratio": [(1, 1.0), (1e-9, 1e-9), (np.float32(0.5), 0.5), (Fraction(1, 4), 0.25)],
    "compression_method": [("vidcom2", "vidcom2"), ("random", "random")],
    "compression_scoring": [("paper", "paper"), ("released", "released")],
    "compression_rounding": [("ceil", "ceil"), ("round", "round"), ("exact", "exact")],
    "compression_temperature": [(1, 1.0), (1e-6, 1e-6), (np.float32(0.5), 0.5)],
    "compression_frame_score": [("mean", "mean"), ("max", "max"), ("uniform", "uniform")],
    "compression_window": [(None, None), (1, 1), (np.int64(8), 8)],
    "compression_positions": [("consecutive", "consecutive"), ("original", "original")],
    "compression_frame_weight": [(0, 0.0), (1e30, 1e30), (np.float64(-0.5), -0.5)],
    "compression_video_weight": [(0, 0.0), (-1e30, -1e30), (np.float64(-0.5), -0.5)],
    "max_video_tokens": [(None, None), (10**9, 10**9), (np.int64(8), 8)],
    "vision_method": [("full", "full"), ("skip_repeated", "skip_repeated")],
    "vision_chunk_frames": [(None, None), (1, 1), (np.int64(8), 8)],
    "vision_tolerance": [(0, 0.0), (1, 1.0), (Fraction(1, 4), 0.25)],
}

# Settings that only some methods read -> the method that does.
READ_BY = {"vision_tolerance": {"vision_method": "skip_repeated"}}


def assert_says_what_is_accepted(error: pytest.ExceptionInfo[ValueError], name: str, value: Any) -> None:
    message = str(error.value)
    assert f"`{name}`" in message
    assert repr(value)[:100] in message  # a longer one is cut
    for accepted_text in REFUSED[name][1]:
        assert accepted_text in message
    assert repr(DEFAULTS[name]) in message


def video() -> Tensor:
    return torch.randn(4, 9, 8, generator=torch.Generator().manual_seed(0))


def test_tables_of_values_cover_every_setting() -> None:
    assert list(REFUSED) == list(ACCEPTED) == list(DEFAULTS) == list(SETTING_NAMES)


def test_defaults_are_those_of_the_design() -> None:
    assert {field.name: field.default for field in fields(CompressionSettings)} == DEFAULTS
    assert {name: getattr(CompressionSettings(), name) for name in DEFAULTS} == DEFAULTS


def test_compress_has_the_same_settings_with_the_same_defaults_but_for_the_papers_rounding() -> None:
    parameters = list(inspect.signature(compress).parameters.values())
    assert parameters[0].name == "video_tokens"
    defaults = {parameter.name: parameter.default for parameter in parameters[1:]}
    assert defaults == DEFAULTS | {"compression_rounding": "ceil"} and list(defaults) == list(DEFAULTS)
    assert parameters[1].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD  # compress(tokens, 0.25)
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters[2:])


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_value_is_refused_everywhere_and_assignment_keeps_the_old_one(name: str) -> None:
    settings = CompressionSettings(**READ_BY.get(name, {}) | {name: ACCEPTED[name][-1][0]})
    before = getattr(settings, name)
    for value in REFUSED[name][0]:
        for call in (
            lambda value=value: CompressionSettings(**{name: value}),
            lambda value=value: compress(video(), **{name: value}),
            lambda value=value: setattr(settings, name, value),
        ):
            with pytest.raises(ValueError) as error:
                call()
            assert_says_what_is_accepted(error, name, value)
        assert getattr(settings, name) == before


@pytest.mark.parametrize(
    ("name", "value", "stored"), [(name, *case) for name, cases in ACCEPTED.items() for case in cases], ids=repr
)
def test_accepted_values_are_stored_in_one_type(name: str, value: Any, stored: Any) -> None:
    assigned = CompressionSettings()
    setattr(assigned, name, value)
    for got in (getattr(CompressionSettings(**READ_BY.get(name, {}) | {name: value}), name), getattr(assigned, name)):
        assert got == stored
        assert type(got) is type(stored)  # plain types, which config.json can hold
    assert checked_setting(name, value) == stored


def test_an_unknown_setting_and_one_by_position_are_errors() -> None:
    with pytest.raises(TypeError, match="compression_ratio"):
        CompressionSettings(compression_ratio=0.5)
    with pytest.raises(TypeError):
        CompressionSettings(0.5)
    with pytest.raises(TypeError, match="compression_ratio"):
        compress(video(), compression_ratio=0.5)


def test_settings_with_another_ratio_do_not_change_the_original() -> None:
    original = CompressionSettings(retention_ratio=0.5, compression_rounding="round", compression_window=4)
    assert original.compression_settings() == original
    changed = original.compression_settings(retention_ratio=0.15)
    assert (changed.retention_ratio, changed.compression_rounding, changed.compression_window) == (0.15, "round", 4)
    assert original.retention_ratio == 0.5
    with pytest.raises(ValueError, match="`retention_ratio` is 0,"):
        original.compression_settings(retention_ratio=0)


def test_a_setting_of_a_vision_method_is_refused_beside_another_method() -> None:
    unread = r"`vision_tolerance` is {}, but `vision_method='full'` does not read it.*'skip_repeated'"
    with pytest.raises(ValueError, match=unread.format(0.5)):
        CompressionSettings(vision_tolerance=0.5)
    with pytest.raises(ValueError, match=unread.format(0.5)):
        compress(video(), vision_tolerance=0.5)
    default = DEFAULTS["vision_tolerance"]
    with pytest.raises(ValueError, match=unread.format(default)):  # without the method nothing would be saved
        CompressionSettings().compression_settings(vision_tolerance=default)


def test_another_vision_method_leaves_out_what_it_does_not_read() -> None:
    settings = CompressionSettings(vision_method="skip_repeated", vision_tolerance=0.5, retention_ratio=0.4)
    assert settings.compression_settings(vision_method="full") == CompressionSettings(retention_ratio=0.4)
    assert settings.vision_settings() == {"vision_method": "skip_repeated", "vision_tolerance": 0.5}
    assert CompressionSettings().vision_settings() == {"vision_method": "full"}
