"""The table of models that every test of models runs over. A new family adds one row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    BatchFeature,
    LlavaNextVideoForConditionalGeneration,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedModel,
    ProcessorMixin,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeForConditionalGeneration,
)

from vidcom2 import (
    VidCom2LlavaNextVideoConfig,
    VidCom2LlavaNextVideoForConditionalGeneration,
    VidCom2LlavaOnevisionConfig,
    VidCom2LlavaOnevisionForConditionalGeneration,
    VidCom2LlavaVideoConfig,
    VidCom2LlavaVideoForConditionalGeneration,
    VidCom2Qwen2_5_VLConfig,
    VidCom2Qwen2_5_VLForConditionalGeneration,
    VidCom2Qwen2VLConfig,
    VidCom2Qwen2VLForConditionalGeneration,
    VidCom2Qwen3_5Config,
    VidCom2Qwen3_5ForConditionalGeneration,
    VidCom2Qwen3_5MoeConfig,
    VidCom2Qwen3_5MoeForConditionalGeneration,
    VidCom2Qwen3VLConfig,
    VidCom2Qwen3VLForConditionalGeneration,
    VidCom2Qwen3VLMoeConfig,
    VidCom2Qwen3VLMoeForConditionalGeneration,
)
from vidcom2.modeling.families.modeling_vidcom2_llava_video import LlavaVideoForConditionalGeneration
from vidcom2.tiny.checkpoints import (
    tiny_llava_next_video,
    tiny_llava_onevision,
    tiny_qwen2_5_vl,
    tiny_qwen2_vl,
    tiny_qwen3_5,
    tiny_qwen3_5_moe,
    tiny_qwen3_vl,
    tiny_qwen3_vl_moe,
)
from vidcom2.tiny.llava_video import tiny_llava_video

RETENTION_RATIO = 0.25
IMAGE_SIZE = 84  # 6 x 6 patches


@dataclass(frozen=True)
class ModelCase:
    """One family: its VidCom² class, the stock class it is compared with, and the layout of its tokens."""

    name: str
    config_class: type
    model_class: type
    stock_class: type
    build: Callable[..., tuple[PreTrainedModel, ProcessorMixin]]
    grid: tuple[int, int]  # rows and columns of a frame's tokens
    structure_tokens: int  # tokens at the end of a video that are not scored and always stay
    video_inputs: tuple[str, ...]  # arguments that describe the videos of a prompt
    image_inputs: tuple[str, ...]
    legacy_prefixes: dict[str, str]  # key prefix in Transformers 5 -> key prefix in the checkpoints on the Hub
    newline_every: int | None = None  # every n-th token of a frame is a newline: never scored, always kept
    native: bool = True  # whether Transformers has the stock class
    files_frames_per_frame: int = 1  # how many frames of the file make one scored frame
    build_arguments: dict[str, Any] = field(default_factory=dict)
    mrope: bool = False
    legacy_transposed: tuple[str, ...] = ()  # suffixes of weights that the Hub stores with their last two axes swapped
    slow: bool = False  # its tests run only with `-m slow`, because another row stands for it
    # Whether it stands for its architecture. Tests run all their combinations over such a row, and share the
    # combinations out among the other rows.
    representative: bool = False
    siglip: bool = False  # whether the vision tower can reuse what it computed for another frame
    deepstack: bool = False  # whether the language model adds features of inner layers of the vision tower
    frames_stand_apart: bool = False  # each frame stands on its own in the prompt, behind its time
    # Whether it has linear attention. Its states cannot be cropped, and fade over padding between tokens. Transformers'
    # caches cannot select or repeat their rows, and Transformers refuses prompt lookup.
    recurrent: bool = False
    # The part of a 3 × 4 frame that the tokens cover: top, left, height and width, as fractions of its sides.
    covered: tuple[float, float, float, float] = (0, 0, 1, 1)

    @property
    def tokens_per_frame(self) -> int:
        return self.grid[0] * self.grid[1]

    def scored_frames(self, num_frames: int) -> int:
        return -(-num_frames // self.files_frames_per_frame)

    def video_tokens(self, num_frames: int) -> int:
        newlines = self.tokens_per_frame // (self.newline_every - 1) if self.newline_every else 0
        return self.scored_frames(num_frames) * (self.tokens_per_frame + newlines) + self.structure_tokens

    def is_scored(self, num_tokens: int) -> torch.Tensor:
        """Return (num_tokens,) bool: which placeholders of a video are scored. The others are structure."""
        positions = torch.arange(num_tokens)
        scored = positions < num_tokens - self.structure_tokens
        return scored & ((positions + 1) % self.newline_every != 0) if self.newline_every else scored

    def full_positions(self, stock: PreTrainedModel, inputs: BatchFeature) -> torch.Tensor | None:
        """Return the stock model's M-RoPE positions (3, B, L) of the full prompt."""
        if not self.mrope:
            return None
        names = ("input_ids", "mm_token_type_ids", "attention_mask", "image_grid_thw", *self.video_inputs[1:])
        return stock.model.get_rope_index(**{name: inputs[name] for name in names if name in inputs})[0]


