"""The benchmark's model: a stock LLaVA-OneVision of just under a million parameters, and its processor."""

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    PreTrainedTokenizerFast,
)

from vidcom2.tiny import CHAT_TEMPLATE, LLAVA_TOKENS, PATCH_SIZE, token_id

from .videos import LEVELS, SIZE, make_needle, questions_about

VOCABULARY = 400  # all bytes, and the words of the benchmark


def build_model(seed: int = 0) -> tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]:
    """Untrained, in float32."""
    tokenizer = build_tokenizer()
    pinpoints = [[SIZE, SIZE], [SIZE, 2 * SIZE], [2 * SIZE, SIZE]]
    config = LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 96,
            "intermediate_size": 384,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "image_size": SIZE,
            "patch_size": PATCH_SIZE,
            "vision_use_head": False,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            "hidden_size": 96,
            "intermediate_size": 144,
            "num_hidden_layers": 8,  # of fewer, methods that drop tokens between layers could not reach low ratios
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "initializer_range": 0.1,  # about 1 / √96: the 0.02 of wide models would take long to grow
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=token_id(tokenizer, "<image>"),
        video_token_index=token_id(tokenizer, "<video>"),
        image_grid_pinpoints=pinpoints,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaOnevisionForConditionalGeneration(config).eval()
    places = model.model.vision_tower.get_submodule("embeddings.position_embedding").weight
    places.data = place_waves(SIZE // PATCH_SIZE, places.shape[1])
    pixels = {"size": {"height": SIZE, "width": SIZE}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(**pixels, image_grid_pinpoints=pinpoints),
        video_processor=LlavaOnevisionVideoProcessor(**pixels),
        tokenizer=tokenizer,
        num_image_tokens=(SIZE // PATCH_SIZE) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
    )
    return model, processor


def place_waves(grid: int, width: int) -> Tensor:
    """(grid², width): where each patch is, as sines and cosines of its row and column. A better start for the position
    embedding than noise: a patch finds its neighbours at once."""
    frequencies = 0.5 * torch.pi * 2 ** -torch.linspace(0, 4, width // 4)
    phases = torch.arange(grid)[:, None] * frequencies  # (grid, width / 4)
    waves = torch.cat([phases.sin(), phases.cos()], dim=1)
    rows, columns = waves[:, None].expand(-1, grid, -1), waves[None].expand(grid, -1, -1)
    return torch.cat([rows, columns], dim=2).flatten(0, 1)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE that has the benchmark's words whole, and can spell any other."""
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
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in LLAVA_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )
