"""Tiny random models of Kimi-K2.5."""

from transformers import (
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    Kimi_K25ImageProcessor,
    Kimi_K25Processor,
    Kimi_K25VideoProcessor,
)

from .common import TINY_TOWER, TinyModel, never_written, random_model, tiny_text, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

IMAGE, VIDEO = "<|media_pad|>", "<|kimi_k25_video_placeholder|>"
KIMI_TOKENS = [*QWEN2_TOKENS, "<|media_begin|>", "<|media_content|>", IMAGE, "<|media_end|>", VIDEO]


def tiny_kimi_k25(
    patch_size: int = 16,
    frame_tokens: int = 64,
    frames_together: int = 4,
    num_experts: int = 4,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """Return a stock Kimi-K2.5 with random float32 weights, and its processor. Its language model is DeepSeek-V3's,
    with a dense layer before one of experts, of which a token goes to two and to one that all share.

    Args:
        patch_size: pixels per side of a patch.
        frame_tokens: the most tokens of a frame. Larger frames are scaled down; no frame is scaled up.
        frames_together: how many frames take one token per 2 × 2 patches.
    """
    template = chat_template(f"<|media_begin|>image<|media_content|>{IMAGE}<|media_end|>", VIDEO)
    tokenizer = tiny_tokenizer(KIMI_TOKENS, template)
    head = hidden_size // 4
    text = {
        "model_type": "deepseek_v3",
        **vocabulary(tokenizer),
        **tiny_text(hidden_size, num_layers, tie_word_embeddings),
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": num_experts,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": head,
        "qk_rope_head_dim": head,
        "v_head_dim": head,
        "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
    }
    config = Kimi_K25Config(
        text_config=text,
        vision_config={**TINY_TOWER, "patch_size": patch_size, "pos_emb_height": 8, "pos_emb_width": 8},
        projection_hidden_size=TINY_TOWER["hidden_size"],
        image_token_id=token_id(tokenizer, IMAGE),
        video_token_id=token_id(tokenizer, VIDEO),
        vision_start_token_id=token_id(tokenizer, "<|media_begin|>"),
        vision_end_token_id=token_id(tokenizer, "<|media_end|>"),
        tie_word_embeddings=tie_word_embeddings,
    )
    sizes = {"patch_size": patch_size, "max_patches": 4 * frame_tokens}
    processor = Kimi_K25Processor(
        image_processor=Kimi_K25ImageProcessor(**sizes),
        video_processor=Kimi_K25VideoProcessor(**sizes, temporal_patch_size=frames_together, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
    return never_written(random_model(Kimi_K25ForConditionalGeneration, config, seed), processor, (IMAGE, VIDEO))
