"""Tiny random models of other makers' families that take videos as Qwen's do.

Not every supported Transformers has their classes, so each function takes them from there when it is called.
"""

from typing import Any

import transformers

from .common import PATCH_SIZE, TinyModel, never_written
from .qwen import QWEN2_VL_MARKS, QWEN3_5_TEXT, experts_of_two, tiny_with_grids, tiny_with_times
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
WIDE = {"initializer_range": 0.08}  # so that answers depend on the prompt, not on the last token alone


def tiny_lfm3_vl(**kwargs: Any) -> TinyModel:
    """Return a stock LFM3-VL with random float32 weights, and its processor. Its language model has a layer of each
    kind: a short convolution, attention to all tokens, and attention within a window. Its tower has a convolution and
    an attention.

    Args:
        **kwargs: other arguments of `tiny_with_times`.
    """
    attentions = ("full_attention", "sliding_attention")
    return tiny_with_times(
        transformers.Lfm3VlForConditionalGeneration,
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "layer_types": ["conv", attentions[0]],
        },
        {"layer_types": ["conv", *attentions], "rope_parameters": dict.fromkeys(attentions, ROPE), **WIDE},
        processor_class=transformers.Lfm3VlProcessor,
        num_layers=3,
        fields={"projector_hidden_size": 64},
        **kwargs,
    )


def tiny_qwen4_exp(num_experts: int = 4, hidden_size: int = 32, embeds_runs: bool = False, **kwargs: Any) -> TinyModel:
    """Return a stock Qwen4-Exp with random float32 weights, and its processor. Its layers alternate between linear
    attention and attention to the tokens that an index chooses, all of them in short prompts.

    Args:
        embeds_runs: whether the first layer also embeds runs of up to three neighbouring tokens.
        **kwargs: other arguments of `tiny_with_times`.
    """
    runs = {"ple_layer_ids": [1], "ngram_vocab_size_base": 200, "heads_per_ngram": 2, "split_ngram_parts": 2}
    index = {"n_heads": 2, "kv_heads": 1, "head_dim": 16, "budget": 4096, "compress_ratio": 4}
    text = {
        **{name: value for name, value in QWEN3_5_TEXT.items() if name != "full_attention_interval"},
        **experts_of_two(num_experts),
        "shared_expert_intermediate_size": 24,
        "head_dim": hidden_size,
        "layer_types": ["linear_attention", "indexed_attention"],
        "hc_lowrank": 8,
        **{f"indexer_{name}": value for name, value in index.items()},
        **(runs if embeds_runs else {}),
    }
    return tiny_with_times(transformers.Qwen4ExpForConditionalGeneration, {}, text, hidden_size=hidden_size, **kwargs)


COHERE_MARKS = {field: token.upper() for field, token in QWEN2_VL_MARKS.items()}


def tiny_cohere_compass(hidden_size: int = 32, **kwargs: Any) -> TinyModel:
    """Return a stock Cohere Compass with random float32 weights, and its processor. Features from both blocks of its
    tower enter the first two decoder layers, one of which attends within a window.

    Args:
        **kwargs: other arguments of `tiny_with_times`.
    """
    pairs = hidden_size // 4 // 2
    rope = ROPE | {"mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]}
    layers = ["sliding_attention", "full_attention"]
    model, processor = tiny_with_times(
        transformers.CohereCompassForConditionalGeneration,
        {"deepstack_visual_indexes": [0, 1], **WIDE},
        {"layer_types": layers, "rope_parameters": dict.fromkeys(layers, rope), "logit_scale": 0.5, **WIDE},
        hidden_size=hidden_size,
        processor_class=transformers.CohereCompassProcessor,
        video_processor_class=transformers.CohereCompassVideoProcessor,
        image_processor_class=transformers.CohereCompassImageProcessor,
        tokenizer=tiny_tokenizer([*QWEN2_TOKENS, *COHERE_MARKS.values()], _shown_by(COHERE_MARKS, within=False)),
        marks=COHERE_MARKS,
        **kwargs,
    )
    return never_written(model, processor, COHERE_MARKS.values())


def tiny_hyperclovax_vision_v2(pixels: tuple[int, int] = (196 * 196, 196 * 280), **kwargs: Any) -> TinyModel:
    """Return a stock HyperCLOVA X SEED Think with random float32 weights, and its processor. Its tower is that of
    `tiny_qwen2_5_vl`.

    Args:
        pixels: as in `tiny_qwen2_vl`.
        **kwargs: other arguments of `tiny_with_grids`.
    """
    vision = {"hidden_size": 32, "intermediate_size": 64, "window_size": 4 * PATCH_SIZE, "fullatt_block_indexes": [1]}
    return tiny_with_grids(
        transformers.HyperCLOVAXVisionV2ForConditionalGeneration,
        transformers.HyperCLOVAXVisionV2Processor,
        vision,
        pixels,
        "out_hidden_size",
        text={"rope_parameters": ROPE, **WIDE},
        marks={field: QWEN2_VL_MARKS[field] for field in ("image_token_id", "video_token_id")},
        **kwargs,
    )


def _shown_by(marks: dict[str, str], within: bool) -> str:
    """Return a chat template with these placeholders of images and videos, `within` marks or without them."""
    start, end = (marks[f"vision_{name}_token_id"] if within else "" for name in ("start", "end"))
    return chat_template(*(f"{start}{marks[f'{kind}_token_id']}{end}" for kind in ("image", "video")))
