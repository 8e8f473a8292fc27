"""Tiny random models of Qwen's families, and Cosmos 3, which shares Qwen3-VL's structure."""

from typing import Any, cast

import torch
from transformers import (
    BaseVideoProcessor,
    Cosmos3OmniForConditionalGeneration,
    Exaone4_5_ForConditionalGeneration,
    Exaone4_5_Processor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3OmniMoeProcessor,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    WhisperFeatureExtractor,
)

from ..families.table import QWEN_MARKS, QWEN_SHOWN
from .common import PATCH_SIZE, TinyModel, random_model, vocabulary
from .tokens import QWEN2_TOKENS, chat_template, tiny_tokenizer, token_id

QWEN2_VL_TOKENS = [*QWEN2_TOKENS, *QWEN_MARKS.values()]
OMNI_MARKS = {  # by the config's fields
    "image_token_index": "<|IMAGE|>",
    "video_token_index": "<|VIDEO|>",
    "audio_token_index": "<|AUDIO|>",
    "vision_start_token_id": "<|vision_bos|>",
    "vision_end_token_id": "<|vision_eos|>",
    "audio_start_token_id": "<|audio_bos|>",
    "audio_end_token_id": "<|audio_eos|>",
}
QWEN2_VL_CHAT_TEMPLATE = chat_template(*QWEN_SHOWN)
QWEN3_OMNI_MARKS = QWEN_MARKS | {
    "audio_token_id": "<|audio_pad|>",
    "audio_start_token_id": "<|audio_start|>",
    "audio_end_token_id": "<|audio_end|>",
}


def tiny_qwen2_vl(pixels: tuple[int, int] = (196 * 196, 196 * 280), **kwargs: Any) -> TinyModel:
    """Return a stock Qwen2-VL with random float32 weights, and its processor.

    Args:
        pixels: the least and the most pixels of a frame. Two frames take one token per 28 × 28 pixels.
        **kwargs: other arguments of `tiny_with_grids`.
    """
    vision = {"embed_dim": 32, "mlp_ratio": 2}
    return tiny_with_grids(Qwen2VLForConditionalGeneration, Qwen2VLProcessor, vision, pixels, "hidden_size", **kwargs)


def tiny_qwen2_5_vl(
    pixels: tuple[int, int] = (196 * 196, 196 * 280), tokens_per_second: int = 2, **kwargs: Any
) -> TinyModel:
    """Return a stock Qwen2.5-VL with random float32 weights, and its processor. Its vision tower has a block whose
    patches attend within windows of 4 × 4 patches, and one whose patches attend to the whole frame.

    Args:
        pixels: as in `tiny_qwen2_vl`.
        tokens_per_second: positions that M-RoPE gives a second of the video.
        **kwargs: other arguments of `tiny_with_grids`.
    """
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "window_size": 4 * PATCH_SIZE,
        "fullatt_block_indexes": [1],
        "tokens_per_second": tokens_per_second,
    }
    return tiny_with_grids(
        Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor, vision, pixels, "out_hidden_size", **kwargs
    )


def tiny_exaone4_5(
    pixels: tuple[int, int] = (196 * 196, 196 * 280), sliding_window: int = 4096, hidden_size: int = 32, **kwargs: Any
) -> TinyModel:
    """Return a stock EXAONE 4.5 with random float32 weights, and its processor. Its vision tower has the blocks of
    `tiny_qwen2_5_vl`, with fewer heads of keys than of queries. Its language model has a layer that attends within a
    window, and one that knows no positions and attends to all tokens.

    Args:
        pixels: as in `tiny_qwen2_vl`.
        sliding_window: how many tokens the first layer sees.
        **kwargs: other arguments of `tiny_with_grids`.
    """
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "window_size": 4 * PATCH_SIZE,
        "fullatt_block_indexes": [1],
        "num_key_value_heads": 1,
    }
    text = {
        "model_type": "exaone4",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "sliding_window": sliding_window,
        "sliding_window_pattern": 2,
        "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
    }
    return tiny_with_grids(
        Exaone4_5_ForConditionalGeneration,
        Exaone4_5_Processor,
        vision,
        pixels,
        "out_hidden_size",
        text=text,
        hidden_size=hidden_size,
        marks={field: QWEN_MARKS[field] for field in ("image_token_id", "video_token_id")},
        **kwargs,
    )


