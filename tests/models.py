"""The table of models that every test of models runs over. A new family adds one row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging import version
from safetensors.torch import save_file
from transformers import BatchFeature, PreTrainedConfig, PreTrainedModel, ProcessorMixin
from videos_as_images import (
    FRAMES,
    InternVLWithVideos,
    KimiK25WithVideos,
    MiniCPMV4_6WithVideos,
    NemotronInOneClass,
    PerceptionLMWithVideos,
    SmolVLMWithVideos,
    frame_places,
)

from vidcom2.families.table import FAMILIES, Family
from vidcom2.tiny.llava import tiny_llava_onevision

RETENTION_RATIO = 0.25
IMAGE_SIZE = 84  # 6 x 6 patches


@dataclass(frozen=True)
class ModelCase:
    """One family, with what an independent witness knows of its tokens and of its stock class."""

    name: str
    grid: tuple[int, int]  # rows and columns of a frame's tokens
    video_inputs: tuple[str, ...]  # arguments that describe the videos of a prompt
    image_inputs: tuple[str, ...]
    # Key prefix in Transformers 5 -> key prefix in the checkpoints on the Hub. Most are the same.
    legacy_prefixes: dict[str, str] = field(default_factory=lambda: {"": ""})
    structure_tokens: int = 0  # tokens at the end of a video that are not scored and always stay
    newline_every: int | None = None  # every n-th token of a frame is a newline: never scored, always kept
    files_frames_per_frame: int = 1  # how many frames of the file make one scored frame
    build_arguments: dict[str, Any] = field(default_factory=dict)
    mrope: bool = False
    legacy_transposed: tuple[str, ...] = ()  # suffixes of weights that the Hub stores with their last two axes swapped
    legacy_experts: bool = False  # whether the Hub stores the weights of each expert by themselves
    slow: bool = False  # its tests run only with `-m slow`, because another row stands for it
    # Whether it stands for its architecture. Tests run all their combinations over such a row, and share the
    # combinations out among the other rows.
    representative: bool = False
    # Whether a video has the placeholders of images, between marks. The stock class then loses the features of videos
    # where it repeats them for beams or splits them into chunks.
    shares_ids: bool = False
    refuses_both: bool = False  # whether the stock class refuses a prompt with images and videos
    # Whether features are added to the embeddings of placeholders, and attend to later ones, by the types of tokens.
    adds_features: bool = False
    patches_are_images: bool = False  # whether a patch of `pixel_values_videos` has its axes, as an image has
    one_video_a_prompt: bool = False  # whether the stock processor refuses a second one
    # Whether the stock processor takes videos only with a single prompt. The tests join what it makes of each.
    one_prompt_a_call: bool = False
    # Whether the stock class has no inner model, since its language model has the head.
    in_one_class: bool = False
    # Whether images and videos have the same placeholders without marks, so that ours refuses them in one call, too.
    one_kind_a_call: bool = False
    keeps_sizes: bool = False  # whether the processor bounds only the size of a whole video, not that of a frame
    # Whether the processor passes frames as rows of `pixel_values`. The tests pass them as `pixel_values_videos`, which
    # the stock class does not take: `compared_class` is one that does.
    frames_are_images: bool = False
    # The stock class with the arguments by which the tests tell videos apart; None if it has such arguments.
    compared_class: type | None = None
    grouped: bool = False  # whether the vision tower can leave out groups of patches
    hears: bool = False  # whether it also takes sound
    deepstack: bool = False  # whether the language model adds features of inner layers of the vision tower
    frames_stand_apart: bool = False  # each frame stands on its own in the prompt, behind its time
    # Whether it has linear attention. Its states cannot be cropped, and fade over padding between tokens. Transformers'
    # caches cannot select or repeat their rows, and Transformers refuses prompt lookup.
    recurrent: bool = False
    keys_are_latent: bool = (
        False  # whether its language model keeps joint keys and values (multi-head latent attention)
    )
    reads_positions: bool = True  # whether its language model reads positions, not the order of the tokens alone
    media_by_prompt: bool = False  # whether the processor takes the media of several prompts as a list for each
    # Whether later layers read the keys and values of earlier ones. Then reentrant gradient checkpointing loses a part
    # of the gradients, in the stock class too.
    shares_kv: bool = False
    # Whether the processor leaves out the pixels of images beside videos, and samples the decoded frames of a chat
    # unless it is told not to.
    takes_one_kind: bool = False
    # Whether the processor scales frames to a number of tokens, and pads their patches. Such a processor, Gemma 4's,
    # also takes sound.
    padded_frames: bool = False
    has_tower: bool = True  # whether frames pass through a vision tower
    # Whether the vision tower reads the weights of its places from outside the module that has them, so that
    # accelerate's hooks do not see to them.
    reads_outside: bool = False
    own_outputs: bool = False  # whether the stock class has an output class that `generate` cannot split into chunks
    can_tie: bool = True  # whether the stock class can tie the head to the embeddings
    # The first Transformers whose stock class runs videos in `forward`, if that is not the first which has it.
    runs_videos_since: str | None = None
    broken_in: str | None = None  # a Transformers whose stock class fails on videos of real sizes
    # The part of a 3 × 4 frame that the tokens cover: top, left, height and width, as fractions of its sides.
    covered: tuple[float, float, float, float] = (0, 0, 1, 1)

    @property
    def tokens_per_frame(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def fits_pipelines(self) -> bool:
        """Whether batches of Transformers' pipelines keep all frames of its videos. Others are refused."""
        return not (self.padded_frames or self.frames_are_images or self.adds_features or self.patches_are_images)

    @property
    def family(self) -> Family:
        """The row of the package's own table."""
        return FAMILIES.get(self.name) or FAMILIES[f"vidcom2_{self.name}"]

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        return self.family.config_class

    @property
    def model_class(self) -> type[Any]:
        return self.family.model_class

    @property
    def stock_class(self) -> type[Any]:
        return self.family.uncompressed_class

    def stock_from(self, folder: Path | str, **kwargs: Any) -> Any:
        """Return the stock model of a checkpoint, as `from_pretrained` of its class does. A class that is another
        family's gets the checkpoint's own config, as from Auto classes, since it would take that of the other."""
        if self.family.of:
            kwargs["config"] = self.stock_config_class.from_pretrained(folder)
        return self.stock_class.from_pretrained(folder, **kwargs)

    @property
    def stock_config_class(self) -> type[Any]:
        return self.config_class.__bases__[-1]

    @property
    def native(self) -> bool:
        """Whether Transformers has the stock class."""
        return self.family.native

    @property
    def build(self) -> Callable[..., tuple[PreTrainedModel, ProcessorMixin]]:
        return self.family.build_tiny

    @property
    def since(self) -> str:
        """The first Transformers whose stock class runs videos in `forward`."""
        return self.runs_videos_since or self.family.since

    @property
    def loads_here(self) -> bool:
        """Whether the installed Transformers has the classes that the family's extend."""
        return self.family.runs_here

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
        names = ["input_ids", "mm_token_type_ids", "attention_mask", "image_grid_thw", *self.video_inputs[1:]]
        names.append("use_audio_in_video")
        renamed = {"video_second_per_grid": "second_per_grids"}  # Qwen2.5-Omni's
        given = {renamed.get(name, name): inputs[name] for name in names if name in inputs}
        if "feature_attention_mask" in inputs:
            given["audio_seqlens"] = inputs["feature_attention_mask"].sum(dim=1)
        return stock.model.get_rope_index(**given)[0]


