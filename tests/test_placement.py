"""The options of where and how a model is loaded are the same everywhere."""

import dataclasses
import inspect

import pytest
import typer

import vidcom2
from vidcom2.checkpoints import load_checkpoint
from vidcom2.cli.app import app
from vidcom2.placement import Placement

FIELDS = {field.name: field.default for field in dataclasses.fields(Placement)}


@pytest.mark.parametrize(
    "function", [vidcom2.ask, vidcom2.answer_many, load_checkpoint], ids=lambda each: each.__name__
)
def test_each_placement_option_is_an_argument_in_python(function: object) -> None:
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in FIELDS} == FIELDS


@pytest.mark.parametrize("command", ["run", "eval", "explain", "bench"])
def test_each_placement_option_is_an_option_of_the_commands(command: str) -> None:
    parameters = {each.name: each.default for each in typer.main.get_command(app).commands[command].params}
    without = {"explain": {"attn_implementation"}, "bench": {"device_map"}}.get(command, set())
    several = {"attn_implementation", "dtype"} if command == "bench" else set()  # bench has its own options for these
    assert FIELDS.keys() - parameters.keys() == without
    assert {name: parameters[name] for name in FIELDS.keys() - without - several} == {
        name: default for name, default in FIELDS.items() if name not in without | several
    }
