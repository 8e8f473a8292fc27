"""What objects of the package show of themselves in a session, and what a misspelt name is answered with."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import enable_progress_bars

import vidcom2
from vidcom2.toys import TOY

PROMPT = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What is the digit?"}]}]


@pytest.fixture(scope="module")
def toy() -> tuple[Any, Any]:
    return vidcom2.load("toy")


@pytest.fixture(scope="module")
def watched(toy: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watched") / "x.watched"
    vidcom2.watch(TOY.clips[0].path, toy[0], processor=toy[1]).save(path)
    return path


def test_what_was_watched_kept_or_remembered_shows_itself_in_one_line(toy: tuple[Any, Any], watched: Path) -> None:
    model, processor = toy
    found = vidcom2.load_watched(watched, model, processor=processor)
    told = "101 of 401 video tokens of 16 frames, vidcom2 at 0.25, by a toy LLaVA-OneVision"
    assert repr(found) == f"<Watched: {told}>"
    kept = found.features.video_compressions[0]
    assert repr(kept) == "<VideoCompression: 101 of 401 video tokens of 16 frames>"
    live = vidcom2.LiveVideo(model, processor, max_video_tokens=130)
    for second, frame in enumerate(vidcom2.read_video(TOY.clips[0].path, 6).frames):
        live.add(frame, float(second))
    assert repr(live) == "<LiveVideo: 130 of 150 video tokens of 6 frames, by a toy LLaVA-OneVision>"
    figure = vidcom2.explain(TOY.clips[0].path, model, processor=processor)
    assert repr(figure) == "vidcom2 at 0.25: 101 of 401 video tokens stay (25.2%), 16 frames"


def test_ask_answers_from_a_watched_file_as_the_watched_video_does(toy: tuple[Any, Any], watched: Path) -> None:
    model, processor = toy
    question = TOY.clips[0].question
    answer = vidcom2.ask(str(watched), question, model, processor=processor)
    assert answer == vidcom2.load_watched(watched, model, processor=processor).ask(question) == TOY.clips[0].answer
    with pytest.raises(ValueError, match="`num_frames` needs the frames of a video"):
        vidcom2.ask(watched, question, model, processor=processor, num_frames=8)
    with pytest.raises(ValueError, match=r"mp4' is no watched video, whose name ends in '\.watched'"):
        vidcom2.load_watched(TOY.clips[0].path, model, processor=processor)


def test_a_folder_that_is_called_toy_is_no_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy").mkdir()
    with pytest.raises(ValueError, match=r"config\.json"):
        vidcom2.load("toy")


CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "an export": (lambda *_: vidcom2.laod, "'load'"),  # pyright: ignore[reportAttributeAccessIssue]
    "load": (lambda *_: vidcom2.load("toy", method="evs"), "`compression_method`"),
    "ask": (
        lambda model, processor, video, _: vidcom2.ask(video, "?", model, processor=processor, ratio=0.1),
        "'retention_ratio'",
    ),
    "generate": (lambda model, _, __, inputs: model.generate(**inputs, max_new_token=2), "'max_new_tokens'"),
    "generate's method": (lambda model, _, __, inputs: model.generate(**inputs, method="evs"), "'compression_method'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_misspelt_or_short_name_is_answered_with_what_it_means(toy: tuple[Any, Any], name: str) -> None:
    model, processor = toy
    video = vidcom2.read_video(TOY.clips[0].path, 4)
    inputs = _inputs(processor, video)
    call, meant = CALLS[name]
    with pytest.raises((ValueError, AttributeError), match=re.escape(meant)):
        call(model, processor, video, inputs)


@pytest.mark.parametrize("misspelt", ["retention_rato", "retentoin_ratio", "ratio", "max_vide_tokens"])
def test_the_processor_refuses_a_misspelt_setting_instead_of_ignoring_it(toy: tuple[Any, Any], misspelt: str) -> None:
    video = vidcom2.read_video(TOY.clips[0].path, 4)
    meant = "max_video_tokens" if misspelt.startswith("max") else "retention_ratio"
    with pytest.raises(ValueError, match=f"`{misspelt}` is not .*Did you mean '{meant}'"):
        _inputs(toy[1], video, **{misspelt: 0.1})


def _inputs(processor: Any, video: Any, **arguments: Any) -> Any:
    frames = {"videos": [video.frames], "video_metadata": [video.metadata], "do_sample_frames": False}
    text = processor.apply_chat_template(PROMPT, add_generation_prompt=True)
    return processor(text=[text], **frames, **arguments, return_tensors="pt")


def test_a_bar_shows_how_far_a_long_video_is_read_on_a_terminal_unless_it_is_told_not_to(
    toy: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("vidcom2.asking.ask.SECONDS_UNSEEN", 0.0)
    enable_progress_bars()  # which another test may have switched off
    for is_terminal, options, is_shown in ((True, {}, True), (True, {"progress": False}, False), (False, {}, False)):
        monkeypatch.setattr("sys.stderr.isatty", lambda found=is_terminal: found)
        vidcom2.watch(TOY.clips[0].path, toy[0], processor=toy[1], num_frames=4, **options)
        assert ("[00:0" in capsys.readouterr().err) is is_shown
