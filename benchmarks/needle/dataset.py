"""Write the test set of the benchmark: video files, and the questions in the form that `vidcom2 eval` reads."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import av
import numpy as np
import typer
from rich.progress import track

from .videos import ALL_LEVELS, BURST, LEVELS, SEEDS, STILL, Needle, Question, make_needle, questions_about

FRAMES_PER_SECOND = 4
QUALITY = "12"  # x264's crf: the noise stays, the files are small
QUESTIONS_PER_VIDEO = 1
LONG, LONG_FRAMES = "long", 64
# A test set whose videos no other figure is of, from which the questions are chosen that are hard; and one whose videos
# are asked several questions each.
HARD, FIRST_HARD = "hard", 20_000
CHATS, FIRST_OF_CHATS, TURNS = "chats", 30_000, 3
# The folder of a test set that has each video at several rates, given as x264's crf: a codec's noise decides how often
# pixels repeat. x264's default is 23. At 30 it leaves out much of the sensor's noise.
REPEATS, RATES = "repeats", (12, 23, 30)
# Questions that the models were trained on and the test set leaves out: which way the ball goes, which an earlier model
# guessed even with all tokens, and what is asked about one of several events, which has levels of its own.
NOT_ASKED = ("ball", "named digit", "named where", "named half")


def write_video(needle: Needle, path: Path, quality: str = QUALITY) -> None:
    """Write an MP4 file with H.264, complete or not at all."""
    part = path.with_suffix(".part.mp4")
    with av.open(str(part), "w") as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"crf": quality, "preset": "veryfast"})
        stream.height, stream.width = needle.frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in needle.frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    os.replace(part, path)


def video_of_level(number: int, level: str, num_frames: int, split: str) -> Needle:
    return make_needle((5, split == "test", SEEDS[level], num_frames, number), level, num_frames, split)


def chosen_questions(
    needle: Needle, asked_so_far: Counter[str], rng: np.random.Generator, number: int = QUESTIONS_PER_VIDEO
) -> list[Question]:
    """Choose some of a video's questions, of different kinds: those kinds that were asked least so far, of the kinds
    that its level asks."""
    by_kind: dict[str, Question] = {}
    asks = ALL_LEVELS[needle.level].asks
    for question in rng.permutation(np.array(questions_about(needle), dtype=object)):
        if question.kind in asks or (not asks and question.kind not in NOT_ASKED):
            by_kind.setdefault(question.kind, question)
    kinds = sorted(by_kind, key=lambda kind: asked_so_far[kind])[:number]
    asked_so_far.update(kinds)
    return [by_kind[kind] for kind in kinds]


def _write(number: int, folder: Path, level: str, num_frames: int, split: str, rates: Sequence[int]) -> Needle:
    needle = video_of_level(number, level, num_frames, split)
    for suffix, quality in _files(rates):
        path = folder / "videos" / f"{level}-{number}{suffix}.mp4"
        if not path.exists():
            write_video(needle, path, quality)
    return needle


def _files(rates: Sequence[int]) -> list[tuple[str, str]]:
    """Return the end of the name and the quality of each file of a video."""
    return [(f"-crf{rate}", str(rate)) for rate in rates] or [("", QUALITY)]


def write_dataset(
    folder: Path,
    videos_per_level: int = 350,
    num_frames: int = 16,
    split: str = "test",
    levels: Iterable[str] = tuple(LEVELS),
    rates: Sequence[int] = (),
    first: int = 0,
    questions_per_video: int = QUESTIONS_PER_VIDEO,
) -> Path:
    """Write `questions.jsonl` and `videos/` to the folder, and return the path of the former.

    Args:
        rates: x264's crf of each file of a video. Each is asked the same question, and its line has the `crf`. Without
            any, a video has one file of `QUALITY`.
        first: the number of the first video of each level.
        questions_per_video: at most so many are asked about a video, each of another kind.
    """
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    lines, asked, rng = [], Counter[str](), np.random.default_rng(6)
    with ProcessPoolExecutor() as pool:
        for level in levels:
            make = partial(_write, folder=folder, level=level, num_frames=num_frames, split=split, rates=rates)
            made = pool.map(make, range(first, first + videos_per_level), chunksize=8)
            for number, needle in enumerate(track(made, f"Level {level}", videos_per_level), start=first):
                chosen = chosen_questions(needle, asked, rng, questions_per_video)
                for question, (suffix, quality) in product(chosen, _files(rates)):
                    line = {
                        "id": f"{level}-{number}-{question.kind}{suffix}",
                        "video": f"videos/{level}-{number}{suffix}.mp4",
                        "kind": question.kind,
                        "level": level,
                        "question": question.question,
                        "answer": question.answer,
                    }
                    lines.append(line | {"crf": int(quality)} if rates else line)
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_part(folder: Path, part: str, videos_per_level: int, num_frames: int = 16) -> None:
    """Write the main part of a test set, "", or the one in the folder `part`."""
    how: dict[str, Any] = {
        "": {"videos_per_level": videos_per_level, "num_frames": num_frames},
        BURST: {"videos_per_level": 2 * videos_per_level, "num_frames": num_frames, "levels": [BURST]},
        HARD: {"videos_per_level": videos_per_level, "num_frames": num_frames, "first": FIRST_HARD},
        CHATS: {
            "videos_per_level": videos_per_level,
            "num_frames": num_frames,
            "levels": [level for level in LEVELS if not LEVELS[level].asks],  # others ask one or two questions
            "first": FIRST_OF_CHATS,
            "questions_per_video": TURNS,
        },
        LONG: {"videos_per_level": videos_per_level // 3, "num_frames": LONG_FRAMES},
        REPEATS: {
            "videos_per_level": videos_per_level // 3,
            "num_frames": num_frames,
            "levels": [STILL, *LEVELS],
            "rates": RATES,
        },
    }
    print(write_dataset(folder / part, **how[part]))


def main(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")],
    videos_per_level: Annotated[int, typer.Option(help="Test videos of each level.", min=1)] = 350,
    num_frames: Annotated[int, typer.Option(help="Frames of each video.", min=4)] = 16,
) -> None:
    """Write the test set, in `burst/` that of the level at which budgets matter most, in `hard/` and `chats/` those of
    hard questions and of chats, in `long/` one of longer videos, and in `repeats/` one of videos at several rates."""
    for part in ("", BURST, HARD, CHATS, LONG, REPEATS):
        write_part(folder, part, videos_per_level, num_frames)


if __name__ == "__main__":
    typer.run(main)
