"""`vidcom2 demo` serves several users at once, and shows what `ask`, `run` and `explain` return."""

import base64
import dataclasses
import json
import math
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from conftest import Family
from make_clips import INTERRUPTION, write_clip
from PIL import Image
from test_hostile_videos import postscript  # noqa: F401  (a fixture)

import vidcom2
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, checked_setting
from vidcom2.demo import answerer as answerer_module
from vidcom2.demo.answerer import SIDES, TIMES, Answerer
from vidcom2.demo.controls import CONTROLS, POSITIONS, chosen_settings, controls_for
from vidcom2.demo.live_page import MOST_VISITORS, Visit
from vidcom2.demo.rendering import frames_html, turns_html
from vidcom2.demo.turns import NO_QUESTION, Turns, asked, earlier_turns, problem_text
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.toys import TOY
from vidcom2.video.reading import VideoError, read_video

gradio = pytest.importorskip("gradio")
NO_CLIP = "There is no clip."

CLIPS = TOY.clips
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NEW = 8


@pytest.fixture(scope="module")
def toy() -> Checkpoint:
    return load_checkpoint()


@pytest.fixture
def answerer(toy: Checkpoint) -> Answerer:
    return Answerer(toy)


@pytest.fixture(autouse=True)
def each_answer_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answerer_module, "QUICK", 0.0)


def of_family(family: Family) -> Answerer:
    return Answerer(Checkpoint("tiny", family.model, family.processor))


def conversation(answerer: Answerer, path: Any, question: str, turns: Turns = (), **settings: Any) -> Turns:
    *_, last = asked(answerer, answerer.clip(str(path), 8), question, settings, NEW, turns)
    return last


def broken_clip(folder: Path) -> Path:
    path = folder / "holiday.mp4"
    path.write_bytes(b"this is no video" * 100)
    return path


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.2, 1.0])
def test_both_answers_equal_those_of_ask(family: Family, ratio: float) -> None:
    question, given = "What happens?", {"processor": family.processor, "num_frames": 8, "max_new_tokens": NEW}
    (turn,) = conversation(of_family(family), INTERRUPTION, question, retention_ratio=ratio)
    for side, kept in zip(SIDES, (ratio, 1.0), strict=True):
        answer = vidcom2.ask(INTERRUPTION, question, family.model, retention_ratio=kept, **given)
        reply = turn.replies[side]
        measured = reply.measured
        assert measured is not None and (reply.text, measured.new_tokens) == (str(answer), answer.new_tokens)
        assert (measured.video_tokens, measured.prompt_tokens) == (answer.video_tokens, answer.prompt_tokens)


