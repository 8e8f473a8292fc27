"""Tiny random LLaVA-OneVision and LLaVA-NeXT-Video."""

from typing import Any

from transformers import (
    LlavaNextImageProcessor,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaNextVideoProcessor,
    LlavaNextVideoVideoProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    PreTrainedTokenizerFast,
)

from .common import PATCH_SIZE, TINY_TOWER, random_model, tiny_text, vocabulary
from .tokens import CHAT_TEMPLATE, tiny_tokenizer, token_id


def tiny_llava_onevision(
    image_size: int = 196, hidden_size: int = 32, num_layers: int = 2, seed: int = 0, tie_word_embeddings: bool = False
) -> tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]:
    """Return a stock LLaVA-OneVision with random float32 weights, and its processor.

    Args:
        image_size: pixels per side of a frame; a frame takes ceil(image_size / 14 / 2)² tokens.
    """
    text = tiny_text(hidden_size, num_layers, tie_word_embeddings)
    return untrained_llava_onevision(tiny_tokenizer(), image_size, TINY_TOWER, text, seed)


def untrained_llava_onevision(
    tokenizer: PreTrainedTokenizerFast, image_size: int, vision: dict[str, Any], text: dict[str, Any], seed: int
) -> tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]:
    """Return a stock LLaVA-OneVision of any size with random float32 weights, and its processor.

    Args:
        tokenizer: one that has `LLAVA_TOKENS`.
        image_size: pixels per side of a frame.
        vision, text: the fields of the vision tower's and the language model's configs that set their sizes.
    """
    grid_pinpoints = [[image_size, image_size], [image_size, 2 * image_size], [2 * image_size, image_size]]
    config = LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "image_size": image_size,
            "patch_size": PATCH_SIZE,
            "vision_use_head": False,
            **vision,
        },
        text_config={
            "model_type": "qwen2",
            **vocabulary(tokenizer),
            **text,
        },
        image_token_index=token_id(tokenizer, "<image>"),
        video_token_index=token_id(tokenizer, "<video>"),
        image_grid_pinpoints=grid_pinpoints,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    model = random_model(LlavaOnevisionForConditionalGeneration, config, seed)
    pixels = {"size": {"height": image_size, "width": image_size}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(**pixels, image_grid_pinpoints=grid_pinpoints),
        video_processor=LlavaOnevisionVideoProcessor(**pixels),
        tokenizer=tokenizer,
        num_image_tokens=(image_size // PATCH_SIZE) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
    )
    return model, processor


def tiny_llava_next_video(
    image_size: int = 196, hidden_size: int = 32, num_layers: int = 2, seed: int = 0, tie_word_embeddings: bool = False
) -> tuple[LlavaNextVideoForConditionalGeneration, LlavaNextVideoProcessor]:
    """Return a stock LLaVA-NeXT-Video with random float32 weights, and its processor.

    Args:
        image_size: pixels per side of the square that is cut out of a frame, which takes (image_size / 14 / 2)² tokens.
            The stock processor counts them correctly if a side holds an even number of patches of 14 pixels.
    """
    tokenizer = tiny_tokenizer()
    grid_pinpoints = [[image_size, 2 * image_size], [2 * image_size, image_size]]
    config = LlavaNextVideoConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "image_size": image_size,
            "patch_size": PATCH_SIZE,
            **TINY_TOWER,
        },
        text_config={
            "model_type": "llama",
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
        },
        image_token_index=token_id(tokenizer, "<image>"),
        video_token_index=token_id(tokenizer, "<video>"),
        image_grid_pinpoints=grid_pinpoints,
        tie_word_embeddings=tie_word_embeddings,
    )
    model = random_model(LlavaNextVideoForConditionalGeneration, config, seed)
    pixels: dict[str, Any] = {
        "size": {"shortest_edge": image_size},
        "crop_size": {"height": image_size, "width": image_size},
    }
    processor = LlavaNextVideoProcessor(
        image_processor=LlavaNextImageProcessor(**pixels, image_grid_pinpoints=grid_pinpoints),
        video_processor=LlavaNextVideoVideoProcessor(**pixels),
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    return model, processor
