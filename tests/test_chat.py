"""`vidcom2 chat` and its `Conversation` continue one KV cache from question to question."""

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, only
from test_cli import mistake, shown_by
from test_recorded_commands import METHOD, SOURCE
from transformers import StaticCache
from typer.testing import CliRunner

from vidcom2 import tiny_model
from vidcom2.asking.conversation import Conversation
from vidcom2.asking.watched import watch_frames
from vidcom2.cli.app import app
from vidcom2.errors import OptionError
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.toys import DEMO_VIDEO, TOY
from vidcom2.video.reading import Video, read_video


@pytest.fixture(scope="module")
def video() -> Video:
    return read_video(str(DEMO_VIDEO), 6)


def chat(lines: str, *arguments: object) -> tuple[int, str, str]:
    return typed_line(lines, "chat", *arguments)


def typed_line(lines: str, *arguments: object) -> tuple[int, str, str]:
    """Run a command with these lines on stdin."""
    result = CliRunner().invoke(app, [*map(str, arguments)], input=lines)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@only(lambda family, kind: kind == "dynamic" or not family.name.startswith("gemma4"))
def test_a_continued_conversation_equals_starting_anew(
    family: Family, kind: str, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a static cache, too, whatever else the generation config says."""
    model: Any = family.model
    config = copy.deepcopy(model.generation_config)
    config.suppress_tokens = [model.config.video_token_id]  # which random weights might generate
    config.update(stop_strings=["a text that never comes"], num_beams=2, cache_implementation=kind)
    monkeypatch.setattr(model, "generation_config", config)
    checkpoint = Checkpoint("tiny", model, family.writing_short.processor)
    conversation = Conversation(watch_frames(checkpoint, video, {}), max_new_tokens=4)
    lengths = []
    for question in ("What?", "And then?", "Why?"):
        conversation.ask(question)
        assert conversation.ids is not None
        lengths.append((conversation.ids.shape[1], conversation.cached_tokens))
    (whole, held), *_, last = lengths
    assert isinstance(conversation.cache, StaticCache) == (kind == "static")
    assert held < whole and last[0] - whole == last[1] - held > 8  # the cache holds all text, and part of the video
    ids = conversation.ids
    written = conversation.watched.inputs("What?")
    inputs = written | {"mm_encoder_outputs": {"video": conversation.watched.features}}
    prompt = ids[:, : len(ids[0]) - 4]
    more = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
    if (types := more.get("mm_token_type_ids")) is not None:
        more["mm_token_type_ids"] = torch.nn.functional.pad(types, (0, prompt.shape[1] - types.shape[1]))
    plain = {"do_sample": False, "num_beams": 1, "stop_strings": None, "cache_implementation": "dynamic"}
    mask = torch.ones_like(prompt)
    anew = model.generate(input_ids=prompt, attention_mask=mask, **more, **plain, max_new_tokens=4)
    assert torch.equal(anew, ids)


def test_a_conversation_that_outgrows_its_static_cache_is_refused_and_can_go_on() -> None:
    checkpoint = load_checkpoint(device="cpu", cache_implementation="static")
    config: Any = checkpoint.model.generation_config
    config.min_new_tokens = 8
    watched = watch_frames(checkpoint, read_video(str(DEMO_VIDEO), 4), {})
    dynamic = Conversation(watched, max_new_tokens=8)
    config.cache_implementation = "dynamic"
    expected = [dynamic.ask(question) for question in ("What?", "Why?")]
    assert dynamic.ids is not None
    config.cache_implementation, config.max_cache_len = "static", dynamic.ids.shape[1] - 1
    conversation = Conversation(watched, max_new_tokens=8)
    conversation.ask("What?")
    length = conversation.cached_tokens
    with pytest.raises(OptionError, match=r"need \d+ tokens, but the static KV cache has \d+\. Ask something shorter"):
        conversation.ask("Why is it so, and how does it go on from there?")
    assert conversation.cached_tokens == length
    assert [expected[0], conversation.ask("Why?")] == expected  # as many tokens as fit
    config.max_cache_len = 20
    with pytest.raises(OptionError, match="the static KV cache has 20"):
        Conversation(watched, max_new_tokens=8).ask("What?")
    config.cache_implementation, config.max_cache_len = "quantized", None
    with pytest.raises(OptionError, match=r"cache_implementation` is 'quantized', but .* must be dynamic or static"):
        Conversation(watched, max_new_tokens=8)


def test_the_chat_template_ends_each_answer_once() -> None:
    checkpoint = load_checkpoint()
    conversation = Conversation(watch_frames(checkpoint, read_video(str(DEMO_VIDEO), 16), {}), max_new_tokens=8)
    clip = TOY.clips[0]
    assert conversation.ask(clip.question) == clip.answer
    conversation.ask("Which colour?")
    text = checkpoint.processor.decode(conversation.ids[0]).replace("<video>", "")
    assert text.startswith(
        f"<|im_start|>user\n\n{clip.question}<|im_end|>\n<|im_start|>assistant\n{clip.answer}<|im_end|>\n"
        "<|im_start|>user\nWhich colour?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_question_that_cannot_be_asked_leaves_the_conversation_as_it_was() -> None:
    conversation = Conversation(watch_frames(load_checkpoint(), read_video(str(DEMO_VIDEO), 4), {}), max_new_tokens=2)
    for question, reason in ((" ", "Ask something"), ("A <video>?", "'<video>', which stands for a video")):
        with pytest.raises(OptionError, match=reason):
            conversation.ask(question)
    assert conversation.ids is None and conversation.cached_tokens == 0


def test_chat_answers_lines_until_quit_or_the_end_of_the_input() -> None:
    clip = TOY.clips[0]
    code, shown, error = chat(f"{clip.question}\n\nA <video>?\n{clip.question}\n/quit\nWhat?\n", clip.path)
    assert code == 0 and shown.splitlines().count(clip.answer) == 2
    assert shown.count("tokens in the KV cache") == 2 and error.count("Error: the prompt contains '<video>'") == 1
    assert chat(clip.question)[1].splitlines().count(clip.answer) == 1
    assert chat("")[0] == 0


def test_chat_refuses_a_bad_video_before_it_reads_a_question(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    assert "text.mp4" in mistake("chat", tmp_path / "text.mp4")


def test_watch_writes_a_file_that_chat_answers_from(tmp_path: Path) -> None:
    clip, path = TOY.clips[0], tmp_path / "clip.watched"
    shown = shown_by("watch", clip.path, "-o", path, "--num-frames", 16)
    assert re.search(r"Kept 101 of 401 video tokens of 16 frames, .*, in .*clip\.watched", shown), shown
    code, shown, error = typed_line(f"{clip.question}\n{clip.question}\n", *next_step(shown))
    assert code == 0 and shown.splitlines().count(clip.answer) == 2, error
    assert "`--retention-ratio` is 0.5" in mistake("chat", path, "--retention-ratio", 0.5)


@pytest.mark.usefixtures("methods_restored")
def test_the_next_step_of_watch_has_the_method_and_the_placement(tmp_path: Path) -> None:
    module, clip, path = tmp_path / "of_a_stranger.py", TOY.clips[0], tmp_path / "clip.watched"
    module.write_text(SOURCE)
    sampled = ("--num-frames", 4, "--compression-method", METHOD, "--dtype", "float32")
    step = next_step(shown_by("--import", module, "watch", clip.path, "-o", path, *sampled))
    assert step[:2] == ["--import", str(module)] and step[-2:] == ["--dtype", "float32"]
    assert typed_line("What?\n", *step)[0] == 0


def test_the_next_step_of_watch_has_the_settings_of_the_family(tmp_path: Path) -> None:
    for part in tiny_model("vidcom2_llava_video"):
        part.save_pretrained(tmp_path / "tiny")
    path = tmp_path / "clip.watched"
    given = ("--model", tmp_path / "tiny", "--compression-newlines", "trailing", "--retention-ratio", 0.5)
    step = next_step(shown_by("watch", TOY.clips[0].path, "-o", path, "--num-frames", 4, *given))
    assert "--compression-newlines" in step and "--retention-ratio" not in step
    assert typed_line("What?\n", *step)[0] == 0


def next_step(shown: str) -> list[str]:
    (line,) = re.findall(r"^Ask about it: vidcom2 (.+)$", shown, re.MULTILINE)
    return shlex.split(line)


def test_help_is_a_command_of_chat_and_no_question() -> None:
    code, shown, _ = chat("/help\n/quit\n")
    assert code == 0 and "/quit or Ctrl-D leaves the conversation" in " ".join(shown.split())
    assert "KV cache" not in shown
