"""Many videos in one command get the answers of each alone, whatever interrupts the run or is wrong with some."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, use_method
from make_clips import numbered, write_clip
from models import save_tiny
from PIL import Image
from test_cli import vidcom2
from test_cli_errors import mistake
from test_evaluation import frames_of, read_lines, write_lines

from vidcom2 import AnsweredRequest, Video, answer_many, ask, watch
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.bulk import engine, many_in_transformers
from vidcom2.bulk.background import Background
from vidcom2.bulk.engine import Engine
from vidcom2.bulk.requests import read_requests, request_of, requests_of_folder
from vidcom2.errors import BUG, OptionError
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.records.jsonl import as_line
from vidcom2.records.run_record import AnswerFile
from vidcom2.toys import DEMO_VIDEO
from vidcom2.video.reading import VideoError, read_video

TOKENS = ("prompt_tokens", "video_tokens", "full_prompt_tokens", "full_video_tokens", "new_tokens")


def read(source: str, num_frames: int) -> Video:
    """Return video number 3 with 6 frames for "3 6"."""
    if source.startswith("bad"):
        raise VideoError("cannot read it:\n no frames.")
    seed, length = map(int, source.split())
    return frames_of(seed, min(length, num_frames))


def asked(*videos: str, **more: Any) -> list[dict[str, Any]]:
    """Return a request about each of the videos. The prompts differ in length."""
    return [{"video": video, "prompt": "What happens" + " now" * i + "?", **more} for i, video in enumerate(videos)]


def answers(checkpoint: Checkpoint, requests: Any, **arguments: Any) -> dict[str, AnsweredRequest]:
    """Answer the requests, and return the answers by id. Their videos come from `read`, not from files."""
    given = {"processor": checkpoint.processor, "max_new_tokens": 4, "read": read, **arguments}
    found = list(answer_many(requests, checkpoint.model, **given))
    assert len({each.request.id for each in found}) == len(found)
    return {each.request.id: each for each in found}


def full() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried.\nMore.")


def texts(checkpoint: Checkpoint, requests: Any, **arguments: Any) -> dict[str, str | None]:
    return {name: each.answer for name, each in answers(checkpoint, requests, **arguments).items()}


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("methods_restored")
def test_answers_equal_those_of_ask(family: Family) -> None:
    own = [
        {},
        {"retention_ratio": 1.0},
        {"max_new_tokens": 2},
        {"num_frames": 4},
        {"compression_method": use_method("merged_in_time")},
        {"retention_ratio": 0.6, "max_new_tokens": 2},
        {"compression_positions": "original"},
        {},
        {"retention_ratio": 0.1},
    ]
    videos = ("0 8", "1 6", "1 6", "2 8", "3 4", "4 8", "5 8", "6 2", "7 8")
    requests = [request | more for request, more in zip(asked(*videos), own)]
    found = answers(Checkpoint("tiny", family.model, family.processor), requests, batch_size=4, max_new_tokens=5)
    assert sorted(found) == [str(i) for i in range(1, 10)]
    for number, request in enumerate(requests, start=1):
        more = {"max_new_tokens": 5} | own[number - 1]
        video = read(request["video"], more.pop("num_frames", 32))
        alone = ask(video, request["prompt"], family.model, processor=family.processor, **more)
        answer = found[str(number)]
        assert answer.answer == alone and answer.error is None
        assert {name: getattr(answer, name) for name in TOKENS} == {name: getattr(alone, name) for name in TOKENS}
    if family.case.representative:  # otherwise a model with only one answer would pass
        assert len({each.answer for each in found.values()}) > 3


def test_answers_that_end_early_are_not_padded(checkpoint: Checkpoint) -> None:
    requests = asked("0 8", "1 4", "2 4", "3 8")
    given = {"processor": checkpoint.processor, "max_new_tokens": 8}
    ids = []
    for request in requests:
        inputs = prepare_inputs(checkpoint.processor, request["prompt"], read(request["video"], 8), checkpoint.model)
        output = checkpoint.model.generate(**inputs, max_new_tokens=8, do_sample=False)
        ids.append(output[0, inputs["input_ids"].shape[1] :].tolist())
    end = next(token for answer in ids for token in answer if not all(token in other for other in ids))
    found = answers(checkpoint, requests, max_new_tokens=8, eos_token_id=end)
    for number, request in enumerate(requests, start=1):
        alone = ask(read(request["video"], 8), request["prompt"], checkpoint.model, eos_token_id=end, **given)
        assert (found[str(number)].answer, found[str(number)].new_tokens) == (alone, alone.new_tokens)
    assert len({each.new_tokens for each in found.values()}) > 1


def test_a_video_is_read_and_encoded_once_for_consecutive_requests(checkpoint: Checkpoint) -> None:
    reads: list[str] = []
    tower_runs: list[int] = []
    hook = checkpoint.model.model.vision_tower.register_forward_hook(lambda *_: tower_runs.append(1))
    requests = asked("0 4", "0 4", "0 4", "1 4", "0 4", retention_ratio=0.5)
    requests[1]["retention_ratio"] = 0.2
    found = answers(checkpoint, requests, read=lambda source, n: reads.append(source) or read(source, n))
    hook.remove()
    assert sorted(reads) == ["0 4", "0 4", "1 4"] and len(tower_runs) == 3
    assert found["2"].video_tokens < found["1"].video_tokens == found["3"].video_tokens


# -- in the background ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_a_video", [1, 6])
def test_videos_are_read_ahead_but_only_a_few(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, of_a_video: int
) -> None:
    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        time.sleep(0.05)
        return torch.cat([input_ids, input_ids[:, :1]], dim=1)

    monkeypatch.setattr(checkpoint.model, "generate", generate)
    pulled, alive, total = 0, weakref.WeakSet(), 12 + 12 * of_a_video
    most_pulled = most_alive = answered = 0

    def requests() -> Iterator[dict[str, Any]]:
        nonlocal pulled, most_pulled
        for i in range(total):
            pulled += 1
            most_pulled = max(most_pulled, pulled - answered)
            yield {"video": f"{i // of_a_video} 2", "prompt": "What?"}

    def reading(source: str, num_frames: int) -> Video:
        nonlocal most_alive
        video = read(source, num_frames)
        alive.add(video)
        most_alive = max(most_alive, len(alive))
        return video

    given = {"processor": checkpoint.processor, "read": reading}
    for _ in answer_many(requests(), checkpoint.model, batch_size=2, workers=3, **given):
        answered += 1
    assert answered == total and most_alive <= 3 + 1  # frames are freed when they are preprocessed
    # The requests of 5 videos in the background, 4 batches of 2 waiting and the rest of the last one's video, one that
    # the grouping looks at, and a batch under way.
    assert 5 < most_pulled <= 5 * of_a_video + 8 + (of_a_video - 1) + 1 + 2


def test_closing_the_iterator_early_ends_its_threads(checkpoint: Checkpoint, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", np.arange(600) / 25, picture=lambda n: numbered(n % 200))
    requests = [{"video": str(clip), "prompt": f"What {i}?", "num_frames": 2 + i % 3} for i in range(30)]
    running = answer_many(requests, checkpoint.model, processor=checkpoint.processor, max_new_tokens=1, batch_size=1)
    next(running)
    start = time.perf_counter()
    running.close()
    assert time.perf_counter() - start < 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vidcom2")]


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_bad_request_gets_an_error_of_its_own(checkpoint: Checkpoint) -> None:
    bad = {
        "`prompt`": {"prompt": ""},
        "`retention_ratio`": {"retention_ratio": 2},
        "'<video>'": {"prompt": "A <video>?"},
        "half of a character": {"prompt": "What \ud83d?"},
        "does not read it": {"compression_method": "random", "compression_scoring": "released"},
        "'dycoke'": {"compression_method": "dycoke", "retention_ratio": 0.1},
    }
    requests = [
        *asked("0 4", "bad", "1 4"),
        *({"video": "2 4", "prompt": "What?", **more} for more in bad.values()),
        {"video": "2 4", "prompt": "What?"},
    ]
    found = answers(checkpoint, requests, batch_size=4)
    assert sorted(number for number, each in found.items() if each.error is None) == ["1", "10", "3"]
    for number, words in enumerate(("cannot read it: no frames.", None, *bad), start=2):
        answer = found[str(number)]
        if words is not None:
            assert words in answer.error and "\n" not in answer.error and answer.answer is None
            assert set(answer.row) == {"id", "given", "error"} and answer.row["given"] == requests[number - 1]
    assert found["1"].row["answer"] == found["1"].answer and "error" not in found["1"].row


def test_requests_about_one_video_may_run_the_tower_in_ways_of_their_own(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower_runs, encode = [], many_in_transformers.run_tower
    monkeypatch.setattr(many_in_transformers, "run_tower", lambda *given: tower_runs.append(1) or encode(*given))
    skips = {"vision_method": "skip_repeated", "vision_tolerance": 10.0}
    requests = [request | more for request, more in zip(asked(*["0 8"] * 4), [{}, skips, {}, skips])]
    found = answers(checkpoint, requests, max_new_tokens=5)
    assert len(tower_runs) == 2
    for number, request in enumerate(requests, start=1):
        given = {name: value for name, value in request.items() if name in skips}
        video, of = read("0 8", 8), {"processor": checkpoint.processor, "max_new_tokens": 5}
        assert found[str(number)].answer == ask(video, request["prompt"], checkpoint.model, **of, **given)


def test_requests_that_do_not_fit_beside_others_wait_until_these_are_answered(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds what three requests keep of their videos, of which some are asked about at several ratios."""
    requests = [{"video": f"{i // 4} 4", "prompt": "What?", "retention_ratio": 0.2 + 0.1 * (i % 4)} for i in range(8)]
    expected = texts(checkpoint, requests)
    compress, held = many_in_transformers.keep_tokens, list[weakref.ref[Any]]()

    def compressing(*given: Any) -> Any:
        if sum(each() is not None for each in held) >= 3:
            raise full()
        features = compress(*given)
        held.append(weakref.ref(features))
        return features

    monkeypatch.setattr(many_in_transformers, "keep_tokens", compressing)
    assert texts(checkpoint, requests) == expected