LLAVA_PREFIXES = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.image_newline": "image_newline",
}
QWEN3: dict[str, Any] = {  # shared by the rows of Qwen3-VL and Qwen3.5
    "build_arguments": {"patch_size": 10, "frame_tokens": 12},
    "grid": (3, 4),
    "structure_tokens": 0,
    "video_inputs": ("pixel_values_videos", "video_grid_thw"),
    "image_inputs": ("pixel_values", "image_grid_thw"),
    "legacy_prefixes": {"": ""},
    "files_frames_per_frame": 2,
    "mrope": True,
    "frames_stand_apart": True,
}

MODELS = [
    ModelCase(
        name="llava_onevision",
        config_class=VidCom2LlavaOnevisionConfig,
        model_class=VidCom2LlavaOnevisionForConditionalGeneration,
        stock_class=LlavaOnevisionForConditionalGeneration,
        build=tiny_llava_onevision,
        representative=True,
        siglip=True,
        build_arguments={"image_size": IMAGE_SIZE},
        grid=(3, 3),
        structure_tokens=1,
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values", "image_sizes", "batch_num_images"),
        legacy_prefixes=LLAVA_PREFIXES,
    ),
    ModelCase(
        name="llava_video",
        config_class=VidCom2LlavaVideoConfig,
        model_class=VidCom2LlavaVideoForConditionalGeneration,
        stock_class=LlavaVideoForConditionalGeneration,
        build=tiny_llava_video,
        siglip=True,
        build_arguments={"image_size": 98},  # 7 x 7 patches are pooled to 3 x 3
        grid=(3, 3),
        structure_tokens=0,
        newline_every=4,
        covered=(0, 0, 6 / 7, 6 / 7),
        native=False,
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values", "image_sizes", "batch_num_images"),
        legacy_prefixes={},
    ),
    ModelCase(
        name="llava_next_video",
        config_class=VidCom2LlavaNextVideoConfig,
        model_class=VidCom2LlavaNextVideoForConditionalGeneration,
        stock_class=LlavaNextVideoForConditionalGeneration,
        build=tiny_llava_next_video,
        build_arguments={"image_size": IMAGE_SIZE},
        grid=(3, 3),
        structure_tokens=0,
        covered=(0, 1 / 8, 1, 3 / 4),
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values", "image_sizes"),
        legacy_prefixes=LLAVA_PREFIXES,
    ),
    ModelCase(
        name="qwen2_vl",
        config_class=VidCom2Qwen2VLConfig,
        model_class=VidCom2Qwen2VLForConditionalGeneration,
        stock_class=Qwen2VLForConditionalGeneration,
        build=tiny_qwen2_vl,
        build_arguments={"pixels": (84 * 84, 84 * 112)},
        grid=(3, 4),
        structure_tokens=0,
        video_inputs=("pixel_values_videos", "video_grid_thw"),
        image_inputs=("pixel_values", "image_grid_thw"),
        legacy_prefixes={"lm_head.": "lm_head.", "model.language_model.": "model.", "model.visual.": "visual."},
        files_frames_per_frame=2,
        mrope=True,
    ),
    ModelCase(
        name="qwen2_5_vl",
        config_class=VidCom2Qwen2_5_VLConfig,
        model_class=VidCom2Qwen2_5_VLForConditionalGeneration,
        stock_class=Qwen2_5_VLForConditionalGeneration,
        build=tiny_qwen2_5_vl,
        representative=True,
        # Frames without times count as 24 a second, so two frames are 25 / 12 positions long.
        build_arguments={"pixels": (84 * 84, 84 * 112), "tokens_per_second": 25},
        grid=(3, 4),
        structure_tokens=0,
        video_inputs=("pixel_values_videos", "video_grid_thw", "second_per_grid_ts"),
        image_inputs=("pixel_values", "image_grid_thw"),
        legacy_prefixes={"lm_head.": "lm_head.", "model.language_model.": "model.", "model.visual.": "visual."},
        files_frames_per_frame=2,
        mrope=True,
    ),
    ModelCase(
        name="qwen3_vl",
        config_class=VidCom2Qwen3VLConfig,
        model_class=VidCom2Qwen3VLForConditionalGeneration,
        stock_class=Qwen3VLForConditionalGeneration,
        build=tiny_qwen3_vl,
        deepstack=True,
        **QWEN3,
    ),
    ModelCase(
        name="qwen3_vl_moe",
        config_class=VidCom2Qwen3VLMoeConfig,
        model_class=VidCom2Qwen3VLMoeForConditionalGeneration,
        stock_class=Qwen3VLMoeForConditionalGeneration,
        build=tiny_qwen3_vl_moe,
        deepstack=True,
        **QWEN3,
        legacy_transposed=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        slow=True,
    ),
    ModelCase(
        name="qwen3_5",
        config_class=VidCom2Qwen3_5Config,
        model_class=VidCom2Qwen3_5ForConditionalGeneration,
        stock_class=Qwen3_5ForConditionalGeneration,
        build=tiny_qwen3_5,
        representative=True,
        **QWEN3,
        recurrent=True,
    ),
    ModelCase(
        name="qwen3_5_moe",
        config_class=VidCom2Qwen3_5MoeConfig,
        model_class=VidCom2Qwen3_5MoeForConditionalGeneration,
        stock_class=Qwen3_5MoeForConditionalGeneration,
        build=tiny_qwen3_5_moe,
        **QWEN3,
        slow=True,
        recurrent=True,
    ),
]

