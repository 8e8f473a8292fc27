"""Tiny random checkpoints in the real format, for the demo, the tests and the README: no download, no meaning."""

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)

PATCH_SIZE = 14
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'video' %}<video>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and Qwen2's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def tiny_llava_onevision(
    image_size: int = 196, hidden_size: int = 32, num_layers: int = 2, seed: int = 0, tie_word_embeddings: bool = False
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """A stock LLaVA-OneVision with random float32 weights, and its processor.

    Args:
        image_size: pixels per side of a frame; a frame takes ceil(image_size / 14 / 2)² tokens.
    """
    tokenizer = tiny_tokenizer()
    config = LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": image_size,
            "patch_size": PATCH_SIZE,
            "vision_use_head": False,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            "hidden_size": hidden_size,
            "intermediate_size": 2 * hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": tie_word_embeddings,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=[[image_size, image_size], [image_size, 2 * image_size], [2 * image_size, image_size]],
        tie_word_embeddings=tie_word_embeddings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaOnevisionForConditionalGeneration(config).eval()
    pixels = {"size": {"height": image_size, "width": image_size}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(**pixels, image_grid_pinpoints=config.image_grid_pinpoints),
        video_processor=LlavaOnevisionVideoProcessor(**pixels),
        tokenizer=tokenizer,
        num_image_tokens=(image_size // PATCH_SIZE) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
    )
    return model, processor