LLAVA_PREFIXES = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.image_newline": "image_newline",
}
INTERNVL_PREFIXES = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
QWEN2: dict[str, Any] = {  # shared by the rows of families with M-RoPE
    "grid": (3, 4),
    "grouped": True,
    "video_inputs": ("pixel_values_videos", "video_grid_thw"),
    "image_inputs": ("pixel_values", "image_grid_thw"),
    "legacy_prefixes": {"lm_head.": "lm_head.", "model.language_model.": "model.", "model.visual.": "visual."},
    "files_frames_per_frame": 2,
    "mrope": True,
}
QWEN3 = QWEN2 | {
    "build_arguments": {"patch_size": 10, "frame_tokens": 12},
    "legacy_prefixes": {"": ""},
    "frames_stand_apart": True,
}
THINKER = QWEN2 | {
    "video_inputs": ("pixel_values_videos", "video_grid_thw", "video_second_per_grid"),
    "legacy_prefixes": {
        "lm_head.": "thinker.lm_head.",
        "model.language_model.": "thinker.model.",
        "model.visual.": "thinker.visual.",
        "model.audio_tower.": "thinker.audio_tower.",
    },
    "hears": True,
}
GLM = QWEN3 | {
    "build_arguments": {"patch_size": 10},
    "shares_ids": True,
    "refuses_both": True,
    "keeps_sizes": True,
    "reads_outside": True,
}

GEMMA4: dict[str, Any] = {
    "grid": (7, 9),
    "video_inputs": ("pixel_values_videos", "video_position_ids", "num_frames_per_video"),
    "image_inputs": ("pixel_values", "image_position_ids"),
    "frames_stand_apart": True,
    "media_by_prompt": True,
    "padded_frames": True,
    "runs_videos_since": "5.21",
}

