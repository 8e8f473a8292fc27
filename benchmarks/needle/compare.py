"""Runs the benchmark: each group of candidates on the test set, and what it comes to in a result file.

    python -m benchmarks.needle.compare DATA_FOLDER WORK_FOLDER [--group methods]

A run that was killed goes on with the question after the last one that is in WORK_FOLDER.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from vidcom2.birth_certificate import birth_certificate, cpu_name
from vidcom2.checkpoints import Checkpoint, load_checkpoint
from vidcom2.console import progress_bar
from vidcom2.evaluation import evaluate
from vidcom2.evaluation_candidates import AllTokens, Candidate
from vidcom2.evaluation_data import Question, read_questions
from vidcom2.evaluation_report import summary
from vidcom2.run import environment
from vidcom2.toy import TOY_FOLDER

from .candidates import (
    UPDATE_RATIOS,
    ablation_candidates,
    budget_candidates,
    main_candidates,
    position_candidates,
    tower_candidates,
)
from .videos import BURST, LEVELS

GROUPS: dict[str, Callable[[], list[Candidate]]] = {
    "methods": main_candidates,
    "positions": position_candidates,
    "ablations": ablation_candidates,
    "budgets": budget_candidates,
    "tower": tower_candidates,
}
DATA = {"budgets": f"{BURST}/questions.jsonl"}  # the others': all levels
RESULTS = Path(__file__).parents[1] / "results"
NUM_FRAMES, MAX_NEW_TOKENS = 16, 4
OF_LEVEL = ("method", "retention_ratio", "accuracy", "accuracy_low", "accuracy_high", "refused")


def compare(checkpoint: Checkpoint, data: Path, work: Path, group: str, batch_size: int = 32) -> dict[str, Any]:
    """The figures of a group: for the whole test set, and for each level."""
    questions, candidates = read_questions(data), GROUPS[group]()
    rows = _answers(checkpoint, questions, candidates, work / f"{group}.jsonl", batch_size)
    return _described(checkpoint, questions, data, group) | {
        "all": [_rounded(row) for row in summary(questions, rows, candidates)],
        "levels": {level: _of_level(level, questions, rows, candidates) for level in LEVELS if group not in DATA},
    }


def compare_tower(checkpoint: Checkpoint, data: Path, work: Path, group: str, batch_size: int = 32) -> dict[str, Any]:
    """The figures of towers that compute less: for each candidate, and all tokens, each of `UPDATE_RATIOS`, whose first
    the others are compared with."""
    questions, candidates = read_questions(data), GROUPS[group]()
    answers = []
    for ratio in UPDATE_RATIOS:
        checkpoint.model.config.vision_update_ratio = ratio
        answers.append(_answers(checkpoint, questions, candidates, work / f"{group}-{ratio:g}.jsonl", batch_size))
    checkpoint.model.config.vision_update_ratio = UPDATE_RATIOS[0]
    figures = _described(checkpoint, questions, data, group) | {"all": [], "levels": {level: [] for level in LEVELS}}
    for candidate in (AllTokens(), *candidates):
        towers = [Candidate(candidate.method, ratio) for ratio in UPDATE_RATIOS[1:]]
        rows = [_of_towers(candidate.label, question, each) for question, *each in zip(questions, *answers)]
        of_levels = {level: _of_level(level, questions, rows, towers) for level in LEVELS}
        for found, made in (
            (figures["all"], summary(questions, rows, towers)),
            *zip(figures["levels"].values(), of_levels.values()),
        ):
            for row, ratio in zip(made, UPDATE_RATIOS, strict=True):
                row |= {"method": candidate.method, "retention_ratio": candidate.retention_ratio}
                found.append(_rounded({"update_ratio": ratio} | row))
    return figures


def _of_towers(label: str, question: Question, rows: list[Any]) -> dict[str, Any]:
    """A row as `summary` takes it: one candidate's answers with each of `UPDATE_RATIOS`, the first as "all tokens"."""
    answers = [row["answers"][label] for row in rows]
    answers = [each | {"agrees": question.agree(each["text"], answers[0]["text"])} for each in answers]
    method = label if label == AllTokens().label else label.rpartition(" ")[0]
    labels = [AllTokens().label, *(Candidate(method, ratio).label for ratio in UPDATE_RATIOS[1:])]
    return {"answers": dict(zip(labels, answers, strict=True))}


def _answers(
    checkpoint: Checkpoint, questions: list[Question], candidates: list[Candidate], answers: Path, batch_size: int
) -> list[dict[str, Any]]:
    answers.parent.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        task = progress.add_task(answers.stem, total=None)
        return evaluate(
            checkpoint,
            questions,
            candidates,
            answers,
            num_frames=NUM_FRAMES,
            batch_size=batch_size,
            max_new_tokens=MAX_NEW_TOKENS,
            progress=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )


def _described(checkpoint: Checkpoint, questions: list[Question], data: Path, group: str) -> dict[str, Any]:
    return {
        "group": group,
        "questions": len(questions),
        "videos": len({question.video for question in questions}),
        "birth_certificate": certificate(checkpoint, data, group),
    }


def certificate(checkpoint: Checkpoint, data: Path, group: str) -> dict[str, Any]:
    """Where the figures come from."""
    return birth_certificate(
        checkpoint.name,
        f"python -m benchmarks.needle.compare DATA WORK --group {group}",
        **environment(checkpoint.model),
        cpu=cpu_name(),
        model_sha256=hashlib.sha256((TOY_FOLDER / "model.safetensors").read_bytes()).hexdigest(),
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
    group: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(GROUPS)}; all if not given.")] = None,
) -> None:
    """Run the benchmark."""
    checkpoint = load_checkpoint(device="cpu")
    for name in group or GROUPS:
        measured = compare_tower if name == "tower" else compare
        figures = measured(checkpoint, data / DATA.get(name, "questions.jsonl"), work, name)
        path = RESULTS / f"needle_{name}.json"
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        print(path)


if __name__ == "__main__":
    typer.run(main)
