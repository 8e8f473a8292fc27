"""Decoded frames can replace a file: `Video.from_frames`, and `ask` about them, in chats and with several prompts."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from make_clips import write_clip
from PIL import Image

import vidcom2
from vidcom2 import Video
from vidcom2.asking.ask import Answer
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.toys import DEMO_VIDEO
from vidcom2.video.reading import VideoError, read_video

QUESTION = "What happens?"
FRAMES = np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Video:
    """Return 6 of 12 frames that are 0.1 to 1.2 seconds apart."""
    clip = write_clip(tmp_path_factory.mktemp("frames") / "clip.mp4", [i * (i + 1) / 20 for i in range(12)])
    return read_video(clip, 6)


def ask(video: Any, family: Family, question: Any = QUESTION, **arguments: Any) -> Any:
    arguments = {"max_new_tokens": 6, **arguments}
    return vidcom2.ask(video, question, family.model, processor=family.processor, **arguments)


def told(answer: Answer) -> tuple[Any, ...]:
    kept = answer.compression.indices.tolist()
    return answer, answer.prompt_tokens, answer.full_prompt_tokens, answer.new_tokens, kept


# -- frames -----------------------------------------------------------------------------------------------------------

FORMS = {
    "array": lambda frames: frames,
    "channels first": lambda frames: frames.transpose(0, 3, 1, 2),
    "tensor": lambda frames: torch.from_numpy(frames),
    "tensor, channels first": lambda frames: torch.from_numpy(frames).permute(0, 3, 1, 2),
    "float": lambda frames: frames / 255,
    "int64": lambda frames: frames.astype(np.int64),
    "list of arrays": list,
    "list of tensors": lambda frames: list(torch.from_numpy(frames).permute(0, 3, 1, 2)),
    "list of images": lambda frames: [Image.fromarray(frame) for frame in frames],
    "images with alpha": lambda frames: [Image.fromarray(frame).convert("RGBA") for frame in frames],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_frames_gives_the_same_video(form: str) -> None:
    video = Video.from_frames(FORMS[form](FRAMES), fps=2)
    assert video.frames.dtype == np.uint8 and np.array_equal(video.frames, FRAMES)
    assert video.seconds.tolist() == [0, 0.5, 1, 1.5] and video.duration == 2.0


def test_pictures_are_turned_upright_as_their_exif_data_says() -> None:
    picture = Image.fromarray(FRAMES[0])
    picture.getexif()[274] = 6  # orientation: rotate by 90 degrees
    assert np.array_equal(Video.from_frames([picture], fps=1).frames[0], np.rot90(FRAMES[0], -1))


def test_transparent_pixels_are_white_and_animations_are_no_pictures(tmp_path: Path) -> None:
    red, shown = Image.new("RGBA", (8, 8), (255, 0, 0, 0)), np.full((8, 8, 3), 255)
    red.save(tmp_path / "a.png")
    for picture in (red, str(tmp_path / "a.png"), Image.new("LA", (8, 8), (9, 0))):
        assert np.array_equal(Video.from_frames([picture], fps=1).frames[0], shown)
    half = Image.new("RGBA", (8, 8), (255, 0, 0, 102))
    assert Video.from_frames([half], fps=1).frames[0, 0, 0].tolist() == [255, 153, 153]
    for name in ("a.gif", "a.webp"):
        half.save(tmp_path / name, save_all=True, append_images=[Image.new("RGBA", (8, 8), "blue")])
        with pytest.raises(VideoError, match=f"{name}' has 2 frames. Pass each as a picture of its own"):
            Video.from_frames([tmp_path / name], fps=1)
    half.convert("RGB").save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[red.convert("RGB")])  # of a phone
    assert len(Video.from_frames([tmp_path / "a.jpg"], fps=1).frames) == 1


@only(lambda family: any("second_per_grid" in name for name in family.video_inputs))
@pytest.mark.parametrize(
    "times",
    [
        {"times": [0, 1, 2, 3], "duration": 100},
        {"times": [100, 101, 102, 103]},
        {"times": [100, 101, 102, 103], "fps": 30},
    ],
    ids=str,
)
def test_frames_of_a_part_of_a_video_have_their_own_spacing(family: Family, times: dict[str, Any]) -> None:
    """Two frames make one, so a second between frames makes two seconds per entry of the grid."""
    inputs = prepare_inputs(family.processor, QUESTION, Video.from_frames(FRAMES, **times), batch_size=2)
    (name,) = (name for name in family.case.video_inputs if "second_per_grid" in name)
    assert [round(float(each), 6) for each in inputs[name]] == [2.0] * 2


def test_floats_are_rounded_to_the_nearest_byte() -> None:
    video = Video.from_frames(np.full((1, 4, 4, 3), [0.0, 0.4999, 0.999]), fps=1)
    assert video.frames[0, 0, 0].tolist() == [0, 127, 255]


def test_times_are_kept_to_the_microsecond_and_exactly_if_the_files_fps_is_given(video: Video) -> None:
    told = Video.from_frames(video.frames, times=video.seconds, duration=video.duration)
    assert np.allclose(told.seconds, video.seconds, rtol=0, atol=1e-6)
    assert told.duration == pytest.approx(video.duration, abs=1e-6)
    exact = Video.from_frames(video.frames, times=video.seconds, fps=video.fps, duration=video.duration)
    assert exact.frames_indices.tolist() == video.frames_indices.tolist()
    assert exact.metadata == video.metadata and exact.frames is video.frames


def test_the_last_frame_is_shown_as_long_as_the_others_without_a_duration() -> None:
    assert Video.from_frames(FRAMES, times=[1, 2, 3, 7]).duration == 9.0
    assert Video.from_frames(FRAMES, times=[0, 1, 2, 3], fps=25).duration == 3.04
    assert Video.from_frames(FRAMES[:1], times=[3]).duration == 4.0
    assert Video.from_frames(FRAMES, fps=2, duration=10).duration == 10.0


@pytest.mark.parametrize(
    ("frames", "times", "message"),
    [
        (FRAMES, {}, "Nothing says when the frames are shown"),
        ([Image.fromarray(FRAMES[0, :, :, 0].astype(np.int32))], {"fps": 1}, "a picture of mode 'I'"),
        ([FRAMES[0], FRAMES[0] / 255], {"fps": 1}, "images of floats and images of whole numbers"),
        (FRAMES, {"fps": 0}, "`fps` is 0"),
        (FRAMES, {"fps": float("nan")}, "`fps` is nan"),
        (FRAMES, {"fps": "2"}, "`fps` is '2'"),
        (FRAMES, {"times": [0, 1, 2]}, "`times` holds 3 seconds, but there are 4 frames"),
        (FRAMES, {"times": [0, 2, 1, 3]}, "`times` is .* ascending"),
        (FRAMES, {"times": [-1, 0, 1, 2]}, "`times` is .* none below 0"),
        (FRAMES, {"times": [0, 1, 2, float("inf")]}, "`times` is "),
        (FRAMES, {"times": "0123"}, "`times` is '0123'"),
        (
            FRAMES,
            {"times": [0, 1, 2, 1e13]},
            r"`times` reaches 1e\+13 s, .* 9.01e\+09 s at most.* divide milliseconds by",
        ),
        (FRAMES, {"times": [0, 1, 2, 1e300]}, r"`times` reaches 1e\+300 s"),
        (FRAMES, {"times": [0, 1, 2, 3e15], "fps": 30}, r"`times` reaches 3e\+15 s, but at 30 ticks per second"),
        (FRAMES, {"times": [0, 1, 2, 3], "duration": 1e300}, r"`duration` reaches 1e\+300 s"),
        (FRAMES, {"times": [0, 1e-8, 1, 2]}, "`times` holds two"),
        (FRAMES, {"times": [0, 0.5, 1.03, 2], "fps": 10}, r"not those of frames at `fps=10`: 1.03 s is between"),
        (FRAMES, {"times": [0, 1, 2, 3], "duration": 3}, "`duration` is 3, but the last frame is shown at 3 s"),
        (FRAMES, {"fps": 2, "duration": -1}, "`duration` is -1"),
        (FRAMES[0], {"fps": 2}, r"`frames` is of shape \(6, 8, 3\)"),
        (FRAMES[:0], {"fps": 2}, r"`frames` is of shape \(0, 6, 8, 3\)"),
        ([], {"fps": 2}, r"`frames` is of shape \(0,\)"),
        (FRAMES[None], {"fps": 2}, r"`frames` is of shape \(1, 4, 6, 8, 3\)"),
        (FRAMES[..., :1], {"fps": 2}, r"\(4, 6, 8, 1\), in which no axis has the three colours"),
        (FRAMES[:, :3, :, :], {"fps": 2}, r"\(4, 3, 8, 3\), in which either axis could be"),
        (FRAMES.astype(float), {"fps": 2}, "`frames` holds float64 values from 0 to 255"),
        (FRAMES / 255 - 0.5, {"fps": 2}, "`frames` holds float64 values from -0.5 to 0.5"),
        (np.where(FRAMES[0, 0, 0, 0] == FRAMES, np.nan, 0.5), {"fps": 2}, "values from nan to nan"),
        (FRAMES.astype(int) + 1, {"fps": 2}, "`frames` holds int64 values from 1 to 256"),
        (FRAMES > 9, {"fps": 2}, "`frames` is of dtype bool"),
        ([FRAMES[0], FRAMES[1, :4]], {"fps": 2}, r"different shapes, \(4, 8, 3\) and \(6, 8, 3\)"),
        ("frame.png", {"fps": 2}, "`frames` is or holds a str"),
        (["frame.png"], {"fps": 2}, "there is no picture 'frame.png'"),
    ],
)
def test_frames_and_times_that_make_no_sense_are_refused(frames: Any, times: dict[str, Any], message: str) -> None:
    with pytest.raises(VideoError, match=message):
        Video.from_frames(frames, **times)


# -- asking about frames ----------------------------------------------------------------------------------------------


def test_ask_answers_about_frames_with_fps_as_about_their_file(family: Family, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", [i / 4 for i in range(6)])
    video = read_video(clip, 6)
    assert told(ask(video.frames, family, fps=4)) == told(ask(clip, family, num_frames=6))
    by_times = ask(video.frames, family, times=[i / 4 for i in range(6)])
    assert told(by_times) == told(ask(clip, family, num_frames=6)) and by_times.video.duration == 1.5


def test_ask_refuses_frames_without_times_and_times_for_a_video(family: Family, video: Video) -> None:
    with pytest.raises(VideoError, match="`fps=2`"):
        ask(video.frames, family)
    for given in ({"fps": 2}, {"times": [0]}):
        with pytest.raises(ValueError, match=f"`{next(iter(given))}` is for decoded frames, but `video` has its own"):
            ask(video, family, **given)


# -- several prompts, and chats ---------------------------------------------------------------------------------------


def test_several_prompts_are_answered_as_each_alone_from_one_encoding(
    family: Family, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [QUESTION, [{"role": "user", "content": "Who is it?"}], "And where, after all that?"]
    alone = [ask(video, family, question) for question in questions]
    calls = []
    encode_videos = type(family.model.model).encode_videos

    def counted(self: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return encode_videos(self, **kwargs)

    monkeypatch.setattr(type(family.model.model), "encode_videos", counted)
    answers = ask(video, family, questions)
    assert len(calls) == 1
    assert isinstance(answers, list) and list(map(told, answers)) == list(map(told, alone))
    assert [answer.question for answer in answers] == questions
    assert len(ask(video, family, [QUESTION])) == 1


def test_a_chat_is_asked_as_the_processors_template_writes_it(family: Family, video: Video) -> None:
    parts = [{"type": "video"}, {"type": "text", "text": QUESTION}]
    chat = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "A ball rolls."}]},
        {"role": "user", "content": [{"type": "text", "text": "Where to?"}]},
    ]
    inputs = family.stock_inputs(family.processor.apply_chat_template(chat, add_generation_prompt=True), video)
    out = family.model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    answer = ask(video, family, chat)
    assert answer == family.processor.decode(out, skip_special_tokens=True) and answer.new_tokens == len(out)
    assert answer.full_prompt_tokens == inputs["input_ids"].shape[1]
    in_words = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "A ball rolls."},
        {"role": "user", "content": "Where to?"},
    ]
    assert told(ask(video, family, in_words)) == told(answer)
    assert in_words[0] == {"role": "user", "content": QUESTION}
    assert told(ask(video, family, [{"role": "user", "content": QUESTION}])) == told(ask(video, family))


def of_user(*parts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


VIDEO, TEXT = {"type": "video"}, {"type": "text", "text": "What?"}


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ([], r"`question` is \[\]"),
        ({"role": "user", "content": "What?"}, "`question` is {'role'"),
        (["What?", " "], "`question` is ' '. Ask something"),
        (["What?", 3], "`question` holds 3"),
        ([{"role": "user"}], "{'role': 'user'}"),
        ([{"role": "user", "content": "Hi"}, {"role": "system", "content": "Ho"}], "does not end with text"),
        ([{"role": "assistant", "content": "Ho"}], "words of the assistant to continue after a question of the user"),
        ([{"role": "User", "content": "Hi"}], "'User'.* Did you mean 'user'?"),
        ([{"role": "human", "content": "Hi"}], "'human', but roles are system"),
        ([{"role": "system", "content": [VIDEO]}, *of_user(TEXT)], "the video in a message of the system"),
        (of_user(VIDEO), "does not end with text of the user"),
        (of_user(VIDEO, VIDEO, TEXT), "2 videos"),
        (of_user({"type": "video", "path": "x.mp4"}), "brings its own video"),
        (of_user({"type": "image"}), "may hold only text and the video. For other chats call"),
        (of_user({"type": "text", "text": " "}), "may hold only text and the video"),
    ],
)
def test_questions_that_make_no_sense_are_refused_before_the_video_is_read(question: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vidcom2.ask("no-such-clip.mp4", question)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"video": bytes(10**6)}, "`video` is b'.* pass its path"),
        ({"question": bytes(10**6)}, "`question` is b'"),
        ({"num_frames": "4" * 10**6}, "`num_frames` is '4"),
        ({"video": FRAMES, "times": [0.5] * 10**6}, r"`times` is \[0.5"),
        ({"video": FRAMES}, r"`times=\[0.0, 0.5, 1.0, 1.5\]`"),
        ({"video": FRAMES[None], "fps": 1}, r"\(1, 4, 6, 8, 3\). .* `frames\[0\]`"),
        ({"retention_ratoi": 0.5}, "'retention_ratoi' is .* Did you mean 'retention_ratio'"),
        ({"max_tokens": 5}, "'max_tokens' is .* Did you mean 'max_new_tokens'"),
        ({"num_frame": 5}, "'num_frame' is .* Did you mean 'num_frames'"),
        ({"retention_ratio": "25%"}, "`retention_ratio` is '25%', .* Did you mean 0.25?"),
        ({"retention_ratio": "0.25"}, "`retention_ratio` is '0.25', .* Did you mean 0.25?"),
        ({"retention_ratio": 25}, "`retention_ratio` is 25, .* Did you mean 0.25?"),
        ({"dtype": torch.float16}, "`dtype` is torch.float16, .* Did you mean 'float16'"),
        ({"device": 0}, "`device` is 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_of_ask_is_refused_in_few_words_with_what_was_meant(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        vidcom2.ask(**{"video": DEMO_VIDEO, "question": QUESTION} | arguments)
    assert len(str(refused.value)) < 600


def test_all_functions_sample_as_many_frames_by_default() -> None:
    functions = (vidcom2.ask, vidcom2.answer_many, vidcom2.read_video)
    assert {inspect.signature(each).parameters["num_frames"].default for each in functions} == {32}


def test_a_question_that_holds_a_placeholder_or_half_of_a_character_is_refused(family: Family, video: Video) -> None:
    token = family.processor.video_token
    for question in (f"What is {token}?", [{"role": "user", "content": f"{token}?"}]):
        with pytest.raises(ValueError, match=r"the prompt contains .* which stands for a video or an image. Leave it"):
            ask(video, family, question)
    for question in ("What \ud83d?", [{"role": "user", "content": "\ud83d?"}]):
        with pytest.raises(ValueError, match="half of a character"):
            ask(video, family, question)


@only(lambda family: family.name == "llava_onevision")
def test_measuring_several_questions_is_refused(family: Family, video: Video) -> None:
    with pytest.raises(ValueError, match="`measure=True` measures one text, but `question` is a list"):
        ask(video, family, [QUESTION], measure=True)
