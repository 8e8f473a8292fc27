"""Answer in every way on a device that is not there, which refuses what a GPU refuses, such as tensors on two devices.
What differs from the CPU's answers is printed.

    python tests/ways_on_a_device.py [TOY ...]
"""

import sys
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

import vidcom2
from benchmarks.device_counts import Device, on_the_device
from vidcom2.asking.candidates import candidates_of
from vidcom2.asking.comparison import compare_answers
from vidcom2.asking.conversation import Conversation
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.explaining.explanation import compare
from vidcom2.judging.questions import Question
from vidcom2.live.live_video import LiveVideo
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.toys import DEMO_VIDEO, TOYS

QUESTIONS = ("What is the digit?", "How many scenes are there?", "Which digit is shown first?")
CHOICES = ("1", "2", "3")


def of(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"model": checkpoint.model, "processor": checkpoint.processor, "prepare_on": "cpu"}


def asked(checkpoint: Checkpoint, **arguments: Any) -> Any:
    return vidcom2.ask(DEMO_VIDEO, QUESTIONS, num_frames=16, max_new_tokens=8, **of(checkpoint), **arguments)


def watched(checkpoint: Checkpoint) -> Any:
    with TemporaryDirectory() as folder:
        path = f"{folder}/clip.watched"
        seen = vidcom2.watch(DEMO_VIDEO, num_frames=16, **of(checkpoint))
        seen.save(path)
        again = vidcom2.load_watched(path, **of(checkpoint))
    return [each.ask(question) for each in (seen, again, again.prefill()) for question in QUESTIONS]


def talked(checkpoint: Checkpoint, cache: str = "dynamic") -> Any:
    with patch.object(checkpoint.model.generation_config, "cache_implementation", cache):
        conversation = Conversation(vidcom2.watch(DEMO_VIDEO, num_frames=16, **of(checkpoint)), max_new_tokens=8)
        return [conversation.ask(question) for question in QUESTIONS]


def live(checkpoint: Checkpoint) -> Any:
    stream, answers = LiveVideo(max_video_tokens=100, **of(checkpoint)), []
    video = vidcom2.read_video(DEMO_VIDEO, 16)
    for frame, seconds in zip(video.frames, video.seconds, strict=True):
        stream.add(frame, float(seconds))
        if stream.num_frames in (2, 16):
            answers += [stream.ask(question) for question in QUESTIONS]
    return answers


def in_bulk(checkpoint: Checkpoint) -> Any:
    requests = [
        {"video": str(DEMO_VIDEO), "prompt": question, "num_frames": frames, **settings}
        for question in QUESTIONS
        for frames, settings in ((8, {}), (16, {"retention_ratio": 0.1}), (16, {"compression_method": "evs"}))
    ]
    rows = list(vidcom2.answer_many(requests, batch_size=4, max_new_tokens=8, **of(checkpoint)))
    return sorted((row.request.id, row.answer, row.error, row.video_tokens) for row in rows)


def evaluated(checkpoint: Checkpoint) -> Any:
    questions = [
        Question(str(number), str(DEMO_VIDEO), prompt, choices=CHOICES if number else None, answers=("2",))
        for number, prompt in enumerate(QUESTIONS)
    ]
    with TemporaryDirectory() as folder:
        file = f"{folder}/answers.jsonl"
        rows = evaluate(checkpoint, questions, candidates_of("vidcom2,random", "0.5,0.25"), file, num_frames=8)
    return [{label: each["text"] for label, each in row["answers"].items()} for row in rows]


def explained(checkpoint: Checkpoint) -> Any:
    (found,) = compare(checkpoint, vidcom2.read_video(DEMO_VIDEO, 8))
    return found.frame_budgets.tolist(), found.kept.tolist()


def compared(checkpoint: Checkpoint) -> Any:
    found = compare_answers(checkpoint, vidcom2.read_video(DEMO_VIDEO, 8), QUESTIONS[0], 4, repeats=1)
    return found.compressed.answer, found.uncompressed.answer, found.compressed.num_positions


# The demo answers in threads of its own, which this device does not reach.
WAYS: dict[str, Callable[[Checkpoint], Any]] = {
    "ask": asked,
    "beams": lambda checkpoint: asked(checkpoint, num_beams=3),
    "samples": lambda checkpoint: asked(checkpoint, do_sample=True, top_k=5),
    "original positions": lambda checkpoint: asked(checkpoint, compression_positions="original"),
    "all tokens": lambda checkpoint: asked(checkpoint, retention_ratio=1.0),
    **{
        f"method {name}": lambda checkpoint, name=name: asked(checkpoint, compression_method=name)
        for name in COMPRESSION_METHODS
    },
    "watch": watched,
    "chat": talked,
    "chat on a static cache": lambda checkpoint: talked(checkpoint, "static"),
    "live": live,
    "answer_many": in_bulk,
    "evaluate": evaluated,
    "explain": explained,
    "run": compared,
}


def main(toys: list[str]) -> None:
    for toy in toys:
        checkpoint = load_checkpoint(f"toy:{toy}", device="cpu", prepare_on="cpu")
        expected = {}
        for name, way in WAYS.items():
            torch.manual_seed(0)
            expected[name] = way(checkpoint)
        on_the_device(checkpoint.model)
        for name, way in WAYS.items():
            torch.manual_seed(0)
            try:
                with Device(), patch("torch.accelerator.synchronize"):
                    found = way(checkpoint)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found != expected[name]:
                print(f"{toy}, {name}: {found}, in place of {expected[name]}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(TOYS)[:2])
