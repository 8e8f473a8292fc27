"""A tiny random Cosmos 3 Edge."""

from typing import Any, cast

from transformers import (
    Cosmos3EdgeConfig,
    Cosmos3EdgeForConditionalGeneration,
    Cosmos3EdgeImageProcessor,
    Cosmos3EdgeProcessor,
    Cosmos3EdgeVideoProcessor,
)

from ..configuration.configuration_vidcom2_cosmos3_edge import VidCom2Cosmos3EdgeConfig
from ..families.table import QWEN_MARKS
from .common import TINY_TOWER, TinyModel, random_model, tiny_text, vocabulary
from .qwen import QWEN2_VL_CHAT_TEMPLATE, QWEN2_VL_TOKENS
from .tokens import tiny_tokenizer, token_id


def tiny_cosmos3_edge(
    pixels: tuple[int, int] = (1, 2**30),
    patch_size: int = 16,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """Return a stock Cosmos 3 Edge with random float32 weights, and its processor, which returns all that the model
    needs.

    Args:
        pixels: the least and the most of an image or a whole video. A frame takes one token per 2 × 2 patches.
        patch_size: pixels per side of a patch.
    """
    tokenizer = tiny_tokenizer(QWEN2_VL_TOKENS, QWEN2_VL_CHAT_TEMPLATE)
    head_dim = hidden_size // 4
    pairs = head_dim // 2
    config = cast(Any, Cosmos3EdgeConfig)(  # its fields for the marks are given as a dict
        vision_config={**TINY_TOWER, "patch_size": patch_size, "num_patches": 16},
        text_config={
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
            "head_dim": head_dim,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3],
            },
            "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
        },
        projector_hidden_size=64,
        tie_word_embeddings=tie_word_embeddings,
        **{field: token_id(tokenizer, token) for field, token in QWEN_MARKS.items()},
    )
    size = {"shortest_edge": pixels[0], "longest_edge": pixels[1]}
    processor = Cosmos3EdgeProcessor(
        image_processor=Cosmos3EdgeImageProcessor(size=size, patch_size=patch_size),
        video_processor=Cosmos3EdgeVideoProcessor(size=size, patch_size=patch_size, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=QWEN2_VL_CHAT_TEMPLATE,
    )
    VidCom2Cosmos3EdgeConfig.complete_processor(processor)
    return random_model(Cosmos3EdgeForConditionalGeneration, config, seed), processor
