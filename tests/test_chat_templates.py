"""`chat_template_kwargs` reach the template wherever questions are asked, and the assistant's last words go on."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from make_clips import write_clip
from models import save_tiny
from test_cli import shown_by, told_by, vidcom2
from test_evaluation import command as eval_command
from test_evaluation import frames_of, read_lines, write_lines
from test_many import command as run_command
from transformers import AutoProcessor

import vidcom2 as package
from vidcom2.asking.conversation import Conversation
from vidcom2.asking.prompting import prepare_inputs, prompt_text
from vidcom2.asking.watched import watch_frames
from vidcom2.bulk.requests import request_of
from vidcom2.errors import CheckpointError, OptionError
from vidcom2.evaluation.candidates_engine import text_of
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.video.reading import Video

QUESTION = "What happens?"
# What a template may write at the beginning of an answer
MOOD = "{% if mood is defined %}({{ mood }}) {% endif %}{% if enable_thinking is false %}<think></think>{% endif %}"


def with_mood(template: str) -> str:
    changed = template.replace("{% if add_generation_prompt %}", MOOD + "{% if add_generation_prompt %}")
    assert changed != template
    return changed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a checkpoint whose chat template reads `mood`."""
    folder = save_tiny(tmp_path_factory.mktemp("model") / "tiny-model")
    processor = AutoProcessor.from_pretrained(folder)
    processor.chat_template = with_mood(processor.chat_template)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder), device="cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    picture = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    folder = tmp_path_factory.mktemp("clip")
    return write_clip(folder / "clip.mp4", np.arange(6) / 5, picture=lambda n: np.roll(picture, 9 * n, axis=1))


@pytest.fixture(scope="module")
def video() -> Video:
    return frames_of(0, 6)


def by_hand(checkpoint: Checkpoint, video: Video, text: str) -> str:
    """Return the answer to a prompt that is already in the chat template."""
    processor: Any = checkpoint.processor
    frames = {"videos": [[video.frames]], "video_metadata": [video.metadata], "do_sample_frames": False}
    inputs = processor(text=[text], **frames, return_tensors="pt")
    model: Any = checkpoint.model
    output = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    return processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def angry(checkpoint: Checkpoint) -> str:
    plain = prompt_text(checkpoint.processor, QUESTION)
    begun = "<|im_start|>assistant\n"
    assert plain.endswith(begun)
    return f"{plain.removesuffix(begun)}(angry) {begun}"


# -- everywhere -------------------------------------------------------------------------------------------------------


def test_template_arguments_reach_the_prompt_of_ask_and_of_each_request(checkpoint: Checkpoint, video: Video) -> None:
    given = {"processor": checkpoint.processor, "max_new_tokens": 6}
    expected = by_hand(checkpoint, video, angry(checkpoint))
    plain = by_hand(checkpoint, video, prompt_text(checkpoint.processor, QUESTION))
    mood = {"chat_template_kwargs": {"mood": "angry"}}
    answer = package.ask(video, QUESTION, checkpoint.model, **given, **mood)
    assert answer == expected
    longer = answer.prompt_tokens - package.ask(video, QUESTION, checkpoint.model, **given).prompt_tokens
    assert longer == len("(angry) ")  # a token for each byte
    measured = package.ask(video, QUESTION, checkpoint.model, **given, **mood, measure=True).measured
    assert measured.compressed.answer == expected and measured.chat_template_kwargs == {"mood": "angry"}

    asked = {"video": video, "prompt": QUESTION}
    own = [{}, mood, {"chat_template_kwargs": None}, {"chat_template_kwargs": {"mood": None}}]
    found = package.answer_many([asked | each for each in own], checkpoint.model, **given)
    found = {each.request.id: each for each in found}
    assert {i: each.answer for i, each in found.items()} == {"1": plain, "2": expected, "3": plain, "4": plain}
    assert [found[i].prompt_tokens - found["1"].prompt_tokens for i in "234"] == [longer, 0, 0]
    of_run = {"chat_template_kwargs": {"mood": "calm"}}
    found = package.answer_many([asked, asked | mood], checkpoint.model, **given, **of_run)
    lengths = {each.request.id: each.prompt_tokens for each in found}
    assert lengths["2"] == answer.prompt_tokens == lengths["1"] + len("angry") - len("calm")


def test_template_arguments_reach_each_turn_of_a_conversation(checkpoint: Checkpoint, video: Video) -> None:
    conversation = Conversation(watch_frames(checkpoint, video, {}), 3, {"mood": "angry"})
    for _ in range(2):
        conversation.ask(QUESTION)
    assert conversation.ids is not None
    text = checkpoint.processor.decode(conversation.ids[0])
    assert text.count("(angry) <|im_start|>assistant\n") == 2


