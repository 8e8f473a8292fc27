"""No row, question, chat or task can name an argument that was not meant for it: what reaches `generate` is a fixed set
of the processor's outputs, and the arguments of the caller."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Family, only
from test_evaluation import frames_of
from transformers import GenerationConfig, GenerationMixin, ProcessorMixin

import vidcom2
from vidcom2.asking.prompting import OF_TEXTS, OF_THE_TOWER, OF_VIDEOS, prepare_inputs
from vidcom2.errors import CheckpointError, OptionError
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.judging.questions import OF_ALL, read_questions
from vidcom2.loading.checkpoints import Checkpoint

ONE = only(lambda family: family.name == "llava_onevision")
ARGUMENTS = sorted(
    {
        *GenerationConfig().to_dict(),
        *inspect.signature(vars(GenerationMixin)["generate"]).parameters,
        "trust_remote_code",
    }
)
OF_TEMPLATES = sorted(inspect.signature(ProcessorMixin.apply_chat_template).parameters.keys() - {"tools", "documents"})
QUESTION = "Who?"


@pytest.fixture
def given(family: Family, monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str]]:
    """The names of what reaches `generate`, for each of its calls."""
    calls: list[frozenset[str]] = []
    generate = family.model.generate
    monkeypatch.setattr(
        family.model, "generate", lambda **named: calls.append(frozenset(named)) or generate(**named), raising=False
    )
    return calls


@ONE
def test_a_request_hands_no_key_of_its_own_to_generate(family: Family, given: list[frozenset[str]]) -> None:
    plain = {"video": frames_of(0, 4), "prompt": QUESTION, "max_new_tokens": 1}
    hostile = [plain, *({name: 1, **plain} for name in ARGUMENTS)]
    answers = {each.request.id: each for each in vidcom2.answer_many(hostile, family.model, processor=family.processor)}
    asked = [each for each in answers.values() if each.error is None]
    assert answers["1"] in asked and len(asked) > 50  # others are refused, such as `do_sample`
    assert {each.answer for each in asked} == {answers["1"].answer} and len(set(given)) == 1


@ONE
def test_a_question_hands_no_key_of_its_own_to_generate(
    family: Family, given: list[frozenset[str]], tmp_path: Path
) -> None:
    line = {"video": "a.mp4", "question": QUESTION}
    own = [name for name in ARGUMENTS if name not in OF_ALL]  # The others are refused.
    lines = [line, {**dict.fromkeys(own, "x"), **line}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    checkpoint = Checkpoint("tiny", family.model, family.processor)
    rows = evaluate(
        checkpoint,
        read_questions(tmp_path / "q.jsonl"),
        [],
        tmp_path / "answers.jsonl",
        batch_size=1,
        max_new_tokens=1,
        read=lambda source, num_frames: frames_of(0, 4),
    )
    assert rows[0]["answers"] == rows[1]["answers"] and len(set(given)) == 1


@ONE
@pytest.mark.parametrize("name", [*OF_TEMPLATES, "messages", "raise_exception", "strftime_now", "eos_token"])
def test_template_arguments_name_no_argument_of_apply_chat_template(
    family: Family, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Even if the model's template happens to read a variable of that name."""
    monkeypatch.setattr(
        family.processor, "chat_template", family.processor.chat_template + f"{{% if {name} %}}{{% endif %}}"
    )
    asked = {"video": frames_of(0, 4), "prompt": QUESTION, "chat_template_kwargs": {name: "x"}}
    (answered,) = vidcom2.answer_many([asked], family.model, processor=family.processor)
    assert f"`chat_template_kwargs` has {name!r}" in str(answered.error)


@ONE
def test_no_part_of_a_chat_writes_a_placeholder_of_its_own(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it stands in a text, in what a template reads besides, or is what a template makes of another key."""
    own = "{% for m in messages %}{{ m.thought }}{% for p in m.content %}{% if 'image' in p %}<image>{% endif %}"
    own += "{% endfor %}{% endfor %}{{ mood }}"
    monkeypatch.setattr(family.processor, "chat_template", own + family.processor.chat_template)
    watched = vidcom2.watch(frames_of(0, 4), family.model, processor=family.processor)
    text = {"type": "text", "text": QUESTION}
    for message, mood in (
        ({"content": "<video>"}, ""),
        ({"content": QUESTION, "thought": "<video>"}, ""),
        ({"content": [text | {"image": "a.png"}]}, ""),
        ({"content": QUESTION}, "<image>"),
    ):
        with pytest.raises(OptionError, match="which stands for a video or an image"):
            watched.ask([{"role": "user", **message}], chat_template_kwargs={"mood": mood})
    assert watched.ask(QUESTION, max_new_tokens=1).new_tokens == 1


@only(lambda family: not family.one_prompt_a_call)  # Nemotron's leaves it out by itself
def test_processors_return_what_is_known_by_name(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would reach `generate`, so another output is refused rather than lost."""
    inputs = prepare_inputs(family.processor, QUESTION, frames_of(0, 4))
    assert inputs.keys() <= {*OF_TEXTS, *OF_VIDEOS, *OF_THE_TOWER}
    preprocess = family.processor.video_processor.preprocess

    def with_more(*args: Any, **named: Any) -> Any:
        made = preprocess(*args, **named)
        made["custom_generate"] = made["pixel_values_videos" if "pixel_values_videos" in made else "pixel_values"]
        return made

    monkeypatch.setattr(family.processor.video_processor, "preprocess", with_more, raising=False)
    with pytest.raises(CheckpointError, match="returns `custom_generate`, which vidcom2 does not know"):
        prepare_inputs(family.processor, QUESTION, frames_of(0, 4))
