"""Tiny random models of Gemma 4 and Gemma 4 Unified."""

from typing import Any, cast

import torch
from torch import nn
from transformers import (
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4UnifiedAudioFeatureExtractor,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedImageProcessor,
    Gemma4UnifiedProcessor,
    Gemma4UnifiedVideoProcessor,
    Gemma4VideoProcessor,
)

from .common import TINY_TOWER, TinyModel, random_model, tiny_text, vocabulary
from .tokens import tiny_tokenizer, token_id

GEMMA4_MARKS = {  # by the tokenizer's fields
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}
GEMMA4_TOKENS = ["<pad>", "<bos>", "<|turn>", "<turn|>", "<|video|>", *GEMMA4_MARKS.values()]
# A message has its parts in their order, as in the released models.
GEMMA4_CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}"
    "<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|{{ part['type'] }}|>{% endif %}"
    "{% endfor %}{% endif %}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def _tokenizer_and_ids() -> tuple[Any, dict[str, Any]]:
    """Return the tokenizer, and the ids of the marks as configs name them."""
    ends = {"bos_token": "<bos>", "eos_token": "<turn|>", "pad_token": "<pad>"}
    tokenizer = tiny_tokenizer(GEMMA4_TOKENS, GEMMA4_CHAT_TEMPLATE, **ends, extra_special_tokens=GEMMA4_MARKS)
    marks = {f"{name}_id": token for name, token in GEMMA4_MARKS.items()} | {"video_token_id": "<|video|>"}
    ids = {name: token_id(tokenizer, token) for name, token in marks.items()}
    return tokenizer, ids | {"eoa_token_index": ids.pop("eoa_token_id")}


def _text(
    tokenizer: Any, hidden_size: int, num_layers: int, tie_word_embeddings: bool, sliding_window: int
) -> dict[str, Any]:
    """Return the config of the language model, as far as both share it."""
    return {
        **vocabulary(tokenizer),
        **tiny_text(hidden_size, num_layers, tie_word_embeddings),
        "head_dim": hidden_size // 4,
        "global_head_dim": hidden_size // 2,
        "layer_types": ["sliding_attention", "full_attention"] * (num_layers // 2)
        + ["full_attention"] * (num_layers % 2),
        "sliding_window": sliding_window,
        "final_logit_softcapping": 30.0,
        "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
    }


def _patches(patch_size: int, pooling_kernel_size: int) -> dict[str, Any]:
    """Return the arguments of image and video processors."""
    return {"patch_size": patch_size, "pooling_kernel_size": pooling_kernel_size, "max_soft_tokens": 70}


def tiny_gemma4(
    patch_size: int = 16,
    pooling_kernel_size: int = 3,
    hidden_size: int = 32,
    num_layers: int = 4,
    seed: int = 0,
    tie_word_embeddings: bool = False,
    sliding_window: int = 512,
    audio: bool = False,
    text: dict[str, Any] | None = None,
) -> TinyModel:
    """Return a stock Gemma 4 with random float32 weights, and its processor. As in the released E2B, each layer adds an
    embedding of its own for each token, layers with a sliding window stand between those with full attention, whose
    heads are wider, and later layers read the keys and values of earlier ones.

    Args:
        patch_size: pixels per side of a patch.
        pooling_kernel_size: a token stands for this many rows and columns of patches. A frame takes up to 70 tokens.
        audio: whether it can hear, as E2B and E4B can.
        text: other fields of the language model's config.
    """
    tokenizer, ids = _tokenizer_and_ids()
    hearing = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 32}
    config = Gemma4Config(
        vision_config={
            **TINY_TOWER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": patch_size,
            "pooling_kernel_size": pooling_kernel_size,
            "position_embedding_size": 70 * pooling_kernel_size,  # of the longest row that a frame can have
            "default_output_length": 70,  # vLLM reads it
            "initializer_range": 0.1,
        },
        audio_config=hearing if audio else None,
        text_config={
            **_text(tokenizer, hidden_size, num_layers, tie_word_embeddings, sliding_window),
            "vocab_size_per_layer_input": len(tokenizer),
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": num_layers // 4 * 2,
            "use_double_wide_mlp": True,
            **(text or {}),
        },
        tie_word_embeddings=tie_word_embeddings,
        **ids,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Gemma4ForConditionalGeneration(config).eval()
        # Transformers fills this table with ones, beside which patches would hardly differ.
        nn.init.normal_(cast(Any, model.model.vision_tower).patch_embedder.position_embedding_table, std=0.1)
    patches = _patches(patch_size, pooling_kernel_size)
    processor = Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(**patches),
        video_processor=Gemma4VideoProcessor(**patches, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=GEMMA4_CHAT_TEMPLATE,
        image_seq_length=70,
    )
    return model, processor


def tiny_gemma4_unified(
    patch_size: int = 16,
    pooling_kernel_size: int = 3,
    hidden_size: int = 32,
    num_layers: int = 4,
    seed: int = 0,
    tie_word_embeddings: bool = False,
    sliding_window: int = 512,
    audio: bool = False,
    text: dict[str, Any] | None = None,
) -> TinyModel:
    """Return a stock Gemma 4 Unified with random float32 weights, and its processor. As in the released 12B, pixels
    become tokens without a tower, tokens of a frame attend to each other, and layers with full attention have one head
    of keys that are values too.

    Args:
        patch_size, pooling_kernel_size, audio, text: see `tiny_gemma4`.
    """
    tokenizer, ids = _tokenizer_and_ids()
    config = Gemma4UnifiedConfig(
        vision_config={
            "mm_embed_dim": hidden_size,
            "output_proj_dims": hidden_size,
            "mm_posemb_size": 70,  # the longest row that a frame can have
            "patch_size": patch_size,
            "pooling_kernel_size": pooling_kernel_size,
            "initializer_range": 0.1,
        },
        audio_config={"audio_embed_dim": 640} if audio else None,
        text_config={
            **_text(tokenizer, hidden_size, num_layers, tie_word_embeddings, sliding_window),
            "use_bidirectional_attention": "vision",
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            **(text or {}),
        },
        tie_word_embeddings=tie_word_embeddings,
        initializer_range=0.08,
        **ids,
    )
    patches = _patches(patch_size, pooling_kernel_size)
    processor = Gemma4UnifiedProcessor(
        feature_extractor=Gemma4UnifiedAudioFeatureExtractor(),
        image_processor=Gemma4UnifiedImageProcessor(**patches),
        video_processor=Gemma4UnifiedVideoProcessor(**patches, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=GEMMA4_CHAT_TEMPLATE,
        image_seq_length=70,
    )
    return random_model(Gemma4UnifiedForConditionalGeneration, config, seed), processor
