"""Ask several questions in one chat about each video, and compare how well later ones are answered.

    python -m benchmarks.needle.chats DATA_FOLDER WORK_FOLDER [--toy qwen3_vl]

A chat holds the model's own answers, right or wrong, so an error can lead to the next one. The kinds of questions are
shuffled, so that each turn asks equally hard ones. A run that was killed continues with the video after the last one in
WORK_FOLDER.
"""

import json
import random
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from vidcom2.asking.candidates import AllTokens, Candidate
from vidcom2.asking.conversation import Conversation
from vidcom2.asking.generation import keep_tokens, run_tower
from vidcom2.asking.prepared_video import prepare_video
from vidcom2.asking.watched import Watched
from vidcom2.evaluation.report import paired_interval
from vidcom2.judging.questions import Question, read_questions
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.toys import PREFIX, TOY, TOYS
from vidcom2.video.reading import read_video

from .candidates import METHODS, NEWER_METHODS, ORIGINAL, SEEN_ALL
from .compare import MAX_NEW_TOKENS, RESULTS, described, rounded
from .dataset import CHATS, TURNS

RATIOS = (0.25, 0.1)
METHODS_OF_CHATS = ("coverage", "VidCom² (paper)", "uniform_frames", "random")
NUM_FRAMES, VIDEOS_PER_LEVEL = 16, 50
WHOLE = AllTokens()


def candidates() -> list[Candidate]:
    every = METHODS | NEWER_METHODS
    return [Candidate(name, ratio, every[name] | ORIGINAL) for ratio in RATIOS for name in METHODS_OF_CHATS]


def chats_of(questions: Sequence[Question]) -> list[list[Question]]:
    """Return the questions about each video that is asked as many as a chat has turns, in an order drawn by its
    number."""
    found = []
    for number, (_, about) in enumerate(groupby(questions, key=lambda question: question.video)):
        chat = list(about)
        random.Random(number).shuffle(chat)
        if len(chat) == TURNS:
            found.append(chat)
    return found


def answers_of(checkpoint: Checkpoint, chat: Sequence[Question]) -> dict[str, list[str]]:
    """Return label -> the answers to a chat's questions, with all tokens and with each candidate."""
    model: Any = checkpoint.model
    video, found = read_video(chat[0].video, NUM_FRAMES), {}
    prepared, inputs = prepare_video(checkpoint.processor, video, model)
    encoded = run_tower(model, inputs, model.config.compression_settings())
    for each in (WHOLE, *candidates()):
        settings = each.settings_in(model.config)
        kept = keep_tokens(model, encoded, settings)
        conversation = Conversation(Watched(checkpoint, prepared, kept, settings, video), MAX_NEW_TOKENS)
        found[each.label] = [conversation.ask(question.question) for question in chat]
    return found


def figures(chats: Sequence[Sequence[Question]], answers: Sequence[dict[str, list[str]]]) -> list[dict[str, Any]]:
    """Return a row for all tokens and for each candidate, with the figures of each turn: right answers, their
    difference from all tokens with its paired interval over videos, and how many answers changed."""
    rows = []
    for each in (WHOLE, *candidates()):
        turns = []
        for turn in range(TURNS):
            asked = [
                (chat[turn], texts[each.label][turn], texts[WHOLE.label][turn])
                for chat, texts in zip(chats, answers, strict=True)
            ]
            right = [(question.is_correct(text), question.is_correct(whole)) for question, text, whole in asked]
            differences = [int(bool(one)) - int(bool(other)) for one, other in right]
            low, high = paired_interval(differences, range(len(asked))) or (None, None)
            turns.append(
                {
                    "accuracy": sum(bool(one) for one, _ in right) / len(asked),
                    "questions": len(asked),
                    "difference": sum(differences) / len(asked),
                    "difference_low": low,
                    "difference_high": high,
                    "changed": sum(not question.agree(text, whole) for question, text, whole in asked),
                }
            )
        rows.append({"method": each.method, "retention_ratio": each.retention_ratio, "turns": turns})
    return rows


def main(
    data: Annotated[Path, typer.Argument(help="Folder that `benchmarks.needle.dataset` wrote.")],
    work: Annotated[Path, typer.Argument(help="Folder for the answers.")],
    toy: Annotated[str, typer.Option(help=f"One of {', '.join(SEEN_ALL)}.")] = TOY.name,
) -> None:
    """Hold chats with a toy."""
    checkpoint, path = load_checkpoint(f"{PREFIX}{toy}", device="cpu"), data / CHATS / "questions.jsonl"
    chats, file = chats_of(read_questions(path)), work / toy / f"{CHATS}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    answers = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    with file.open("a") as lines:
        for chat in track(chats[len(answers) :], "Chats"):
            answers.append(answers_of(checkpoint, chat))
            lines.write(json.dumps(answers[-1]) + "\n")
            lines.flush()
    asked = [question for chat in chats for question in chat]
    command = f"chats DATA WORK --toy {toy}"
    found = described(checkpoint, TOYS[toy], asked, path, CHATS, command) | {
        "all": [rounded(row) for row in figures(chats, answers)]
    }
    (RESULTS / toy / f"{CHATS}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
