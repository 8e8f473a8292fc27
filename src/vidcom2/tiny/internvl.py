"""A tiny random InternVL."""

from typing import Any, cast

from transformers import (
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
)

from ..configuration.configuration_vidcom2_internvl import VidCom2InternVLConfig
from .common import PATCH_SIZE, TINY_TOWER, TinyModel, random_model, tiny_text, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

INTERNVL_MARKS = {  # by the tokenizer's attributes, which the processor reads
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
INTERNVL_CHAT_TEMPLATE = chat_template("<IMG_CONTEXT>\n", "<video>\n")


def tiny_internvl(
    image_size: int = 196, hidden_size: int = 32, num_layers: int = 2, seed: int = 0, tie_word_embeddings: bool = False
) -> TinyModel:
    """Return a stock InternVL with random float32 weights, and its processor.

    Args:
        image_size: pixels per side of a frame, and of a tile of an image, which takes (image_size / 14 / 2)² tokens.
    """
    special_tokens = [*QWEN2_TOKENS, *INTERNVL_MARKS.values()]
    tokenizer = tiny_tokenizer(special_tokens, INTERNVL_CHAT_TEMPLATE, extra_special_tokens=INTERNVL_MARKS)
    config = cast(Any, InternVLConfig)(  # it does not declare the field that VidCom² alone reads
        vision_config={"image_size": image_size, "patch_size": PATCH_SIZE, "initializer_range": 0.1, **TINY_TOWER},
        text_config={
            "model_type": "qwen2",
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
        },
        image_token_id=token_id(tokenizer, INTERNVL_MARKS["context_image_token"]),
        image_seq_length=(image_size // PATCH_SIZE // 2) ** 2,
        tie_word_embeddings=tie_word_embeddings,
        frame_marks=VidCom2InternVLConfig.marks_of(tokenizer),
    )
    model = random_model(InternVLForConditionalGeneration, config, seed)
    size: dict[str, Any] = {"size": {"height": image_size, "width": image_size}}
    processor = InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(**size, min_patches=1, max_patches=2),
        video_processor=InternVLVideoProcessor(**size),
        tokenizer=tokenizer,
        image_seq_length=config.image_seq_length,
        chat_template=INTERNVL_CHAT_TEMPLATE,
    )
    return model, processor