def test_the_commands_take_and_record_template_arguments(
    folder: Path, checkpoint: Checkpoint, clip: Path, tmp_path: Path
) -> None:
    mood, other = (("--chat-template-kwargs", json.dumps({"mood": each})) for each in ("angry", "calm"))
    one = ["run", "--model", folder, "--video", clip, "--prompt", QUESTION, "--num-frames", 6, "--device", "cpu"]
    one += ["--max-new-tokens", 6, "--repeats", 1, "--no-baseline"]
    expected = by_hand(checkpoint, package.read_video(clip, 6), angry(checkpoint))
    result = told_by(*one, *mood)
    assert result["compressed"]["answer"] == expected and result["chat_template_kwargs"] == {"mood": "angry"}

    requests = write_lines(clip.parent / "r.jsonl", {"video": "clip.mp4", "prompt": QUESTION})
    many = run_command(folder, tmp_path / "a.jsonl", "--requests", requests, "--max-new-tokens", 6)
    shown_by(*many, *mood)
    assert read_lines(tmp_path / "a.jsonl")[0]["answer"] == expected
    code, _, error = vidcom2(*many, *other)
    assert code == 2 and "`chat_template_kwargs.mood` was 'angry' and is 'calm'" in error

    data = write_lines(clip.parent / "q.jsonl", {"video": "clip.mp4", "question": QUESTION})
    evaluated = eval_command(folder, data, tmp_path / "out", "--max-new-tokens", 6, "--ratios", "0.25")
    shown_by(*evaluated, *mood)
    assert read_lines(tmp_path / "out" / "answers.jsonl")[0]["answers"]["vidcom2 0.25"]["text"] == expected.strip()
    certificate = json.loads((tmp_path / "out" / "results.json").read_text())["birth_certificate"]
    assert certificate["arguments"]["chat_template_kwargs"] == {"mood": "angry"} and "angry" in certificate["command"]
    code, _, error = vidcom2(*evaluated)
    assert code == 2 and "`chat_template_kwargs.mood` was 'angry' and is None" in error


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"moood": "x"}, "'moood',.* Did you mean 'mood'?"),
        ({"add_generation_prompt": False}, "'add_generation_prompt'"),
        ({"messages": []}, "'messages'"),
        ({"mood": "false"}, "'false' for 'mood'"),
        *(({"enable_thinking": each}, f"{re.escape(repr(each))} for 'enable_thinking'") for each in (0, "off", None)),
        ([1], r"`chat_template_kwargs` is \[1\]"),
    ],
    ids=str,
)
def test_template_arguments_that_would_do_nothing_are_refused(given: Any, message: str, checkpoint: Checkpoint) -> None:
    arguments = {"processor": checkpoint.processor, "chat_template_kwargs": given}
    for call in (
        lambda: package.ask("no-such-clip.mp4", QUESTION, checkpoint.model, **arguments),
        lambda: package.answer_many([], checkpoint.model, **arguments),
        lambda: Conversation(watch_frames(checkpoint, frames_of(0, 4), {}), 1, given),
    ):
        with pytest.raises(OptionError, match=message):
            call()
    if isinstance(given, dict) and None not in given.values():  # in a request, it means the run's own
        asked = {"video": frames_of(0, 4), "prompt": QUESTION, "chat_template_kwargs": given}
        (answered,) = package.answer_many([asked], checkpoint.model, processor=checkpoint.processor)
        assert re.search(message, answered.error or "")


def test_what_a_template_itself_refuses_is_one_clear_error(checkpoint: Checkpoint, video: Video) -> None:
    processor = copy.copy(checkpoint.processor)
    refusing = "{% if mood %}{{ raise_exception('no moods') }}{% endif %}" + processor.chat_template
    for template, arguments, error, message in (
        (refusing, {"mood": "x"}, OptionError, r"does not take the question with .*'mood': 'x'.*: no moods"),
        ("{% if %}", {}, CheckpointError, "the model's chat template cannot be used: "),
        (None, {}, CheckpointError, "does not have a chat template"),
    ):
        processor.chat_template = template
        with pytest.raises(error, match=message):
            prepare_inputs(processor, QUESTION, video, template_arguments=arguments)


