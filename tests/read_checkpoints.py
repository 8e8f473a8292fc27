"""Configs of released checkpoints whose names are not their family's, as they were read. No weights were at hand.

Each is a copy of what others published of a config.json: a listing in an issue, a test's fixture, a reference of a
model's shapes. What could not be read is said beside it.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReadCheckpoint:
    """A checkpoint's config.json, and what its makers sample a video at.

    Attributes:
        name: its id on the Hub.
        tokens: its special tokens, by their ids.
        fps: frames that its makers take from a second of video: its processor's setting, or their example's.
    """

    name: str
    config: dict[str, Any]
    tokens: dict[str, int]
    fps: int

    def shrunk(self) -> dict[str, Any]:
        """Return its config with fewer and narrower layers. Positions, tokens and proportions stay as they are:
        value heads per key head, the period of full attention, and where deepstack features come from."""
        config = deepcopy(self.config)
        text, tower = config["text_config"], config["vision_config"]
        text |= {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.2}
        text["intermediate_size"] = 32
        text["num_hidden_layers"] = text.get("full_attention_interval", 3)
        if "linear_num_value_heads" in text:
            per_key = text["linear_num_value_heads"] // text["linear_num_key_heads"]
            text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2 * per_key}
            text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
            text["layer_types"] = text["layer_types"][: text["num_hidden_layers"]]
        tower |= {"hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
        return config


QWEN3_5_TOKENS = {
    "<|endoftext|>": 248044,
    "<|im_start|>": 248045,
    "<|im_end|>": 248046,
    "<|vision_start|>": 248053,
    "<|vision_end|>": 248054,
    "<|image_pad|>": 248056,
    "<|video_pad|>": 248057,
}
QWEN3_TOKENS = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
}

READ = (
    # The text config was read in a copy of mlx-community's, the tower's depth, width and patches in a table of its
    # fields; the other fields of the tower are those of Qwen3.5-27B, whose config.json was read in full. A comparison
    # key by key says that Qwen3.6-27B differs in its quantization and its version of Transformers alone.
    ReadCheckpoint(
        "Qwen/Qwen3.8-27B",
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "language_model_only": False,
            "model_type": "qwen3_5",
            "text_config": {
                "attention_bias": False,
                "attention_dropout": 0.0,
                "attn_output_gate": True,
                "eos_token_id": 248044,
                "full_attention_interval": 4,
                "head_dim": 256,
                "hidden_act": "silu",
                "initializer_range": 0.02,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_value_head_dim": 128,
                "mamba_ssm_dtype": "float32",
                "max_position_embeddings": 262144,
                "mtp_num_hidden_layers": 1,
                "mtp_use_dedicated_embeddings": False,
                "output_gate_type": "swish",
                "partial_rotary_factor": 0.25,
                "rms_norm_eps": 1e-6,
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10],
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 10000000,
                    "rope_type": "default",
                },
                "tie_word_embeddings": False,
                "use_cache": True,
                "vocab_size": 248320,
                "model_type": "qwen3_5_text",
                "bos_token_id": 248044,
                "hidden_size": 5120,
                "intermediate_size": 17408,
                "layer_types": ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(64)],
                "linear_num_value_heads": 48,
                "num_attention_heads": 24,
                "num_hidden_layers": 64,
                "num_key_value_heads": 4,
                "pad_token_id": None,
            },
            "tie_word_embeddings": False,
            "vision_config": {
                "deepstack_visual_indexes": [],
                "depth": 27,
                "hidden_act": "gelu_pytorch_tanh",
                "hidden_size": 1152,
                "in_channels": 3,
                "intermediate_size": 4304,
                "num_heads": 16,
                "num_position_embeddings": 2304,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "model_type": "qwen3_5",
                "out_hidden_size": 5120,
            },
            "image_token_id": 248056,
            "video_token_id": 248057,
            "vision_start_token_id": 248053,
            "vision_end_token_id": 248054,
        },
        QWEN3_5_TOKENS,
        fps=2,
    ),
    # Read in full, in a robot policy that holds a copy, and in a validator that compares its sizes. The checkpoint
    # itself is gated. Its makers' example samples four frames a second.
    ReadCheckpoint(
        "nvidia/Cosmos-Reason2-2B",
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "image_token_id": 151655,
            "model_type": "qwen3_vl",
            "text_config": {
                "attention_bias": False,
                "attention_dropout": 0.0,
                "bos_token_id": 151643,
                "eos_token_id": 151645,
                "head_dim": 128,
                "hidden_act": "silu",
                "hidden_size": 2048,
                "initializer_range": 0.02,
                "intermediate_size": 6144,
                "max_position_embeddings": 262144,
                "model_type": "qwen3_vl_text",
                "num_attention_heads": 16,
                "num_hidden_layers": 28,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-6,
                "rope_scaling": {
                    "mrope_interleaved": True,
                    "mrope_section": [24, 20, 20],
                    "rope_type": "default",
                },
                "rope_theta": 5000000,
                "tie_word_embeddings": True,
                "use_cache": True,
                "vocab_size": 151936,
            },
            "tie_word_embeddings": True,
            "video_token_id": 151656,
            "vision_config": {
                "deepstack_visual_indexes": [5, 11, 17],
                "depth": 24,
                "hidden_act": "gelu_pytorch_tanh",
                "hidden_size": 1024,
                "in_channels": 3,
                "initializer_range": 0.02,
                "intermediate_size": 4096,
                "model_type": "qwen3_vl",
                "num_heads": 16,
                "num_position_embeddings": 2304,
                "out_hidden_size": 2048,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
            "vision_end_token_id": 151653,
            "vision_start_token_id": 151652,
        },
        QWEN3_TOKENS,
        fps=4,
    ),
)

# video_preprocessor_config.json of Qwen3-VL, read in full. Cosmos-Reason2's was not read.
VIDEO_PROCESSOR = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "do_sample_frames": True,
    "fps": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_frames": 768,
    "merge_size": 2,
    "min_frames": 4,
    "patch_size": 16,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"longest_edge": 25165824, "shortest_edge": 4096},
    "temporal_patch_size": 2,
}
