"""Run each group of candidates on the test set with a toy, and write its figures to a result file.

    python -m benchmarks.needle.compare DATA_FOLDER WORK_FOLDER [--toy qwen3_vl] [--group methods]

A run that was killed continues with the question after the last one in WORK_FOLDER.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from vidcom2 import CompressionSettings
from vidcom2.answering.candidates import AllTokens, Candidate
from vidcom2.answering.comparison import environment
from vidcom2.answering.prompting import prepare_inputs
from vidcom2.answering.questions import Question, read_questions
from vidcom2.checkpoints import Checkpoint, load_checkpoint
from vidcom2.cli.console import progress_bar
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.evaluation.report import summary
from vidcom2.modeling.encoding import vision_changed_patches
from vidcom2.modeling.encoding.vision_changed_patches import (
    REFERENCE_INTERVAL,
    UNCHANGED,
    first_keys,
    num_dynamic,
    split_at_cuts,
)
from vidcom2.records.provenance import birth_certificate, cpu_name
from vidcom2.toys import PREFIX, TOY, TOYS, Toy
from vidcom2.video.reading import read_video

from .candidates import (
    UPDATE_RATIOS,
    ablation_candidates,
    attention_candidates,
    budget_candidates,
    leaderboard_candidates,
    main_candidates,
    position_candidates,
    tower_candidates,
)
from .dataset import LONG, LONG_FRAMES
from .videos import BURST


@dataclass(frozen=True)
class Group:
    """Candidates that are compared on the same questions.

    Attributes:
        candidates: returns them for a toy.
        data: the folder of the questions, in that of the test set.
        num_frames: frames of each video.
        toys: the toys that it is run with.
    """

    candidates: Callable[[Toy], list[Candidate]]
    data: str = ""
    num_frames: int = 16
    toys: tuple[str, ...] = tuple(TOYS)


GROUPS = {
    "methods": Group(main_candidates),
    "positions": Group(position_candidates, toys=("llava_onevision",)),  # Qwen's families always keep positions
    "ablations": Group(ablation_candidates),
    "budgets": Group(budget_candidates, BURST),
    "leaderboard": Group(leaderboard_candidates),
    "leaderboard_attention": Group(attention_candidates),
    "long": Group(leaderboard_candidates, LONG, LONG_FRAMES),
    "tower": Group(tower_candidates, toys=("llava_onevision",)),
    "tower_fixed_references": Group(tower_candidates, toys=("llava_onevision",)),
}
# What a toy was not trained on is not asked.
NOT_LEARNT = {"llava_onevision": ("named", "numbers")}
RESULTS = Path(__file__).parents[1] / "results" / "needle"
MAX_NEW_TOKENS = 5
BATCH_FRAMES = 512  # of the videos that are answered about at once
OF_LEVEL = ("method", "retention_ratio", "accuracy", "accuracy_low", "accuracy_high", "refused")
OF_DIFFERENCE = ("difference", "difference_low", "difference_high")


def compare(checkpoint: Checkpoint, toy: Toy, data: Path, work: Path, group: str) -> dict[str, Any]:
    """Return the figures of a group for the whole test set and for each level."""
    questions, candidates = _questions(data, toy), GROUPS[group].candidates(toy)
    rows = _answers(checkpoint, questions, candidates, work / f"{group}.jsonl", GROUPS[group].num_frames)
    return _described(checkpoint, toy, questions, data, group) | {
        "all": [_rounded(row) for row in summary(questions, rows, candidates)],
        "levels": {level: _of_level(level, questions, rows, candidates) for level in _levels(questions)},
    }


def _questions(data: Path, toy: Toy) -> list[Question]:
    return [each for each in read_questions(data) if each.given["level"] not in NOT_LEARNT.get(toy.name, ())]


def _levels(questions: list[Question]) -> list[str]:
    """Return the levels of the questions, in their order."""
    return list(dict.fromkeys(question.given["level"] for question in questions))


def _set_tower(checkpoint: Checkpoint, update_ratio: float) -> None:
    """Let the model encode videos in full at 1.0, and otherwise only this share of the patches that changed."""
    config = checkpoint.model.config
    config.vision_method = "full" if update_ratio == 1.0 else "changed_patches"
    config.vision_update_ratio = CompressionSettings().vision_update_ratio if update_ratio == 1.0 else update_ratio


def compare_tower(checkpoint: Checkpoint, toy: Toy, data: Path, work: Path, group: str) -> dict[str, Any]:
    """Return the figures of all tokens and of each candidate with each of `UPDATE_RATIOS`. Differences are to the same
    candidate with the first of these, which is the whole tower."""
    questions, candidates = _questions(data, toy), GROUPS[group].candidates(toy)
    num_frames, of_towers = GROUPS[group].num_frames, []
    for ratio in UPDATE_RATIOS:
        _set_tower(checkpoint, ratio)
        of_towers.append(_answers(checkpoint, questions, candidates, work / f"{group}-{ratio:g}.jsonl", num_frames))
    _set_tower(checkpoint, 1.0)

    # `summary` compares with "all tokens". Here that label stands for the whole tower.
    towers = [Candidate("tower", ratio) for ratio in UPDATE_RATIOS[1:]]
    labels = [AllTokens().label, *(tower.label for tower in towers)]

    def figures(candidate: Candidate, level: str | None = None) -> list[Any]:
        chosen, rows = [], []
        for question, *given in zip(questions, *of_towers, strict=True):
            if level is None or question.given["level"] == level:
                answers = [row["answers"][candidate.label] for row in given]
                answers = [each | {"agrees": question.agree(each["text"], answers[0]["text"])} for each in answers]
                chosen.append(question)
                rows.append({"answers": dict(zip(labels, answers, strict=True))})
        of_candidate = {"method": candidate.method, "retention_ratio": candidate.retention_ratio}
        of_tower = {name for name in OF_LEVEL + OF_DIFFERENCE if name not in of_candidate}
        if level is None:
            of_tower |= {"questions", "kept_share", "by_kind"}
        return [
            _rounded(of_candidate | {"update_ratio": ratio} | {name: row[name] for name in row if name in of_tower})
            for ratio, row in zip(UPDATE_RATIOS, summary(chosen, rows, towers), strict=True)
        ]

    compared = [AllTokens(), *candidates]
    levels = _levels(questions)
    return _described(checkpoint, toy, questions, data, group) | {
        "computed": _rounded(_computed_shares(checkpoint, questions, num_frames)),
        "all": [row for candidate in compared for row in figures(candidate)],
        "levels": {level: [row for candidate in compared for row in figures(candidate, level)] for level in levels},
    }


@torch.no_grad()
def _computed_shares(checkpoint: Checkpoint, questions: list[Question], num_frames: int) -> dict[str, list[float]]:
    """Return level -> the mean share of patches that the tower computes anew in its videos, for each of
    `UPDATE_RATIOS`. The patches of reference frames count too."""
    tower, shares = checkpoint.model.model.vision_tower, {}
    for path, level in dict.fromkeys((question.video, question.given["level"]) for question in questions):
        video = read_video(path, num_frames)
        pixels = prepare_inputs(checkpoint.processor, "", video, checkpoint.model)["pixel_values_videos"][0]
        keys = first_keys(tower, tower.embeddings(pixels))
        lengths = [REFERENCE_INTERVAL] * (len(keys) // REFERENCE_INTERVAL)
        of_video = []
        for ratio in UPDATE_RATIOS:
            budget = num_dynamic(keys.shape[1], ratio)
            full = len(split_at_cuts(keys, lengths, budget)) / len(keys)
            of_video.append(full + (1 - full) * budget / keys.shape[1])
        shares.setdefault(level, []).append(of_video)
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


def _described(checkpoint: Checkpoint, toy: Toy, questions: list[Question], data: Path, group: str) -> dict[str, Any]:
    return {
        "group": group,
        "toy": toy.name,
        "questions": len(questions),
        "videos": len({question.video for question in questions}),
        "birth_certificate": certificate(checkpoint, toy, data, group),
    }


def certificate(checkpoint: Checkpoint, toy: Toy, data: Path, group: str) -> dict[str, Any]:
    """Return the record of where the figures come from."""
    return birth_certificate(
        checkpoint.name,
        f"python -m benchmarks.needle.compare DATA WORK --toy {toy.name} --group {group}",
        **environment(checkpoint.model),
        cpu=cpu_name(),
        model_sha256=hashlib.sha256((toy.folder / "model.safetensors").read_bytes()).hexdigest(),
        data_sha256=hashlib.sha256(data.read_bytes()).hexdigest(),
    )


def _of_level(level: str, questions: list[Question], rows: list[Any], candidates: list[Candidate]) -> list[Any]:
    chosen = [(question, row) for question, row in zip(questions, rows) if question.given["level"] == level]
    found = summary([question for question, _ in chosen], [row for _, row in chosen], candidates)
    return [_rounded({name: row[name] for name in OF_LEVEL if name in row}) for row in found]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
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
        measured = compare_tower if name.startswith("tower") else compare
        # As published, only every fourth frame is a reference: no other frame can change so much that it becomes one.
        vision_changed_patches.UNCHANGED = -1.0 if name == "tower_fixed_references" else UNCHANGED
        figures = measured(checkpoint, TOYS[toy], data / GROUPS[name].data / "questions.jsonl", work / toy, name)
        path = RESULTS / toy / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        print(path)


if __name__ == "__main__":
    typer.run(main)
