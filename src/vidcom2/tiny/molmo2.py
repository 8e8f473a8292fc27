"""A tiny random Molmo2."""

from typing import Any, cast

from transformers import (
    Molmo2Config,
    Molmo2ForConditionalGeneration,
    Molmo2ImageProcessor,
    Molmo2Processor,
    Molmo2VideoProcessor,
)

from .common import PATCH_SIZE, TINY_TOWER, TinyModel, random_model, tiny_text, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

MOLMO2_IDS = {  # by the config's fields
    "image_start_token_id": "<im_start>",
    "low_res_image_start_token_id": "<low_res_im_start>",
    "image_end_token_id": "<im_end>",
    "image_patch_id": "<im_patch>",
    "frame_start_token_id": "<frame_start>",
    "frame_end_token_id": "<frame_end>",
}
MOLMO2_TOKENS = [*QWEN2_TOKENS, "<|image|>", "<|video|>", "<im_col>", "<im_low>", *MOLMO2_IDS.values()]
MOLMO2_CHAT_TEMPLATE = chat_template("<|image|>", "<|video|>")


def tiny_molmo2(image_size: int = 126, hidden_size: int = 32, num_layers: int = 2, seed: int = 0) -> TinyModel:
    """Return a stock Molmo2 with random float32 weights, and its processor. As in the released models, layers of the
    vision tower are joined, and a token stands for 3 × 3 patches of a frame, or for 2 × 2 of an image.

    Args:
        image_size: pixels per side of a frame, and of a crop of an image.
    """
    tokenizer = tiny_tokenizer(MOLMO2_TOKENS, MOLMO2_CHAT_TEMPLATE)
    size = {"height": image_size, "width": image_size}
    pixels: dict[str, Any] = {"size": size, "do_rescale": True, "do_normalize": True}
    tower = {**TINY_TOWER, "num_key_value_heads": 2, "head_dim": 16}
    config = cast(Any, Molmo2Config)(  # type checkers would take the ids for any of its fields
        vision_config={**tower, "image_size": [image_size] * 2, "patch_size": PATCH_SIZE, "initializer_range": 0.1},
        adapter_config={**tower, "vision_feature_layer": [1, 0], "text_hidden_size": hidden_size},
        text_config={
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings=False),
            "head_dim": hidden_size // 4,
            "additional_vocab_size": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
        },
        **{field: token_id(tokenizer, token) for field, token in MOLMO2_IDS.items()},
    )
    processor = Molmo2Processor(
        image_processor=Molmo2ImageProcessor(**pixels, max_crops=2, overlap_margins=[1, 1]),
        video_processor=Molmo2VideoProcessor(**pixels, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=MOLMO2_CHAT_TEMPLATE,
    )
    return random_model(Molmo2ForConditionalGeneration, config, seed), processor