EACH_MODEL = [pytest.param(case, id=case.name, marks=pytest.mark.slow if case.slow else ()) for case in MODELS]


def two_of(cases: Sequence[tuple], mark: pytest.MarkDecorator = pytest.mark.product) -> list[Any]:
    """Run only the first and the last case by default, for bad values that another test covers in full."""
    marks = [() if at in (0, len(cases) - 1) else mark for at in range(len(cases))]
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks)]


def save_as_on_the_hub(case: ModelCase, model: PreTrainedModel, folder: Path) -> None:
    """Save the weights under the key names, and in the layout, of the checkpoints on the Hub."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        prefix = next(prefix for prefix in case.legacy_prefixes if name.startswith(prefix))
        tensor = tensor.mT if name.endswith(case.legacy_transposed) else tensor
        tensors[case.legacy_prefixes[prefix] + name.removeprefix(prefix)] = tensor.clone().contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def chat_prompt(processor: Any, question: str, videos: int = 0, images: int = 0) -> str:
    content = [{"type": "image"}] * images + [{"type": "video"}] * videos + [{"type": "text", "text": question}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def make_video(seed: int, num_frames: int = 8, unique_frame: int | None = 5) -> np.ndarray:
    """Return (num_frames, 3, height, width) uint8: a nearly still scene with one frame of another scene."""
    rng = np.random.default_rng(seed)
    scene = rng.integers(0, 256, (3, 60, 80))
    video = np.stack([np.clip(scene + rng.integers(-20, 20, scene.shape), 0, 255) for _ in range(num_frames)])
    if unique_frame is not None and unique_frame < num_frames:
        video[unique_frame] = rng.integers(0, 256, scene.shape)
    return video.astype(np.uint8)


def make_image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (3, 70, 90), dtype=np.uint8)