MODELS = [
    ModelCase(
        name="llava_onevision",
        grouped=True,
        representative=True,
        build_arguments={"image_size": IMAGE_SIZE},
        grid=(3, 3),
        structure_tokens=1,
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values", "image_sizes", "batch_num_images"),
        legacy_prefixes=LLAVA_PREFIXES,
    ),
    ModelCase(
        name="llava_video",
        grouped=True,
        build_arguments={"image_size": 98},  # 7 x 7 patches are pooled to 3 x 3
        grid=(3, 3),
        newline_every=4,
        covered=(0, 0, 6 / 7, 6 / 7),
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values", "image_sizes", "batch_num_images"),
        legacy_prefixes={},
    ),
    ModelCase(
        name="llava_next_video",
        grouped=True,
        build_arguments={"image_size": IMAGE_SIZE},
        grid=(3, 3),
        covered=(0, 1 / 8, 1, 3 / 4),
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values", "image_sizes"),
        legacy_prefixes=LLAVA_PREFIXES,
    ),
    ModelCase(
        name="perception_lm",
        compared_class=PerceptionLMWithVideos,
        build_arguments={"image_size": IMAGE_SIZE, "seed": 1},  # of seed 0, two videos keep equally many
        grid=(3, 3),
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values",),
        reads_outside=True,
        own_outputs=True,
    ),
    ModelCase(name="qwen2_vl", build_arguments={"pixels": (84 * 84, 84 * 112)}, **QWEN2),
    ModelCase(
        name="qwen2_5_vl",
        representative=True,
        # Frames without times count as 24 a second, so two frames are 25 / 12 positions long.
        build_arguments={"pixels": (84 * 84, 84 * 112), "tokens_per_second": 25},
        **QWEN2 | {"video_inputs": (*QWEN2["video_inputs"], "second_per_grid_ts")},
    ),
    ModelCase(
        name="exaone4_5",
        build_arguments={"pixels": (84 * 84, 84 * 112), "seed": 1},  # answers of seed 0 end early
        **QWEN2 | {"legacy_prefixes": {"": ""}, "mrope": False, "grouped": False},
    ),
    ModelCase(
        name="qwen2_5_omni_thinker",
        build_arguments={"patch_size": 46},  # 276 × 368 pixels, the fewest that the processor makes of a frame
        **THINKER,
    ),
    ModelCase(name="qwen3_vl", deepstack=True, **QWEN3),
    ModelCase(
        name="qwen3_vl_moe",
        deepstack=True,
        **QWEN3,
        legacy_transposed=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        slow=True,
    ),
    ModelCase(
        name="qwen3_omni_moe_thinker",
        build_arguments={"patch_size": 53},  # 318 × 424 pixels, the fewest that the processor makes of a frame
        **THINKER,
        deepstack=True,
        legacy_experts=True,
        slow=True,
    ),
    ModelCase(name="qwen3_5", representative=True, **QWEN3, recurrent=True),
    ModelCase(name="qwen3_5_moe", **QWEN3, slow=True, recurrent=True),
    ModelCase(name="qwen4_exp", **QWEN3, recurrent=True),
    ModelCase(name="lfm3_vl", **QWEN3 | {"mrope": False, "grouped": False}, recurrent=True),
    ModelCase(name="cohere_compass", **QWEN3 | {"grouped": False}, deepstack=True),
    ModelCase(
        name="hyperclovax_vision_v2",
        build_arguments={"pixels": (84 * 84, 84 * 112)},
        **QWEN2 | {"legacy_prefixes": {"": ""}, "mrope": False},
    ),
    ModelCase(
        name="kimi_k25",
        compared_class=KimiK25WithVideos,
        # Pairs of frames, as in the other rows. tests/test_kimi.py has four together, as in the released processor.
        build_arguments={"patch_size": 10, "frame_tokens": 12, "frames_together": 2, "seed": 1},
        grid=(3, 4),
        files_frames_per_frame=2,
        keys_are_latent=True,
        patches_are_images=True,
        video_inputs=("pixel_values_videos", "video_grid_thw", "num_chunks_per_video"),
        image_inputs=("pixel_values", "image_grid_thw"),
        frames_stand_apart=True,
    ),
    ModelCase(name="glm4v", **GLM),
    ModelCase(name="glm4v_moe", **GLM, slow=True),
    ModelCase(name="glm46v", **GLM, slow=True),
    ModelCase(name="glmga", **GLM, slow=True),
    ModelCase(
        name="glm5_next",
        **GLM | {"mrope": False, "grouped": False, "refuses_both": False, "reads_outside": False},
        recurrent=True,
        reads_positions=False,
    ),
    ModelCase(name="cosmos3_omni", deepstack=True, **QWEN3, slow=True),
    ModelCase(
        name="cosmos3_edge",
        **QWEN3 | {"build_arguments": {"patch_size": 10}, "files_frames_per_frame": 1, "grouped": False},
        keeps_sizes=True,
        reads_outside=True,
        can_tie=False,
    ),
    ModelCase(
        name="internvl",
        compared_class=InternVLWithVideos,
        build_arguments={"image_size": IMAGE_SIZE},
        grid=(3, 3),
        video_inputs=("pixel_values_videos", "num_frames"),
        image_inputs=("pixel_values",),
        legacy_prefixes=INTERNVL_PREFIXES,
        frames_are_images=True,
    ),
    ModelCase(
        name="smolvlm",
        compared_class=SmolVLMWithVideos,
        build_arguments={"image_size": IMAGE_SIZE},
        grid=(3, 3),
        video_inputs=("pixel_values_videos", "num_frames"),
        image_inputs=("pixel_values", "pixel_attention_mask"),
        frames_are_images=True,
        media_by_prompt=True,
        takes_one_kind=True,
        broken_in="5.20",
    ),
    ModelCase(
        name="gemma4",
        # The window is wider than any prompt. tests/test_gemma4.py has a narrow one.
        build_arguments={"patch_size": 4, "sliding_window": 8192},
        **GEMMA4,
        shares_kv=True,
    ),
    ModelCase(
        name="gemma4_unified",
        # tests/test_gemma4.py has a narrow window, and frames whose tokens attend to each other.
        build_arguments={"patch_size": 4, "sliding_window": 8192, "text": {"use_bidirectional_attention": None}},
        **GEMMA4,
        has_tower=False,
    ),
    ModelCase(
        name="video_llama_3",
        # In these videos all patches change. tests/test_video_llama_3.py has others.
        build_arguments={"patch_size": 10, "pixels": (1, 2**30)},
        grid=(3, 4),
        video_inputs=("pixel_values_videos", "video_grid_thw", "video_merge_sizes", "video_compression_mask"),
        image_inputs=("pixel_values", "image_grid_thw", "image_merge_sizes"),
        frames_stand_apart=True,
        keeps_sizes=True,
    ),
    ModelCase(
        name="minicpmv4_6",
        compared_class=MiniCPMV4_6WithVideos,
        build_arguments={"patch_size": 5, "scale_resolution": 70, "max_slice_nums": 1},
        grid=(3, 4),
        video_inputs=("pixel_values_videos", "target_sizes_videos", "num_frames_per_video"),
        image_inputs=("pixel_values", "target_sizes"),
        reads_outside=True,
        recurrent=True,
    ),
    ModelCase(
        name="molmo2",
        build_arguments={"image_size": 126},
        grid=(3, 3),
        video_inputs=("pixel_values_videos", "video_token_pooling", "video_grids"),
        image_inputs=("pixel_values", "image_token_pooling", "image_grids"),
        frames_stand_apart=True,
        refuses_both=True,
        adds_features=True,
        one_video_a_prompt=True,
        can_tie=False,
    ),
    ModelCase(
        name="nemotron_h_omni",
        compared_class=NemotronInOneClass,
        build_arguments={"patch_size": 10, "frame_tokens": 12, "seed": 2},
        grid=(3, 4),
        files_frames_per_frame=2,
        video_inputs=("pixel_values_videos",),
        image_inputs=("pixel_values", "image_grid_hw"),
        frames_stand_apart=True,
        recurrent=True,
        reads_positions=False,
        one_prompt_a_call=True,
        in_one_class=True,
        refuses_both=True,
        one_kind_a_call=True,
        can_tie=False,
    ),
]


