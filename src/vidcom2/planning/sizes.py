"""What a model costs for each patch, token and request, counted on its architecture without any weights."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin
from transformers.initialization import no_init_weights

from ..answering.prompting import prepare_inputs
from ..configuration.vidcom2_llava_video_pooling import pooled_side
from ..errors import OptionError
from ..families import FAMILIES
from ..video.reading import Video

MULTIPLY_ADD = 2  # operations
QUESTION = "What happens?"
# Tables that are looked up, which takes next to no time, and the tower that hears, which no video runs through.
NOT_COUNTED = ("pos_embed", "position_embedding", "embed_tokens", "audio_tower.")


@dataclass(frozen=True)
class ModelCosts:
    """What a model costs, in weights, numbers and operations.

    Attributes:
        weights: all of them. Tied weights count once.
        head_weights: the language model's head.
        dense_weights: the language model's layers, without experts.
        expert_weights: all experts of all layers.
        expert_share: the share of the experts that a token passes through.
        attention_width: numbers in the queries of all layers with full attention.
        cached: numbers that a token leaves in the KV cache.
        state: numbers that a sequence keeps whatever its length, in layers with linear attention.
        heads: of the language model's attention: those of queries, and those of keys and values.
        activations: numbers that exist at once for each token of a prefill: the inner states of an MLP and its inputs.
        tower_weights: the weights of the vision tower that each patch passes through.
        token_weights: those that each token passes through that the tower makes of its patches.
        tower_attention: numbers in the queries of the tower's layers: those that see a frame, and those that see a
            window, with the window's patches.
        tower_activations: numbers that exist at once for each patch.
    """

    weights: int
    head_weights: int
    dense_weights: int
    expert_weights: int
    expert_share: float
    attention_width: int
    cached: int
    state: int
    heads: tuple[int, int]
    activations: int
    tower_weights: int
    token_weights: int
    tower_attention: tuple[int, tuple[int, int]]
    tower_activations: int

    @property
    def layer_weights(self) -> float:
        """The weights of the layers that a token passes through."""
        return self.dense_weights + self.expert_share * self.expert_weights

    def read_weights(self, sequences: int) -> float:
        """Return the weights that a step of decoding reads. Sequences that choose experts independently of each other
        leave some out."""
        read = 1 - (1 - self.expert_share) ** sequences
        return self.head_weights + self.dense_weights + read * self.expert_weights

    def prefill_flops(self, tokens: int) -> float:
        """Return the operations of a prefill of this many tokens, each of which attends to those before it."""
        return MULTIPLY_ADD * (self.layer_weights * tokens + self.attention_width * tokens**2 + self.head_weights)

    def decoding_flops(self, sequences: int) -> float:
        """Return the operations of a step of decoding, without attention, which is small."""
        return MULTIPLY_ADD * (self.layer_weights + self.head_weights) * sequences

    def tower_flops(self, video: "VideoSize") -> float:
        """Return the operations that encode a video."""
        of_frames, (of_windows, window) = self.tower_attention
        attention = 2 * video.patches * (of_frames * video.patches_per_frame + of_windows * window)
        weights = self.tower_weights * video.patches + self.token_weights * video.merged
        return MULTIPLY_ADD * (weights + attention)


@dataclass(frozen=True)
class VideoSize:
    """What the processor makes of a video.

    Attributes:
        patches: of the vision tower, in all frames.
        patches_per_frame: how many patches attend to each other.
        merged: tokens that the tower makes of its patches.
        num_frames, tokens_per_frame: scored frames and tokens, (T, M) of the paper.
        structure: placeholders that are not scored, such as newlines.
        text: tokens that the processor writes around frames, such as their times; each word, digit or sign counts as
            one, since the sizes of released models come without their tokenizers.
    """

    patches: int
    patches_per_frame: int
    merged: int
    num_frames: int
    tokens_per_frame: int
    structure: int
    text: int


def model_costs(config: PreTrainedConfig) -> ModelCosts:
    """Count a model's costs from its config, on a model that takes no memory.

    Raises:
        OptionError: if a part of its KV cache does not grow with the prompt, or its tower drops patches on the way.
    """
    if hasattr(cast(Any, config).vision_config, "insert_layer_id"):
        raise OptionError(
            f"The model is of type {config.model_type!r}, whose vision tower joins patches between two of its layers. "
            "`vidcom2 plan` counts towers with equally many patches in all layers. Choose another model, or measure "
            "this one with `vidcom2 bench`."
        )
    if "sliding_attention" in (getattr(config.get_text_config(), "layer_types", None) or ()):
        raise OptionError(
            f"The model is of type {config.model_type!r}, whose layers with a sliding window keep only the last "
            "tokens, and whose layers may share keys and values. `vidcom2 plan` counts full and linear attention. "
            "Choose another model, or measure this one with `vidcom2 bench`."
        )
    with torch.device("meta"), no_init_weights():
        model: PreTrainedModel = FAMILIES[config.model_type].model_class(config)
    model.tie_weights()
    text, vision = config.get_text_config(), cast(Any, config).vision_config
    language: dict[str, int] = {}
    tower: dict[str, int] = {}
    for name, weight in model.named_parameters():
        if weight.ndim < 2 or any(part in name for part in NOT_COUNTED):
            continue
        part = language if _is_of_language(name) else tower
        part[name] = weight.numel()
    experts = sum(count for name, count in language.items() if ".experts." in name)
    num_experts = next((weight.shape[0] for name, weight in model.named_parameters() if ".experts." in name), 0)
    head = cast(Any, model.get_output_embeddings()).weight.numel()
    layers = sum(count for name, count in language.items() if not name.startswith("lm_head"))
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    full = sum(kind != "linear_attention" for kind in kinds)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    # There Qwen's and GLM's towers, and these families' projectors, work on tokens of several patches.
    pools_first = hasattr(config, "tokens_per_tile") or config.model_type in ("video_llama_3", "cosmos3_edge")
    per_token = ("merger", "downsample", *(("projector", "connector") if pools_first else ()))
    merging = sum(count for name, count in tower.items() if any(part in name for part in per_token))
    width, inner, gated, depth = _tower_shape(model)
    windowed = depth - len(vision.fullatt_block_indexes) if hasattr(vision, "fullatt_block_indexes") else 0
    in_window = (vision.window_size // vision.patch_size) ** 2 if windowed else 0
    return ModelCosts(
        weights=sum(parameter.numel() for parameter in model.parameters()),
        head_weights=head,
        dense_weights=layers - experts,
        expert_weights=experts,
        expert_share=text.num_experts_per_tok / num_experts if experts else 1.0,
        attention_width=text.num_attention_heads * head_dim * full,
        cached=2 * text.num_key_value_heads * head_dim * full,
        state=(len(kinds) - full) * _linear_state(text),
        heads=(text.num_attention_heads, text.num_key_value_heads),
        activations=3 * _inner_width(text) + 4 * text.hidden_size,
        tower_weights=sum(tower.values()) - merging,
        token_weights=merging,
        tower_attention=(width * (depth - windowed), (width * windowed, in_window)),
        tower_activations=(3 if gated else 2) * inner + 4 * width,
    )


def _is_of_language(name: str) -> bool:
    """Return whether a weight is the language model's."""
    return "language_model." in name or "text_model." in name or name.startswith("lm_head")


