"""The bundled toy model, and clips that it can answer about. Commands use it when they are given no model.

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
    """A sample of the benchmark's test set. The model was not trained on the digits in it."""

    path: Path
    question: str
    answer: str


@cache
def toy_clips() -> list[Clip]:
    """Return the bundled clips. The demo shows the first."""
    clips = json.loads((TOY_FOLDER / "clips.json").read_text())
    return [Clip(TOY_FOLDER / clip["video"], clip["question"], clip["answer"]) for clip in clips]


DEMO_VIDEO = toy_clips()[0].path
