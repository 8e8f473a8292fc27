"""Run each group of candidates on the test set with a toy, and write its figures to a result file.

    python -m benchmarks.needle.compare DATA_FOLDER WORK_FOLDER [--toy qwen3_vl] [--group methods]

A run that was killed continues with the question after the last one in WORK_FOLDER.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from vidcom2.asking.candidates import AllTokens, Candidate
from vidcom2.asking.comparison import environment
from vidcom2.cli.console import progress_bar
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.evaluation.report import summary
from vidcom2.judging.questions import Question, read_questions
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.records.provenance import birth_certificate, cpu_name
from vidcom2.toys import PREFIX, TOY, TOYS, Toy
from vidcom2.video.reading import read_video

from .candidates import (
    SEEN_ALL,
    ablation_candidates,
    attention_candidates,
    budget_candidates,
    hard_candidates,
    in_model_candidates,
    leaderboard_candidates,
    long_position_candidates,
    main_candidates,
    position_candidates,
    repeat_candidates,
    rounding_candidates,
)
from .dataset import HARD, LONG, LONG_FRAMES, REPEATS
from .towers import TOWERS, Tower, computed_shares
from .videos import BURST


@dataclass(frozen=True)
class Group:
    """Candidates that are compared on the same questions.

    Attributes:
        candidates: returns them for a toy.
        data: the folder of the questions, in that of the test set.
        num_frames: frames of each video.
        toys: the toys that it is run with.
        towers: ways to run the vision tower. Each candidate is compared with itself with the first, the whole tower.
        baselines: methods that make a question hard at a ratio where they all answer it wrongly.
        reference: the method whose candidates those that follow each of them are also compared with.
        videos_per_level: those of the test set that the published figures are from (`dataset --videos-per-level`).
    """

    candidates: Callable[[Toy], list[Candidate]]
    data: str = ""
    num_frames: int = 16
    toys: tuple[str, ...] = SEEN_ALL
    towers: Sequence[Tower] = ()
    baselines: tuple[str, ...] = ()
    reference: str | None = None
    videos_per_level: int = 350


LLAVA_ONLY = ("llava_onevision",)
GROUPS = {
    "methods": Group(main_candidates),
    "in_model": Group(in_model_candidates),
    "positions": Group(position_candidates, toys=LLAVA_ONLY),  # Qwen's families always keep positions
    "ablations": Group(ablation_candidates),
    "budgets": Group(budget_candidates, BURST),
    "roundings": Group(rounding_candidates, reference="ceil"),
    "leaderboard": Group(leaderboard_candidates, toys=tuple(TOYS), videos_per_level=150),
    "leaderboard_attention": Group(attention_candidates, videos_per_level=150),
    "hard": Group(
        hard_candidates,
        HARD,
        toys=tuple(TOYS),
        reference="coverage",
        baselines=("uniform_frames", "random"),
        videos_per_level=200,
    ),
    "long": Group(leaderboard_candidates, LONG, LONG_FRAMES, videos_per_level=120),
    "long_positions": Group(long_position_candidates, LONG, LONG_FRAMES, LLAVA_ONLY, videos_per_level=120),
    "repeats": Group(repeat_candidates, REPEATS, towers=TOWERS, videos_per_level=120),
}
RESULTS = Path(__file__).parents[1] / "results" / "needle"
MAX_NEW_TOKENS = 5
BATCH_FRAMES = 512  # of the videos that are answered about at once
OF_LEVEL = ("method", "retention_ratio", "accuracy", "accuracy_low", "accuracy_high", "refused")
OF_DIFFERENCE = ("difference", "difference_low", "difference_high")


def compare(checkpoint: Checkpoint, toy: Toy, data: Path, work: Path, group: str) -> dict[str, Any]:
    """Return the figures of a group for the whole test set and for each level; and where it has a reference, those
    beside this in place of all tokens."""
    questions, candidates = read_questions(data), GROUPS[group].candidates(toy)
    rows = _answers(checkpoint, questions, candidates, work / f"{group}.jsonl", GROUPS[group].num_frames)
    reference, beside = GROUPS[group].reference, []
    for place, candidate in enumerate(candidates):
        if candidate.method == reference:
            following = takewhile(lambda each: each.method != reference, candidates[place + 1 :])
            found = _beside(list(zip(questions, rows, strict=True)), candidate, list(following))
            beside.append([rounded(row) for row in found])
    return described(checkpoint, toy, questions, data, group) | {
        "all": [rounded(row) for row in summary(questions, rows, candidates)],
        **({"beside": beside} if reference else {}),
        **_of_hard(questions, rows, candidates, GROUPS[group].baselines),
        "levels": {level: _of_level(level, questions, rows, candidates) for level in _levels(questions)},
    }


def _beside(
    asked: Sequence[tuple[Question, Any]], reference: Candidate, others: Sequence[Candidate]
) -> list[dict[str, Any]]:
    """Return the figures of candidates compared with one of them instead of all tokens, from questions and their rows.
    The first figures are those of the reference."""
    rows = []
    for question, row in asked:
        answers = [row["answers"][each.label] for each in (reference, *others)]
        answers = [each | {"agrees": question.agree(each["text"], answers[0]["text"])} for each in answers]
        # `summary` compares with "all tokens". Here that label stands for the reference.
        labels = [AllTokens().label, *(each.label for each in others)]
        rows.append({"answers": dict(zip(labels, answers, strict=True))})
    whole, *rest = summary([question for question, _ in asked], rows, others)
    told = {"method": reference.method, "retention_ratio": reference.retention_ratio, "settings": reference.overrides}
    return [whole | told, *rest]


def _of_hard(
    questions: Sequence[Question], rows: Sequence[Any], candidates: Sequence[Candidate], baselines: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of each ratio's candidates on the questions that are hard there."""
    found = {}
    for ratio in dict.fromkeys(each.retention_ratio for each in candidates if each.method in baselines):
        at_ratio = [each for each in candidates if each.retention_ratio == ratio]
        labels = [each.label for each in at_ratio if each.method in baselines]
        hard = [
            (question, row)
            for question, row in zip(questions, rows, strict=True)
            if not any(row["answers"][label]["correct"] for label in labels)
        ]
        of_hard = summary([question for question, _ in hard], [row for _, row in hard], at_ratio)
        found[f"{ratio:g}"] = [rounded(row) for row in of_hard]
    return {"hard": found} if found else {}