def _marks(case: ModelCase) -> list[pytest.MarkDecorator]:
    lacks_videos = version.parse(transformers.__version__) < version.parse(case.since)
    reason = f"the stock class of {case.name} runs no videos before Transformers {case.since}"
    missing = [package for package in case.family.packages if find_spec(package) is None]
    lacks = f"{case.name} needs {', '.join(missing)}, which is not installed"
    skips = [pytest.mark.skipif(lacks_videos, reason=reason), pytest.mark.skipif(bool(missing), reason=lacks)]
    is_broken = case.broken_in is not None and transformers.__version__.startswith(f"{case.broken_in}.")
    skips.append(pytest.mark.skipif(is_broken, reason=f"the stock class of {case.name} fails in {case.broken_in}"))
    return skips + [pytest.mark.slow] * case.slow


# Weights that checkpoints hold in other parts, which `from_pretrained` joins or splits, by a part of their names.
HELD_IN_OTHER_PARTS = dict.fromkeys(
    ("qwen3_omni_moe_thinker", "qwen3_5_moe", "glm4v_moe", "qwen4_exp"), (".experts.",)
) | {
    "glm5_next": (".experts.", ".conv1d."),
    "kimi_k25": (".experts.", ".vision_tower."),
    "molmo2": (".embed_tokens.", ".self_attn.", ".mlp."),
    "nemotron_h_omni": (".experts.", ".attention."),
}
CASES_THAT_LOAD = [case for case in MODELS if case.loads_here]
EACH_MODEL = [pytest.param(case, id=case.name, marks=_marks(case)) for case in MODELS]