def test_what_has_no_room_beside_others_is_asked_again_when_these_are_answered(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer needs the room of two videos, and memory has that of four. A copy to the device fails once."""
    requests = [{"video": f"{i} 4", "prompt": "What?"} for i in range(8)]
    expected = texts(checkpoint, requests)
    compress, held = many_in_transformers.keep_tokens, list[weakref.ref[Any]]()
    generate, copied = checkpoint.model.generate, []

    def compressing(*given: Any) -> Any:
        features = compress(*given)
        held.append(weakref.ref(features))
        return features

    def generating(*args: Any, **kwargs: Any) -> Any:
        if sum(each() is not None for each in held) > 2:
            raise full()
        return generate(*args, **kwargs)

    class Copied(many_in_transformers.BatchFeature):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            if "pixel_values_videos" in self and len(copied) < 3:
                copied.append(1)
                if len(copied) == 3:
                    raise full()
            return super().to(*args, **kwargs)

    monkeypatch.setattr(many_in_transformers, "keep_tokens", compressing)
    monkeypatch.setattr(many_in_transformers, "BatchFeature", Copied)
    monkeypatch.setattr(checkpoint.model, "generate", generating)
    assert texts(checkpoint, requests, batch_size=1) == expected and len(copied) == 3


def test_what_refuses_a_video_is_asked_once(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def refuses(*_: Any) -> Any:
        tries.append(1)
        raise ValueError("the tower refuses it.")

    monkeypatch.setattr(many_in_transformers, "run_tower", refuses)
    found = answers(checkpoint, asked(*["0 4"] * 5))
    assert {each.error for each in found.values()} == {"the tower refuses it."} and len(tries) == 1
    assert all(each.refused and "refused" not in each.row for each in found.values())
    monkeypatch.setattr(many_in_transformers, "prepare_video", lambda *given, **more: refuses())
    found = answers(checkpoint, asked(*["0 4"] * 5))
    assert len(tries) == 2 and not any(each.refused for each in found.values())


def test_a_batch_has_prompts_of_similar_length_and_is_halved_if_it_does_not_fit(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [{"video": f"{i} {(4, 8)[i % 2]}", "prompt": "What?"} for i in range(12)]
    expected = texts(checkpoint, requests)
    sizes: list[int] = []
    generate, take = checkpoint.model.generate, Background.take
    # With slow readers the model would not wait for prompts that fit better.
    monkeypatch.setattr(Background, "take", lambda self, waits, in_order: take(self, True))

    def small(*args: Any, **kwargs: Any) -> Any:
        sizes.append(len(kwargs["input_ids"]))
        assert kwargs["attention_mask"].all()  # prompts of one length share a batch
        if sizes[-1] > 2:
            raise full()
        return generate(*args, **kwargs)

    monkeypatch.setattr(checkpoint.model, "generate", small)
    assert texts(checkpoint, requests, batch_size=4) == expected
    assert sizes.count(4) == 1 and sizes.count(3) <= 1  # sizes that did not fit are not tried again and again


def test_a_request_that_does_not_fit_gets_an_error(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, encode = checkpoint.model.generate, checkpoint.model.model.encode_videos
    requests = [{"video": f"{i} {length}", "prompt": "What?"} for i, length in enumerate((4, 4, 8, 4, 6, 4))]

    def small(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[1] == longest:
            raise full()
        return generate(*args, **kwargs)

    def small_tower(pixel_values_videos: Any, **kwargs: Any) -> Any:
        if pixel_values_videos.shape[1] == 6:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
        return encode(pixel_values_videos=pixel_values_videos, **kwargs)

    longest = max(each.prompt_tokens for each in answers(checkpoint, requests).values())
    monkeypatch.setattr(checkpoint.model, "generate", small)
    monkeypatch.setattr(checkpoint.model.model, "encode_videos", small_tower)
    found = answers(checkpoint, requests)
    assert [name for name, each in sorted(found.items()) if each.error] == ["3", "5"]
    assert all(found[name].error.startswith("out of memory (") for name in ("3", "5"))


class EngineDeadError(Exception):
    """Has the name of vLLM's."""


def test_whatever_a_request_raises_is_its_own_error_unless_none_can_be_answered_any_more(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another library raises about a file is the file's fault, and anything else a bug, which says where it is."""
    requests = [*asked("0 4", "broken", "1 4", "2 8", "3 4", "4 4"), {"video": "4 4", "prompt": "And?"}]
    requests[5]["retention_ratio"] = 0.1
    expected = answers(checkpoint, requests[:1] + requests[2:])  # without the video that cannot be read
    longest = max(each.prompt_tokens for each in expected.values())
    generate, compress = checkpoint.model.generate, many_in_transformers.keep_tokens
    raised: BaseException = KeyError("x")

    def reading(source: str, num_frames: int) -> Video:
        return read(source, num_frames) if source != "broken" else 1 / 0

    def generating(*args: Any, **kwargs: Any) -> Any:
        if (kwargs["attention_mask"].sum(dim=1) == longest).any():
            raise raised
        return generate(*args, **kwargs)

    def compressing(model: Any, video: Any, settings: Any) -> Any:
        return compress(model, video, settings if settings.retention_ratio > 0.1 else None)

    monkeypatch.setattr(checkpoint.model, "generate", generating)
    monkeypatch.setattr(many_in_transformers, "keep_tokens", compressing)
    found = answers(checkpoint, requests, read=reading)
    assert found["2"].error == "cannot read the video: ZeroDivisionError: division by zero"
    assert found["4"].error.startswith(f"{BUG}: KeyError: 'x' (test_many:")
    assert re.match(f"{BUG}: AttributeError: 'NoneType' .* \\(vidcom2\\.asking\\.generation:", found["6"].error)
    assert {name: found[str(int(name) + (name > "1"))].answer for name in "1246"} == {
        name: expected[name].answer for name in "1246"
    }
    for raised in (KeyboardInterrupt(), RuntimeError("CUDA error: device-side assert triggered"), EngineDeadError()):
        with pytest.raises(type(raised)):
            answers(checkpoint, requests, read=reading)
    monkeypatch.setattr("vidcom2.video.reading.spread_over_time", None)
    (found,) = answer_many([{"video": DEMO_VIDEO, "prompt": "?"}], checkpoint.model, processor=checkpoint.processor)
    assert found.error.startswith(f"{BUG}: TypeError: 'NoneType' ") and "vidcom2.video.reading:" in found.error


def test_the_same_seed_samples_the_same_answers_with_any_number_of_workers(checkpoint: Checkpoint) -> None:
    """Several workers read the first video last. The pause lets the model see the others, if it does not wait."""
    fourth = threading.Event()

    def out_of_order(source: str, num_frames: int) -> Video:
        if source == "0 4":
            assert fourth.wait(60)
            time.sleep(0.3)
        if source == "3 4":
            fourth.set()
        return read(source, num_frames)

    def sampled(seed: int, workers: int, reading: Any = read) -> dict[str, str | None]:
        torch.manual_seed(seed)
        more = {"do_sample": True, "temperature": 3.0, "batch_size": 2, "workers": workers}
        return texts(checkpoint, requests, read=reading, **more)

    requests = asked(*(f"{i} {4 + i % 3}" for i in range(12)))
    alone = sampled(0, workers=1)
    assert sampled(0, 3, out_of_order) == alone != sampled(1, workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"workers": True}, "`workers` is True"),
        ({"retention_ratio": 0}, "`retention_ratio` is 0"),
        ({"streamer": None}, "`streamer`"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"compression_method": "random", "compression_window": 2}, "compression_window"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes_in_the_call_are_refused_at_once(arguments: dict, message: str, checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match=message):
        answer_many(iter(()), checkpoint.model, processor=checkpoint.processor, **arguments)


def test_a_shared_setting_is_left_out_for_a_request_of_a_method_that_does_not_read_it(checkpoint: Checkpoint) -> None:
    windows, evs = asked("0 8")[0], asked("0 8")[0] | {"id": "evs", "compression_method": "evs"}
    found = answers(checkpoint, [windows, evs], compression_window=4)
    (alone,) = answers(checkpoint, [evs]).values()
    assert not any(each.error for each in found.values()) and found["evs"].answer == alone.answer


# -- requests ---------------------------------------------------------------------------------------------------------


def test_each_line_of_the_file_is_a_request(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "requests.jsonl",
        {"video": "clips/a.mp4", "prompt": "What?", "mine": 1, "retention_ratio": 0.5, "compression_window": None},
        "",
        {"id": 7, "video": "https://x.org/b.mp4", "question": "Which?", "choices": ["cat", "dog"], "max_new_tokens": 3},
        "{",
        {"id": "x", "video": "c.mp4"},
        '{"video": "c.mp4", "prompt": "What?", "mine": 1e400}',
        "",
        "[3]",
    )
    first, second, broken, lacking, large, no_object = read_requests(path)
    assert "1e400 is not a finite number. Write null" in large.problem and large.id == "6"
    assert "it holds an array, not an object. Write one JSON object per line." in no_object.problem
    assert (first.id, first.video, first.settings) == ("1", str(tmp_path / "clips/a.mp4"), {"retention_ratio": 0.5})
    assert first.given["mine"] == 1 and first.problem is None
    assert (second.id, second.video, second.max_new_tokens) == ("7", "https://x.org/b.mp4", 3)
    assert second.prompt.startswith("Which?\nA. cat\nB. dog\n")
    assert broken.id == "4" and "it is not valid JSON" in broken.problem and broken.given == {"line": "{"}
    assert lacking.id == "x" and "`prompt` is missing." in lacking.problem
    line = {"video": "a.mp4", "prompt": "What?"}
    with pytest.raises(OptionError, match="two requests have the id '2'"):
        read_requests(write_lines(path, line | {"id": "2"}, line))
    with pytest.raises(OptionError, match="holds no request"):
        read_requests(write_lines(path, ""))


def test_a_line_that_cannot_be_asked_takes_no_id_that_another_line_has(tmp_path: Path) -> None:
    line = {"video": "a.mp4", "prompt": "What?"}
    lines = (line | {"id": "2"}, "{", line | {"id": "line 4"}, {"id": "4", **line}, {"id": [1]}, {"video": "b.mp4"})
    found = read_requests(write_lines(tmp_path / "requests.jsonl", *lines, line | {"id": 6}))
    assert [each.id for each in found] == ["2", "line 2", "line 4", "4", "5", "line 6", "6"]
    assert [each.problem is None for each in found] == [True, False, True, True, False, False, True]
    (broken,) = read_requests(write_lines(tmp_path / "requests.jsonl", "{"))
    assert broken.id == "1"


def test_integers_of_numpy_and_tuples_are_taken_as_their_like(checkpoint: Checkpoint) -> None:
    given = {"video": "0 4", "prompt": "Which?", "choices": ("cat", "dog"), "id": np.int64(3), "mine": np.int32(2)}
    request = request_of(given | {"num_frames": np.int64(8), "max_new_tokens": np.int32(2)}, 1)
    assert (request.problem, request.id, request.num_frames, request.max_new_tokens) == (None, "3", 8, 2)
    assert request.prompt.startswith("Which?\nA. cat\nB. dog\n")
    assert json.loads(as_line(AnsweredRequest(request, "x").row))["given"]["mine"] == 2
    assert request_of(given, 1).given["choices"] == ["cat", "dog"]


def test_a_setting_of_the_model_that_is_null_is_that_of_the_run() -> None:
    for name in ("spatial_pool_mode", "compression_newlines"):
        assert request_of({"video": "a.mp4", "prompt": "What?", name: None}, 1).problem is None


def test_what_reads_videos_is_given_the_times_of_pictures_as_the_request_has_them(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    def reads(source: Any, num_frames: int, **when: Any) -> Video:
        calls.append((source, num_frames, when))
        return frames_of(0, 2)

    names = [str(tmp_path / f"{i}.png") for i in range(2)]
    for more in ({"video": "a.mp4"}, {"video": names, "fps": 2}, {"video": names, "times": [0, 1]}):
        request_of({"prompt": "What?", **more}, 1).read_by(reads, 4)
    assert calls == [("a.mp4", 4, {}), (names, 4, {"fps": 2}), (names, 4, {"times": [0.0, 1.0]})]


def test_a_request_that_is_none_and_ids_that_two_have_are_refused_in_python_too(checkpoint: Checkpoint) -> None:
    twice = [*asked("0 4", "1 4"), {"video": "2 4", "prompt": "?", "id": "2"}]
    with pytest.raises(OptionError, match="two requests have the id '2'"):
        answer_many(twice, checkpoint.model, processor=checkpoint.processor, read=read)
    with pytest.raises(OptionError, match="two requests have the id '2'"):
        answers(checkpoint, iter(twice))
    with pytest.raises(OptionError, match=r"`requests` is 'requests\.jsonl'"):
        answer_many("requests.jsonl", checkpoint.model, processor=checkpoint.processor)
    found = answers(checkpoint, [3, *asked("0 4"), [3]])
    assert found["2"].error is None and found["1"].row["given"] == {"request": 3}
    assert found["3"].error == "the request cannot be asked: it is [3], but must be a dict with `video` and `prompt`."


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"question": "Who?"}, "both `prompt` and `question`"),
        ({"video": 3}, "`video` is 3"),
        ({"video": [3]}, r"`video` is \[3\]"),
        ({"video": [3] * 10_000}, r"`video` is \[3, 3.{0,200} \(30,000 characters\), but.{0,200}$"),
        ({"video": ["a.png"]}, "Pass `fps`"),
        ({"id": [1]}, r"`id` is \[1\]"),
        ({"max_new_tokens": 0}, "`max_new_tokens` is 0"),
        ({"num_frames": "8"}, "`num_frames` is '8'"),
        ({"retention_ration": 0.5}, "retention_ration"),
        ({"compression_newlines": "all"}, "`compression_newlines` is 'all'"),
        ({"compression_rounding": "up"}, "`compression_rounding` is 'up'"),
        ({"choices": ["a"]}, "`choices` is"),
        ({"options": ["a", "b"]}, "'options' .*read like options.*`choices`"),
        ({"option_A": "a", "option_B": "b"}, "'option_A' and 'option_B' .*`choices`"),
        ({"times": [0, 1]}, "`times`"),
        ({"video": ["a.png"], "fps": 10**400}, "too large"),
        ({"video": frames_of(0, 2), "fps": 2}, "`fps`"),
        ({"temperature": 0.7}, "`temperature` is 0.7"),
        ({"do_sample": True}, "`do_sample` is True"),
        ({"id": True}, "`id` is True"),
        ({"id": np.zeros(2)}, "`id` is array"),
        ({"ratio": 0.1}, "'ratio' is not a setting of VidCom².* Did you mean 'retention_ratio'"),
        ({"method": "evs"}, "'method' is not a setting of VidCom².* Did you mean 'compression_method'"),
        ({"retention": 0.5}, "'retention' is not a setting of VidCom².* Did you mean 'retention_ratio'"),
        ({"compression_ratio": 0.5}, "'compression_ratio' .* Did you mean 'retention_ratio'.* The settings are: "),
        ({"video": SimpleNamespace(frames=3)}, r"asked: `video` is namespace\(frames=3\)"),
        ({"prompt": " "}, "`prompt` is ' ', but must not be blank"),
        ({"video": ""}, "`video` is '', but must not be blank"),
    ],
)
def test_a_bad_request_is_refused_with_the_reason(more: dict[str, Any], problem: str) -> None:
    assert re.search(problem, request_of({"video": "a.mp4", "prompt": "What?", **more}, 1).problem or "")


