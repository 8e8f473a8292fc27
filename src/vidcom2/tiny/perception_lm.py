"""A tiny random PerceptionLM."""

from transformers import (
    PerceptionLMConfig,
    PerceptionLMForConditionalGeneration,
    PerceptionLMImageProcessor,
    PerceptionLMProcessor,
    PerceptionLMVideoProcessor,
)

from .common import PATCH_SIZE, TinyModel, random_model, tiny_text, vocabulary
from .tokens import LLAVA_TOKENS, chat_template, tiny_tokenizer, token_id

IMAGE, VIDEO = LLAVA_TOKENS[-2:]
PERCEPTION_LM_CHAT_TEMPLATE = chat_template(IMAGE, VIDEO)


def tiny_perception_lm(
    image_size: int = 196,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """Return a stock PerceptionLM with random float32 weights, and its processor. It needs timm.

    Args:
        image_size: pixels per side of a frame; a frame takes (image_size // 28)² tokens.
    """
    marks = {"image_token": IMAGE, "video_token": VIDEO}
    tokenizer = tiny_tokenizer(LLAVA_TOKENS, PERCEPTION_LM_CHAT_TEMPLATE, extra_special_tokens=marks)
    patches = image_size // PATCH_SIZE
    config = PerceptionLMConfig(
        vision_config={
            "model_type": "timm_wrapper",
            "architecture": "vit_pe_core_large_patch14_336",  # the tower of the released 1B and 3B
            "do_pooling": False,
            "model_args": {
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 2,
                "img_size": [image_size, image_size],
                "ref_feat_shape": [patches, patches],
                "global_pool": "",
                "init_values": 0.1,
                "use_post_transformer_norm": False,
            },
        },
        text_config={
            "model_type": "llama",
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
            "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
        },
        vision_use_cls_token=True,
        projector_pooling_ratio=2,
        tie_word_embeddings=tie_word_embeddings,
        image_token_id=token_id(tokenizer, IMAGE),
        video_token_id=token_id(tokenizer, VIDEO),
    )
    processor = PerceptionLMProcessor(
        image_processor=PerceptionLMImageProcessor(tile_size=image_size, max_num_tiles=4),
        video_processor=PerceptionLMVideoProcessor(size={"height": image_size, "width": image_size}),
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        pooling_ratio=2,
        chat_template=PERCEPTION_LM_CHAT_TEMPLATE,
    )
    return random_model(PerceptionLMForConditionalGeneration, config, seed), processor