def save_as_on_the_hub(case: ModelCase, model: PreTrainedModel, folder: Path) -> None:
    """Save the weights under the key names, and in the layout, of the checkpoints on the Hub."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        prefix = next(prefix for prefix in case.legacy_prefixes if name.startswith(prefix))
        tensor = tensor.mT if name.endswith(case.legacy_transposed) else tensor
        legacy = case.legacy_prefixes[prefix] + name.removeprefix(prefix)
        parts = experts_apart(legacy, tensor) if case.legacy_experts else {legacy: tensor}
        tensors |= {each: part.clone().contiguous() for each, part in parts.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def experts_apart(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the weights of a layer's experts under the names of each, and other weights as they are."""
    layer, _, kind = name.rpartition(".experts.")
    if not layer:
        return {name: tensor}
    kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
    return {
        f"{layer}.experts.{expert}.{each}.weight": part
        for expert, weights in enumerate(tensor)
        for each, part in zip(kinds, weights.chunk(len(kinds)), strict=True)
    }


def save_tiny(folder: Path, seed: int = 0) -> Path:
    """Save a tiny stock LLaVA-OneVision in a folder. Each seed gives other weights."""
    for part in tiny_llava_onevision(image_size=84, seed=seed):
        part.save_pretrained(folder)
    return folder


def tower_of(inner: Any) -> Any:
    """Return the vision tower of a model without a head, or what takes its place."""
    return next(
        getattr(inner, name)
        for name in ("visual", "vision_tower", "vision_model", "embed_vision")
        if hasattr(inner, name)
    )


def chat_prompt(processor: Any, question: str, videos: int = 0, images: int = 0) -> str:
    content = [{"type": "image"}] * images + [{"type": "video"}] * videos + [{"type": "text", "text": question}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def placeholder_id(config: PreTrainedConfig) -> int:
    """Return the id of the tokens that stand for a video's in a processor's prompt."""
    shares = marks_of(config) or hasattr(config, "frame_marks") or config.model_type == "nemotron_h_omni"
    return config.image_token_id if shares else config.video_token_id


def marks_of(config: PreTrainedConfig) -> list[int]:
    """Return the ids of the marks between which a video or a frame has the placeholders of images, if there are any."""
    names = (f"{kind}_{end}_token_id" for kind in ("video", "frame") for end in ("start", "end"))
    return [getattr(config, name) for name in names if hasattr(config, name)][:2]


def video_places(config: PreTrainedConfig, input_ids: torch.Tensor) -> torch.Tensor:
    """Return which tokens stand for a video's, token by token: bool, of the same shape (..., L)."""
    if input_ids.ndim > 1:
        return torch.stack([video_places(config, row) for row in input_ids])
    if hasattr(config, "frame_marks") or config.model_type in FRAMES:
        return frame_places(config, input_ids)
    marks, places = marks_of(config), []
    within = not marks
    for token in input_ids.tolist():
        if token in marks:
            within = token == marks[0]
        places.append(within and token == placeholder_id(config))
    return torch.tensor(places)


def typed(family: Any, inputs: Any, ids: Any = None) -> dict[str, Any]:
    """Return the types of tokens as an argument, where attention reads them: of `ids`, which begin with the inputs'."""
    if not family.case.adds_features:
        return {}
    types = inputs["mm_token_type_ids"]
    behind = 0 if ids is None else ids.shape[1] - types.shape[1]
    return {"mm_token_type_ids": torch.nn.functional.pad(types, (0, behind))}


def token_types(config: PreTrainedConfig, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the types of tokens as processors do: 1 for images, 2 for videos, 0 for all others."""
    return (input_ids == config.image_token_id).int().masked_fill(video_places(config, input_ids), 2)


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
