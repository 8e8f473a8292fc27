"""A tiny random MiniCPM-V 4.6."""

from typing import Any

from transformers import (
    MiniCPMV4_6Config,
    MiniCPMV4_6ForConditionalGeneration,
    MiniCPMV4_6ImageProcessor,
    MiniCPMV4_6Processor,
    MiniCPMV4_6VideoProcessor,
)

from .common import PATCH_SIZE, TINY_TOWER, TinyModel, random_model, tiny_text, vocabulary
from .qwen import QWEN3_5_TEXT
from .tokens import QWEN2_TOKENS, tiny_tokenizer, token_id

MINICPMV_MARKS = {  # by the tokenizer's fields
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
# A message has its parts in their order.
MINICPMV_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|{{ part['type'] }}_pad|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_minicpmv4_6(
    patch_size: int = PATCH_SIZE,
    scale_resolution: int = 16 * PATCH_SIZE,
    max_slice_nums: int = 9,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """Return a stock MiniCPM-V 4.6 with random float32 weights, and its processor. Its tower joins 2 × 2 patches after
    its first layer, and the language model is that of `tiny_qwen3_5`.

    Args:
        patch_size: pixels per side of a patch; a token stands for 4 × 4.
        scale_resolution: pixels per side of a square that has as many as a frame, or a slice, after scaling.
        max_slice_nums: into how many slices a large frame is cut at most; 1 for none.
    """
    tokenizer = tiny_tokenizer(
        [*QWEN2_TOKENS, *MINICPMV_MARKS.values()], MINICPMV_CHAT_TEMPLATE, extra_special_tokens=MINICPMV_MARKS
    )
    pairs = int(hidden_size * QWEN3_5_TEXT["partial_rotary_factor"]) // 2
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True}
    config = MiniCPMV4_6Config(
        vision_config={
            **TINY_TOWER,
            "patch_size": patch_size,
            "image_size": 16 * patch_size,
            "initializer_range": 0.1,
        },
        text_config={
            "model_type": "qwen3_5_text",
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
            "head_dim": hidden_size,
            "rope_parameters": rope | {"mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]},
            **QWEN3_5_TEXT,
        },
        insert_layer_id=0,
        tie_word_embeddings=tie_word_embeddings,
        image_token_id=token_id(tokenizer, MINICPMV_MARKS["image_token"]),
        video_token_id=token_id(tokenizer, MINICPMV_MARKS["video_token"]),
    )
    model = random_model(MiniCPMV4_6ForConditionalGeneration, config, seed)
    sizes: dict[str, Any] = {"patch_size": patch_size, "scale_resolution": scale_resolution}
    processor = MiniCPMV4_6Processor(
        image_processor=MiniCPMV4_6ImageProcessor(**sizes),
        video_processor=MiniCPMV4_6VideoProcessor(**sizes, max_slice_nums=max_slice_nums, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=MINICPMV_CHAT_TEMPLATE,
    )
    return model, processor
