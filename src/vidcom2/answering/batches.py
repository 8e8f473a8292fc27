"""Videos that are encoded one at a time, and prompts of one video each that share a call of `generate`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..configuration.compression_methods import COMPRESSION_METHODS
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.video_compression import VideoTokens

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin


@dataclass(frozen=True, eq=False)
class EncodedVideo:
    """A video as the model takes it, and what its vision tower makes of it.

    Attributes:
        inputs: `pixel_values_videos` and sizes, as of a batch of one.
        outputs: the parent's features: `pooler_output` has one entry (placeholders, dim), all tokens with structure.
        tokens: those that are scored.
    """

    inputs: dict[str, Any]
    outputs: VidCom2VideoFeatures
    tokens: VideoTokens


@dataclass(frozen=True, eq=False)
class Batch:
    """Questions that are answered together.

    Attributes:
        inputs: what the processor makes of them, but no pixels: `input_ids` and `attention_mask` (B, L), padded on the
            left, and the sizes and times of the videos.
        videos: B of them; questions about the same video may share it.
    """

    inputs: dict[str, Any]
    videos: tuple[EncodedVideo, ...]


def needs_tower_states(methods: Iterable[str]) -> bool:
    """Whether one of the compression methods looks at the vision tower."""
    return any("tower_states" in COMPRESSION_METHODS[method].needs for method in methods)


def encoded(model: "VidCom2GenerationMixin", described: dict[str, Any], with_tower_states: bool) -> EncodedVideo:
    """Run the vision tower over one video.

    Args:
        described: as `video_arguments` returns it, on the model's device.
        with_tower_states: whether a method will look at them.

    Raises:
        ValueError: on a video that the model refuses.
    """
    settings = model.config.compression_settings()
    outputs, tokens = model.model.encode_videos_by(settings, with_tower_states, **described)
    # Without the tower's own states, which a batch of videos would fill the memory with.
    kept = VidCom2VideoFeatures(
        pooler_output=outputs.pooler_output, deepstack_features=outputs.get("deepstack_features")
    )
    return EncodedVideo(described, kept, tokens[0])


def joined(features: Sequence[VidCom2VideoFeatures]) -> VidCom2VideoFeatures:
    """Those of several videos as of one call."""
    deepstack = None
    if features[0].deepstack_features is not None:
        layers = zip(*(each.deepstack_features or () for each in features), strict=True)
        deepstack = [tuple(video for of_one in layer for video in of_one) for layer in layers]
    return VidCom2VideoFeatures(
        pooler_output=tuple(video for each in features for video in each.pooler_output),
        video_compressions=tuple(video for each in features for video in each.video_compressions),
        deepstack_features=deepstack,
    )


def padded(prompts: Sequence[dict[str, Tensor]], tokenizer: Any) -> dict[str, Tensor]:
    """Prompts of one question each as one batch, padded on the left."""
    length = max(prompt["input_ids"].shape[1] for prompt in prompts)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    batch = {}
    for name in prompts[0]:
        values = [prompt[name] for prompt in prompts]
        if values[0].shape == prompts[0]["input_ids"].shape:  # an entry for each token, 0 at padding
            fill = pad if name == "input_ids" else 0
            values = [nn.functional.pad(value, (length - value.shape[1], 0), value=fill) for value in values]
        batch[name] = torch.cat(values)
    return batch
