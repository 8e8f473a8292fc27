"""A tiny random Gemma 4."""

from typing import Any, cast

import torch
from torch import nn
from transformers import (
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4VideoProcessor,
)

from .common import TINY_TOWER, TinyModel, tiny_text, vocabulary
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
    ends = {"bos_token": "<bos>", "eos_token": "<turn|>", "pad_token": "<pad>"}
    tokenizer = tiny_tokenizer(GEMMA4_TOKENS, GEMMA4_CHAT_TEMPLATE, **ends, extra_special_tokens=GEMMA4_MARKS)
    sizes = tiny_text(hidden_size, num_layers, tie_word_embeddings)
    ids = {name: token_id(tokenizer, token) for name, token in (GEMMA4_MARKS | {"video_token": "<|video|>"}).items()}
    hearing = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 32}
    config = Gemma4Config(
        vision_config={
            **TINY_TOWER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": patch_size,
            "pooling_kernel_size": pooling_kernel_size,
            "position_embedding_size": 70 * pooling_kernel_size,  # of the longest row that a frame can have
            "initializer_range": 0.1,
        },
        audio_config=hearing if audio else None,
        text_config={
            **vocabulary(tokenizer),
            "vocab_size_per_layer_input": len(tokenizer),
            **sizes,
            "head_dim": hidden_size // 4,
            "global_head_dim": hidden_size // 2,
            "hidden_size_per_layer_input": 8,
            "layer_types": ["sliding_attention", "full_attention"] * (num_layers // 2)
            + ["full_attention"] * (num_layers % 2),
            "num_kv_shared_layers": num_layers // 4 * 2,
            "use_double_wide_mlp": True,
            "sliding_window": sliding_window,
            "final_logit_softcapping": 30.0,
            "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
            **(text or {}),
        },
        tie_word_embeddings=tie_word_embeddings,
        image_token_id=ids["image_token"],
        boi_token_id=ids["boi_token"],
        eoi_token_id=ids["eoi_token"],
        audio_token_id=ids["audio_token"],
        boa_token_id=ids["boa_token"],
        eoa_token_index=ids["eoa_token"],
        video_token_id=ids["video_token"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Gemma4ForConditionalGeneration(config).eval()
        # Transformers fills this table with ones, beside which patches would hardly differ.
        nn.init.normal_(cast(Any, model.model.vision_tower).patch_embedder.position_embedding_table, std=0.1)
    patches: dict[str, Any] = {
        "patch_size": patch_size,
        "pooling_kernel_size": pooling_kernel_size,
        "max_soft_tokens": 70,
    }
    processor = Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(**patches),
        video_processor=Gemma4VideoProcessor(**patches, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=GEMMA4_CHAT_TEMPLATE,
        image_seq_length=70,
    )
    return model, processor
