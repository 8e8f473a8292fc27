"""Runs the benchmark: each group of candidates on the test set, and what it comes to in a result file.

    python -m benchmarks.needle.compare DATA_FOLDER WORK_FOLDER [--group methods]

A run that was killed goes on with the question after the last one that is in WORK_FOLDER.
"""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from vidcom2.checkpoints import Checkpoint, load_checkpoint
from vidcom2.console import progress_bar
from vidcom2.evaluation import evaluate
from vidcom2.evaluation_candidates import Candidate
from vidcom2.evaluation_data import Question, read_questions
from vidcom2.evaluation_report import summary
from vidcom2.run import environment

from .candidates import ablation_candidates, main_candidates, position_candidates
from .videos import LEVELS

GROUPS: dict[str, Callable[[], list[Candidate]]] = {
    "methods": main_candidates,
    "positions": position_candidates,
    "ablations": ablation_candidates,
}
RESULTS = Path(__file__).parents[1] / "results"
NUM_FRAMES, MAX_NEW_TOKENS = 16, 4


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
        "environment": environment(checkpoint.model),
        "date": date.today().isoformat(),
        "all": summary(questions, rows, candidates),
        "levels": {level: _of_level(level, questions, rows, candidates) for level in LEVELS},
    }


def _of_level(level: str, questions: list[Question], rows: list[Any], candidates: list[Candidate]) -> list[Any]:
    chosen = [(question, row) for question, row in zip(questions, rows) if question.given["level"] == level]
    return summary([question for question, _ in chosen], [row for _, row in chosen], candidates)


def main(
    data: Annotated[Path, typer.Argument(help="Folder that `benchmarks.needle.dataset` wrote.")],
    work: Annotated[Path, typer.Argument(help="Folder for the answers.")],
    group: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(GROUPS)}; all if not given.")] = None,
) -> None:
    """Run the benchmark."""
    checkpoint = load_checkpoint(device="cpu")
    for name in group or GROUPS:
        figures = compare(checkpoint, data / "questions.jsonl", work, name)
        path = RESULTS / f"needle_{name}.json"
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        print(path)


if __name__ == "__main__":
    typer.run(main)
