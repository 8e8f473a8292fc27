"""The benchmark's model: a stock LLaVA-OneVision of just under a million parameters, and its processor."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor, PreTrainedTokenizerFast

from vidcom2.tiny.checkpoints import CHAT_TEMPLATE, LLAVA_TOKENS, chat_tokenizer, untrained_llava_onevision

from .drawing import PATCH_SIZE, SIZE
from .videos import LEVELS, make_needle, questions_about

VOCABULARY = 400  # enough for all bytes and the words of the benchmark


VISION = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 6}
TEXT = {
    "hidden_size": 96,
    "intermediate_size": 144,
    "num_hidden_layers": 8,  # with fewer, methods that drop tokens between layers could not reach low ratios
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "initializer_range": 0.1,  # about 1 / √96; weights would take long to grow from the 0.02 of wide models
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


def build_model(seed: int = 0) -> tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]:
    """Return the untrained model, in float32, and its processor."""
    model, processor = untrained_llava_onevision(build_tokenizer(), SIZE, VISION, TEXT, seed)
    places = model.model.vision_tower.get_submodule("embeddings.position_embedding").weight
    places.data = place_waves(SIZE // PATCH_SIZE, places.shape[1])
    return model, processor


def place_waves(grid: int, width: int) -> Tensor:
    """Return (grid², width), the place of each patch as sines and cosines of its row and column. The position embedding
    starts better from these than from noise, because a patch finds its neighbours at once."""
    frequencies = 0.5 * torch.pi * 2 ** -torch.linspace(0, 4, width // 4)
    phases = torch.arange(grid)[:, None] * frequencies  # (grid, width / 4)
    waves = torch.cat([phases.sin(), phases.cos()], dim=1)
    rows, columns = waves[:, None].expand(-1, grid, -1), waves[None].expand(grid, -1, -1)
    return torch.cat([rows, columns], dim=2).flatten(0, 1)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer that has the benchmark's words as tokens and can spell any other."""
    asked = [
        question
        for level in LEVELS
        for seed in range(60)
        for question in questions_about(make_needle((9, seed), level, split="train"))
    ]
    corpus = ["user\n", "assistant\n", *(text for q in asked for text in (q.question, q.answer, *q.choices))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(LLAVA_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return chat_tokenizer(tokenizer, LLAVA_TOKENS, CHAT_TEMPLATE)
