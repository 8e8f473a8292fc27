"""Sizes, special tokens and random weights, which the tiny checkpoints of several families share."""

from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from .tokens import token_id

TinyModel: TypeAlias = tuple[PreTrainedModel, ProcessorMixin]
Model = TypeVar("Model", bound=PreTrainedModel)

PATCH_SIZE = 14  # pixels per side
TINY_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def tiny_text(hidden_size: int, num_layers: int, tie_word_embeddings: bool) -> dict[str, Any]:
    """Return the fields of the language model's config that set its size."""
    return {
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": tie_word_embeddings,
    }


def vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the fields of the language model's config that the tokenizer sets."""
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def random_model(model_class: type[Model], config: Any, seed: int) -> Model:
    """Return a model with random weights, in evaluation mode. The caller's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config).eval()


def never_written(model: PreTrainedModel, processor: ProcessorMixin, tokens: Iterable[str]) -> TinyModel:
    """Return both, with a head whose greedy answers hold none of these tokens. They are placeholders of media, whose
    features the next step would ask for."""
    with_head: Any = model if hasattr(model, "lm_head") else model.language_model  # Nemotron's is on the latter.
    with torch.no_grad():
        for token in tokens:
            with_head.lm_head.weight[token_id(cast(Any, processor).tokenizer, token)] = 0
    return model, processor
