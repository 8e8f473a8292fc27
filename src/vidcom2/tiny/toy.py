"""The toy model that comes along, and clips that it was made for: what commands use when they are given no model.

It is a LLaVA-OneVision of a million parameters, trained on generated videos by `benchmarks/needle/`. It answers the
benchmark's questions about the benchmark's videos, and knows nothing else.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

TOY_FOLDER = Path(str(files("vidcom2") / "assets" / "toy"))
TOY_NAME = "a toy LLaVA-OneVision"


@dataclass(frozen=True)
class Clip:
    """A sample of the benchmark's test set: digits in it are ones that the model has not seen."""

    path: Path
    question: str
    answer: str


@cache
def toy_clips() -> list[Clip]:
    """The first is the one of the demo."""
    clips = json.loads((TOY_FOLDER / "clips.json").read_text())
    return [Clip(TOY_FOLDER / clip["video"], clip["question"], clip["answer"]) for clip in clips]


DEMO_VIDEO = toy_clips()[0].path
