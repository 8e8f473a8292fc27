"""A tiny random SmolVLM."""

from typing import Any, cast

from transformers import (
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from ..configuration.configuration_vidcom2_smolvlm import VidCom2SmolVLMConfig
from .common import PATCH_SIZE, TINY_TOWER, TinyModel, random_model, tiny_text, vocabulary
from .tokens import tiny_tokenizer, token_id

SMOLVLM_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<end_of_utterance>",
    "<video>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
]
# A message has its parts in their order, as in the released models. For a chat with videos, the processor brings along
# a template of its own.
SMOLVLM_CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part['type'] }}>{% endif %}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def tiny_smolvlm(
    image_size: int = 196,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
    scale_factor: int = 2,
) -> TinyModel:
    """Return a stock SmolVLM with random float32 weights, and its processor, which splits images into tiles.

    Args:
        image_size: pixels per side of a frame, and of a tile of an image.
        scale_factor: how many rows and columns of patches a token stands for: a frame takes
            (image_size / 14 / scale_factor)² tokens.
    """
    ends = {"bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>"}
    tokenizer = tiny_tokenizer(SMOLVLM_TOKENS, SMOLVLM_CHAT_TEMPLATE, **ends)
    config = cast(Any, SmolVLMConfig)(  # it does not declare the field that VidCom² alone reads
        vision_config={"image_size": image_size, "patch_size": PATCH_SIZE, "initializer_range": 0.1, **TINY_TOWER},
        text_config={
            "model_type": "llama",
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
        },
        image_token_id=token_id(tokenizer, "<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=scale_factor,
        tie_word_embeddings=tie_word_embeddings,
        frame_marks=VidCom2SmolVLMConfig.marks_of(tokenizer),
    )
    model = random_model(SmolVLMForConditionalGeneration, config, seed)
    edge: dict[str, Any] = {"max_image_size": {"longest_edge": image_size}}
    sampling: dict[str, Any] = {
        "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": image_size}}
    }
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(**edge, size={"longest_edge": 2 * image_size}),
        video_processor=SmolVLMVideoProcessor(**edge, **sampling),
        tokenizer=tokenizer,
        image_seq_len=(image_size // PATCH_SIZE // scale_factor) ** 2,
        chat_template=SMOLVLM_CHAT_TEMPLATE,
    )
    return model, processor
