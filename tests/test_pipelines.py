"""`pipeline("image-text-to-text")` and `pipeline("any-to-any")` with videos."""

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from make_clips import write_clip
from models import make_video
from PIL import Image
from transformers import pipeline, video_processing_utils
from transformers.video_utils import load_video

from vidcom2 import read_video
from vidcom2.modeling.hosting.pipeline_video_text_to_text import VideoTextToTextPipeline

TASKS = ("image-text-to-text", "any-to-any")
GENERATION = {"max_new_tokens": 4, "do_sample": False}


def processor_of(family: Family) -> Any:
    """Return the stock processor; or this project's that writes all placeholders, where the stock one does not tell
    which frames are a video's."""
    if family.case.family.runs_stock_prompts:
        return family.processor
    processor = copy.copy(family.writing_short.processor)
    processor.writes_all = True
    return processor


@pytest.fixture(scope="module", params=TASKS)
def pipe(family: Family, request: pytest.FixtureRequest) -> Any:
    made = pipeline(request.param, model=family.model, processor=processor_of(family))
    sampling = {"processor_kwargs": {"do_sample_frames": False}} if family.case.takes_one_kind else {}
    return functools.partial(made, **sampling)


@pytest.fixture
def prefill_lengths(family: Family) -> Any:
    """Collect the lengths of the prompts that reach the language model."""
    lengths: list[int] = []

    def record(module: Any, args: Any, kwargs: Any) -> None:
        if (length := kwargs["inputs_embeds"].shape[1]) > 1:
            lengths.append(length)

    hook = family.model.get_decoder().register_forward_pre_hook(record, with_kwargs=True)
    yield lengths
    hook.remove()


def chat(seed: int, question: str = "What happens?") -> list[dict[str, Any]]:
    content = [{"type": "video", "video": make_video(seed)}, {"type": "text", "text": question}]
    return [{"role": "user", "content": content}]


def expected_answer(family: Family, seed: int, question: str = "What happens?") -> str:
    inputs = family.one_video(question, seed=seed)
    out = family.model.generate(**inputs, **GENERATION)[0, inputs["input_ids"].shape[1] :]
    return as_text(family, out)


def as_text(family: Family, new_tokens: Any) -> str:
    return family.processor.decode(new_tokens, skip_special_tokens=True).strip()


def answer(result: Any) -> str:
    """Return the text of a result, without space around it: MiniCPM-V's processor strips the texts that pipelines cut
    the prompt off."""
    text = result["generated_text"]
    return (text if isinstance(text, str) else text[-1]["content"]).strip()


def test_a_video_in_a_chat_is_compressed_and_answered(pipe: Any, family: Family, prefill_lengths: list) -> None:
    result = pipe(text=chat(0), generate_kwargs=GENERATION, return_full_text=False)
    full = family.one_video()["input_ids"].shape[1]
    assert prefill_lengths and all(length <= full - family.case.video_tokens(8) // 2 for length in prefill_lengths)
    assert answer(result[0]) == expected_answer(family, 0)


# Transformers' batches of these lose all frames but one, which is refused, and it refuses sound and Nemotron's padding.
@only(lambda family: family.fits_pipelines and not family.hears and not family.one_prompt_a_call)
def test_chats_in_a_batch_get_the_answers_of_each_alone(pipe: Any, family: Family) -> None:
    questions = ("What happens?", "And who is there?")
    chats = [chat(seed, question) for seed, question in enumerate(questions)]
    results = pipe(text=chats, batch_size=2, generate_kwargs=GENERATION, return_full_text=False)
    for seed, (result, question) in enumerate(zip(results, questions, strict=True)):
        result = result[0] if isinstance(result, list) else result
        assert answer(result) == expected_answer(family, seed, question)


@only(lambda family: not family.takes_one_kind)  # Transformers 5.19 passes videos in another form than it wants
def test_a_prompt_with_separate_videos_is_answered(pipe: Any, family: Family, prefill_lengths: list) -> None:
    prompt = family.prompt("What happens?", videos=1)
    result = pipe(text=prompt, videos=make_video(0), generate_kwargs=GENERATION, return_full_text=False)
    result = result[0] if isinstance(result, list) else result
    assert answer(result) == expected_answer(family, 0)
    assert prefill_lengths[0] < family.one_video()["input_ids"].shape[1]


def test_the_ratio_can_be_set_for_a_call(pipe: Any, family: Family, prefill_lengths: list) -> None:
    for ratio in (0.1, 1.0):
        pipe(text=chat(0), generate_kwargs=GENERATION | {"retention_ratio": ratio})
    assert prefill_lengths[0] < prefill_lengths[1] == family.one_video()["input_ids"].shape[1]


# -- video-text-to-text -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def video_pipe(family: Family) -> Any:
    """Make the pipeline that a Hub repo provides."""
    made = processor_of(family)
    return pipeline("image-text-to-text", model=family.model, processor=made, pipeline_class=VideoTextToTextPipeline)


def test_a_question_about_a_video_is_answered(video_pipe: Any, family: Family, prefill_lengths: list) -> None:
    result = video_pipe(videos=make_video(0), text="What happens?", generate_kwargs=GENERATION)
    assert answer(result[0]) == expected_answer(family, 0)
    assert prefill_lengths[0] < family.one_video()["input_ids"].shape[1]


def test_each_question_is_answered_about_its_own_video(video_pipe: Any, family: Family) -> None:
    questions, videos = ["What happens?", "And who is there?"], [make_video(0), make_video(1)]
    batches = [{}, {"batch_size": 2}] if family.case.fits_pipelines else [{}]
    for options in batches:
        results = video_pipe(videos=videos, text=questions, generate_kwargs=GENERATION, **options)
        answers = [answer(result[0] if isinstance(result, list) else result) for result in results]
        assert answers == [expected_answer(family, seed, question) for seed, question in enumerate(questions)]


@only(lambda family: not family.one_video_a_prompt)
def test_one_question_or_one_for_each_may_be_about_several_videos(video_pipe: Any, family: Family) -> None:
    videos = [make_video(0), make_video(1)]
    inputs = family.inputs(family.prompt("Which?", videos=2), videos=videos)
    out = family.model.generate(**inputs, **GENERATION)[0, inputs["input_ids"].shape[1] :]
    for each in (videos, np.stack(videos)):
        (result,) = video_pipe(videos=each, text="Which?", generate_kwargs=GENERATION)
        assert answer(result) == as_text(family, out)
    for each in (np.stack(videos), tuple(videos), torch.tensor(np.stack(videos))):
        results = video_pipe(videos=each, text=("What happens?",) * 2, generate_kwargs=GENERATION)
        assert [answer(result[0]) for result in results] == [expected_answer(family, seed) for seed in (0, 1)]


def test_a_list_of_images_is_one_video(video_pipe: Any, family: Family) -> None:
    frames = [Image.fromarray(frame.transpose(1, 2, 0)) for frame in make_video(0)]
    result = video_pipe(videos=frames, text="What happens?", generate_kwargs=GENERATION)
    assert answer(result[0]) == expected_answer(family, 0)


def test_a_chat_is_answered_in_either_argument(video_pipe: Any, family: Family) -> None:
    for result in (
        video_pipe(text=chat(0), generate_kwargs=GENERATION),
        video_pipe(chat(0), generate_kwargs=GENERATION),
    ):
        assert result[0]["generated_text"][-1]["role"] == "assistant"
        assert answer(result[0]) == expected_answer(family, 0)
    (first,), (second,) = video_pipe(text=[chat(0), chat(1)], generate_kwargs=GENERATION)
    assert [answer(first), answer(second)] == [expected_answer(family, 0), expected_answer(family, 1)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Let Transformers decode files with PyAV, since torchcodec finds no FFmpeg here. Return which frames it reads."""
    found: list[list[int]] = []

    def by_pyav(video: Any, backend: str, sample_indices_fn: Any) -> Any:
        frames, metadata = load_video(video, backend="pyav", sample_indices_fn=sample_indices_fn)
        found.append([int(index) for index in metadata.frames_indices])
        assert len(frames) == len(set(found[-1]))
        return frames.repeat(len(found[-1]) // len(frames), axis=0), metadata  # PyAV takes no frame twice

    monkeypatch.setattr(video_processing_utils, "load_video", by_pyav)
    monkeypatch.setattr(video_processing_utils, "is_torchcodec_usable", lambda decode: True, raising=False)
    return found


@pytest.mark.parametrize("frames", [120, 20])
def test_files_are_sampled_as_read_video_does_in_questions_and_chats(
    video_pipe: Any, family: Family, tmp_path: Path, read: list[list[int]], frames: int
) -> None:
    """32 frames, from the first to the last, or all of a shorter clip. Questions may ask for another number."""
    clip = write_clip(tmp_path / "clip.mp4", [i / 10 for i in range(frames)], rate=10)
    expected = read_video(clip).frames_indices.tolist()
    question = {"type": "text", "text": "What?"}
    for key in ("video", "url", "path"):
        content = [{"type": "video", key: str(clip)}, question]
        (result,) = video_pipe(text=[{"role": "user", "content": content}], generate_kwargs=GENERATION)
        assert result["generated_text"][0]["content"][0] == content[0]
    video_pipe(videos=clip, text="What?", generate_kwargs=GENERATION)
    video_pipe(videos=[str(clip), clip], text=["What?", "Who?"], generate_kwargs=GENERATION)
    assert read == [expected] * 6
    for number in (7, 1):
        video_pipe(videos=clip, text="What?", num_frames=number, generate_kwargs=GENERATION)
        assert sorted(set(read.pop())) == read_video(clip, number).frames_indices.tolist()


def test_frames_are_sampled_on_request(video_pipe: Any, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict] = []

    def record(messages: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["processor_kwargs"])
        raise RuntimeError("seen")

    monkeypatch.setattr(video_pipe.processor, "apply_chat_template", record)
    sampled, frames = {"do_sample_frames": True}, make_video(0)
    for videos, options, expected in (
        ("clip.mp4", {}, {"num_frames": 32} | sampled),
        ("clip.mp4", {"processor_kwargs": {"num_frames": 3}}, {"num_frames": 3} | sampled),
        ("clip.mp4", {"processor_kwargs": {"fps": 3}}, {"fps": 3}),
        (Path("clip.mp4"), {"num_frames": 4}, {"num_frames": 4} | sampled),
        (frames, {"num_frames": 4, "processor_kwargs": {"size": 1}}, {"num_frames": 4, "size": 1} | sampled),
        (frames, {}, {"do_sample_frames": False}),
    ):
        with pytest.raises(RuntimeError, match="seen"):
            video_pipe(videos=videos, text="What?", **options)
        assert seen.pop() == expected


def test_all_decoded_frames_are_used_even_if_the_processor_would_sample_them(
    video_pipe: Any, family: Family, prefill_lengths: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family.processor.video_processor, "do_sample_frames", True)  # as in Qwen3-VL's processor
    generation = GENERATION | {"retention_ratio": 1.0}
    video_pipe(make_video(0, 12), "What happens?", generate_kwargs=generation)
    video_pipe(chat(0), generate_kwargs=generation)
    monkeypatch.undo()
    assert prefill_lengths == [family.one_video(num_frames=frames)["input_ids"].shape[1] for frames in (12, 8)]


OF_LISTS = "`text` is list, but a question needs .* A list of questions needs a list of as many entries"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"text": "What?"}, "`videos` is NoneType and `text` is str"),
        ({"videos": "clip.mp4"}, "`videos` is str and `text` is NoneType"),
        ({"videos": "clip.mp4", "text": chat(0)}, "`text` is a chat"),
        ({"videos": ["a.mp4"], "text": ["What?", "Who?"]}, OF_LISTS),
        ({"videos": make_video(0), "text": ["What?", "Who?"]}, OF_LISTS),
        ({"videos": (each for each in ["a.mp4"]), "text": "What?"}, "`videos` is generator and `text` is str, but"),
        ({"videos": ["a.mp4"], "text": (each for each in ["What?"])}, "`videos` is list and `text` is generator, but"),
        ({"text": (each for each in [chat(0)])}, "`text` is generator, but a question needs"),
        ({"videos": make_video(0)[0], "text": "What?"}, "`videos` is ndarray and .*frames in 4 dimensions"),
        ({"videos": ["a.mp4", make_video(0)], "text": "Which?"}, "files and decoded frames"),
    ],
)
def test_a_question_without_its_video_is_refused(video_pipe: Any, arguments: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        video_pipe(**arguments)
