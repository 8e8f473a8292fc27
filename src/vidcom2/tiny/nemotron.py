"""Tiny random models of Nemotron 3 Omni."""

from transformers import (
    NemotronH_Omni_Reasoning_V3,
    NemotronH_Omni_Reasoning_V3_Config,
    NemotronH_Omni_Reasoning_V3ImageProcessor,
    NemotronH_Omni_Reasoning_V3Processor,
    NemotronH_Omni_Reasoning_V3VideoProcessor,
    ParakeetFeatureExtractor,
)

from .common import TINY_TOWER, TinyModel, never_written, random_model, tiny_text, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

IMAGE, SOUND = "<image>", "<so_embedding>"
# As in the released tokenizer, "<video>" is text, which the processor replaces.
NEMOTRON_TOKENS = [*QWEN2_TOKENS, "<img>", IMAGE, "</img>", "<so_start>", SOUND, "<so_end>"]
STATS = {"norm_mean": [0.48145466, 0.4578275, 0.40821073], "norm_std": [0.26862954, 0.26130258, 0.27577711]}


def tiny_nemotron_h_omni(
    patch_size: int = 16,
    frame_tokens: int = 64,
    num_experts: int = 4,
    hidden_size: int = 32,
    video_pruning_rate: float = 0.0,
    seed: int = 0,
) -> TinyModel:
    """Return a stock Nemotron 3 Omni with random float32 weights, and its processor. Its language model has a layer of
    each kind: Mamba's, of experts, of attention, and a dense one.

    Args:
        patch_size: pixels per side of a patch.
        frame_tokens: about how many tokens a frame has. Frames are scaled up and down to it.
        video_pruning_rate: the part of a video's tokens that the stock class drops by itself.
    """
    template = chat_template(IMAGE, "<video>")
    tokenizer = tiny_tokenizer(NEMOTRON_TOKENS, template)
    text = {
        "model_type": "nemotron_h",
        **vocabulary(tokenizer),
        **tiny_text(hidden_size, 4, tie_word_embeddings=False),
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "head_dim": hidden_size // 4,
        "ssm_state_size": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "n_routed_experts": num_experts,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 24,
        "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
        "rescale_prenorm_residual": False,
    }
    tower = {
        **TINY_TOWER,
        "model_type": "radio",
        "patch_size": patch_size,
        "max_img_size": 32 * patch_size,
        "num_cls_tokens": 1,
        "num_registers": 1,
        "summary_idxs": [0],
        "video_temporal_patch_size": 2,
        "initializer_range": 0.08,
    }
    sound = {
        **TINY_TOWER,
        "num_mel_bins": 80,
        "subsampling_conv_channels": 8,
        "projection_hidden_size": 32,
        "projection_bias": False,
    }
    config = NemotronH_Omni_Reasoning_V3_Config(
        text_config=text,
        vision_config=tower,
        audio_config=sound,
        vision_hidden_size=TINY_TOWER["hidden_size"],
        projector_hidden_size=64,
        video_pruning_rate=video_pruning_rate,
        image_token_id=token_id(tokenizer, IMAGE),
        video_token_id=len(tokenizer) + 9,  # beyond the vocabulary, as in released checkpoints
        audio_token_id=token_id(tokenizer, SOUND),
    )
    processor = NemotronH_Omni_Reasoning_V3Processor(
        image_processor=NemotronH_Omni_Reasoning_V3ImageProcessor(
            patch_size=patch_size, min_num_patches=16, max_num_patches=4 * frame_tokens
        ),
        video_processor=NemotronH_Omni_Reasoning_V3VideoProcessor(
            patch_size=patch_size, video_target_num_patches=4 * frame_tokens, do_sample_frames=False, **STATS
        ),
        tokenizer=tokenizer,
        feature_extractor=ParakeetFeatureExtractor(),
        chat_template=tokenizer.chat_template,
    )
    return never_written(random_model(NemotronH_Omni_Reasoning_V3, config, seed), processor, (IMAGE, SOUND))
