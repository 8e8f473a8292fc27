"""Convert the original LLaVA-Video checkpoints to the format of `VidCom2LlavaVideoForConditionalGeneration`.

Only names change. The weights are copied shard by shard, so memory holds one shard at a time.
"""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import (
    AddedToken,
    AutoTokenizer,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionVideoProcessor,
    PreTrainedTokenizerBase,
    Qwen2Config,
)

from ..configuration.configuration_vidcom2_llava_video import SPATIAL_POOL_MODES, checked_choice
from ..errors import CheckpointError
from ..loading.checkpoints import forget_code
from ..loading.finding_checkpoints import read_object
from ..records.whole_files import check_free, growing_folder
from ..repo_shape import INDEX, SINGLE_FILE, weight_files
from ..tiny.tokens import CHAT_TEMPLATE as LLAVA_ONEVISION_CHAT_TEMPLATE
from ..tiny.tokens import token_id
from .classes import LlavaVideoProcessor, VidCom2LlavaVideoConfig, VidCom2LlavaVideoForConditionalGeneration

# It is called with what is being done, how much of it is done, and how much there is in all.
Progress = Callable[[str, float, float | None], None]

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}

# The first prefix that fits is replaced.
RENAMED_PREFIXES = {
    "model.vision_tower.vision_tower.vision_model.": "model.vision_tower.",
    "model.mm_projector.0.": "model.multi_modal_projector.linear_1.",
    "model.mm_projector.2.": "model.multi_modal_projector.linear_2.",
    "model.image_newline": "model.image_newline",
    "model.embed_tokens.": "model.language_model.embed_tokens.",
    "model.layers.": "model.language_model.layers.",
    "model.norm.": "model.language_model.norm.",
    "lm_head.": "lm_head.",
}

# The values that the class supports. A config with another one is refused. An absent field counts as None.
COMPUTED = {
    "architectures": (["LlavaQwenForCausalLM"],),
    "mm_projector_type": ("mlp2x_gelu",),
    "mm_newline_position": ("grid",),
    "mm_patch_merge_type": ("spatial_unpad",),
    "image_aspect_ratio": ("anyres_max_9",),
    "mm_vision_select_feature": ("patch", None),
    "add_faster_video": (False, None),
    "mm_resampler_type": (None,),
}
TEXT_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rope_theta",
    "rms_norm_eps",
)
OPTIONAL_TEXT_FIELDS = (
    "hidden_act",
    "attention_dropout",
    "initializer_range",
    "rope_scaling",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "bos_token_id",
    "eos_token_id",
    "use_cache",
)
VISION_TOWERS = {
    "siglip-so400m-patch14-384": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
    }
}
CHAT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"  # as in the original's conversation `qwen_1_5`
    "{% endif %}" + LLAVA_ONEVISION_CHAT_TEMPLATE
)


@dataclass
class Conversion:
    """The result of a conversion.

    Attributes:
        destination: the folder that was written.
        num_tensors, num_bytes: the number of tensors and of bytes of the weights.
        dtype: the dtype of the weights.
        spatial_pool_mode: the mode that was written to the config and the processor.
        notes: sentences on where the result departs from the source.
    """

    destination: str
    num_tensors: int
    num_bytes: int
    dtype: str
    spatial_pool_mode: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Shard:
    """A safetensors file.

    Attributes:
        tensors: name -> (dtype, shape), as its header says. The dtype is safetensors' own name, such as "BF16".
        metadata: the text that its header holds beside the tensors.
    """

    path: Path
    tensors: dict[str, tuple[str, list[int]]]
    metadata: dict[str, str] | None

    @property
    def num_bytes(self) -> int:
        """Return how many bytes its tensors have."""
        return sum(math.prod(shape) * getattr(torch, DTYPES[dtype]).itemsize for dtype, shape in self.tensors.values())


