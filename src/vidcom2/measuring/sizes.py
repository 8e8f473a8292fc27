"""The sizes of released models, as their config.json gives them. This file does not import PyTorch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import OptionError, did_you_mean


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that decide how long it takes.

    Attributes:
        model_type: the `model_type` of its family.
        checkpoint: the id of the Hub checkpoint that has these sizes, or None if nobody released one.
        text, vision: fields of the configs of the language model and of the vision tower.
        tiny: arguments of the family's tiny builder, so that its processor has the real frame size.
        audio: fields of the config of the tower for sound, if the model has one.
    """

    model_type: str
    checkpoint: str | None
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)
    audio: Mapping[str, Any] = field(default_factory=dict)


def _qwen2(
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab_size: int,
    tied: bool = False,
) -> dict[str, Any]:
    return {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }


def _with_mrope(text: dict[str, Any], max_position_embeddings: int = 32768) -> dict[str, Any]:
    mrope = text["rope_parameters"] | {"mrope_section": [16, 24, 24]}
    return text | {"rope_parameters": mrope, "max_position_embeddings": max_position_embeddings}


SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "vision_use_head": False,
}


CLIP = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}


def _llama(text: dict[str, Any], **rope_parameters: Any) -> dict[str, Any]:
    return text | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_parameters": rope_parameters}


def _llava(model_type: str, checkpoint: str, text: dict[str, Any]) -> ModelSize:
    return ModelSize(model_type, checkpoint, text, SIGLIP, {"image_size": 384})


QWEN_PIXELS = {"pixels": (3136, 12845056)}  # from the checkpoints' preprocessor_config.json


def _qwen2_vl(name: str, text: dict[str, Any]) -> ModelSize:
    vision = {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "hidden_size": text["hidden_size"]}
    return ModelSize("qwen2_vl", f"Qwen/Qwen2-VL-{name}-Instruct", _with_mrope(text), vision, QWEN_PIXELS)


def _qwen2_5_vl(name: str, text: dict[str, Any], tower_intermediate_size: int) -> ModelSize:
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": tower_intermediate_size,
        "num_heads": 16,
        "out_hidden_size": text["hidden_size"],
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
    }
    checkpoint = f"Qwen/Qwen2.5-VL-{name}-Instruct"
    return ModelSize("qwen2_5_vl", checkpoint, _with_mrope(text, 128000), vision, QWEN_PIXELS)


def _qwen3(text: dict[str, Any], **fields: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    return text | {"rope_parameters": rope, "max_position_embeddings": 262144, "head_dim": 128} | fields


def _experts(intermediate_size: int, num_experts: int = 128) -> dict[str, Any]:
    return {"num_experts": num_experts, "num_experts_per_tok": 8, "moe_intermediate_size": intermediate_size}


# The vision towers of Qwen3-VL and Qwen3.5: depth, hidden_size, intermediate_size, num_heads.
SMALLEST_TOWER, SMALL_TOWER, LARGE_TOWER = (12, 768, 3072, 12), (24, 1024, 4096, 16), (27, 1152, 4304, 16)


def _qwen3_tower(text: dict[str, Any], tower: tuple[int, int, int, int]) -> dict[str, Any]:
    fields = dict(zip(("depth", "hidden_size", "intermediate_size", "num_heads"), tower, strict=True))
    return fields | {"out_hidden_size": text["hidden_size"], "num_position_embeddings": 2304}


def _qwen3_vl(name: str, text: dict[str, Any], tower: tuple[int, int, int, int]) -> ModelSize:
    deepstack = {"deepstack_visual_indexes": [8, 16, 24] if tower == LARGE_TOWER else [5, 11, 17]}
    vision = _qwen3_tower(text, tower) | deepstack
    model_type = "qwen3_vl_moe" if "num_experts" in text else "qwen3_vl"
    # By default its processor spends as many pixels on a short video as on a long one, up to 768 tokens a frame.
    return ModelSize(model_type, f"Qwen/Qwen3-VL-{name}-Instruct", text, vision, {"frame_tokens": 768})


def _qwen3_5(name: str, text: dict[str, Any], value_heads: int, tower: tuple[int, int, int, int]) -> ModelSize:
    rope = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10], "mrope_interleaved": True}
    linear = {"key_head_dim": 128, "value_head_dim": 128, "num_key_heads": 16, "num_value_heads": value_heads}
    fields = {
        "rope_parameters": rope | {"partial_rotary_factor": 0.25},
        "max_position_embeddings": 262144,
        "head_dim": 256,
        "full_attention_interval": 4,
        **{f"linear_{field}": value for field, value in linear.items()},
    }
    model_type = "qwen3_5_moe" if "num_experts" in text else "qwen3_5"
    return ModelSize(model_type, f"Qwen/{name}", text | fields, _qwen3_tower(text, tower), {"frame_tokens": 768})


# Qwen3.6 and Qwen3.8 have the structure and the sizes of Qwen3.5.
QWEN3_5_27B = _qwen2(5120, 17408, 64, 24, 4, 248320)
QWEN3_5_35B_A3B = (
    _qwen2(2048, 512, 40, 16, 2, 248320) | _experts(512, num_experts=256) | {"shared_expert_intermediate_size": 512}
)
QWEN3_5_122B_A10B = (
    _qwen2(3072, 1024, 48, 32, 2, 248320) | _experts(1024, num_experts=256) | {"shared_expert_intermediate_size": 1024}
)

QWEN2_5_7B = _qwen2(3584, 18944, 28, 28, 4, 152064)
QWEN3_OMNI_ROPE = {
    "rope_type": "default",
    "rope_theta": 1e6,
    "mrope_section": [24, 20, 20],
    "mrope_interleaved": True,
}
QWEN3_OMNI_30B_A3B = (
    _qwen2(2048, 768, 48, 32, 4, 152064)
    | _experts(768)
    | {"head_dim": 128, "max_position_embeddings": 65536, "rope_parameters": QWEN3_OMNI_ROPE}
)


def _omni_audio(text: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the sizes of Whisper's large encoder, whose output is as wide as the language model."""
    audio = {"num_mel_bins": 128, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120}
    return audio | {"d_model": 1280, "output_dim": text["hidden_size"]} | fields


GLM_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}

