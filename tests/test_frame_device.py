"""Frames are prepared where the vision tower is."""

import copy
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, of_representatives, only
from stand_in_device import STAND_IN, OnStandIn, StandIn
from torch import nn

import vidcom2
from vidcom2.asking import frame_device
from vidcom2.asking.candidates import AllTokens, candidates_of
from vidcom2.asking.comparison import compare_answers
from vidcom2.asking.frame_device import device_of_encoder, device_of_frames, takes_a_device
from vidcom2.asking.prepared_video import prepare_video
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.demo.answerer import Answerer
from vidcom2.errors import OptionError
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.explaining.explain import explain
from vidcom2.judging.questions import Question
from vidcom2.live.live_video import LiveVideo
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.loading.placement import Placement
from vidcom2.measuring.stages import Task, answer, encode
from vidcom2.toys import DEMO_VIDEO
from vidcom2.video.reading import Video, read_video

QUESTION = "What happens?"
LANCZOS = ("smolvlm",)  # families whose frames are scaled with a filter that accelerators lack
ON_THE_CPU = (*LANCZOS, "nemotron_h_omni")  # and one whose processor has its means there
SMOOTH = np.sin(np.arange(0, 9, 0.1))  # so that hardly any value is at the end of its range


@pytest.fixture
def video() -> Video:
    """Frames whose values change slowly, of another size than any processor wants."""
    waves = [SMOOTH[:, None, None] * SMOOTH[None, :80, None] * np.cos(t + np.arange(3)) for t in range(6)]
    return Video.from_frames((127.5 + 100 * np.stack(waves)).astype(np.uint8), fps=2)


def test_frames_travel_as_bytes_and_become_nearly_what_they_become_on_the_cpu(family: Family, video: Video) -> None:
    here = prepare_inputs(family.processor, QUESTION, video)
    with StandIn() as device:
        there = prepare_inputs(family.processor, QUESTION, video, device=STAND_IN)
    assert here.keys() == there.keys()
    pixels = there["pixel_values_videos"]
    if family.case.name in ON_THE_CPU:
        assert torch.equal(pixels, here["pixel_values_videos"]) and not device.moved
        return
    assert isinstance(pixels, OnStandIn)
    frames = [each for each in device.moved if each != torch.float32]  # the others are means and deviations
    assert frames == [torch.uint8]
    values = {name: each.values if isinstance(each, OnStandIn) else each for name, each in there.items()}
    difference = (values.pop("pixel_values_videos") - here.pop("pixel_values_videos")).abs()
    of_videos = family.processor.video_processor
    step = 1 / 255 / (min(of_videos.image_std) if of_videos.do_normalize else 1)
    assert difference.max() < 1.01 * step and difference.mean() < 0.3 * step
    assert all(torch.equal(torch.as_tensor(values[name]), torch.as_tensor(here[name])) for name in values)