@pytest.mark.parametrize("text", ["[1]", '{"a": 1, "a": 2}'])
def test_an_option_that_is_no_json_object_is_refused(text: str, folder: Path, clip: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "q.jsonl", {"video": str(clip), "question": QUESTION, "prompt": QUESTION})
    for words in (
        ["run", "--video", clip],
        ["run", "--videos", clip.parent, "-o", tmp_path / "a.jsonl"],
        ["run", "--videos", clip.parent, "--check"],
        ["eval", "--data", data, "-o", tmp_path / "out"],
        ["chat", clip],
    ):
        code, _, error = vidcom2(*words, "--model", folder, "--chat-template-kwargs", text)
        assert code == 2 and f"`--chat-template-kwargs` is {text!r}" in error
    assert set(tmp_path.iterdir()) == {data}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"chat_template": "x"}, "Did you mean 'chat_template_kwargs'?"),
        ({"enable_thinking": False}, 'Did you mean "chat_template_kwargs": {"enable_thinking": false}?'),
        ({"continue_final_message": True}, "'continue_final_message'"),
        ({"chat_template_kwargs": "x"}, "`chat_template_kwargs` is 'x'"),
        ({"max_tokens": 3}, "Did you mean 'max_new_tokens'?"),
        ({"num_frame": 3}, "Did you mean 'num_frames'?"),
        ({"vision_metod": "full"}, "Did you mean 'vision_method'?"),
    ],
    ids=str,
)
def test_a_key_that_reads_like_another_is_refused_and_other_keys_are_kept(more: dict[str, Any], problem: str) -> None:
    own = {"mine": 1, "video_id": "x", "frames": 3, "template": "y", "thinking": "z", "answer": "B", "choice": "B"}
    good = {"video": "a.mp4", "prompt": QUESTION, **own}
    assert request_of(good, 1).problem is None and problem in (request_of(good | more, 1).problem or "")


# -- thoughts ---------------------------------------------------------------------------------------------------------


def test_thoughts_can_be_told_from_answers_whatever_tokens_enclose_them(checkpoint: Checkpoint) -> None:
    """Qwen's marks are ordinary tokens, and its template may write the first. Gemma's are special tokens."""
    tokenizer: Any = load_checkpoint(str(checkpoint.name), device="cpu").processor.tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|channel>", "<channel|>"]})
    tokenizer.add_tokens(["<think>", "</think>"])

    def ids(text: str) -> torch.Tensor:
        return tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]

    for begun, new, text in (
        ("", "B<|im_end|>", "B"),
        ("", "<think>A</think>B<|im_end|><|endoftext|>", "<think>A</think>B"),
        ("<think>\n", "A</think>B<|im_end|>", "<think>A</think>B"),
        ("<think>\n", "it is B", "<think>it is B"),
        ("<think>\n\n</think>\n\n", "B", "B"),
        ("<think></think>\n", "B", "B"),
        ("<think></think><think>", "B", "<think>B"),
        ("", "<|channel>thought\nA<channel|>B<|im_end|>", "<|channel>thought\nA<channel|>B"),
        ("", "<|channel>thought\nB", "<|channel>thought\nB"),
    ):
        prompt = f"<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n{begun}"
        assert text_of(tokenizer, prompt, ids(new)) == text


# -- chats that the assistant ends ------------------------------------------------------------------------------------


def test_a_chat_that_ends_with_the_assistants_words_continues_them(family: Family) -> None:
    video = frames_of(0, 4)
    words = "Well, I see"
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": words}]
    answer = package.ask(video, chat, family.model, processor=family.processor, max_new_tokens=1)
    text = prompt_text(family.processor, chat)
    begun = prompt_text(family.processor, QUESTION)
    assert text.startswith(begun.rstrip()) and text.removeprefix(begun.rstrip()).strip() == words
    inputs = prepare_inputs(family.processor, QUESTION, video)  # by hand: the words behind those of the question
    words_in_prompt = family.processor.tokenizer(text.removeprefix(begun), add_special_tokens=False).input_ids
    assert answer.full_prompt_tokens - inputs["input_ids"].shape[1] == len(words_in_prompt)


@only(lambda family: family.name == "llava_onevision")
def test_the_answer_to_a_continued_chat_is_that_of_transformers_pipeline(family: Family) -> None:
    from transformers import pipeline

    video = frames_of(0, 6)
    words = {"role": "assistant", "content": [{"type": "text", "text": "Well, I see"}]}
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": QUESTION}]}, words]
    answer = package.ask(video, chat, family.model, processor=family.processor, max_new_tokens=6)
    pipe: Any = pipeline("image-text-to-text", model=family.model, processor=family.processor)
    text = family.processor.apply_chat_template(chat, continue_final_message=True)
    found = pipe(text=text, videos=video.frames, generate_kwargs={"max_new_tokens": 6}, return_full_text=False)
    assert found[0]["generated_text"] == answer