def _levels(questions: list[Question]) -> list[str]:
    """Return the levels of the questions, in their order."""
    return list(dict.fromkeys(question.given["level"] for question in questions))


def compare_towers(
    checkpoint: Checkpoint, toy: Toy, data: Path, work: Path, group: str, towers: Sequence[Tower]
) -> dict[str, Any]:
    """Return the figures of all tokens and of each candidate with each of these ways to run the vision tower.
    Differences are to the same candidate with the first of them, the whole tower. Each rate of H.264 has figures of its
    own."""
    questions, num_frames = read_questions(data), GROUPS[group].num_frames
    candidates = [AllTokens(), *GROUPS[group].candidates(toy)]
    compared = [tower.candidate(candidate) for tower in towers for candidate in candidates]
    rows = _answers(checkpoint, questions, compared[1:], work / f"{group}.jsonl", num_frames)

    def figures(rate: int) -> dict[str, Any]:
        asked = [each for each in zip(questions, rows, strict=True) if each[0].given["crf"] == rate]
        chosen = [question for question, _ in asked]

        def of_towers(some: list[tuple[Question, Any]]) -> list[Any]:
            return [row for candidate in candidates for row in _of_towers(some, candidate, towers)]

        def by(key: str) -> dict[str, list[Any]]:
            """Return the part of the figures that is told for each level or for each kind of question."""
            names = dict.fromkeys(question.given[key] for question in chosen)
            of_names = {name: of_towers([each for each in asked if each[0].given[key] == name]) for name in names}
            wanted = {"tolerance", "questions", *OF_LEVEL, *OF_DIFFERENCE}
            return {
                name: [{key: value for key, value in row.items() if key in wanted} for row in of_name]
                for name, of_name in of_names.items()
            }

        return {
            "computed": rounded(_shares_by_level(checkpoint, towers, chosen, num_frames)),
            "all": of_towers(asked),
            "levels": by("level"),
            "kinds": by("kind"),
        }

    rates = dict.fromkeys(question.given["crf"] for question in questions)
    return described(checkpoint, toy, questions, data, group) | {"rates": {rate: figures(rate) for rate in rates}}


