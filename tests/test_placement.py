"""The options of where and how a model is loaded are the same everywhere."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import typer

import vidcom2
from vidcom2.checkpoints import load_checkpoint
from vidcom2.cli.app import app
from vidcom2.errors import OptionError
from vidcom2.placement import Placement

FIELDS = {field.name: field.default for field in dataclasses.fields(Placement)}


@pytest.mark.parametrize(
    "call",
    [
        lambda **given: vidcom2.ask("clip.mp4", "What happens?", "toy:qwen3_vl", **given),
        lambda **given: vidcom2.watch("clip.mp4", "toy:qwen3_vl", **given),
        lambda **given: vidcom2.answer_many([], "toy:qwen3_vl", **given),
        lambda **given: vidcom2.explain("clip.mp4", "toy:qwen3_vl", **given),
        lambda **given: load_checkpoint("toy:qwen3_vl", **given),
    ],
    ids=["ask", "watch", "answer_many", "explain", "load_checkpoint"],
)
def test_every_python_function_that_names_a_model_checks_each_option_of_loading(call: Callable[..., Any]) -> None:
    for name in FIELDS:
        with pytest.raises(OptionError, match=rf"^`{name}` is 3, but must be"):
            call(**{name: 3})


@pytest.mark.parametrize("command", ["run", "eval", "explain", "bench"])
def test_each_placement_option_is_an_option_of_the_commands(command: str) -> None:
    parameters = {each.name: each.default for each in typer.main.get_command(app).commands[command].params}
    without = {"explain": {"attn_implementation", "cache_implementation"}, "bench": {"device_map"}}.get(command, set())
    several = {"attn_implementation", "dtype"} if command == "bench" else set()  # bench has its own options for these
    assert FIELDS.keys() - parameters.keys() == without
    assert {name: parameters[name] for name in FIELDS.keys() - without - several} == {
        name: default for name, default in FIELDS.items() if name not in without | several
    }
