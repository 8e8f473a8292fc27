"""The table of models that every model test runs over. A new family adds one row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedModel, ProcessorMixin

from vidcom2 import VidCom2LlavaOnevisionConfig, VidCom2LlavaOnevisionForConditionalGeneration
from vidcom2.tiny import tiny_llava_onevision

RETENTION_RATIO = 0.25
IMAGE_SIZE = 84  # 6 x 6 patches


@dataclass(frozen=True)
class ModelCase:
    """One family: the VidCom² class, the stock class it is compared with, and what its tokens are."""

    name: str
    config_class: type
    model_class: type
    stock_class: type
    build: Callable[..., tuple[PreTrainedModel, ProcessorMixin]]
    tokens_per_frame: int
    structure_tokens: int  # tokens of a video that are not scored and always stay
    build_arguments: dict[str, Any] = field(default_factory=dict)

    def video_tokens(self, num_frames: int) -> int:
        return num_frames * self.tokens_per_frame + self.structure_tokens


MODELS = [
    ModelCase(
        name="llava_onevision",
        config_class=VidCom2LlavaOnevisionConfig,
        model_class=VidCom2LlavaOnevisionForConditionalGeneration,
        stock_class=LlavaOnevisionForConditionalGeneration,
        build=tiny_llava_onevision,
        build_arguments={"image_size": IMAGE_SIZE},
        tokens_per_frame=9,
        structure_tokens=1,
    ),
]


def make_video(seed: int, num_frames: int = 8, unique_frame: int | None = 5) -> np.ndarray:
    """(num_frames, 3, height, width) uint8: a nearly still scene, with one frame of something else."""
    rng = np.random.default_rng(seed)
    scene = rng.integers(0, 256, (3, 60, 80))
    video = np.stack([np.clip(scene + rng.integers(-20, 20, scene.shape), 0, 255) for _ in range(num_frames)])
    if unique_frame is not None and unique_frame < num_frames:
        video[unique_frame] = rng.integers(0, 256, scene.shape)
    return video.astype(np.uint8)


def make_image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (3, 70, 90), dtype=np.uint8)