def test_a_quick_answer_is_repeated_and_its_shortest_times_count(
    answerer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of a size prepares what the later ones use, so few tokens could seem slower than all."""
    calls, timed_answer = [], answerer_module.timed_answer

    def recorded(*arguments: Any, **given: Any) -> Any:
        calls.append(timed_answer(*arguments, **given))
        return calls[-1]

    monkeypatch.setattr(answerer_module, "timed_answer", recorded)
    for quick, times in ((math.inf, 1 + TIMES), (0.0, 1)):
        monkeypatch.setattr(answerer_module, "QUICK", quick)
        calls.clear()
        (turn,) = conversation(answerer, CLIPS[0].path, CLIPS[0].question)
        assert len(calls) == 2 * times
        for side, of_side in zip(SIDES, (calls[:times], calls[times:]), strict=True):
            measured = turn.replies[side].measured
            assert measured is not None
            for name in ("prefill_seconds", "total_seconds"):
                assert getattr(measured, name) == min(getattr(each, name) for each in of_side[-TIMES:])
            # The vision tower ran once for both sides, and the whole answer of each side includes its time.
            assert 0 < measured.prefill_seconds < measured.total_seconds < (turn.replies[side].seconds or 0)


def test_an_answer_grows_and_the_page_says_what_it_waits_for(answerer: Answerer) -> None:
    clip, question = answerer.clip(str(CLIPS[0].path), 8), CLIPS[0].question
    steps = list(asked(answerer, clip, question, {"retention_ratio": 0.5}, NEW))
    assert [len(turns) for turns in steps] == [1] * len(steps) and not steps[0][0].replies
    before: dict[str, str] = dict.fromkeys(SIDES, "")
    for (turn,) in steps:
        for side, reply in turn.replies.items():
            assert reply.text.startswith(before[side])
            before[side] = reply.text
    first_of_all = next(turn for (turn,) in steps if "all" in turn.replies)
    assert first_of_all.replies["few"].measured is not None  # the second answer begins when the first is complete

    first, last = steps[0], steps[-1]
    assert "Waiting for the model." in turns_html(first) and "Waiting for the other answer." in turns_html(first)
    halfway = next(turns for turns in steps if turns[0].replies and turns[0].replies["few"].text)
    assert "Waiting for the other answer." in turns_html(halfway)
    assert "Stopped." in turns_html(halfway, is_stopped=True) and "Waiting" not in turns_html(halfway, is_stopped=True)
    assert "Stopped." not in turns_html(last, is_stopped=True) and "Waiting" not in turns_html(last)
    assert "Stopped." in turns_html((*halfway, *last))  # an answer of an earlier turn no longer grows
    # A side that was stopped continues without the question that it did not answer.
    assert earlier_turns(halfway, "few") == [(question, halfway[0].replies["few"].text)]
    assert earlier_turns(halfway, "all") == []


def test_further_questions_continue_the_conversation_of_each_side(family: Family) -> None:
    answerer = of_family(family)
    turns: Turns = ()
    for question in ("What happens?", "And then?"):
        turns = conversation(answerer, INTERRUPTION, question, turns, retention_ratio=0.3)
    first, second = turns
    video = read_video(INTERRUPTION, 8)
    for side, ratio in zip(SIDES, (0.3, 1.0), strict=True):
        chat = [
            {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What happens?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": first.replies[side].text}]},
            {"role": "user", "content": [{"type": "text", "text": "And then?"}]},
        ]
        text = family.processor.apply_chat_template(chat, add_generation_prompt=True)
        inputs = family.stock_inputs(text, video)
        out = family.model.generate(**inputs, max_new_tokens=NEW, do_sample=False, retention_ratio=ratio)
        new = out[0, inputs["input_ids"].shape[1] :]
        assert second.replies[side].text == family.processor.decode(new, skip_special_tokens=True)


def test_users_who_ask_at_once_get_the_answers_that_each_gets_alone(answerer: Answerer) -> None:
    def ask(number: int) -> list[str]:
        clip = CLIPS[number % len(CLIPS)]
        turns: Turns = ()
        for question in (clip.question, "Which colour is the digit?"):
            turns = conversation(answerer, clip.path, question, turns, retention_ratio=0.1 * (number + 1))
        replies = [turn.replies[side] for turn in turns for side in SIDES]
        return [f"{reply.text} {reply.measured.prompt_tokens}" for reply in replies]

    alone = [ask(number) for number in range(3)]
    with ThreadPoolExecutor(3) as users:
        assert list(users.map(ask, range(3))) == alone


def test_a_user_who_leaves_frees_the_model_for_the_others(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, criteria, is_gone = [], [], threading.Event()
    timed_answer = answerer_module.timed_answer

    def watched(*arguments: Any, stopping_criteria: list[Any], **given: Any) -> Any:
        calls.append(given)
        criteria.append(stopping_criteria[0])
        assert is_gone.wait(60)
        return timed_answer(*arguments, stopping_criteria=stopping_criteria, **given)

    monkeypatch.setattr(answerer_module, "timed_answer", watched)
    monkeypatch.setattr(answerer_module, "QUICK", math.inf)
    steps = asked(answerer, answerer.clip(str(CLIPS[0].path), 8), CLIPS[0].question, {}, 400)
    while not next(steps)[0].replies:
        pass
    steps.close()
    is_gone.set()
    while not criteria:
        time.sleep(0.01)
    assert bool(criteria[0](torch.zeros(1, 1), None).all())  # this stops `generate`
    (turn,) = conversation(answerer, CLIPS[1].path, CLIPS[1].question)
    assert turn.replies["all"].text == CLIPS[1].answer
    assert len(calls) == 1 + 2 * (1 + TIMES)  # the user who left was not answered again, nor the second side begun


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_the_slider_shows_what_explain_does_and_runs_no_model(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    answerer = of_family(family)
    model, _ = family.model, answerer.clip(str(INTERRUPTION), 8)
    for ratio in (0.7, 0.15):
        settings = {"retention_ratio": ratio, "processor": family.processor}
        (expected,) = vidcom2.explain(read_video(INTERRUPTION, 8), model, **settings).ways
        with monkeypatch.context() as patch:
            for part in (type(model), type(model.model)):
                patch.setattr(part, "forward", lambda *_, **__: pytest.fail("the model ran"))
            patch.setattr(answerer_module, "run_tower", lambda *_, **__: pytest.fail("encoded again"))
            shown = answerer.explanation(answerer.clip(str(INTERRUPTION), 8), {"retention_ratio": ratio})
        for field in dataclasses.fields(shown):
            if field.name not in ("frames", "model"):  # the demo's frames are smaller
                here, there = getattr(shown, field.name), getattr(expected, field.name)
                assert np.array_equal(here, there) if isinstance(here, np.ndarray) else here == there, field.name
        kept = re.findall(r'alt="[^:"]+: (\d+) of \d+ tokens kept"', frames_html(shown))
        assert list(map(int, kept)) == expected.frame_budgets.tolist()


def test_a_clip_is_encoded_once_for_all_users(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    encode = answerer_module.run_tower

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        time.sleep(0.05)
        return encode(*arguments)

    monkeypatch.setattr(answerer_module, "run_tower", counted)
    with ThreadPoolExecutor(4) as users:
        clips = list(users.map(lambda _: answerer.clip(str(CLIPS[0].path), 8), range(4)))
    assert len(calls) == 1 and len(set(map(id, clips))) == 1
    assert answerer.clip(str(CLIPS[0].path), 4) is not clips[0] and len(calls) == 2


def test_the_last_clips_are_kept_while_unchanged(
    answerer: Answerer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(answerer_module, "MOST_CLIPS", 2)
    path = write_clip(tmp_path / "clip.mp4", [0.0, 0.1, 0.2])
    for number in (1, 2, 8):
        clip = answerer.clip(str(path), number)
    assert [answerer.has(str(path), number) for number in (1, 2, 8)] == [False, True, True]
    assert len(clip.video.frames) == 3
    write_clip(path, [0.0, 0.1, 0.2, 0.3, 0.4])
    assert len(answerer.clip(str(path), 8).video.frames) == 5


# -- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_bad_file_is_reported_in_one_line_without_the_servers_path(answerer: Answerer, tmp_path: Path) -> None:
    path = str(broken_clip(tmp_path))
    with pytest.raises(VideoError) as caught:
        answerer.clip(path, 8)
    problem = problem_text(caught.value, path)
    assert "\n" not in problem and "'holiday.mp4'" in problem and str(tmp_path) not in problem
    assert not answerer.has(path, 8)  # so that it is read again, in case it is complete by then


def test_a_refused_question_is_reported_and_leaves_the_earlier_turns(answerer: Answerer) -> None:
    before = conversation(answerer, CLIPS[0].path, CLIPS[0].question)
    for question, problem in (("  ", NO_QUESTION), ("A <video>?", "'<video>'")):
        after = conversation(answerer, CLIPS[0].path, question, before)
        assert after[:-1] == before and problem in (after[-1].problem or "") and not after[-1].replies


def test_a_bug_is_raised_and_not_shown_as_a_mistake(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answerer_module, "timed_answer", lambda *_, **__: {}["a bug"])
    with pytest.raises(KeyError, match="a bug"):
        conversation(answerer, CLIPS[0].path, CLIPS[0].question)


# -- controls and drawing ---------------------------------------------------------------------------------------------


def test_the_controls_offer_what_the_settings_accept_and_method_and_model_read(
    family: Family, answerer: Answerer
) -> None:
    for control in CONTROLS:
        for choice in control.choices:
            assert checked_setting(control.setting, choice) == choice
        with pytest.raises(ValueError, match=", ".join(map(repr, control.choices))):
            checked_setting(control.setting, "nothing")
    for method in COMPRESSION_METHODS:
        overrides = chosen_settings(0.5, method, CONTROLS, ("original", "round", "released", "max"))
        answerer.settings(overrides)  # raises on a setting that the method does not read
        assert overrides["compression_positions"] == "original"
    controls = controls_for(Checkpoint("tiny", family.model, family.processor))
    assert (POSITIONS in controls) == (not family.case.mrope)


def test_questions_and_answers_are_shown_as_text(answerer: Answerer) -> None:
    turns = conversation(answerer, CLIPS[0].path, "<script>alert(1)</script> & co?")
    shown = turns_html(turns)
    assert "<script" not in shown and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co?" in shown
    for reply in turns[0].replies.values():
        measured = reply.measured
        assert measured is not None
        assert f"{measured.video_tokens:,}" in shown
        assert any(f"{measured.prefill_seconds:.{digits}f} s" in shown for digits in (2, 3))


# -- the page ---------------------------------------------------------------------------------------------------------


@contextmanager
def served(toy: Checkpoint, *clip: str) -> Iterator[str]:
    from vidcom2.demo.demo_page import build_page
    from vidcom2.demo.serving import import_gradio, serve

    import_gradio()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = build_page(Answerer(toy), 8, NEW, *clip)
    yield serve(page, *clip, server_name="127.0.0.1", server_port=port)
    page.close()


@pytest.fixture(scope="module")
def address(toy: Checkpoint) -> Iterator[str]:
    with served(toy) as address:
        yield address


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of a user's, beside a file that is none of the page's business."""
    clip = tmp_path_factory.mktemp("videos") / "my holiday.mp4"
    shutil.copy(CLIPS[1].path, clip)
    clip.with_name("diary.txt").write_text("private")
    return clip


@pytest.fixture(scope="module")
def address_with_clip(toy: Checkpoint, mine: Path) -> Iterator[str]:
    with served(toy, str(mine)) as address:
        yield address


def test_the_page_begins_with_the_clip_of_the_command_and_serves_no_file_beside_it(
    address_with_clip: str, mine: Path
) -> None:
    config = json.loads(urlopen(f"{address_with_clip}config").read())
    properties = [each["props"] for each in config["components"]]
    (video,) = (each for each in properties if each.get("elem_id") == "clip")
    (question,) = (each for each in properties if each.get("elem_id") == "question")
    assert video["value"]["orig_name"] == mine.name and not question["value"]
    buttons = [each["value"] for each in properties if each.get("size") == "sm" and each.get("elem_id") != "upload"]
    samples = [mine.name, *(clip.question for clip in CLIPS)]
    assert [each for each in buttons if each in samples] == samples
    files = f"{address_with_clip}gradio_api/file="
    assert urlopen(files + quote(str(mine))).read() == mine.read_bytes()
    with pytest.raises(HTTPError, match="403"):
        urlopen(files + quote(str(mine.with_name("diary.txt"))))


@pytest.mark.slow
def test_one_asks_about_the_clip_of_the_command_and_comes_back_to_it(address_with_clip: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address_with_clip)
    page.wait_for_selector("#kept figure")
    assert page.input_value("#question textarea") == ""
    page.fill("#question textarea", CLIPS[1].question)
    page.click("#ask")
    page.wait_for_selector("#conversation .gain")
    assert CLIPS[1].answer in page.inner_text("#conversation")
    mine_kept = page.get_attribute("#kept img", "src")
    for name, asks in ((CLIPS[0].question, CLIPS[0].question), ("my holiday.mp4", "")):
        page.click(f"button:has-text('{name}')")
        page.wait_for_function("text => document.querySelector('#question textarea').value == text", arg=asks)
    page.wait_for_function("kept => document.querySelector('#kept img').src == kept", arg=mine_kept)


@pytest.fixture
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"none of these browsers is installed: {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


def upload(page: Any, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.click("#upload")
    chooser.value.set_files(str(path))


def problems(page: Any) -> list[str]:
    return [each.inner_text() for each in page.query_selector_all(".problem")]


@pytest.mark.slow
def test_a_user_can_upload_ask_and_move_the_slider_on_a_phone(address: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    requested, errors = set(), []
    page.on("request", lambda request: requested.add(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.wait_for_selector("#kept figure")
    assert "toy" in page.inner_text(".introduction .toy")

    def shown() -> tuple[str, str]:
        return page.inner_text("#kept .kept-title"), page.get_attribute("#kept img", "src")

    sample = shown()
    upload(page, CLIPS[1].path)
    page.wait_for_function("old => document.querySelector('#kept img').src != old", arg=sample[1])
    assert page.input_value("#question textarea") == ""  # the sample's question left with the sample
    page.fill("#question textarea", CLIPS[1].question)
    page.press("#question textarea", "Enter")
    page.wait_for_selector("#conversation .gain")
    few, full = page.query_selector_all("#conversation article .answer")
    assert few.inner_text() == full.inner_text() == CLIPS[1].answer

    before = shown()
    page.focus("#ratio input[type=range]")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('#kept .kept-title').innerText.includes('0.35')")
    assert shown()[1] != before[1]
    assert len(page.query_selector_all("#conversation section")) == 1  # the slider leaves the conversation alone

    page.fill("#question textarea", "Is it?")
    page.click("#ask")
    page.wait_for_selector("#conversation section:nth-of-type(2) .gain")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(
        "() => [...document.querySelectorAll('#kept, #kept *')].every(e => e.scrollHeight <= e.clientHeight + 1 "
        "|| getComputedStyle(e).overflowY == 'visible')"
    )  # no frame is cut off, and nothing scrolls inside the page
    assert all(url.startswith((address, "data:", "blob:")) for url in requested), requested
    assert errors == []


@pytest.mark.slow
def test_what_is_wrong_is_said_once_and_a_file_that_the_browser_cannot_play_is_answered(
    address: str, browser: Any, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("#kept figure")
    for box in ("ratio", "frames"):
        page.fill(f"#{box} input[type=number]", "")
        page.wait_for_selector(".problem")
        assert len(problems(page)) == 1 and "empty" in problems(page)[0]
        page.fill(f"#{box} input[type=number]", "1")
        page.wait_for_selector("#kept figure")
    page.fill("#question textarea", "What happens?")
    for change, problem in (
        (lambda: upload(page, broken_clip(tmp_path)), "holiday.mp4"),
        (lambda: page.click("#clip button[aria-label=Clear]"), NO_CLIP),
    ):
        change()
        page.wait_for_function("text => document.querySelector('.problem')?.innerText.includes(text)", arg=problem)
        page.click("#ask")
        page.wait_for_timeout(1000)
        page.wait_for_function("() => !document.querySelector('#conversation section')")  # the question is gone again
        assert len(problems(page)) == 1 and problem in problems(page)[0]
        assert page.input_value("#question textarea") == "What happens?"
        assert not page.query_selector_all("#conversation section")
    upload(page, write_clip(tmp_path / "clip.avi", [i / 25 for i in range(8)], codec="mpeg4", tick=None))
    page.wait_for_function("() => document.querySelector('#clip-note')?.innerText.includes('96 × 64 pixels')")
    page.wait_for_timeout(1000)
    assert "not playable" not in page.inner_text("body")
    page.click("#ask")
    page.wait_for_selector("#conversation .gain")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_two_users_have_separate_conversations(address: str, browser: Any) -> None:
    pages = []
    for clip in CLIPS[:2]:
        page = browser.new_context().new_page()
        page.goto(address)
        page.wait_for_selector("#kept figure")
        page.click(f"text={clip.question} >> nth=-1")
        page.wait_for_function("text => document.querySelector('#question textarea').value == text", arg=clip.question)
        page.wait_for_timeout(1000)
        pages.append(page)
    for page in pages:
        page.click("#ask")
    for page, clip in zip(pages, CLIPS, strict=False):
        page.wait_for_selector("#conversation .gain")
        assert page.inner_text("#conversation .question").endswith(clip.question)
        assert [each.inner_text() for each in page.query_selector_all("#conversation .answer")] == [clip.answer] * 2


# -- live -------------------------------------------------------------------------------------------------------------


def test_each_visitor_has_a_live_video_of_his_own_and_pictures_wait_for_nobody(answerer: Answerer) -> None:
    pictures = read_video(CLIPS[0].path, 16).frames
    visits = [Visit() for _ in range(MOST_VISITORS + 1)]
    first, second = visits[:2]
    assert "Nothing was shown yet" in first.told()
    for picture in pictures:
        first.show(answerer, picture)
    second.show(answerer, pictures[0])
    with answerer.alone():
        second.show(answerer, pictures[1])
    assert first.live is not None and second.live is not None
    assert (first.live.num_frames, first.dropped) == (16, 0) and (second.live.num_frames, second.dropped) == (1, 1)
    assert first.live.ask(CLIPS[0].question).strip() == CLIPS[0].answer
    assert "remembers 400 of 400 tokens." in first.told() and "busy: 1." in second.told()
    for visit in visits[2:-1]:
        visit.show(answerer, pictures[0])
    with pytest.raises(ValueError, match="others are live"):
        visits[-1].show(answerer, pictures[0])
    second.forget(answerer)
    visits[-1].show(answerer, pictures[0])  # who forgets makes room
    with pytest.raises(VideoError, match="no axis has the three colours"):
        first.show(answerer, pictures[0, :, :, :2])
    assert first.live.num_frames == 16  # a picture that is refused changes nothing
    first.show(answerer, pictures[0, :100])  # as when a phone is turned
    assert first.live.num_frames == 1
    first.forget(answerer)
    assert first.live is None
    first.show(answerer, pictures[3])
    assert first.live is not None and first.live.num_frames == 1


def test_a_camera_that_sends_something_else_starts_no_program(
    answerer: Answerer,
    postscript: Path,  # noqa: F811  (a fixture of another file)
    tmp_path: Path,
) -> None:
    """Whoever calls the page's API may send any file as the camera's picture, or any bytes."""
    from gradio.data_classes import ImageData

    from vidcom2.demo.demo_page import build_page

    page = build_page(answerer, 8, NEW)
    (watch,) = (each for each in page.fns.values() if each.name == "watch")
    Image.fromarray(read_video(CLIPS[0].path, 1).frames[0]).save(tmp_path / "picture.png")

    def sent(**picture: str) -> str:
        return watch.fn(Visit(), watch.inputs[1].preprocess(ImageData(**picture)))[1]

    for path, told in ((postscript, "annot read the picture"), (tmp_path / "picture.png", "1 pictures")):
        inline = base64.b64encode(path.read_bytes()).decode()
        for picture in ({"path": str(path)}, {"url": f"data:image/jpeg;base64,{inline}"}):
            assert told in sent(**picture)
    for nonsense in ({}, {"path": str(tmp_path / "missing.png")}, {"url": "data:image/png;base64,é"}):
        assert "problem" in sent(**nonsense)
