"""The bundled toy models, and clips that they can answer about. Commands use the first when they are given no model.

Each has about a million parameters, and was trained on generated videos by `benchmarks/needle/`. It answers the
benchmark's questions about the benchmark's videos, and knows nothing else.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from .errors import OptionError, did_you_mean

PREFIX = "toy:"  # of a toy's name where a model is named
ASSETS = Path(str(files("vidcom2") / "assets" / "toys"))


@dataclass(frozen=True)
class Clip:
    """A sample of the benchmark's test set. The model was not trained on the digits in it."""

    path: Path
    question: str
    answer: str


@dataclass(frozen=True)
class Toy:
    """A toy model.

    Attributes:
        name: what follows `toy:` in the name of the model, and the name of its folder.
        title: what results call it.
        trained_from: the toy from whose weights its training went on, with random tokens; None for one that has always
            seen all.
    """

    name: str
    title: str
    trained_from: str | None = None

    @property
    def folder(self) -> Path:
        return ASSETS / self.name

    @cached_property
    def clips(self) -> list[Clip]:
        """The clips that come with it. The demo shows the first."""
        clips = json.loads((self.folder / "clips.json").read_text())
        return [Clip(self.folder / clip["video"], clip["question"], clip["answer"]) for clip in clips]


TOYS = {
    toy.name: toy
    for toy in (
        Toy("llava_onevision", "a toy LLaVA-OneVision"),
        Toy("qwen3_vl", "a toy Qwen3-VL"),
        Toy("llava_onevision_subsets", "a toy LLaVA-OneVision that has seen few tokens", "llava_onevision"),
        Toy("qwen3_vl_subsets", "a toy Qwen3-VL that has seen few tokens", "qwen3_vl"),
    )
}
TOY = TOYS["llava_onevision"]  # answers where no model is named
DEMO_VIDEO = TOY.clips[0].path


def toy_of(model: str | None) -> Toy | None:
    """Return the toy that a model's name stands for: the first for None, and None for any other model.

    Raises:
        OptionError: if there is no toy of this name.
    """
    if model is None or (model == "toy" and not Path(model).is_dir()):
        return TOY
    if not model.startswith(PREFIX):
        return None
    name = model.removeprefix(PREFIX)
    if name not in TOYS:
        names = ", ".join(f"{PREFIX}{each}" for each in TOYS)
        raise OptionError(f"the model is {model!r}, but the toys are {names}.{did_you_mean(name, TOYS)}")
    return TOYS[name]


def shown_with(model: str | None) -> list[Clip]:
    """Return the clips that are shown where no video is named: a toy's own, or the first toy's for any other model."""
    return (toy_of(model) or TOY).clips