def convert_llava_video(
    source: str,
    destination: str,
    spatial_pool_mode: str = "average",
    progress: Progress = lambda *_: None,
) -> Conversion:
    """Write an original LLaVA-Video checkpoint in this project's format. The source is not changed.

    The destination appears under its name when it is complete. Until then it is a hidden folder beside it, which does
    not load. The next run removes what a killed run left.

    Args:
        source: folder with the original's config.json, safetensors files and tokenizer, as `hf download` leaves it.
        destination: folder to make.
        spatial_pool_mode: the mode for the new config and processor, whatever the source's config says.

    Raises:
        CheckpointError: naming anything that is missing, unknown, pickled or has another shape. Nothing is written.
        OptionError: if the destination exists, or another process is making it.
        ValueError: on a `spatial_pool_mode` outside the accepted set.
    """
    checked_choice("spatial_pool_mode", spatial_pool_mode, SPATIAL_POOL_MODES)
    folder, target = Path(source), Path(destination)
    if not folder.is_dir():
        raise CheckpointError(
            f"there is no folder {source!r}. Download the original checkpoint first: "
            "hf download lmms-lab/LLaVA-Video-7B-Qwen2 --local-dir FOLDER"
        )
    check_free(target)
    original = _read_object(folder / "config.json")
    _check_computed(original)
    shards = [read_shard(path) for path in find_shards(folder)]
    tokenizer = _tokenizer(folder)
    config = _config(original, folder, tokenizer, spatial_pool_mode)
    _check_tensors(shards, config)
    embedding = "model.embed_tokens.weight"
    config.dtype = dtype = DTYPES[next(shard.tensors[embedding][0] for shard in shards if embedding in shard.tensors)]
    num_bytes = sum(shard.num_bytes for shard in shards)
    with growing_folder(target) as incomplete:
        free = shutil.disk_usage(incomplete).free
        if free < num_bytes:
            raise CheckpointError(f"{destination!r} needs {num_bytes:,} bytes, but its disk has {free:,} left.")
        _copy_weights(shards, incomplete, progress)
        _processor(original, config, tokenizer).save_pretrained(incomplete)
        if (folder / "generation_config.json").is_file():
            shutil.copyfile(folder / "generation_config.json", incomplete / "generation_config.json")
        config.architectures = [VidCom2LlavaVideoForConditionalGeneration.__name__]
        config.save_pretrained(incomplete)  # last, because the folder does not load without it
    return Conversion(
        destination=str(target),
        num_tensors=sum(len(shard.tensors) for shard in shards),
        num_bytes=num_bytes,
        dtype=dtype,
        spatial_pool_mode=spatial_pool_mode,
        notes=_notes(original, folder, spatial_pool_mode),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------------------------------


def find_shards(folder: Path) -> list[Path]:
    """Return the checkpoint's safetensors files, in the order of their names."""
    paths = {path.name for path in folder.iterdir()}
    names = sorted(weight_files(paths, lambda name: _read_object(folder / name))) or [SINGLE_FILE]
    foreign = [name for name in names if not name.endswith(".safetensors") or Path(name).name != name]
    if foreign:
        raise CheckpointError(f"{INDEX} names {', '.join(foreign)}, but only safetensors files beside it are read.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing == [SINGLE_FILE]:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
        if pickles:
            raise CheckpointError(
                f"{str(folder)!r} holds pickle files ({', '.join(pickles)}), which can run code when they are read. "
                "Save the checkpoint as safetensors first."
            )
    if missing:
        raise CheckpointError(f"{str(folder)!r} lacks {', '.join(missing)}. Download the whole checkpoint.")
    return [folder / name for name in names]


def read_shard(path: Path) -> Shard:
    """Read the header of a safetensors file.

    Raises:
        CheckpointError: if the file is of another kind, or was cut off.
    """
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (it is not a dict)
            tensors = {name: (each.get_dtype(), each.get_shape()) for name, each in slices.items()}
            return Shard(path, tensors, file.metadata())
    except SafetensorError as error:
        raise CheckpointError(
            f"{str(path)!r} is not a safetensors file, or not the whole of one ({error}). Download it again."
        ) from None


def renamed(name: str) -> str | None:
    """Return this project's name for a key of the original, or None if the original has no such key."""
    for old, new in RENAMED_PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return None


def _check_tensors(shards: list[Shard], config: VidCom2LlavaVideoConfig) -> None:
    with torch.device("meta"):
        expected = {
            name: list(tensor.shape)
            for name, tensor in VidCom2LlavaVideoForConditionalGeneration(config).state_dict().items()
        }
    found: dict[str, str] = {}
    for shard in shards:
        for name, (dtype, shape) in shard.tensors.items():
            new = renamed(name)
            if new not in expected:
                raise CheckpointError(f"{shard.path.name} holds {name!r}, which LLaVA-Video does not have.")
            if new in found:
                raise CheckpointError(f"{name!r} is both in {found[new]} and in {shard.path.name}.")
            if shape != expected[new]:
                raise CheckpointError(
                    f"{name!r} in {shard.path.name} has shape {shape}, but config.json asks for "
                    f"{expected[new]}. Do both belong to one checkpoint?"
                )
            if dtype not in DTYPES:
                raise CheckpointError(
                    f"{name!r} in {shard.path.name} is {dtype}, but must be one of {', '.join(DTYPES)}."
                )
            found[new] = shard.path.name
    missing = expected.keys() - found.keys() - ({"lm_head.weight"} if config.tie_word_embeddings else set())
    if missing:
        old = sorted(original_name(name) for name in missing)
        more = f" and {len(old) - 5} more" if len(old) > 5 else ""
        raise CheckpointError(f"the weights lack {', '.join(old[:5])}{more}. Download the whole checkpoint.")


def original_name(name: str) -> str:
    """Return the original's key for this project's name; the inverse of `renamed`."""
    for old, new in RENAMED_PREFIXES.items():
        if name.startswith(new):
            return old + name.removeprefix(new)
    return name


def _copy_weights(shards: list[Shard], target: Path, progress: Progress) -> None:
    total, done = sum(shard.num_bytes for shard in shards), 0
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = SINGLE_FILE if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        progress(f"Copying {name}", done, total)
        with safe_open(shard.path, "pt") as file:
            weights = {new: file.get_tensor(old) for old in shard.tensors if (new := renamed(old))}
            save_file(weights, target / name, shard.metadata)
        weight_map |= dict.fromkeys(weights, name)
        del weights  # before the next shard is read
        done += shard.num_bytes
    progress("Copied the weights", done, total)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n")


# ---------------------------------------------------------------------------------------------------------------------
# Config, tokenizer, processor
# ---------------------------------------------------------------------------------------------------------------------


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{str(path.parent)!r} lacks {path.name}. Download the whole checkpoint.")
    return read_object(path)


def _check_computed(original: dict[str, Any]) -> None:
    for name, accepted in COMPUTED.items():
        if original.get(name) not in accepted:
            shown = " or ".join(json.dumps(value) for value in accepted)
            raise CheckpointError(
                f"config.json has `{name}` {json.dumps(original.get(name))}, but an original LLaVA-Video checkpoint "
                f"has {shown}. The class of this project would not compute what this model does."
            )
    missing = [name for name in (*TEXT_FIELDS, "mm_vision_tower", "image_grid_pinpoints") if name not in original]
    if missing:
        raise CheckpointError(f"config.json lacks {', '.join(missing)}.")
    if not isinstance(original["image_grid_pinpoints"], list):
        raise CheckpointError(
            f"config.json has `image_grid_pinpoints` {original['image_grid_pinpoints']!r}, but it must be a list of "
            "pairs of width and height."
        )


def _config(
    original: dict[str, Any], folder: Path, tokenizer: PreTrainedTokenizerBase, spatial_pool_mode: str
) -> VidCom2LlavaVideoConfig:
    tied = bool(original.get("tie_word_embeddings", False))
    text = {name: original[name] for name in (*TEXT_FIELDS, *OPTIONAL_TEXT_FIELDS) if name in original}
    tower = _vision_tower(original["mm_vision_tower"], folder)
    image, video = (token_id(tokenizer, token) for token in ("<image>", "<video>"))
    if max(image, video) >= original["vocab_size"]:
        raise CheckpointError(
            f"config.json has `vocab_size` {original['vocab_size']}, which leaves no row of the embeddings for "
            f"<image> ({image}) and <video> ({video})."
        )
    return VidCom2LlavaVideoConfig(
        text_config={"model_type": "qwen2", "tie_word_embeddings": tied, **text},
        vision_config={
            "model_type": "siglip_vision_model",
            "vision_use_head": False,
            **tower,
            "num_hidden_layers": tower["num_hidden_layers"] - 1,  # the original deletes the last layer
        },
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_token_index=image,
        video_token_index=video,
        image_grid_pinpoints=[[height, width] for width, height in original["image_grid_pinpoints"]],
        vision_aspect_ratio=original["image_aspect_ratio"],
        tie_word_embeddings=tied,
        spatial_pool_mode=spatial_pool_mode,
    )


def _vision_tower(name: str, folder: Path) -> dict[str, int]:
    """Return the sizes of a SigLIP tower: by name for the released one, and from a config.json for any other."""
    if Path(name).name in VISION_TOWERS:
        return VISION_TOWERS[Path(name).name]
    path, sizes = folder / name / "config.json", VISION_TOWERS["siglip-so400m-patch14-384"].keys()
    config = _read_object(path) if path.is_file() else {}
    config = config.get("vision_config", config)
    if not sizes <= config.keys():
        raise CheckpointError(
            f"config.json has `mm_vision_tower` {name!r}, but must be one of {', '.join(VISION_TOWERS)} or a folder "
            f"with the config.json of a SigLIP model, which says {', '.join(sizes)}."
        )
    return {key: config[key] for key in sizes}


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    if not (folder / "tokenizer_config.json").is_file():
        raise CheckpointError(f"{str(folder)!r} lacks tokenizer_config.json. Download the whole checkpoint.")
    # The language model's config is passed because the source's `model_type` "llava" would load a Llama tokenizer.
    tokenizer = AutoTokenizer.from_pretrained(folder, config=Qwen2Config(), local_files_only=True)
    forget_code(tokenizer)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in ("<image>", "<video>")])
    tokenizer.padding_side = "left"  # all prompts of a batch then end where `generate` continues them
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _processor(
    original: dict[str, Any], config: VidCom2LlavaVideoConfig, tokenizer: PreTrainedTokenizerBase
) -> LlavaVideoProcessor:
    """Return a processor with the original's preprocessing, which is set in its code and not in its files."""
    side, grid_pinpoints = config.vision_config.image_size, cast("list[list[int]]", config.image_grid_pinpoints)
    pixels = {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return LlavaVideoProcessor(
        image_processor=LlavaOnevisionImageProcessor(**pixels, image_grid_pinpoints=grid_pinpoints),
        video_processor=LlavaOnevisionVideoProcessor(**pixels),
        tokenizer=tokenizer,
        num_image_tokens=config.patches_per_side**2,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        vision_aspect_ratio=config.vision_aspect_ratio,
        chat_template=CHAT_TEMPLATE,
        spatial_pool_mode=config.spatial_pool_mode,
        add_time_instruction=bool(original.get("add_time_instruction", False)),
    )


def _notes(original: dict[str, Any], folder: Path, spatial_pool_mode: str) -> list[str]:
    notes = []
    asked = original.get("mm_spatial_pool_mode", "bilinear")  # the original code's default
    if asked != spatial_pool_mode:
        notes.append(
            f"The source's config asks for `spatial_pool_mode` {asked!r}, but {spatial_pool_mode!r} was written. The "
            "published figures of LLaVA-Video and VidCom² were measured with 'average'."
        )
    generation = folder / "generation_config.json"
    penalty = _read_object(generation).get("repetition_penalty", 1.0) if generation.is_file() else 1.0
    if penalty != 1.0:
        notes.append(
            f"generation_config.json has `repetition_penalty` {penalty}, which here also penalizes tokens of the "
            "prompt, and in the original code only new tokens. Pass `repetition_penalty=1.0` to compare the two."
        )
    return notes
