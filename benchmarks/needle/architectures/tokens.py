"""What the toys share: their tokenizer, and how the place of a patch is embedded at first."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vidcom2.tiny.tokens import chat_tokenizer

from ..videos import LEVELS, make_needle, questions_about

VOCABULARY = 400  # enough for all bytes and the words of the benchmark
HEAD = "<|im_start|>user\n"  # what stands before a video


def build_tokenizer(special_tokens: list[str], template: str, also: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer that has the benchmark's words as tokens and can spell any other. Each digit is
    a token, as in Qwen's tokenizers.

    Args:
        also: what stands in prompts besides the questions.
    """
    asked = [
        question
        for level in LEVELS
        for seed in range(60)
        for question in questions_about(make_needle((9, seed), level, split="train"))
    ]
    corpus = ["user\n", "assistant\n", *also, *(text for q in asked for text in (q.question, q.answer, *q.choices))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return chat_tokenizer(tokenizer, special_tokens, template)


def place_waves(grid: int, width: int) -> Tensor:
    """Return (grid², width), the place of each patch as sines and cosines of its row and column. The position embedding
    starts better from these than from noise, because a patch finds its neighbours at once."""
    frequencies = 0.5 * torch.pi * 2 ** -torch.linspace(0, 4, width // 4)
    phases = torch.arange(grid)[:, None] * frequencies  # (grid, width / 4)
    waves = torch.cat([phases.sin(), phases.cos()], dim=1)
    rows, columns = waves[:, None].expand(-1, grid, -1), waves[None].expand(grid, -1, -1)
    return torch.cat([rows, columns], dim=2).flatten(0, 1)
