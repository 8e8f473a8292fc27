import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may depend on the network

import pytest
import torch
from models import EACH_MODEL, RETENTION_RATIO, ModelCase, chat_prompt, make_image, make_video
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from vidcom2.configuration.compression_methods import COMPRESSION_METHODS
from vidcom2.configuration.family_config import SIGLIP

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@dataclass
class Family:
    """A row of the table with its tiny checkpoint, in the stock class and in ours."""

    case: ModelCase
    folder: Path
    stock: PreTrainedModel
    processor: ProcessorMixin

    @cached_property
    def model(self) -> PreTrainedModel:
        return self.load(retention_ratio=RETENTION_RATIO)

    @cached_property
    def uncompressing(self) -> PreTrainedModel:
        return self.load(retention_ratio=1.0)

    def load(self, **kwargs: Any) -> PreTrainedModel:
        return self.case.model_class.from_pretrained(self.folder, **kwargs).eval()

    def prompt(self, question: str, videos: int = 0, images: int = 0) -> str:
        return chat_prompt(self.processor, question, videos, images)

    def inputs(self, *prompts: str, videos: list | None = None, images: list | None = None) -> BatchFeature:
        media = {name: value for name, value in (("videos", videos), ("images", images)) if value}
        return self.processor(text=list(prompts), padding=True, return_tensors="pt", **media)

    def videos_of(self, inputs: Any) -> dict[str, Any]:
        """The arguments that describe the videos of a prompt."""
        return {name: inputs[name] for name in self.case.video_inputs}

    def images_of(self, inputs: Any) -> dict[str, Any]:
        return {name: inputs[name] for name in self.case.image_inputs}

    def parents_features(self, inputs: Any) -> list[torch.Tensor]:
        """All (placeholders, dim) of each video, of the stock model."""
        features = self.stock.get_video_features(**self.videos_of(inputs)).pooler_output
        return [video.flatten(0, -2) for video in features]  # LLaVA-NeXT-Video's have frames before Transformers 5.21

    @cached_property
    def has_siglip(self) -> bool:
        """Whether the vision tower can take over what it computed of another frame."""
        return self.stock.config.vision_config.model_type == SIGLIP

    def one_video(self, question: str = "What happens?", seed: int = 0, num_frames: int = 8) -> BatchFeature:
        return self.inputs(self.prompt(question, videos=1), videos=[make_video(seed, num_frames)])


def build_family(case: ModelCase, folder: Path) -> Family:
    stock, processor = case.build(**case.build_arguments)
    stock.save_pretrained(folder)
    processor.save_pretrained(folder)
    return Family(case, folder, case.stock_class.from_pretrained(folder).eval(), processor)


@pytest.fixture(scope="session", params=EACH_MODEL)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return build_family(request.param, tmp_path_factory.mktemp(request.param.name))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    from hatchling.build import build_sdist, build_wheel

    folder, before = tmp_path_factory.mktemp("built"), Path.cwd()
    os.chdir(Path(__file__).parents[1])  # where a build backend is called
    try:
        build_wheel(str(folder))
        build_sdist(str(folder))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def short_length(family: Family) -> Callable[..., int]:
    """The compressed length of a prompt, from `get_video_features` and the tokenizer alone."""

    def length(inputs: BatchFeature, row: int = 0, **kwargs: Any) -> int:
        features = family.model.get_video_features(**family.videos_of(inputs), **kwargs)
        assert len(inputs["input_ids"]) == 1
        is_video = inputs["input_ids"] == family.model.config.video_token_id
        return int((~is_video).sum()) + sum(map(len, features.pooler_output))

    return length


def use_method(name: str) -> str:
    """Register a method of `methods_of_users/`, also if another test has registered it before."""
    importlib.reload(importlib.import_module(f"methods_of_users.{name}"))
    return name


@pytest.fixture
def methods_restored() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    before = dict(COMPRESSION_METHODS)
    yield
    COMPRESSION_METHODS.clear()
    COMPRESSION_METHODS.update(before)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


__all__ = ["make_image", "make_video"]