SMALL = "llava-onevision-small"  # the model of `--quick`, which nobody released
MODEL_SIZES: dict[str, ModelSize] = {
    SMALL: ModelSize(
        "llava_onevision",
        None,
        _qwen2(512, 2048, 8, 8, 2, 8192, tied=True),
        SIGLIP | {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 3},
        {"image_size": 384},
    ),
    **{
        f"llava-onevision-{name}": _llava("llava_onevision", f"llava-hf/llava-onevision-qwen2-{name}-ov-hf", text)
        for name, text in (
            ("0.5b", _qwen2(896, 4864, 24, 14, 2, 152000, tied=True)),
            ("7b", _qwen2(3584, 18944, 28, 28, 4, 152128)),
            ("72b", _qwen2(8192, 29568, 80, 64, 8, 152128)),
        )
    },
    **{
        f"llava-video-{name.lower()}": _llava("vidcom2_llava_video", f"lmms-lab/LLaVA-Video-{name}-Qwen2", text)
        for name, text in (
            ("7B", _qwen2(3584, 18944, 28, 28, 4, 152064)),
            ("72B", _qwen2(8192, 29568, 80, 64, 8, 152064)),
        )
    },
    **{
        f"llava-next-video-{name.lower()}": ModelSize(
            "llava_next_video", f"llava-hf/LLaVA-NeXT-Video-{name}-hf", text, CLIP, {"image_size": 336}
        )
        for name, text in (
            ("7B", _llama(_qwen2(4096, 11008, 32, 32, 32, 32064), rope_type="linear", factor=2.5, rope_theta=1e4)),
            ("34B", _llama(_qwen2(7168, 20480, 60, 56, 8, 64064), rope_type="default", rope_theta=5e6)),
        )
    },
    **{
        f"qwen2-vl-{name.lower()}": _qwen2_vl(name, text)
        for name, text in (
            ("2B", _qwen2(1536, 8960, 28, 12, 2, 151936, tied=True)),
            ("7B", _qwen2(3584, 18944, 28, 28, 4, 152064)),
            ("72B", _qwen2(8192, 29568, 80, 64, 8, 152064)),
        )
    },
    **{
        f"qwen2.5-vl-{name.lower()}": _qwen2_5_vl(name, text, tower)
        for name, text, tower in (
            ("3B", _qwen2(2048, 11008, 36, 16, 2, 151936, tied=True), 3420),
            ("7B", _qwen2(3584, 18944, 28, 28, 4, 152064), 3420),
            ("32B", _qwen2(5120, 27648, 64, 40, 8, 152064), 3456),
            ("72B", _qwen2(8192, 29568, 80, 64, 8, 152064), 3456),
        )
    },
    **{
        f"qwen3-vl-{name.lower()}": _qwen3_vl(name, text, tower)
        for name, text, tower in (
            ("2B", _qwen3(_qwen2(2048, 6144, 28, 16, 8, 151936, tied=True)), SMALL_TOWER),
            ("4B", _qwen3(_qwen2(2560, 9728, 36, 32, 8, 151936, tied=True)), SMALL_TOWER),
            ("8B", _qwen3(_qwen2(4096, 12288, 36, 32, 8, 151936)), LARGE_TOWER),
            ("32B", _qwen3(_qwen2(5120, 25600, 64, 64, 8, 151936)), LARGE_TOWER),
            ("30B-A3B", _qwen3(_qwen2(2048, 6144, 48, 32, 4, 151936), **_experts(768)), LARGE_TOWER),
            ("235B-A22B", _qwen3(_qwen2(4096, 12288, 94, 64, 4, 151936), **_experts(1536)), LARGE_TOWER),
        )
    },
    # The thinkers alone, which answer in text.
    "qwen2.5-omni-7b": replace(
        _qwen2_5_vl("7B", QWEN2_5_7B, 3420),
        model_type="qwen2_5_omni_thinker",
        checkpoint="Qwen/Qwen2.5-Omni-7B",
        text=_with_mrope(QWEN2_5_7B),
        tiny={},
        audio=_omni_audio(QWEN2_5_7B),
    ),
    "qwen3-omni-30b-a3b": ModelSize(
        "qwen3_omni_moe_thinker",
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        QWEN3_OMNI_30B_A3B,
        _qwen3_tower(QWEN3_OMNI_30B_A3B, LARGE_TOWER) | {"deepstack_visual_indexes": [8, 16, 24]},
        audio=_omni_audio(QWEN3_OMNI_30B_A3B, downsample_hidden_size=480),
    ),
    "cosmos-reason2-2b": replace(
        _qwen3_vl("2B", _qwen3(_qwen2(2048, 6144, 28, 16, 8, 151936, tied=True)), SMALL_TOWER),
        checkpoint="nvidia/Cosmos-Reason2-2B",
    ),
    **{
        name.lower(): _qwen3_5(name, text, value_heads, tower)
        for name, text, value_heads, tower in (
            ("Qwen3.5-0.8B", _qwen2(1024, 3584, 24, 8, 2, 248320, tied=True), 16, SMALLEST_TOWER),
            # From the configs of two fine-tunes.
            ("Qwen3.5-4B", _qwen2(2560, 9216, 32, 16, 4, 248320, tied=True), 32, SMALL_TOWER),
            ("Qwen3.5-9B", _qwen2(4096, 12288, 32, 16, 4, 248320), 32, LARGE_TOWER),
            *((f"Qwen{version}-27B", QWEN3_5_27B, 48, LARGE_TOWER) for version in ("3.5", "3.6", "3.8")),
            *((f"Qwen{version}-35B-A3B", QWEN3_5_35B_A3B, 32, LARGE_TOWER) for version in ("3.5", "3.6")),
            ("Qwen3.5-122B-A10B", QWEN3_5_122B_A10B, 64, LARGE_TOWER),
        )
    },
    "glm-4.1v-9b": ModelSize(
        "glm4v",
        "zai-org/GLM-4.1V-9B-Thinking",
        _qwen2(4096, 13696, 40, 32, 2, 151552) | {"rope_parameters": GLM_ROPE},
        {
            "depth": 24,
            "hidden_size": 1536,
            "intermediate_size": 13696,
            "num_heads": 12,
            "out_hidden_size": 4096,
            "image_size": 336,
        },
        {"pixels": (112 * 112, 30000 * 2 * 28 * 28)},  # of a whole video
    ),
    "internvl3-8b": ModelSize(
        "internvl",
        "OpenGVLab/InternVL3-8B-hf",
        _qwen2(3584, 18944, 28, 28, 4, 151674) | {"model_type": "qwen2", "tie_word_embeddings": False},
        {  # InternViT-300M-448px
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "attention_bias": True,
            "image_size": 448,
            "patch_size": 14,
        },
        {"image_size": 448},
    ),
    **{
        f"videollama3-{name.lower()}": ModelSize(
            "video_llama_3",
            f"lkhl/VideoLLaMA3-{name}-Image-HF",
            text | {"model_type": "qwen2"},
            {
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "patch_size": 14,
            },
            {"pixels": (16 * 28**2, 16384 * 28**2)},  # 16 tokens a frame, 16,384 a video, as the authors have it
        )
        for name, text in (
            ("2B", _qwen2(1536, 8960, 28, 12, 2, 151936, tied=True)),
            ("7B", _qwen2(3584, 18944, 28, 28, 4, 152064)),
        )
    },
    "smolvlm2-2.2b": ModelSize(
        "smolvlm",
        "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
        _qwen2(2048, 8192, 24, 32, 32, 49280)
        | {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 273768.0}},
        SIGLIP | {"num_hidden_layers": 27},
        {"image_size": 384, "scale_factor": 3},
    ),
    "gemma-4-e2b": ModelSize(
        "gemma4",
        "google/gemma-4-E2B-it",
        {
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_hidden_layers": 35,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "global_head_dim": 512,
            "vocab_size": 262144,
            "vocab_size_per_layer_input": 262144,
            "hidden_size_per_layer_input": 256,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
            "sliding_window": 512,
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 30.0,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 16,
            "num_attention_heads": 12,
            "num_key_value_heads": 12,
            "head_dim": 64,
        },
    ),
}


def size_named(name: str) -> ModelSize:
    """Return the row of the table with this name.

    Raises:
        OptionError: if there is none.
    """
    if name not in MODEL_SIZES:
        known = ", ".join(MODEL_SIZES)
        raise OptionError(
            f"`--model-size` is {name!r}, but must be one of {known}. For another model, pass --model."
            f"{did_you_mean(name, MODEL_SIZES)}"
        )
    return MODEL_SIZES[name]
