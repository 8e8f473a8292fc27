"""Put a trained model into the package as a toy, with sample clips and a record of where both come from.

    python -m benchmarks.needle.ship TOY MODEL_FOLDER WORK_FOLDER

The clips are the first of the test set that show the point of the demo, one for each of three kinds of questions. The
model answers the question correctly with all tokens and with a quarter of them, but not with as many tokens of whole
frames. The clips are chosen for that; the benchmark's tables say what holds on average.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.progress import track

from vidcom2 import ask, read_video
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.toys import TOYS, Toy

from .architectures import ARCHITECTURES
from .dataset import video_of_level, write_video
from .encoded import encoded_videos, one_by_one
from .train import TOWER_STEPS
from .train_language import STAGES, Student, answer_accuracy
from .train_numbers import NUMBER_STEPS
from .train_subsets import SHARES, SUBSET_STEPS
from .videos import Question, questions_about

KINDS = ("digit", "colour", "first")
LEVEL = "clutter"
QUALITY = "20"  # x264's crf of the clips
TEST_VIDEOS = 250
LENGTHS = (16, 64)  # frames of the videos that the provenance reports on


def clips(checkpoint: Checkpoint, folder: Path) -> Iterator[dict[str, str]]:
    taken: set[int] = set()
    for kind in KINDS:
        for number in range(1000):
            if number in taken:
                continue
            needle = video_of_level(number, LEVEL, 16, "test")
            asked = [question for question in questions_about(needle) if question.kind == kind]
            path = folder / f"{kind}.mp4"
            if asked:
                write_video(needle, path, QUALITY)
                if _tells(checkpoint, path, asked[0]):
                    yield {"video": path.name, "question": asked[0].question, "answer": asked[0].answer}
                    taken.add(number)
                    break


def _tells(checkpoint: Checkpoint, path: Path, question: Question) -> bool:
    video = read_video(str(path), 16)
    model: Any = checkpoint.model

    def right(**settings: Any) -> bool:
        answer = ask(video, question.question, model, processor=checkpoint.processor, max_new_tokens=4, **settings)
        return answer.strip() == question.answer

    return (
        right(retention_ratio=1.0)
        and right(retention_ratio=0.25)
        and not right(retention_ratio=0.25, compression_method="uniform_frames")
    )


def provenance(toy: Toy, checkpoint: Checkpoint, work: Path) -> dict[str, Any]:
    """Return how the weights were made, and their shares of right answers on unseen videos, by kind of question."""
    model: Any = checkpoint.model
    student = Student.of(ARCHITECTURES[toy.trained_from or toy.name], model, checkpoint.processor)
    test = {
        num_frames: one_by_one(
            encoded_videos(student.architecture, model, work / "encoded", num_frames, TEST_VIDEOS, "test")
        )
        for num_frames in LENGTHS
    }

    def accuracy(share: float = 1.0) -> dict[int, dict[str, float]]:
        return {num_frames: answer_accuracy(student, videos, share=share) for num_frames, videos in test.items()}

    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **_training(toy),
        "data": "generated videos with digits of scikit-learn's load_digits (UCI, CC BY 4.0), train split",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "accuracy with all tokens": accuracy(),
        **({} if toy.trained_from is None else {"accuracy with a random quarter of the tokens": accuracy(0.25)}),
    }


def _training(toy: Toy) -> dict[str, Any]:
    command = "python -m benchmarks.needle.train"
    if toy.trained_from is None:
        return {
            "made by": f"{command} {toy.name}, with seed 0, on CPU cores",
            "steps of the tower": TOWER_STEPS,
            "stages of the language model": [vars(stage) for stage in STAGES],
            "steps with numbers": NUMBER_STEPS,
        }
    before = TOYS[toy.trained_from]
    weights = (before.folder / "model.safetensors").read_bytes()
    return {
        "made by": f"{command} {before.name} --trained assets/toys/{before.name} --subsets, with seed 0, on CPU cores",
        "sha256 of the weights before": hashlib.sha256(weights).hexdigest(),
        "steps with random tokens": SUBSET_STEPS,
        "shares of tokens, in equally many steps": SHARES,
    }


def main(
    name: Annotated[str, typer.Argument(metavar="TOY", help=f"One of {', '.join(TOYS)}.")],
    trained: Annotated[Path, typer.Argument(help="Folder that `benchmarks.needle.train` saved.")],
    work: Annotated[Path, typer.Argument(help="Folder in which it kept checkpoints and encoded videos.")],
) -> None:
    """Copy the model, make the clips, and record where they come from."""
    toy = TOYS[name]
    folder = toy.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in trained.iterdir():
        shutil.copy(file, folder)
    checkpoint = load_checkpoint(str(trained), device="cpu", retention_ratio=1.0)
    found = list(track(clips(checkpoint, folder), "Clips", len(KINDS)))
    (folder / "clips.json").write_text(json.dumps(found, indent=2) + "\n")
    (folder / "provenance.json").write_text(json.dumps(provenance(toy, checkpoint, work), indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
