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

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VIDEO_LLAMA_3_CHAT_TEMPLATE = chat_template(f"{IMAGE}\n", f"{VIDEO}\n")


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
    tokenizer = tiny_tokenizer([*QWEN2_TOKENS, IMAGE, VIDEO], VIDEO_LLAMA_3_CHAT_TEMPLATE)
    config = VideoLlama3Config(
        vision_config={**TINY_TOWER, "patch_size": patch_size, "initializer_range": 0.1},
        text_config={
            "model_type": "qwen2",
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
            "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
        },
        tie_word_embeddings=tie_word_embeddings,
        image_token_id=token_id(tokenizer, IMAGE),
        video_token_id=token_id(tokenizer, VIDEO),
    )
    size = {"shortest_edge": pixels[0], "longest_edge": pixels[1]}
    processor = VideoLlama3Processor(
        image_processor=VideoLlama3ImageProcessor(size=size, patch_size=patch_size),
        video_processor=VideoLlama3VideoProcessor(size=size, patch_size=patch_size, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=VIDEO_LLAMA_3_CHAT_TEMPLATE,
    )
    return random_model(VideoLlama3ForConditionalGeneration, config, seed), processor
