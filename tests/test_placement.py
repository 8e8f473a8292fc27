"""The options of where and how a model is loaded are the same everywhere."""

import dataclasses
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from transformers import DynamicCache, StaticCache
from transformers.generation import utils

import vidcom2
from vidcom2.cli.app import app
from vidcom2.errors import OptionError
from vidcom2.families.table import FAMILIES
from vidcom2.loading.checkpoints import load_checkpoint
from vidcom2.loading.placement import Placement
from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES
from vidcom2.toys import DEMO_VIDEO, TOYS

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


def test_the_kind_of_kv_cache_is_the_checkpoints_or_the_one_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a named model, a loaded one, and in a call."""
    made: list[type] = []

    def remembering(kind: type) -> type:
        class Remembering(kind):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                made.append(kind)

        return Remembering

    for kind in (DynamicCache, StaticCache):
        monkeypatch.setattr(utils, kind.__name__, remembering(kind))

    def kinds(*model: Any, **arguments: Any) -> set[type]:
        made.clear()
        vidcom2.ask(str(DEMO_VIDEO), "What?", *model, num_frames=4, **arguments)
        return set(made)

    assert kinds("toy:qwen3_vl") == {DynamicCache}
    assert kinds("toy:qwen3_vl", cache_implementation="static") == {StaticCache}
    checkpoint = load_checkpoint("toy:qwen3_vl", cache_implementation="static")
    loaded = {"processor": checkpoint.processor}
    assert kinds(checkpoint.model, **loaded) == {StaticCache}
    assert kinds(checkpoint.model, **loaded, cache_implementation="dynamic") == {DynamicCache}
    model, processor = vidcom2.load(TOYS["qwen3_vl"].folder, cache_implementation="static")
    assert kinds(model, processor=processor) == {StaticCache}
    request = {"id": "a", "video": str(DEMO_VIDEO), "prompt": "What?"}
    answers = [
        next(vidcom2.answer_many([request], model, processor=processor, **given)).answer
        for given in ({}, {"cache_implementation": "dynamic"})
    ]
    assert answers[0] == answers[1]
    with pytest.raises(OptionError, match=r"^`cache_implementation` is 'static', but the model is loaded already"):
        vidcom2.watch(str(DEMO_VIDEO), model, processor=processor, cache_implementation="static")
    assert Placement().of_answers != Placement(cache_implementation="static").of_answers
    assert "cache_implementation" not in Placement().of_answers  # as in older records


def test_a_family_with_other_logits_on_a_static_cache_refuses_it_but_not_in_its_config(
    tmp_path: Path,
) -> None:
    """tests/test_gemma4.py has the logits. On Transformers before 5.23, so does the rest of Gemma 4."""
    model, processor = vidcom2.tiny_model("gemma4_unified")
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = {"processor": processor, "num_frames": 4, "max_new_tokens": 2}
    for kind in ("static", "offloaded_static"):
        for call in (
            partial(load_checkpoint, str(tmp_path)),
            partial(vidcom2.load, tmp_path),
            partial(vidcom2.ask, str(DEMO_VIDEO), "What?", model, **loaded),
            partial(vidcom2.watch(str(DEMO_VIDEO), model, processor=processor).ask, "What?"),
        ):
            with pytest.raises(OptionError, match=rf"would be '{kind}', but the stock class of Gemma 4 Unified gives"):
                call(cache_implementation=kind)
    assert load_checkpoint(str(tmp_path), cache_implementation="dynamic").model is not None
    assert FAMILIES["gemma4"].static_since == "5.23" and (version("transformers") >= "5.23") == CHUNKS_FEATURES
    model.generation_config.cache_implementation = "static"
    assert vidcom2.ask(str(DEMO_VIDEO), "What?", model, **loaded).new_tokens


@pytest.mark.parametrize("command", ["run", "eval", "explain", "bench"])
def test_each_placement_option_is_an_option_of_the_commands(command: str) -> None:
    parameters = {each.name: each.default for each in typer.main.get_command(app).commands[command].params}
    without = {"explain": {"attn_implementation", "cache_implementation"}, "bench": {"device_map"}}.get(command, set())
    several = {"attn_implementation", "dtype"} if command == "bench" else set()  # bench has its own options for these
    assert FIELDS.keys() - parameters.keys() == without
    assert {name: parameters[name] for name in FIELDS.keys() - without - several} == {
        name: default for name, default in FIELDS.items() if name not in without | several
    }