def test_keys_of_the_users_own_that_are_no_settings_stay() -> None:
    own = {"method": "by hand", "ratio": 1.78, "retention": None, "num_people": 2}
    request = request_of({"video": "dataset://clip7", "prompt": "What?", **own}, 1)
    assert request.problem is None and request.settings == {} and request.given["method"] == "by hand"
    assert request.video == "dataset://clip7"  # which only a reader of the user's can read


def test_videos_in_a_folder_are_recognized_by_their_suffixes_and_by_what_they_hold(tmp_path: Path) -> None:
    """A file with the suffix of a video is asked about even if it is damaged. Its row then says so."""
    for name in ("b.MP4", "a.webm", "notes.txt", "inner/c.mkv", "._b.mp4", ".hidden/d.mp4", "empty.dat"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    picture = Image.fromarray(numbered(0))
    picture.save(tmp_path / "still.webp")
    picture.save(tmp_path / "moves.gif", save_all=True, append_images=[Image.fromarray(numbered(1))])
    write_clip(tmp_path / "raw.h264", range(5), tick=None)
    (tmp_path / "no suffix").write_bytes(Path(str(DEMO_VIDEO)).read_bytes())
    found, left_out = requests_of_folder(tmp_path, "What?")
    assert [each.id for each in found] == ["a.webm", "b.MP4", "inner/c.mkv", "moves.gif", "no suffix", "raw.h264"]
    assert left_out == {"files that hold no video": ["empty.dat", "notes.txt", "still.webp"]}
    assert all(each.video == str(tmp_path / each.id) and each.prompt == "What?" for each in found)
    assert all(len(read_video(each.video, 2).frames) == 2 for each in found[3:])
    for empty in (tmp_path / "missing", tmp_path / "notes.txt"):
        with pytest.raises(OptionError, match="there is no such folder"):
            requests_of_folder(empty, "What?")
    (tmp_path / "none").mkdir()
    with pytest.raises(OptionError, match=r"none' is empty\. Name a folder with videos"):
        requests_of_folder(tmp_path / "none", "What?")


def test_all_that_is_left_out_of_a_folder_is_named_with_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in ("inner/a.mp4", "folder.mp4/b.mp4", "locked/.c.mp4", "../elsewhere/d.mp4"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (home / "linked").symlink_to(tmp_path / "elsewhere")
    (home / "linked.mp4").symlink_to("inner/a.mp4")
    (home / "dangling.mp4").symlink_to("nothing.mp4")
    os.mkfifo(home / "pipe.mp4")
    (home / "two\nlines.txt").touch()
    # Tests may run as root, who may read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "locked")
    found, left_out = requests_of_folder(home, "What?")
    assert [each.id for each in found] == ["folder.mp4/b.mp4", "inner/a.mp4", "linked.mp4"]
    assert left_out == {
        "folders named like videos": ["folder.mp4"],
        "links to folders": ["linked"],
        "links that lead nowhere": ["dangling.mp4"],
        "pipes or devices": ["pipe.mp4"],
        "files that hold no video": ["two\nlines.txt"],
        "folders that cannot be read": ["locked"],
    }
    shown = vidcom2("run", "--videos", home, "--check")[1].splitlines()
    assert "Left out: 1 files that hold no video. The first is two lines.txt" in shown
    assert "Left out: 1 links to folders. The first is linked" in shown
    (home / "inner/a.mp4").rename(home / "inner/.a.mp4")
    (home / os.fsdecode(b"\xff.mp4")).touch()  # no UTF-8, which a terminal may not take
    given = [sys.executable, "-m", "vidcom2", "run", "--videos", str(home), "--check"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8:strict"}
    checked = subprocess.run(given, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 3 and "request \\udcff.mp4: the file " in checked.stdout, checked.stderr
    with pytest.raises(OptionError, match=r"holds no video, but hidden files or empty folders\."):
        requests_of_folder(home / "inner", "What?")


def test_a_folder_that_can_be_listed_but_not_entered_is_one_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("locked/a.mp4", "locked/b.txt", "broken.mp4", "good.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.mp4").symlink_to("locked/a.mp4")
    stat = Path.stat

    def refused(path: Path, **how: Any) -> os.stat_result:  # tests may run as root, who may enter everything
        if path.name in ("a.mp4", "b.txt", "link.mp4"):
            raise PermissionError(13, "Permission denied", str(path))
        if path.name == "broken.mp4":
            raise OSError(5, "Input/output error", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", refused)
    found, left_out = requests_of_folder(tmp_path, "What?")
    assert [each.id for each in found] == ["good.mp4"]
    assert left_out == {
        "files that cannot be read": ["broken.mp4"],
        "links that lead nowhere": ["link.mp4"],
        "folders that cannot be read": ["locked"],
    }


def test_names_in_a_folder_stand_for_no_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("~/x.mp4", "~root"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(str(DEMO_VIDEO), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, Path()):
        found, left_out = requests_of_folder(folder, "What?")
        assert [each.id for each in found] == ["~/x.mp4", "~root"] == [each.given["video"] for each in found]
        assert [each.video for each in found] == [str(tmp_path / each.id) for each in found] and not left_out
        assert all(len(read_video(each.video, 2).frames) == 2 for each in found)


def test_a_row_is_one_line_to_every_reader() -> None:
    row = {"id": "\x85\u2028\u2029é", "given": {"video": "\udcff"}}
    assert len(as_line(row).splitlines()) == 1 and json.loads(as_line(row)) == row and "é" in as_line(row)


def test_an_output_that_is_a_link_stays_one_and_its_file_is_locked_and_continued(tmp_path: Path) -> None:
    folder, link = tmp_path / "elsewhere", tmp_path / "link.jsonl"
    folder.mkdir()
    link.symlink_to(folder / "answers.jsonl")
    file = AnswerFile(link)
    file.claim({"a": 1}, "commit")
    file.add([{"id": "1", "given": {}}, {"id": "2", "given": {}, "error": "bad"}])
    assert list(file.rows_to_continue()) == ["1"] and link.is_symlink()
    assert sorted(path.name for path in folder.iterdir()) == ["answers.jsonl", "answers.run.json"]
    with file.locked(), pytest.raises(OptionError, match="another run is writing"):
        AnswerFile(folder / "answers.jsonl").locked().__enter__()
    with pytest.raises(OptionError, match="`a` was 1 and is 2"):
        AnswerFile(folder / "answers.jsonl").check({"a": 2})


def test_a_list_of_pictures_is_answered_as_its_frames(checkpoint: Checkpoint, tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(6)]
    pictures = list(frames_of(3, 6).frames)
    for name, picture in zip(names, pictures):
        Image.fromarray(picture).save(tmp_path / name)
    shown = ({"fps": 2}, {"times": [0, 1, 2, 4, 6, 9]})
    lines = [{"video": names, "prompt": "What?", **when} for when in shown]
    asked = read_requests(write_lines(tmp_path / "requests.jsonl", *lines))
    same = [
        {"video": Video.from_frames(pictures, **when), "prompt": "What?", "id": f"same {i}"}
        for i, when in enumerate(shown, start=1)
    ]
    arrays = [{"video": [tmp_path / name for name in names], "prompt": "?", "times": np.arange(6.0)} for _ in range(2)]
    found = answers(checkpoint, [*asked, *same, *arrays], read=None, num_frames=6)
    assert not any(each.error for each in found.values())
    for i in ("1", "2"):
        assert found[i].answer == found[f"same {i}"].answer is not None
        assert found[i].full_prompt_tokens == found[f"same {i}"].full_prompt_tokens
        assert found[i].row["given"]["video"] == names


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_truncated_file_keeps_its_whole_lines_and_a_users_file_is_left_alone(tmp_path: Path) -> None:
    rows = [{"id": str(i), "given": {}, "answer": "é\u2028" * i} for i in range(2)]
    rows += [{"id": os.fsdecode(b"\xff.mp4"), "given": {}}, {"id": "3", "given": {}, "error": "bad"}]
    whole = "".join(map(as_line, rows)).encode()  # also with a name of a file that is not UTF-8
    file = AnswerFile(tmp_path / "answers.jsonl")
    for end in range(len(whole) + 1):
        file.path.write_bytes(whole[:end])
        found = file.rows_to_continue()
        assert list(found.values()) == rows[: min(3, whole[:end].count(b"\n"))]
        assert file.path.read_bytes() == "".join(map(as_line, found.values())).encode()
    for users in ("mine\n", "[1]\n", '{"id": "1"}\n'):
        file.path.write_text(users)
        with pytest.raises(OptionError, match="did not write"):
            file.rows_to_continue()
        assert file.path.read_text() == users


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write five files, of which one is not a clip."""
    home = tmp_path_factory.mktemp("clips")
    for i in range(4):
        picture = np.random.default_rng(i).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        write_clip(home / f"{i}.mp4", np.arange(4 + i) / 5, picture=lambda n, p=picture: np.roll(p, 9 * n, axis=1))
    (home / "text.mp4").write_text("no video")
    return home


def command(folder: Path, output: Path, *more: Any) -> list[Any]:
    small = ["--num-frames", 6, "--max-new-tokens", 3, "--batch-size", 2, "--device", "cpu"]
    return ["run", "--model", folder, *small, "-o", output, *more]


@pytest.fixture(scope="module")
def data(clips: Path) -> Path:
    lines = [{"video": f"{i % 4}.mp4", "prompt": "What" + " now" * i + "?", "mine": i} for i in range(8)]
    lines[3] |= {"retention_ratio": 1.0, "id": "whole"}
    lines += [{"video": "missing.mp4", "prompt": "What?"}, {"video": "0.mp4"}]
    return write_lines(clips / "requests.jsonl", *lines)


@pytest.fixture(scope="module")
def output(folder: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("made") / "answers.jsonl"
    code, shown, error = vidcom2(*command(folder, output, "--requests", data, "--retention-ratio", 0.5))
    assert code == 3, error
    assert "Answered: 8 of 10 requests (0 before)" in shown
    # Two threads read, so either may be the first.
    assert re.search(r"Errors: 2, .* asks again\. The first is (9: there is no video|10: the request cannot)", shown)
    return output


def test_the_file_has_a_row_for_each_request(output: Path, data: Path, folder: Path) -> None:
    lines, rows = read_lines(data), {row["id"]: row for row in read_lines(output)}
    names = [line.get("id", str(number)) for number, line in enumerate(lines, start=1)]
    assert sorted(rows) == sorted(names) and len(read_lines(output)) == 10
    model = load_checkpoint(str(folder), device="cpu", retention_ratio=0.5)
    for name, line in zip(names, lines):
        assert rows[name]["given"] == line
        if name not in ("9", "10"):
            more = {"retention_ratio": 1.0} if name == "whole" else {}
            arguments = {"processor": model.processor, "num_frames": 6, "max_new_tokens": 3, **more}
            alone = ask(data.parent / line["video"], line["prompt"], model.model, **arguments)
            assert rows[name]["answer"] == alone
            assert {key: rows[name][key] for key in TOKENS} == {key: getattr(alone, key) for key in TOKENS}
    assert "there is no video file" in rows["9"]["error"] and "`prompt` is missing" in rows["10"]["error"]


def test_the_same_command_continues_a_run_also_with_more_requests_and_another_command_is_refused(
    output: Path, data: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {row["id"]: row for row in read_lines(output)}
    here = tmp_path / "answers.jsonl"
    shutil.copy(output.with_suffix(".run.json"), here.with_suffix(".run.json"))
    kept, half = output.read_text().splitlines(keepends=True)[:4], output.read_text().splitlines()[5][:20]
    here.write_text("".join(kept) + half)
    reads, original = [], engine.read_video
    monkeypatch.setattr(engine, "read_video", lambda *args, **more: reads.append(args[0]) or original(*args, **more))
    arguments = command(folder, here, "--requests", data, "--batch-size", 3)
    before = sum("error" not in json.loads(line) for line in kept)
    code, shown, _ = vidcom2(*arguments, "--retention-ratio", 0.5)
    assert code == 3 and f"({before} before)" in shown
    assert {row["id"]: row for row in read_lines(here)} == whole and len(read_lines(here)) == 10
    assert 0 < len(reads) < 8

    before_refusals = here.read_bytes()
    for more, reason in (
        (["--retention-ratio", 0.4], "`settings.retention_ratio` was 0.5 and is 0.4"),
        (["--retention-ratio", 0.5, "--num-frames", 5], "`num_frames` was 6 and is 5"),
        (["--retention-ratio", 0.5, "--scale-while-reading"], "`scale_while_reading` was False and is True"),
    ):
        code, shown, error = vidcom2(*arguments, *more)
        assert (code, shown) == (2, "") and reason in error and "Name another --output" in error
    with AnswerFile(here).locked():
        code, _, error = vidcom2(*arguments, "--retention-ratio", 0.5)
    assert code == 2 and "another run is writing" in error
    lines = read_lines(data)
    lines[0]["prompt"] = "Why?"
    other = write_lines(data.parent / "other.jsonl", *lines)
    code, _, error = vidcom2(*arguments, "--retention-ratio", 0.5, "--requests", other)
    assert code == 2 and "has the answer to another request of id '1'" in error
    assert b'"error"' in before_refusals and here.read_bytes() == before_refusals

    more = write_lines(data.parent / "more.jsonl", *read_lines(data)[:8], {"video": "0.mp4", "prompt": "And?"})
    code, shown, error = vidcom2(*arguments, "--retention-ratio", 0.5, "--requests", more)
    assert code == 0 and "Answered: 9 of 9 requests (8 before)" in shown, error
    fewer = write_lines(data.parent / "fewer.jsonl", *read_lines(data)[:3])
    code, shown, error = vidcom2(*arguments, "--retention-ratio", 0.5, "--requests", fewer)
    assert code == 0 and "Answered: 3 of 3 requests (3 before)" in shown, error
    assert re.search(r"Also there: 6 answers to requests not asked now\. The first is (whole|5|6|7|8|9)$", shown)


def test_a_damaged_picture_and_a_bug_are_errors_of_their_rows_and_the_same_command_asks_them_again(
    clips: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(numbered(0)).save(tmp_path / "good.png")
    picture = (tmp_path / "good.png").read_bytes()
    (tmp_path / "broken.png").write_bytes(picture[:33] + b"\0\0\0\x0a" + picture[37:])  # of a chunk, too short
    with pytest.raises(SyntaxError), Image.open(tmp_path / "broken.png") as broken:
        broken.load()
    lines = [
        {"video": ["good.png", "broken.png"], "fps": 2, "prompt": "What?", "id": "broken\npicture"},
        *({"video": str(clips / f"{i}.mp4"), "prompt": f"What {i}?"} for i in range(3)),
    ]
    requests = write_lines(tmp_path / "requests.jsonl", *lines)
    arguments = command(folder, tmp_path / "a.jsonl", "--requests", requests, "--batch-size", 1)
    of = many_in_transformers.TransformersEngine
    generated = of.generated
    with monkeypatch.context() as patch:
        patch.setattr(of, "generated", lambda *given: {}["x"] if given[1][0].request.id == "3" else generated(*given))
        code, shown, error = vidcom2(*arguments)
    rows = {row["id"]: row for row in read_lines(tmp_path / "a.jsonl")}
    assert code == 1 and [name for name, row in rows.items() if "error" not in row] == ["2", "4"]
    assert "Answered: 2 of 4 requests" in shown and "The first is broken picture: cannot read the " in shown
    assert re.search(r"1 of the errors are bugs in vidcom2\. .*torch .* 3: this is a bug .* KeyError: 'x'", error)
    code, shown, _ = vidcom2(*arguments)
    assert code == 3 and "Answered: 3 of 4 requests (2 before)" in shown and "Errors: 1" in shown


def test_one_prompt_is_asked_about_each_video_of_a_folder(clips: Path, folder: Path, tmp_path: Path) -> None:
    code, shown, _ = vidcom2(*command(folder, tmp_path / "a.jsonl", "--videos", clips, "--prompt", "Which [one]?"))
    assert code == 3 and "Answered: 4 of 5 requests" in shown and "text.mp4: cannot read the video" in shown
    rows = {row["id"]: row for row in read_lines(tmp_path / "a.jsonl")}
    assert sorted(rows) == ["0.mp4", "1.mp4", "2.mp4", "3.mp4", "text.mp4"]
    assert all(row["given"]["prompt"] == "Which [one]?" for row in rows.values())


def test_ctrl_c_keeps_the_answers_so_far(
    data: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> Iterator[AnsweredRequest]:
        yield next(original(*args))
        raise KeyboardInterrupt

    original = Engine.answers
    monkeypatch.setattr(Engine, "answers", interrupted)
    arguments = command(folder, tmp_path / "a.jsonl", "--requests", data)
    code, shown, error = vidcom2(*arguments)
    assert code == 130 and "Error" not in error and "Stopped. The answers so far are in" in shown
    assert len(read_lines(tmp_path / "a.jsonl")) == 1
    monkeypatch.setattr(Engine, "answers", original)
    assert vidcom2(*arguments)[0] == 3
    assert Counter(row["id"] for row in read_lines(tmp_path / "a.jsonl")).most_common(1)[0][1] == 1


def test_answers_of_another_model_or_about_another_video_and_the_users_files_are_left_alone(
    clips: Path, tmp_path: Path
) -> None:
    model, here, other = save_tiny(tmp_path / "final"), tmp_path / "here", tmp_path / "there"
    here.mkdir()
    other.mkdir()
    shutil.copy(clips / "0.mp4", here / "clip.mp4")
    shutil.copy(clips / "1.mp4", other / "clip.mp4")
    lines = [{"video": "clip.mp4", "prompt": "What?"}]
    requests = [write_lines(folder / "requests.jsonl", *lines) for folder in (here, other)]
    code, _, error = vidcom2(*command(model, tmp_path / "a.jsonl", "--requests", requests[0]))
    assert code == 0, error
    code, _, error = vidcom2(*command(model, tmp_path / "a.jsonl", "--requests", requests[1]))
    assert code == 2 and "has the answer about another video of request '1'" in error
    shutil.copy(clips / "0.mp4", other / "clip.mp4")
    before = (tmp_path / "a.jsonl").read_bytes()
    code, _, error = vidcom2(*command(model, tmp_path / "a.jsonl", "--requests", requests[1]))
    assert code == 0 and (tmp_path / "a.jsonl").read_bytes() == before, "a copy is no other video"
    save_tiny(model, seed=1)
    assert "`model_files` was '" in mistake(*command(model, tmp_path / "a.jsonl", "--requests", requests[0]))
    lock = tmp_path / "b.jsonl.lock"
    lock.write_text("a user's")
    code, _, error = vidcom2(*command(model, tmp_path / "b.jsonl", "--requests", requests[0]))
    assert code == 2 and "is no lock of vidcom2" in error and lock.read_text() == "a user's"


MISTAKES = [
    (["--requests", "DATA"], "`--output`"),
    (["--requests", "DATA", "-o", "DATA"], "is no output of vidcom2"),
    (["--requests", "DATA", "-o", "a.txt"], "`--output` is 'a.txt'"),
    (["--requests", "DATA", "-o", "no/such/a.jsonl"], "/no/such'"),
    (["--requests", "no.jsonl", "-o", "a.jsonl"], "'no.jsonl'"),
    (["--requests", "BROKEN", "-o", "a.jsonl"], "none of the 1 requests can be asked"),
    (["--requests", "DATA", "--videos", ".", "-o", "a.jsonl"], "`--videos` and `--requests`"),
    (["--requests", "DATA", "--prompt", "What?", "-o", "a.jsonl"], "`--prompt`"),
    (["--requests", "DATA", "--video", "x.mp4", "-o", "a.jsonl"], "`--video`"),
    (["--videos", ".", "--repeats", "3", "-o", "a.jsonl"], "`--repeats`"),
    (["--videos", "missing", "-o", "a.jsonl"], "`--videos` is 'missing'"),
    (["--output", "a.jsonl"], "`--output`"),
    (["--engine", "vllm"], "`--engine`"),
    (["--requests", "DATA", "--engine", "sglang", "-o", "a.jsonl"], "`--engine` is 'sglang'"),
    (["--requests", "DATA", "--tensor-parallel-size", "2"], "`--tensor-parallel-size`"),
    (["--requests", "DATA", "--engine", "vllm", "--device", "cpu"], "`--device`"),
    (["--videos", ".", "--engine", "ray", "-o", "a.parquet"], "`--videos`"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=lambda value: " ".join(value)[:40] if value else "")
def test_mistakes_are_reported_in_one_line_and_change_nothing(
    arguments: list[str], message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = data.read_bytes()
    files = {"DATA": data, "BROKEN": write_lines(data.parent / "broken.jsonl", "{")}
    code, shown, error = vidcom2("run", *(str(files.get(each, each)) for each in arguments))
    assert (code, shown, error.count("\n")) == (2, "", 1) and message in error
    assert data.read_bytes() == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["vllm", "ray"])
def test_an_engine_that_is_not_installed_is_named_with_its_extra(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vidcom2.cli.run_many.find_spec", lambda _: None)
    requests = write_lines(tmp_path / "r.jsonl", {"video": "a.mp4", "prompt": "What?"})
    code, shown, error = vidcom2("run", "--requests", requests, "-o", tmp_path / "a.jsonl", "--engine", engine)
    assert (code, shown, error.count("\n")) == (2, "", 1)
    assert f"`--engine` is '{engine}', but" in error and "Run: pip install " in error and f' "{engine}' in error


def test_check_looks_at_all_rows_and_videos_without_a_model(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    requests = write_lines(
        tmp_path / "requests.jsonl",
        {"video": str(DEMO_VIDEO), "prompt": "What?", "promp": 3, "mine": 1},
        {"video": str(DEMO_VIDEO), "promt": "What?"},
        {"video": "text.mp4", "prompt": "What?"},
        {"video": "https://x.org/b.mp4", "prompt": "What?"},
        "{",
    )
    script = (
        "import sys; from typer.testing import CliRunner; from vidcom2.cli.app import app\n"
        "result = CliRunner().invoke(app, sys.argv[1:]); print(result.stdout)\n"
        "print(result.exit_code, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", script, "run", "--requests", str(requests), "--check"]
    shown = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True).stdout
    assert shown.splitlines()[-1] == "3 []"
    assert "request 1: the key `promp` has no meaning here. Did you mean 'prompt'?" in shown
    assert "request 2: the request cannot be asked: `prompt` is missing. Did you mean it by the key 'promt'?" in shown
    assert "request 3: cannot read the video" in shown and "request 5: the request cannot be asked" in shown
    assert "Checked: 2 of 5 requests can be asked. Videos at 1 URLs were not fetched." in " ".join(shown.split())
    assert "mine" not in shown and set(tmp_path.iterdir()) == {requests, tmp_path / "text.mp4"}

    questions = write_lines(
        tmp_path / "q.jsonl", {"video": str(DEMO_VIDEO), "question": "What?"}, {"video": "gone.mp4"}
    )
    code, shown, _ = vidcom2("eval", "--data", questions, "--check")
    assert code == 3 and "line 2: `question` is missing." in shown and "1 of 2 questions can be asked" in shown
    watch(DEMO_VIDEO, "toy:llava_onevision", num_frames=4, retention_ratio=0.5).save(tmp_path / "a.watched")
    watched = write_lines(tmp_path / "q.jsonl", {"video": "a.watched", "question": "What?"})
    code, shown, _ = vidcom2("eval", "--data", watched, "--check")
    assert code == 3 and "is a watched video, which has been compressed" in shown
    for ratios, (code, message) in {
        (None, None): (0, "Checked: 1 of 1"),
        (None, 0.25): (3, "`retention_ratio` is 0.25, but the video was watched with 0.5"),
        (0.25, None): (3, "`retention_ratio` is 0.25, but the video was watched with 0.5"),
        (0.5, 0.25): (3, "`retention_ratio` is 0.25, but the video was watched with 0.5"),
        (0.5, 0.5): (0, "Checked: 1 of 1"),
    }.items():
        own, of_command = ({} if each is None else {"retention_ratio": each} for each in ratios)
        watched = write_lines(tmp_path / "q.jsonl", {"video": "a.watched", "prompt": "What?", **own})
        options = [word for name, value in of_command.items() for word in ("--retention-ratio", value)]
        found, shown, _ = vidcom2("run", "--requests", watched, "--check", *options)
        assert found == code and message in " ".join(shown.split())
    windowed = write_lines(
        tmp_path / "w.jsonl",
        {"video": str(DEMO_VIDEO), "prompt": "What?", "compression_window": 3},
        {"video": str(DEMO_VIDEO), "prompt": "What?", "compression_window": 3, "compression_method": "vidcom2"},
    )
    code, shown, _ = vidcom2("run", "--requests", windowed, "--check", "--compression-method", "coverage")
    assert code == 3 and "request 1: `compression_window` is 3, but `compression_method='coverage'`" in shown
    assert "1 of 2 requests can be asked" in shown
    folder = tmp_path / "videos"
    folder.mkdir()
    shutil.copy(str(DEMO_VIDEO), folder / "a.mp4")
    for name in ("notes.txt", "more.txt"):
        (folder / name).write_text("Nothing to see.")
    code, shown, _ = vidcom2("run", "--videos", folder, "--check")
    assert code == 0 and "Checked: 1 of 1 requests can be asked" in shown
    assert "Left out: 2 files that hold no video. The first is more.txt" in shown


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line_and_the_run_continues_when_there_is_room(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    """A process of its own may write only a part of the answers, as on a disk that is almost full."""
    lines = ({"video": f"{i % 4}.mp4", "prompt": f"What {i}?"} for i in range(40))
    many_lines, most_bytes = write_lines(data.parent / "many.jsonl", *lines), 4000
    arguments = command(folder, tmp_path / "a.jsonl", "--requests", many_lines)
    full = subprocess.run(
        [sys.executable, "-m", "vidcom2", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode == 2
    assert re.search(r"Error: cannot write '.*a\.jsonl': File too large\.$", full.stderr.strip())
    assert 0 < (tmp_path / "a.jsonl").stat().st_size <= most_bytes
    code, _, error = vidcom2(*arguments)
    assert code == 0, error
    assert Counter(row["id"] for row in read_lines(tmp_path / "a.jsonl")) == {str(i): 1 for i in range(1, 41)}
