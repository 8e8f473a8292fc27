"""Tiny random checkpoints in the real format, for the demo, the tests and the README.

They need no download, and their answers mean nothing.
"""

from typing import Any, cast

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BaseVideoProcessor,
    LlavaNextImageProcessor,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaNextVideoProcessor,
    LlavaNextVideoVideoProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

PATCH_SIZE = 14
QWEN2_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAVA_TOKENS = [*QWEN2_TOKENS, "<image>", "<video>"]
QWEN2_VL_TOKENS = [*QWEN2_TOKENS, "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]

TinyModel = tuple[PreTrainedModel, ProcessorMixin]


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
QWEN2_VL_CHAT_TEMPLATE = chat_template(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
)


def tiny_tokenizer(special_tokens: list[str] = LLAVA_TOKENS, template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte, and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return chat_tokenizer(tokenizer, special_tokens, template)


def chat_tokenizer(tokenizer: Tokenizer, special_tokens: list[str], template: str) -> PreTrainedTokenizerFast:
    """Add Qwen2's special tokens and a chat template to a tokenizer. It pads on the left."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=template,
    )


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """Return the id of a token."""
    return cast(int, tokenizer.convert_tokens_to_ids(token))  # it returns a list only for a list of tokens


TINY_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def _tiny_text(hidden_size: int, num_layers: int, tie_word_embeddings: bool) -> dict[str, Any]:
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


def tiny_llava_onevision(
    image_size: int = 196, hidden_size: int = 32, num_layers: int = 2, seed: int = 0, tie_word_embeddings: bool = False
) -> tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]:
    """Return a stock LLaVA-OneVision with random float32 weights, and its processor.

    Args:
        image_size: pixels per side of a frame; a frame takes ceil(image_size / 14 / 2)² tokens.
    """
    text = _tiny_text(hidden_size, num_layers, tie_word_embeddings)
    return untrained_llava_onevision(tiny_tokenizer(), image_size, TINY_TOWER, text, seed)


def untrained_llava_onevision(
    tokenizer: PreTrainedTokenizerFast, image_size: int, vision: dict[str, Any], text: dict[str, Any], seed: int
) -> tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]:
    """Return a stock LLaVA-OneVision of any size with random float32 weights, and its processor.

    Args:
        tokenizer: one that has `LLAVA_TOKENS`.
        image_size: pixels per side of a frame.
        vision, text: the fields of the vision tower's and the language model's configs that set their sizes.
    """
    grid_pinpoints = [[image_size, image_size], [image_size, 2 * image_size], [2 * image_size, image_size]]
    config = LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "image_size": image_size,
            "patch_size": PATCH_SIZE,
            "vision_use_head": False,
            **vision,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            **text,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=token_id(tokenizer, "<image>"),
        video_token_index=token_id(tokenizer, "<video>"),
        image_grid_pinpoints=grid_pinpoints,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaOnevisionForConditionalGeneration(config).eval()
    pixels = {"size": {"height": image_size, "width": image_size}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(**pixels, image_grid_pinpoints=grid_pinpoints),
        video_processor=LlavaOnevisionVideoProcessor(**pixels),
        tokenizer=tokenizer,
        num_image_tokens=(image_size // PATCH_SIZE) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
    )
    return model, processor


def tiny_llava_next_video(
    image_size: int = 196, hidden_size: int = 32, num_layers: int = 2, seed: int = 0, tie_word_embeddings: bool = False
) -> tuple[LlavaNextVideoForConditionalGeneration, LlavaNextVideoProcessor]:
    """Return a stock LLaVA-NeXT-Video with random float32 weights, and its processor.

    Args:
        image_size: pixels per side of the square that is cut out of a frame, which takes (image_size / 14 / 2)² tokens.
            The stock processor counts them correctly if a side holds an even number of patches of 14 pixels.
    """
    tokenizer = tiny_tokenizer()
    grid_pinpoints = [[image_size, 2 * image_size], [2 * image_size, image_size]]
    config = LlavaNextVideoConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "image_size": image_size,
            "patch_size": PATCH_SIZE,
            **TINY_TOWER,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            **_tiny_text(hidden_size, num_layers, tie_word_embeddings),
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=token_id(tokenizer, "<image>"),
        video_token_index=token_id(tokenizer, "<video>"),
        image_grid_pinpoints=grid_pinpoints,
        tie_word_embeddings=tie_word_embeddings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaNextVideoForConditionalGeneration(config).eval()
    pixels: dict[str, Any] = {
        "size": {"shortest_edge": image_size},
        "crop_size": {"height": image_size, "width": image_size},
    }
    processor = LlavaNextVideoProcessor(
        image_processor=LlavaNextImageProcessor(**pixels, image_grid_pinpoints=grid_pinpoints),
        video_processor=LlavaNextVideoVideoProcessor(**pixels),
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    return model, processor


def tiny_qwen2_vl(pixels: tuple[int, int] = (196 * 196, 196 * 280), **kwargs: Any) -> TinyModel:
    """Return a stock Qwen2-VL with random float32 weights, and its processor.

    Args:
        pixels: the least and the most pixels of a frame. Two frames take one token per 28 × 28 pixels.
        **kwargs: other arguments of `_tiny_qwen`.
    """
    vision = {"embed_dim": 32, "mlp_ratio": 2}
    return _tiny_qwen(Qwen2VLForConditionalGeneration, Qwen2VLProcessor, vision, pixels, "hidden_size", **kwargs)


def tiny_qwen2_5_vl(
    pixels: tuple[int, int] = (196 * 196, 196 * 280), tokens_per_second: int = 2, **kwargs: Any
) -> TinyModel:
    """Return a stock Qwen2.5-VL with random float32 weights, and its processor. Its vision tower has a block whose
    patches attend within windows of 4 × 4 patches, and one whose patches attend to the whole frame.

    Args:
        pixels: as in `tiny_qwen2_vl`.
        tokens_per_second: positions that M-RoPE gives a second of the video.
        **kwargs: other arguments of `_tiny_qwen`.
    """
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "window_size": 4 * PATCH_SIZE,
        "fullatt_block_indexes": [1],
        "tokens_per_second": tokens_per_second,
    }
    return _tiny_qwen(
        Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor, vision, pixels, "out_hidden_size", **kwargs
    )


def tiny_qwen3_vl(**kwargs: Any) -> TinyModel:
    """Return a stock Qwen3-VL with random float32 weights, and its processor. Features from both blocks of its vision
    tower enter the first two decoder layers.

    Args:
        **kwargs: other arguments of `_tiny_qwen3`.
    """
    return _tiny_qwen3(Qwen3VLForConditionalGeneration, {"deepstack_visual_indexes": [0, 1]}, {}, **kwargs)


def untrained_qwen3_vl(
    tokenizer: PreTrainedTokenizerFast, patch_size: int, vision: dict[str, Any], text: dict[str, Any], seed: int
) -> tuple[Qwen3VLForConditionalGeneration, Qwen3VLProcessor]:
    """Return a stock Qwen3-VL of any size with random float32 weights, and its processor.

    Args:
        tokenizer: one that has `QWEN2_VL_TOKENS`.
        patch_size: pixels per side of a patch; two frames take one token per 2 × 2 patches.
        vision, text: the fields of the vision tower's and the language model's configs that set their sizes.
    """
    model, processor = _tiny_qwen3(
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
    experts = {"num_experts": num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    experts["norm_topk_prob"] = True  # Transformers always does this; vLLM reads the field
    return _tiny_qwen3(Qwen3VLMoeForConditionalGeneration, {"deepstack_visual_indexes": [0, 1]}, experts, **kwargs)


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
        **kwargs: other arguments of `_tiny_qwen3`.
    """
    text = QWEN3_5_TEXT | {"head_dim": hidden_size}
    return _tiny_qwen3(Qwen3_5ForConditionalGeneration, {}, text, hidden_size=hidden_size, **kwargs)


def tiny_qwen3_5_moe(num_experts: int = 4, hidden_size: int = 32, **kwargs: Any) -> TinyModel:
    """Return a stock Qwen3.5-MoE like that of `tiny_qwen3_5`. A token goes to two experts and one that all share."""
    experts = {"num_experts": num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    text = QWEN3_5_TEXT | experts | {"shared_expert_intermediate_size": 24, "head_dim": hidden_size}
    return _tiny_qwen3(Qwen3_5MoeForConditionalGeneration, {}, text, hidden_size=hidden_size, **kwargs)


def _tiny_qwen3(
    model_class: type[PreTrainedModel],
    vision: dict[str, Any],
    text: dict[str, Any],
    patch_size: int = 16,
    frame_tokens: int = 64,
    hidden_size: int = 32,
    **kwargs: Any,
) -> TinyModel:
    """Return a stock model of the Qwen3-VL and Qwen3.5 families with random float32 weights, and its processor.

    Args:
        vision, text: fields of the configs that only some families have.
        patch_size: pixels per side of a patch; two frames take one token per 2 × 2 patches.
        frame_tokens: the most tokens of two frames. Larger frames are scaled down; no frame is scaled up.
        **kwargs: other arguments of `_tiny_qwen`.
    """
    pixels = 1, 2**30  # the least and the most of a whole video
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_position_embeddings": 16} | vision
    return _tiny_qwen(
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


def _tiny_qwen(
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
) -> TinyModel:
    """Return a stock model of any Qwen family with random float32 weights, and its processor.

    Args:
        vision, text, mrope: fields that only some families have, in the configs of the vision tower, of the language
            model and of its positions.
        width_field: the field for the width of the tower's output.
        video_processor: None means Qwen2-VL's.
        tokenizer: None means one with a token for each byte.
    """
    tokenizer = tokenizer or tiny_tokenizer(QWEN2_VL_TOKENS, QWEN2_VL_CHAT_TEMPLATE)
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
            "vocab_size": len(tokenizer),
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
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **text,
        },
        image_token_id=token_id(tokenizer, "<|image_pad|>"),
        video_token_id=token_id(tokenizer, "<|video_pad|>"),
        vision_start_token_id=token_id(tokenizer, "<|vision_start|>"),
        vision_end_token_id=token_id(tokenizer, "<|vision_end|>"),
        tie_word_embeddings=tie_word_embeddings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).eval()
    size: dict[str, Any] = {"size": {"shortest_edge": pixels[0], "longest_edge": pixels[1]}}
    video_processor = video_processor or Qwen2VLVideoProcessor(**size)
    colours = {name: getattr(video_processor, name) for name in ("image_mean", "image_std")}
    processor = processor_class(
        image_processor=Qwen2VLImageProcessor(**size, **colours, patch_size=patch_size),
        video_processor=video_processor,
        tokenizer=tokenizer,
        chat_template=QWEN2_VL_CHAT_TEMPLATE,
    )
    return model, processor
