"""Tokens, chat templates and tokenizers of the tiny checkpoints."""

from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

QWEN2_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAVA_TOKENS = [*QWEN2_TOKENS, "<image>", "<video>"]


def chat_template(image: str, video: str) -> str:
    """Return a template for Qwen2's chat format. A message has its images first, then its videos, then its text."""
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] if part['type'] == 'image' %}" + image + "{% endfor %}"
        "{% for part in message['content'] if part['type'] == 'video' %}" + video + "{% endfor %}"
        "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
        "{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


CHAT_TEMPLATE = chat_template("<image>\n", "<video>\n")


def tiny_tokenizer(
    special_tokens: list[str] = LLAVA_TOKENS, template: str = CHAT_TEMPLATE, **fields: Any
) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte, the special tokens, and other fields of its config."""
    return chat_tokenizer(_byte_tokenizer(), special_tokens, template, **fields)


def _byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with a token for each byte, and no others."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def chat_tokenizer(
    tokenizer: Tokenizer, special_tokens: list[str], template: str, **fields: Any
) -> PreTrainedTokenizerFast:
    """Add special tokens and a chat template to a tokenizer. It pads on the left.

    Args:
        **fields: of its config. Texts end and are padded as Qwen2's, unless these say otherwise.
    """
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    fields = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"} | fields
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", chat_template=template, **fields)


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """Return the id of a token."""
    return cast(int, tokenizer.convert_tokens_to_ids(token))  # it returns a list only for a list of tokens