def _tower_shape(model: PreTrainedModel) -> tuple[int, int, bool, int]:
    """Return the width of the tower, that of its MLPs, whether these are gated, and the number of layers. They are read
    off the weights, because each family's config has other names for them."""
    named = model.named_parameters()
    shapes = {name: weight.shape for name, weight in named if not (_is_of_language(name) or "audio_tower." in name)}
    width = next(shape[0] for name, shape in shapes.items() if "patch_embed" in name and len(shape) > 1)
    of_mlps = [(name, shape[0]) for name, shape in shapes.items() if re.search(r"s?\.0\.mlp\..*weight", name)]
    depth = len({match[1] for name in shapes if (match := re.search(r"(?:layers?|blocks)\.(\d+)\.", name))})
    return width, max(inner for _, inner in of_mlps), any("gate" in name for name, _ in of_mlps), depth


def _inner_width(text: Any) -> int:
    """Return the width of the MLP that a token passes through; of a mixture of experts, all widths together."""
    if hasattr(text, "moe_intermediate_size"):
        shared = getattr(text, "shared_expert_intermediate_size", 0) or 0
        shared_like_others = getattr(text, "n_shared_experts", 0) or 0  # GLM's are as wide as the others
        return (text.num_experts_per_tok + shared_like_others) * text.moe_intermediate_size + shared
    return text.intermediate_size


