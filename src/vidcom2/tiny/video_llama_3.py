"""A tiny random VideoLLaMA3."""

from transformers import (
    VideoLlama3Config,
    VideoLlama3ForConditionalGeneration,
    VideoLlama3ImageProcessor,
    VideoLlama3Processor,
    VideoLlama3VideoProcessor,
)

from .common import PATCH_SIZE, TINY_TOWER, TinyModel, random_model, tiny_text, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

MARKS = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}  # by the config's fields
VIDEO_LLAMA_3_CHAT_TEMPLATE = chat_template("<|image_pad|>\n", "<|video_pad|>\n")


def tiny_video_llama_3(
    pixels: tuple[int, int] = (196 * 196, 2048 * 28**2),
    patch_size: int = PATCH_SIZE,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """Return a stock VideoLLaMA3 with random float32 weights, and its processor, which leaves out of the prompt what
    does not change from a frame to the next.

    Args:
        pixels: the least of a frame and the most of a whole video. A frame takes one token per 2 × 2 patches.
        patch_size: pixels per side of a patch.
    """
    tokenizer = tiny_tokenizer([*QWEN2_TOKENS, *MARKS.values()], VIDEO_LLAMA_3_CHAT_TEMPLATE)
    config = VideoLlama3Config(
        vision_config={**TINY_TOWER, "patch_size": patch_size, "initializer_range": 0.1},
        text_config={
            "model_type": "qwen2",
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
        },
        tie_word_embeddings=tie_word_embeddings,
        **{field: token_id(tokenizer, token) for field, token in MARKS.items()},
    )
    size = {"shortest_edge": pixels[0], "longest_edge": pixels[1]}
    processor = VideoLlama3Processor(
        image_processor=VideoLlama3ImageProcessor(size=size, patch_size=patch_size),
        video_processor=VideoLlama3VideoProcessor(size=size, patch_size=patch_size, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=VIDEO_LLAMA_3_CHAT_TEMPLATE,
    )
    return random_model(VideoLlama3ForConditionalGeneration, config, seed), processor
