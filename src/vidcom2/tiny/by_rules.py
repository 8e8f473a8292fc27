"""Tiny random models of families whose tiny checkpoint is a part of their row: the sizes of a config follow from the
names of its fields, and the row says what does not.

Not every supported Transformers has their classes, so they are taken from there by name.
"""

from typing import Any, cast

import transformers
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto import image_processing_auto, video_processing_auto

from ..families.table import MROPE_GRIDS, MROPE_SHARED_IDS, Family, Tiny
from .common import TinyModel, never_written, random_model, tiny_text, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

IMAGE_PROCESSORS: Any = cast(Any, image_processing_auto).IMAGE_PROCESSOR_MAPPING_NAMES
VIDEO_PROCESSORS: Any = cast(Any, video_processing_auto).VIDEO_PROCESSOR_MAPPING_NAMES


def tiny_by_rules(
    family: Family,
    patch_size: int | None = None,
    frame_tokens: int = 64,
    pixels: tuple[int, int] | None = None,
    hidden_size: int = 32,
    num_layers: int | None = None,
    seed: int = 0,
    tie_word_embeddings: bool = False,
    text: dict[str, Any] | None = None,
) -> TinyModel:
    """Return a stock model of a family with random float32 weights, and its processor.

    Args:
        family: its row says what its tiny checkpoint has beyond these rules.
        patch_size: pixels per side of a patch; the row's by default.
        frame_tokens: the most tokens of a scored frame, where the processor bounds these, and `pixels` are not given.
        pixels: the least and the most pixels of what the processor bounds; the row's by default.
        num_layers: of the language model; two by default, or one for each of the row's types of layers.
        text: further fields of the language model's config.
    """
    row = cast(Tiny, family.tiny)
    patch_size, pixels = patch_size or row.patch_size, pixels or row.pixels
    tokenizer = tiny_tokenizer([*QWEN2_TOKENS, *row.marks.values()], chat_template(*row.shown))
    default: Any = AutoConfig.for_model(family.model_type)
    special = {**row.text, **(text or {})}
    of_text = _sizes_of_text(hidden_size, num_layers or len(special.get("layer_types", "xx")), tie_word_embeddings)
    of_text = _known(of_text, default.text_config) | vocabulary(tokenizer) | special
    config = type(default)(
        text_config={
            "model_type": default.text_config.model_type,
            "rope_parameters": _rope(family, default.text_config, of_text),
            **of_text,
        },
        vision_config={
            "model_type": default.vision_config.model_type,
            **_known(_sizes_of_vision(hidden_size, patch_size), default.vision_config),
            **row.vision,
        },
        **_known({"tie_word_embeddings": tie_word_embeddings, "projector_hidden_size": 64}, default),
        **_known({field: token_id(tokenizer, token) for field, token in row.marks.items()}, default),
        **row.fields,
    )
    model = random_model(family.uncompressed_class, config, seed)
    shortest, longest = pixels or (1, 2**30)
    sizes = {"size": {"shortest_edge": shortest, "longest_edge": longest}, "patch_size": patch_size}
    bounds = {} if pixels else {"cap_pixels_per_frame": True, "max_video_tokens": frame_tokens}
    of_videos = _made(VIDEO_PROCESSORS[family.model_type], sizes | bounds | {"do_sample_frames": False})
    colours = {name: getattr(of_videos, name) for name in ("image_mean", "image_std")}
    processor = getattr(transformers, family.stock_processors[0])(
        video_processor=of_videos,
        image_processor=_made(IMAGE_PROCESSORS[family.model_type], sizes | colours),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
    return never_written(model, processor, row.marks.values())


def _sizes_of_text(hidden_size: int, num_layers: int, tie_word_embeddings: bool) -> dict[str, Any]:
    """Return small values of the fields that language models' configs have, by their names."""
    return {
        **tiny_text(hidden_size, num_layers, tie_word_embeddings),
        "head_dim": hidden_size // 4,
        "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 4096,  # so that layers attend to all tokens of short prompts
        "indexer_compress_ratio": 4,
        "hc_lowrank": 8,
    }


def _sizes_of_vision(hidden_size: int, patch_size: int) -> dict[str, Any]:
    """Return small values of the fields that vision towers' configs have, by their names.

    Args:
        hidden_size: of the language model.
    """
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "out_hidden_size": hidden_size,
        **dict.fromkeys(("depth", "num_hidden_layers", "num_heads", "num_attention_heads", "num_key_value_heads"), 2),
        "num_position_embeddings": 16,
        "image_size": 4 * patch_size,
        "patch_size": patch_size,
    }


def _rope(family: Family, default: Any, text: dict[str, Any]) -> dict[str, Any]:
    """Return plain rotary positions, with a third of the pairs for each of time, height and width in families that
    have such positions, and by the type of layer where the layers of a family differ in them."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if {MROPE_GRIDS, MROPE_SHARED_IDS} & {*family.mixins}:
        width = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        pairs = int(width * text.get("partial_rotary_factor", 1.0)) // 2
        rope |= {"mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3], "mrope_interleaved": True}
    kinds = [kind for kind in text.get("layer_types", ()) if kind.endswith("attention")]
    parameters = default.rope_parameters
    return dict.fromkeys(kinds, rope) if not parameters or (kinds and kinds[0] in parameters) else rope


def _known(fields: dict[str, Any], default: PretrainedConfig) -> dict[str, Any]:
    """Return those fields that a config has."""
    return {name: value for name, value in fields.items() if hasattr(default, name)}


def _made(entry: Any, arguments: dict[str, Any]) -> Any:
    """Return a video or image processor, with those arguments that it takes.

    Args:
        entry: of Transformers' tables, which name a class, or one for each backend.
    """
    processor_class: Any = getattr(transformers, entry if isinstance(entry, str) else entry["torchvision"])
    known = {*dir(processor_class), *processor_class.valid_kwargs.__annotations__}
    return processor_class(**{name: value for name, value in arguments.items() if name in known})
