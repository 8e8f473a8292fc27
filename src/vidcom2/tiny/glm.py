"""Tiny random models of GLM's families."""

from typing import Any, cast

from transformers import (
    Glm4vForConditionalGeneration,
    Glm4vImageProcessor,
    Glm4vMoeForConditionalGeneration,
    Glm4vProcessor,
    Glm4vVideoProcessor,
    Glm5NextConfig,
    Glm5NextForConditionalGeneration,
    Glm5NextImageProcessor,
    Glm5NextProcessor,
    Glm5NextVideoProcessor,
    Glm46VForConditionalGeneration,
    Glm46VImageProcessor,
    Glm46VProcessor,
    Glm46VVideoProcessor,
    PreTrainedModel,
    ProcessorMixin,
)

from ..families.table import GLM_MARKS, GLM_SHOWN
from .common import PATCH_SIZE, TinyModel, random_model, tiny_text, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

GLM_CHAT_TEMPLATE = chat_template(*GLM_SHOWN)
GLM4V_PROCESSORS = Glm4vProcessor, Glm4vImageProcessor, Glm4vVideoProcessor


def tiny_glm4v(**kwargs: Any) -> TinyModel:
    """Return a stock GLM-4V with random float32 weights, and its processor.

    Args:
        **kwargs: other arguments of `_tiny_glm`.
    """
    return _tiny_glm(Glm4vForConditionalGeneration, GLM4V_PROCESSORS, {}, **kwargs)


def tiny_glm4v_moe(num_experts: int = 4, **kwargs: Any) -> TinyModel:
    """Return a stock GLM-4V-MoE like that of `tiny_glm4v`. As in the released models, the first layer has no experts.
    In the others a token goes to two experts and one that all share."""
    experts = {"n_routed_experts": num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return _tiny_glm(Glm4vMoeForConditionalGeneration, GLM4V_PROCESSORS, experts, **kwargs)


def tiny_glm46v(**kwargs: Any) -> TinyModel:
    """Return a stock GLM-4.6V like that of `tiny_glm4v`."""
    processors = Glm46VProcessor, Glm46VImageProcessor, Glm46VVideoProcessor
    return _tiny_glm(Glm46VForConditionalGeneration, processors, {}, **kwargs)


def tiny_glm5_next(
    num_experts: int = 4,
    patch_size: int = PATCH_SIZE,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """Return a stock GLM-5-Next with random float32 weights, and its processor. Its layers alternate between linear
    attention and attention to the tokens that an index chooses, all of them in short prompts. The first has no experts.
    In the others a token goes to two experts and one that all share.

    Args:
        patch_size: pixels per side of a patch; two frames take one token per 2 × 2 patches.
    """
    tokenizer = tiny_tokenizer([*QWEN2_TOKENS, *GLM_MARKS.values()], GLM_CHAT_TEMPLATE)
    config = cast(Any, Glm5NextConfig)(
        vision_config={
            "depth": 2,
            "num_heads": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": hidden_size,
            "projection_intermediate_size": 48,
            "patch_size": patch_size,
            "image_size": 4 * patch_size,
        },
        text_config={
            **vocabulary(tokenizer),
            **tiny_text(hidden_size, num_layers, tie_word_embeddings),
            "num_key_value_heads": 4,
            "layer_types": [f"{'indexed' if layer % 2 else 'linear'}_attention" for layer in range(num_layers)],
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_kpool": 4,
            "hc_mult": 2,
            "mlp_layer_types": ["sparse" if layer else "dense" for layer in range(num_layers)],
            "n_routed_experts": num_experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
        },
        tie_word_embeddings=tie_word_embeddings,
        **{field: token_id(tokenizer, token) for field, token in GLM_MARKS.items()},
    )
    model = random_model(Glm5NextForConditionalGeneration, config, seed)
    size: dict[str, Any] = {"min_image_tokens": 1, "patch_size": patch_size}
    processor = Glm5NextProcessor(
        image_processor=Glm5NextImageProcessor(**size),
        video_processor=Glm5NextVideoProcessor(**size, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=GLM_CHAT_TEMPLATE,
    )
    return model, processor


def _tiny_glm(
    model_class: type[PreTrainedModel],
    processors: tuple[type[ProcessorMixin], Any, Any],
    text: dict[str, Any],
    patch_size: int = PATCH_SIZE,
    pixels: tuple[int, int] = (1, 2**20),
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """Return a stock model of any GLM family with random float32 weights, and its processor. Half of each head is
    rotated, as in the released models.

    Args:
        processors: the classes of the processor, of that for images and of that for videos.
        text: fields of the language model's config that only some families have.
        patch_size: pixels per side of a patch; two frames take one token per 2 × 2 patches.
        pixels: the least and the most pixels of all frames of a video together.
    """
    tokenizer = tiny_tokenizer([*QWEN2_TOKENS, *GLM_MARKS.values()], GLM_CHAT_TEMPLATE)
    sizes = tiny_text(hidden_size, num_layers, tie_word_embeddings)
    # Two heads are so large that their pairs of rotated channels suffice for time, height and width.
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    pairs = hidden_size // 2 // 4
    config = cast(Any, model_class.config_class)(  # its fields depend on the family
        vision_config={
            "depth": 2,
            "num_heads": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": hidden_size,
            "patch_size": patch_size,
            "image_size": 4 * patch_size,  # there are 4 × 4 learned places, and frames of other sizes interpolate them
        },
        text_config={
            "vocab_size": len(tokenizer),
            **sizes,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3],
            },
            "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **text,
        },
        tie_word_embeddings=tie_word_embeddings,
        **{field: token_id(tokenizer, token) for field, token in GLM_MARKS.items()},
    )
    model = random_model(model_class, config, seed)
    size: dict[str, Any] = {"size": {"shortest_edge": pixels[0], "longest_edge": pixels[1]}, "patch_size": patch_size}
    whole, of_images, of_videos = processors
    processor = whole(
        image_processor=of_images(**size),
        video_processor=of_videos(**size, do_sample_frames=False),
        tokenizer=tokenizer,
        chat_template=GLM_CHAT_TEMPLATE,
    )
    return model, processor