def _linear_state(text: Any) -> int:
    """Return the numbers that a layer with linear attention keeps for a sequence: a matrix for each head of values."""
    if not hasattr(text, "linear_num_value_heads"):
        return 0
    return text.linear_num_value_heads * text.linear_key_head_dim * text.linear_value_head_dim


def video_size(
    config: PreTrainedConfig, processor: ProcessorMixin, num_frames: int, width: int, height: int
) -> VideoSize:
    """Let the processor take a black video of this size, and count what it makes of it."""
    frames = np.zeros((num_frames, height, width, 3), dtype=np.uint8)
    inputs = prepare_inputs(processor, QUESTION, Video.from_frames(frames, fps=1.0))
    any_config = cast(Any, config)
    merged = structure = 0
    if "video_grid_thw" in inputs:
        frames_of_tower, rows, columns = inputs["video_grid_thw"][0].tolist()
        patches = rows * columns
        side = inputs["video_merge_sizes"].item() if "video_merge_sizes" in inputs else None
        tokens = patches // (side or any_config.vision_config.spatial_merge_size) ** 2
        merged = frames_of_tower * tokens
    else:
        frames_of_tower = num_frames
        patches = (_side(any_config.vision_config.image_size) // _side(any_config.vision_config.patch_size)) ** 2
        placeholders = int((~_is_text(inputs["input_ids"], any_config)).sum())
        tokens = placeholders // num_frames  # a newline after the whole video is none of a frame's
        if hasattr(any_config, "patches_per_side"):  # LLaVA-Video, which has a newline after each row
            tokens = pooled_side(any_config.patches_per_side, any_config.spatial_pool_mode) ** 2
        structure = placeholders - num_frames * tokens
        if hasattr(any_config, "tokens_per_tile"):
            merged = num_frames * tokens
    return VideoSize(
        patches=frames_of_tower * patches,
        patches_per_frame=patches,
        merged=merged,
        num_frames=frames_of_tower,
        tokens_per_frame=tokens,
        structure=structure,
        text=_text_around(processor, inputs["input_ids"][0], any_config),
    )


def _text_around(processor: ProcessorMixin, input_ids: torch.Tensor, config: Any) -> int:
    """Return how many tokens of a prompt with a video are text that the processor wrote because of the video."""
    is_text = _is_text(input_ids, config)
    tokenizer = cast(Any, processor).tokenizer
    chat: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    without = processor.apply_chat_template(chat, add_generation_prompt=True)
    return _pieces(tokenizer.decode(input_ids[is_text])) - _pieces(cast(str, without))


def _is_text(input_ids: torch.Tensor, config: Any) -> torch.Tensor:
    """Return which tokens of a prompt are no placeholders. Those of a video may have the id of images."""
    return (input_ids != config.video_token_id) & (input_ids != config.image_token_id)


def _side(size: int | Sequence[int]) -> int:
    """Return the side of a square, which some configs give as (height, width)."""
    return size if isinstance(size, int) else size[0]


def _pieces(text: str) -> int:
    """Count special tokens, words, digits and signs."""
    return len(re.findall(r"<\|.*?\|>|</?[a-zA-Z]+>|\d|[^\W\d]+|[^\w\s]", text))