def tiny_qwen2_5_omni_thinker(patch_size: int = PATCH_SIZE, **kwargs: Any) -> TinyModel:
    """Return a stock thinker of Qwen2.5-Omni with random float32 weights, and its processor. Its vision tower has the
    blocks of `tiny_qwen2_5_vl`. Before Transformers 5.23 VidCom² cannot take it.

    Args:
        patch_size: pixels per side of a patch. The processor scales frames to 128 · 28² pixels or more.
        **kwargs: other arguments of `_tiny_thinker`.
    """
    return _tiny_thinker(
        Qwen2_5OmniThinkerForConditionalGeneration,
        Qwen2_5OmniProcessor,
        OMNI_MARKS,
        {"window_size": 4 * patch_size, "fullatt_block_indexes": [1]},
        (128 * 28**2, 768 * 28**2),
        patch_size=patch_size,
        **kwargs,
    )


def tiny_qwen3_omni_moe_thinker(
    patch_size: int = 16, num_experts: int = 4, hidden_size: int = 32, **kwargs: Any
) -> TinyModel:
    """Return a stock thinker of Qwen3-Omni with random float32 weights, and its processor. Its vision tower and its
    language model are like those of `tiny_qwen3_vl_moe`. Its answers hold no special tokens, since a further turn would
    take a placeholder for that of a video. Before Transformers 5.23 VidCom² cannot take it.

    Args:
        patch_size: pixels per side of a patch. The processor scales frames to 128 · 32² pixels or more.
        **kwargs: other arguments of `_tiny_thinker`.
    """
    model, processor = _tiny_thinker(
        Qwen3OmniMoeThinkerForConditionalGeneration,
        Qwen3OmniMoeProcessor,
        QWEN3_OMNI_MARKS,
        {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        (128 * 32**2, 768 * 32**2),
        patch_size=patch_size,
        hidden_size=hidden_size,
        text=experts_of_two(num_experts) | {"head_dim": hidden_size // 4},
        mrope={"mrope_interleaved": True},
        fields={"position_id_per_seconds": 13},  # as in the released models
        audio={"downsample_hidden_size": 8},
        **kwargs,
    )
    with torch.no_grad():
        for token in (*QWEN2_TOKENS, *QWEN3_OMNI_MARKS.values()):
            cast(Any, model).lm_head.weight[token_id(cast(Any, processor).tokenizer, token)] = 0
    return model, processor


def _tiny_thinker(
    model_class: type[PreTrainedModel],
    processor_class: type[ProcessorMixin],
    marks: dict[str, str],
    vision: dict[str, Any],
    pixels: tuple[int, int],
    hidden_size: int = 32,
    text: dict[str, Any] | None = None,
    fields: dict[str, Any] | None = None,
    audio: dict[str, Any] | None = None,
    **kwargs: Any,
) -> TinyModel:
    """Return a stock thinker of Qwen's Omni models with random float32 weights, and its processor.

    Args:
        marks, vision, pixels, text, fields: as in `tiny_with_grids`.
        audio: fields of the config of the tower for sound that only some families have.
        **kwargs: other arguments of `tiny_with_grids`.
    """
    marks_by_kind = {field.removesuffix("_id").removesuffix("_index"): token for field, token in marks.items()}
    named = {field.replace("start", "bos").replace("end", "eos"): token for field, token in marks_by_kind.items()}
    # A message has its parts in their order, as in the released models.
    parts = (
        f"{{% elif part['type'] == '{kind}' %}}{marks_by_kind[f'{sense}_start_token']}{marks_by_kind[f'{kind}_token']}"
        f"{marks_by_kind[f'{sense}_end_token']}"
        for kind, sense in (("audio", "audio"), ("image", "vision"), ("video", "vision"))
    )
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'text' %}{{ part['text'] }}" + "".join(parts) + "{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    sound = {
        "num_mel_bins": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "output_dim": hidden_size,
        "initializer_range": 0.1,
    }
    return tiny_with_grids(
        model_class,
        processor_class,
        {"hidden_size": 32, "intermediate_size": 64, **vision},
        pixels,
        "out_hidden_size",
        # wide enough that answers depend on the prompt, not on the last token alone
        text={"initializer_range": 0.08, **(text or {})},
        hidden_size=hidden_size,
        tokenizer=tiny_tokenizer([*QWEN2_TOKENS, *marks.values()], template, extra_special_tokens=named),
        marks=marks,
        fields={"audio_config": sound | (audio or {}), **(fields or {})},
        parts={"feature_extractor": WhisperFeatureExtractor(feature_size=16)},
        **kwargs,
    )


def tiny_qwen3_vl(**kwargs: Any) -> TinyModel:
    """Return a stock Qwen3-VL with random float32 weights, and its processor. Features from both blocks of its vision
    tower enter the first two decoder layers.

    Args:
        **kwargs: other arguments of `tiny_with_times`.
    """
    return tiny_with_times(Qwen3VLForConditionalGeneration, {"deepstack_visual_indexes": [0, 1]}, {}, **kwargs)


def tiny_cosmos3_omni(**kwargs: Any) -> TinyModel:
    """Return a stock Cosmos 3 like the model of `tiny_qwen3_vl`, whose structure it has."""
    return tiny_with_times(Cosmos3OmniForConditionalGeneration, {"deepstack_visual_indexes": [0, 1]}, {}, **kwargs)


def untrained_qwen3_vl(
    tokenizer: PreTrainedTokenizerFast, patch_size: int, vision: dict[str, Any], text: dict[str, Any], seed: int
) -> tuple[Qwen3VLForConditionalGeneration, Qwen3VLProcessor]:
    """Return a stock Qwen3-VL of any size with random float32 weights, and its processor.

    Args:
        tokenizer: one that has `QWEN2_VL_TOKENS`.
        patch_size: pixels per side of a patch; two frames take one token per 2 × 2 patches.
        vision, text: the fields of the vision tower's and the language model's configs that set their sizes.
    """
    model, processor = tiny_with_times(
        Qwen3VLForConditionalGeneration,
        vision,
        text,
        patch_size,
        hidden_size=text["hidden_size"],
        seed=seed,
        tie_word_embeddings=text["tie_word_embeddings"],
        tokenizer=tokenizer,
    )
    return cast(tuple[Qwen3VLForConditionalGeneration, Qwen3VLProcessor], (model, processor))


def tiny_qwen3_vl_moe(num_experts: int = 4, **kwargs: Any) -> TinyModel:
    """Return a stock Qwen3-VL-MoE like that of `tiny_qwen3_vl`. Each token goes to two experts of a layer."""
    experts = experts_of_two(num_experts)
    experts["norm_topk_prob"] = True  # Transformers always does this; vLLM reads the field
    return tiny_with_times(Qwen3VLMoeForConditionalGeneration, {"deepstack_visual_indexes": [0, 1]}, experts, **kwargs)


# Every second layer has full attention.
QWEN3_5_TEXT = {
    "full_attention_interval": 2,
    "partial_rotary_factor": 0.25,
    "initializer_range": 0.08,  # wide enough that answers depend on the prompt, not on the last token alone
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}


def tiny_qwen3_5(hidden_size: int = 32, **kwargs: Any) -> TinyModel:
    """Return a stock Qwen3.5 with random float32 weights, and its processor. Its layers alternate between linear and
    full attention. In full attention a quarter of each head is rotated, as in the released models.

    Args:
        **kwargs: other arguments of `tiny_with_times`.
    """
    text = QWEN3_5_TEXT | {"head_dim": hidden_size}
    return tiny_with_times(Qwen3_5ForConditionalGeneration, {}, text, hidden_size=hidden_size, **kwargs)


def tiny_qwen3_5_moe(num_experts: int = 4, hidden_size: int = 32, **kwargs: Any) -> TinyModel:
    """Return a stock Qwen3.5-MoE like that of `tiny_qwen3_5`. A token goes to two experts and one that all share."""
    text = QWEN3_5_TEXT | experts_of_two(num_experts) | {"shared_expert_intermediate_size": 24, "head_dim": hidden_size}
    return tiny_with_times(Qwen3_5MoeForConditionalGeneration, {}, text, hidden_size=hidden_size, **kwargs)


def experts_of_two(num_experts: int) -> dict[str, Any]:
    """Return the fields of a language model's config that make a layer's experts, of which a token goes to two."""
    return {"num_experts": num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def tiny_with_times(
    model_class: type[PreTrainedModel],
    vision: dict[str, Any],
    text: dict[str, Any],
    patch_size: int = 16,
    frame_tokens: int = 64,
    hidden_size: int = 32,
    **kwargs: Any,
) -> TinyModel:
    """Return a stock model with random float32 weights that takes videos as Qwen3-VL does, and its processor: each two
    frames stand behind their time.

    Args:
        vision, text: fields of the configs that only some families have.
        patch_size: pixels per side of a patch; two frames take one token per 2 × 2 patches.
        frame_tokens: the most tokens of two frames. Larger frames are scaled down; no frame is scaled up.
        **kwargs: other arguments of `tiny_with_grids`.
    """
    pixels = 1, 2**30  # the least and the most of a whole video
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_position_embeddings": 16} | vision
    return tiny_with_grids(
        model_class,
        Qwen3VLProcessor,
        vision,
        pixels,
        "out_hidden_size",
        patch_size=patch_size,
        text={"head_dim": hidden_size // 4, **text},
        mrope={"mrope_interleaved": True},
        video_processor=Qwen3VLVideoProcessor(
            size={"shortest_edge": pixels[0], "longest_edge": pixels[1]},
            patch_size=patch_size,
            do_sample_frames=False,
            cap_pixels_per_frame=True,
            max_video_tokens=frame_tokens,
        ),
        hidden_size=hidden_size,
        **kwargs,
    )


def tiny_with_grids(
    model_class: type[PreTrainedModel],
    processor_class: type[ProcessorMixin],
    vision: dict[str, Any],
    pixels: tuple[int, int],
    width_field: str,
    patch_size: int = PATCH_SIZE,
    text: dict[str, Any] | None = None,
    mrope: dict[str, Any] | None = None,
    video_processor: BaseVideoProcessor | None = None,
    hidden_size: int = 32,
    num_layers: int = 2,
    seed: int = 0,
    tie_word_embeddings: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
    template: str = QWEN2_VL_CHAT_TEMPLATE,
    marks: dict[str, str] = QWEN_MARKS,
    fields: dict[str, Any] | None = None,
    parts: dict[str, Any] | None = None,
) -> TinyModel:
    """Return a stock model with random float32 weights that takes videos as Qwen's families do, and its processor.

    Args:
        vision, text, mrope: fields that only some families have, in the configs of the vision tower, of the language
            model and of its positions.
        width_field: the field for the width of the tower's output.
        video_processor: None means Qwen2-VL's.
        tokenizer: None means one with a token for each byte.
        template: of chats, for that one.
        marks: the tokens that stand for, begin and end images, videos and sound, by the config's fields.
        fields, parts: other fields of the config, and parts of the processor, that only some families have.
    """
    tokenizer = tokenizer or tiny_tokenizer(QWEN2_VL_TOKENS, template)
    num_heads = 4
    text = text or {}
    pairs = int(text.get("head_dim", hidden_size // num_heads) * text.get("partial_rotary_factor", 1.0)) // 2
    config = cast(Any, model_class.config_class)(  # its fields depend on the family
        vision_config={
            "depth": 2,
            "num_heads": 2,
            "patch_size": patch_size,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            width_field: hidden_size,
            **vision,
        },
        text_config={
            **vocabulary(tokenizer),
            "hidden_size": hidden_size,
            "intermediate_size": 2 * hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3],
                **(mrope or {}),
            },
            "tie_word_embeddings": tie_word_embeddings,
            **text,
        },
        tie_word_embeddings=tie_word_embeddings,
        **{field: token_id(tokenizer, token) for field, token in marks.items()},
        **(fields or {}),
    )
    model = random_model(model_class, config, seed)
    size: dict[str, Any] = {"size": {"shortest_edge": pixels[0], "longest_edge": pixels[1]}}
    video_processor = video_processor or Qwen2VLVideoProcessor(**size, patch_size=patch_size)
    colours = {name: getattr(video_processor, name) for name in ("image_mean", "image_std")}
    processor = processor_class(
        image_processor=Qwen2VLImageProcessor(**size, **colours, patch_size=patch_size),
        video_processor=video_processor,
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        **(parts or {}),
    )
    return model, processor