def _of_towers(
    asked: Sequence[tuple[Question, Any]], candidate: Candidate, towers: Sequence[Tower]
) -> list[dict[str, Any]]:
    """Return a candidate's figures with each of these ways to run the vision tower, from questions and their rows."""
    first, *others = [tower.candidate(candidate) for tower in towers]
    found = _beside(asked, first, others)
    told = {"method": candidate.method, "retention_ratio": candidate.retention_ratio}
    return [
        rounded(
            told | {"tolerance": tower.tolerance} | {name: row[name] for name in row if name not in (*told, "settings")}
        )
        for tower, row in zip(towers, found, strict=True)
    ]


def _shares_by_level(
    checkpoint: Checkpoint, towers: Sequence[Tower], questions: list[Question], num_frames: int
) -> dict[str, list[float]]:
    """Return level -> the mean share of groups of patches that each tower computes in its videos."""
    shares: dict[str, list[list[float]]] = {}
    for path, level in dict.fromkeys((question.video, question.given["level"]) for question in questions):
        shares.setdefault(level, []).append(computed_shares(towers, checkpoint, read_video(path, num_frames)))
    return {level: torch.tensor(of_videos).mean(dim=0).tolist() for level, of_videos in shares.items()}


def _answers(
    checkpoint: Checkpoint, questions: list[Question], candidates: list[Candidate], answers: Path, num_frames: int
) -> list[dict[str, Any]]:
    answers.parent.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        task = progress.add_task(answers.stem, total=None)
        return evaluate(
            checkpoint,
            questions,
            candidates,
            answers,
            num_frames=num_frames,
            batch_size=BATCH_FRAMES // num_frames,
            max_new_tokens=MAX_NEW_TOKENS,
            progress=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )


def described(
    checkpoint: Checkpoint, toy: Toy, questions: list[Question], data: Path, group: str, command: str | None = None
) -> dict[str, Any]:
    """Return what a result file says of its figures beside these. `command` is what was run, by default this module."""
    command = command or f"compare DATA WORK --toy {toy.name} --group {group}"
    data_sha256 = hashlib.sha256(data.read_bytes()).hexdigest()
    return {
        "group": group,
        "toy": toy.name,
        "questions": len(questions),
        "videos": len({question.video for question in questions}),
        "birth_certificate": certificate(checkpoint, toy, command, data_sha256=data_sha256),
    }


def certificate(checkpoint: Checkpoint, toy: Toy, command: str, **about: Any) -> dict[str, Any]:
    """Return the record of where the figures come from.

    Args:
        command: what was run in this room.
        **about: further fields.
    """
    return birth_certificate(
        checkpoint.name,
        f"python -m benchmarks.needle.{command}",
        **environment(checkpoint.model),
        cpu=cpu_name(),
        model_sha256=hashlib.sha256((toy.folder / "model.safetensors").read_bytes()).hexdigest(),
        **about,
    )


def _of_level(level: str, questions: list[Question], rows: list[Any], candidates: list[Candidate]) -> list[Any]:
    chosen = [(question, row) for question, row in zip(questions, rows) if question.given["level"] == level]
    found = summary([question for question, _ in chosen], [row for _, row in chosen], candidates)
    return [rounded({name: row[name] for name in OF_LEVEL if name in row}) for row in found]


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def main(
    data: Annotated[Path, typer.Argument(help="Folder that `benchmarks.needle.dataset` wrote.")],
    work: Annotated[Path, typer.Argument(help="Folder for the answers.")],
    toy: Annotated[str, typer.Option(help=f"One of {', '.join(TOYS)}.")] = TOY.name,
    group: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(GROUPS)}. By default, all.")] = None,
) -> None:
    """Run the benchmark with a toy."""
    checkpoint = load_checkpoint(f"{PREFIX}{toy}", device="cpu")
    for name in group or [name for name, each in GROUPS.items() if toy in each.toys]:
        questions, towers = data / GROUPS[name].data / "questions.jsonl", GROUPS[name].towers
        if towers:
            figures = compare_towers(checkpoint, TOYS[toy], questions, work / toy, name, towers)
        else:
            figures = compare(checkpoint, TOYS[toy], questions, work / toy, name)
        path = RESULTS / toy / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        print(path)


if __name__ == "__main__":
    typer.run(main)