def recorded(monkeypatch: pytest.MonkeyPatch, processor: Any, fails: Exception | None = None) -> list[Any]:
    """Collect on which device a class of video processors is told to work, and let the CPU do it.

    Args:
        fails: what the device raises.
    """
    told: list[Any] = []
    kind = type(processor.video_processor)
    prepare = kind._prepare_input_videos

    def prepare_here(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        told.append(device)
        if device is not None and fails is not None:
            raise fails
        return prepare(self, *args, device=None, **kwargs)

    monkeypatch.setattr(kind, "_prepare_input_videos", prepare_here)
    return told


def bulk(checkpoint: Checkpoint) -> None:
    requests = [{"video": str(DEMO_VIDEO), "prompt": QUESTION}]
    (row,) = vidcom2.answer_many(requests, num_frames=4, max_new_tokens=1, **of(checkpoint))
    assert row.error is None


def evaluated(checkpoint: Checkpoint) -> None:
    with TemporaryDirectory() as folder:
        question, file = Question("1", str(DEMO_VIDEO), QUESTION), Path(folder) / "answers.jsonl"
        (row,) = evaluate(checkpoint, [question], candidates_of("random", "0.5"), file, num_frames=4, max_new_tokens=1)
    assert "error" not in row


def frames() -> Video:
    return read_video(str(DEMO_VIDEO), 4)


def of(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"model": checkpoint.model, "processor": checkpoint.processor, "prepare_on": checkpoint.prepare_on}


WAYS: dict[str, Callable[[Checkpoint], Any]] = {
    "ask": lambda checkpoint: vidcom2.ask(frames(), QUESTION, max_new_tokens=1, **of(checkpoint)),
    "watch": lambda checkpoint: vidcom2.watch(frames(), **of(checkpoint)),
    "run": lambda checkpoint: compare_answers(checkpoint, frames(), QUESTION, 1, repeats=1),
    "bench": lambda checkpoint: answer(
        checkpoint, task := Task(str(DEMO_VIDEO), 4, max_new_tokens=2), AllTokens(), encode(checkpoint, task)
    ),
    "answer_many": bulk,
    "demo": lambda checkpoint: Answerer(checkpoint).clip(str(DEMO_VIDEO), 4),
    "eval": evaluated,
    "stream": lambda checkpoint: LiveVideo(**of(checkpoint)).add(np.zeros((84, 84, 3), dtype=np.uint8), 0.0),
    "explain": lambda checkpoint: explain(frames(), **of(checkpoint)),
}


@of_representatives
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_to_an_answer_prepares_frames_beside_the_tower_or_where_it_is_told_to(
    family: Family, monkeypatch: pytest.MonkeyPatch, way: Callable[[Checkpoint], Any]
) -> None:
    told = recorded(monkeypatch, family.processor)
    checkpoint = Checkpoint("tiny", family.model, family.processor)
    way(checkpoint)
    assert set(told) == {None}  # this model is on the CPU
    monkeypatch.setattr(frame_device, "device_of_encoder", lambda model: STAND_IN)
    told.clear()
    way(checkpoint)
    assert set(told) == ({None} if family.case.name in ON_THE_CPU else {STAND_IN})
    told.clear()
    way(Checkpoint("tiny", family.model, family.processor, prepare_on="cpu"))
    assert set(told) == {None}


@of_representatives
@pytest.mark.parametrize(
    "error", [NotImplementedError("no such filter"), torch.OutOfMemoryError("too large")], ids=repr
)
def test_the_cpu_prepares_what_the_device_cannot(
    family: Family, monkeypatch: pytest.MonkeyPatch, video: Video, error: Exception
) -> None:
    expected = prepare_inputs(family.processor, QUESTION, video)
    told = recorded(monkeypatch, family.processor, error)
    found = prepare_inputs(family.processor, QUESTION, video, device=STAND_IN)
    assert told == ([None] if family.case.name in ON_THE_CPU else [STAND_IN, None])
    assert all(torch.equal(torch.as_tensor(found[name]), torch.as_tensor(expected[name])) for name in expected)


def test_other_errors_of_a_device_are_not_hidden(
    toy: Checkpoint, monkeypatch: pytest.MonkeyPatch, video: Video
) -> None:
    recorded(monkeypatch, toy.processor, RuntimeError("the device is gone"))
    with pytest.raises(RuntimeError, match="the device is gone"):
        prepare_inputs(toy.processor, QUESTION, video, device=STAND_IN)


# -- where the tower is -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy() -> Checkpoint:
    return load_checkpoint()


def placed(**parts: torch.Tensor) -> Any:
    """Return a model whose parts are where these tensors are."""
    inner = nn.Module()
    for name, values in parts.items():
        part = nn.Module()
        part.weight = nn.Parameter(values, requires_grad=False)
        inner.add_module(name, part)
    return SimpleNamespace(model=inner)


def test_the_device_is_that_of_all_that_encodes_if_it_is_an_accelerator() -> None:
    here = torch.zeros(2)
    there, offloaded = OnStandIn(torch.zeros(2)), torch.zeros(2, device="meta")
    assert device_of_encoder(placed(vision_tower=there, projector=there, language_model=here)) == STAND_IN
    assert device_of_encoder(placed(visual=there, language_model=offloaded)) == STAND_IN
    for tower in (here, offloaded):
        assert device_of_encoder(placed(vision_tower=tower, language_model=there)) is None
        assert device_of_encoder(placed(vision_tower=there, projector=tower, language_model=there)) is None


@only(lambda family: family.name not in LANCZOS)  # whose language model is a `text_model`
def test_each_family_encodes_with_what_is_not_its_language_model(family: Family) -> None:
    config = family.model.config
    with torch.device("meta"):
        model = family.case.model_class(config)
    assert device_of_encoder(model) is None
    weights = {name for name, _ in model.model.named_parameters()}
    language = {name for name in weights if name.startswith("language_model.")}
    of_language = {f"language_model.{name}" for name, _ in model.get_decoder().named_parameters()}
    assert language == of_language and language < weights


def test_a_processor_is_told_no_device_that_it_does_not_take(toy: Checkpoint) -> None:
    processor: Any = copy.copy(toy.processor)
    assert takes_a_device(processor)
    processor.video_processor = SimpleNamespace()  # a slow one
    assert not takes_a_device(processor)
    processor.video_processor = copy.copy(toy.processor.video_processor)
    processor.video_processor.device = "cpu"  # which the user chose
    assert not takes_a_device(processor)


@of_representatives
def test_what_is_kept_of_a_video_is_on_the_cpu_wherever_it_was_prepared(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's lent GPU is another process's, and pickles what it returns."""
    monkeypatch.setattr(type(family.model), "device", STAND_IN)
    with StandIn():
        kept, inputs = prepare_video(family.processor, frames(), family.model, device=STAND_IN)
    assert isinstance(inputs["pixel_values_videos"], OnStandIn)
    assert not any(isinstance(each, OnStandIn) for each in kept.inputs.values())


def test_continued_runs_know_where_their_frames_were_prepared() -> None:
    assert Placement().of_answers != Placement(prepare_on="cpu").of_answers
    assert "prepare_on" not in Placement().of_answers  # as in older records


def test_prepare_on_is_checked_and_kept_for_named_and_loaded_models(toy: Checkpoint) -> None:
    assert load_checkpoint(prepare_on="cpu").prepare_on == "cpu" and toy.prepare_on == "auto"
    assert device_of_frames(toy) is None  # it is on the CPU
    for model in ("toy:qwen3_vl", toy.model):
        given = {"processor": toy.processor} if model is toy.model else {}
        with pytest.raises(OptionError, match=r"^`prepare_on` is 'cuda', but must be one of auto, cpu"):
            vidcom2.ask(frames(), QUESTION, model, prepare_on="cuda", **given)
