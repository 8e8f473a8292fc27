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
from vidcom2.evaluation_candidates import Candidate
from vidcom2.evaluation_data import Question, read_questions
from vidcom2.evaluation_report import summary
from vidcom2.run import environment
from vidcom2.toy import TOY_FOLDER

from .candidates import ablation_candidates, budget_candidates, main_candidates, position_candidates
from .videos import BURST, LEVELS

GROUPS: dict[str, Callable[[], list[Candidate]]] = {
    "methods": main_candidates,
    "positions": position_candidates,
    "ablations": ablation_candidates,
    "budgets": budget_candidates,
}
DATA = {"budgets": f"{BURST}/questions.jsonl"}  # the others': all levels
RESULTS = Path(__file__).parents[1] / "results"
NUM_FRAMES, MAX_NEW_TOKENS = 16, 4
OF_LEVEL = ("method", "retention_ratio", "accuracy", "accuracy_low", "accuracy_high", "refused")


def compare(checkpoint: Checkpoint, data: Path, work: Path, group: str, batch_size: int = 32) -> dict[str, Any]:
    """The figures of a group: for the whole test set, and for each level."""
    questions, candidates = read_questions(data), GROUPS[group]()
    work.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        task = progress.add_task(group, total=None)
        rows = evaluate(
            checkpoint,
            questions,
            candidates,
            work / f"{group}.jsonl",
            num_frames=NUM_FRAMES,
            batch_size=batch_size,
            max_new_tokens=MAX_NEW_TOKENS,
            progress=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )
    return {
        "group": group,
        "questions": len(questions),
        "videos": len({question.video for question in questions}),
        "birth_certificate": certificate(checkpoint, data, group),
        "all": [_rounded(row) for row in summary(questions, rows, candidates)],
        "levels": {level: _of_level(level, questions, rows, candidates) for level in LEVELS if group not in DATA},
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
        figures = compare(checkpoint, data / DATA.get(name, "questions.jsonl"), work, name)
        path = RESULTS / f"needle_{name}.json"
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        print(path)


if __name__ == "__main__":
    typer.run(main)
