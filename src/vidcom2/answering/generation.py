"""The one way to an answer: videos are encoded, they are compressed with the settings of a call, and a batch of prompts
about them generates.

`prompting.py` makes the inputs. Whoever asks decides what is encoded together, and for how many settings; whoever
measures passes a `StageHook`, which hears where each stage ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..configuration.compression_methods import COMPRESSION_METHODS
from ..configuration.compression_settings import CompressionSettings
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.video_compression import VideoTokens
from .prompting import video_arguments

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

STAGES = {
    "read": "opening the file, finding the frames and decoding them",
    "preprocess": "the processor: resizing, normalising, the prompt; and copying to the device",
    "vision": "the vision tower with projector and pooling",
    "compression": "choosing the tokens, and taking their features",
    "prompt": "shortening the prompt, its embeddings and positions",
    "prefill": "the language model over the prompt, and the first token",
    "decode": "the other tokens",
}


class StageHook:
    """Hears of an answer while it is made. This one does nothing with it."""

    def ended(self, stage: str) -> None:
        """One of `STAGES` has ended, and the next one begins. Each step of decoding ends on its own."""

    def language_model_starts(self, num_tokens: int, position_ids: Tensor | None) -> None:
        """The language model is called with so many tokens of each prompt."""


NO_HOOK = StageHook()


@dataclass(frozen=True, eq=False)
class EncodedVideos:
    """Videos that were encoded together, as the model takes them, and what its vision tower makes of them.

    Attributes:
        inputs: `pixel_values_videos` and sizes.
        outputs: the parent's features: `pooler_output` has an entry (placeholders, dim) for each video, all tokens with
            structure.
        tokens: of each video those that are scored.
        update_ratio: the `vision_update_ratio` that they were encoded with.
    """

    inputs: dict[str, Any]
    outputs: VidCom2VideoFeatures
    tokens: Sequence[VideoTokens]
    update_ratio: float

    def on(self, device: torch.device | str) -> "EncodedVideos":
        """What `compress` needs of them, on another device: their pixels are left out."""
        layers = self.outputs.deepstack_features
        outputs = VidCom2VideoFeatures(
            pooler_output=tuple(each.to(device) for each in self.outputs.pooler_output),
            deepstack_features=None if layers is None else [tuple(each.to(device) for each in one) for one in layers],
        )
        tokens = [
            replace(
                video,
                tokens=video.tokens.to(device),
                tower_states=None if video.tower_states is None else video.tower_states.to(device),
            )
            for video in self.tokens
        ]
        return replace(self, inputs={}, outputs=outputs, tokens=tokens)


@dataclass(frozen=True, eq=False)
class Batch:
    """Questions that are answered together.

    Attributes:
        inputs: what the processor makes of them, but no pixels: `input_ids` and `attention_mask` (B, L), padded on the
            left, and the sizes and times of the videos.
        videos: B of them, each encoded on its own; questions about the same video may share it.
    """

    inputs: dict[str, Any]
    videos: tuple[EncodedVideos, ...]


@torch.no_grad()
def encode(
    model: "VidCom2GenerationMixin",
    inputs: Mapping[str, Any],
    settings: CompressionSettings,
    methods: Iterable[str] = (),
    hook: StageHook = NO_HOOK,
) -> EncodedVideos:
    """Run the vision tower over videos.

    Args:
        inputs: of the processor, or of them what describes videos, on the model's device.
        settings: that say how the vision tower runs, and that the videos will be compressed with.
        methods: that they will be compressed with as well.

    Raises:
        ValueError: on a video that the model refuses.
    """
    described = video_arguments(model, inputs)
    compared = (settings.compression_method, *methods)
    with_tower_states = any("tower_states" in COMPRESSION_METHODS[method].needs for method in compared)
    outputs, tokens = model.model.encode_videos_by(settings, with_tower_states, **described)
    # Without the tower's own states, which a batch of videos would fill the memory with.
    kept = VidCom2VideoFeatures(
        pooler_output=outputs.pooler_output, deepstack_features=outputs.get("deepstack_features")
    )
    hook.ended("vision")
    return EncodedVideos(described, kept, tokens, settings.vision_update_ratio)


@torch.no_grad()
def compress(
    model: "VidCom2GenerationMixin",
    videos: EncodedVideos,
    settings: CompressionSettings,
    hook: StageHook = NO_HOOK,
) -> VidCom2VideoFeatures:
    """What stays of encoded videos, which may be compressed with several settings.

    Raises:
        ValueError: on settings that the method refuses for one of the videos, and on another `vision_update_ratio` than
            the one that they were encoded with.
    """
    if settings.vision_update_ratio != videos.update_ratio:
        raise ValueError(
            f"`vision_update_ratio` is {settings.vision_update_ratio!r} for one of several methods, but their videos "
            f"are encoded once for all, with the model's {videos.update_ratio!r}. Compare ratios in runs of their own."
        )
    features = model.model.compressed_features(videos.outputs, videos.tokens, settings)
    hook.ended("compression")
    return features


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


@torch.no_grad()
def generate(
    model: "VidCom2GenerationMixin",
    prompts: Mapping[str, Any],
    features: VidCom2VideoFeatures,
    positions: str,
    hook: StageHook = NO_HOOK,
    **arguments: Any,
) -> Tensor:
    """Answer a batch of prompts whose videos are encoded.

    Args:
        prompts: `input_ids` (B, L) and the processor's other inputs, on the model's device; pixels are left out.
        features: of their videos, as `compress` returns them, or the `outputs` of `encode`: all tokens.
        positions: `compression_positions`; the other settings are in the features.
        arguments: of `generate`. It decodes greedily unless told `do_sample=True`.

    Returns:
        Ids of the new tokens (B, n), padding after the end of each answer.

    Raises:
        ValueError: on a batch or arguments that the model refuses.
    """
    keeps_all = features.video_compressions is None
    of_call = {"retention_ratio": 1.0} if keeps_all else {"compression_positions": positions}
    with _borders_of_language_model(model, hook):
        output: Any = model.generate(
            **{name: value for name, value in prompts.items() if name != "pixel_values_videos"},
            mm_encoder_outputs={"video": features},
            **of_call,
            **{"do_sample": False, **arguments},
        )
    return output[:, prompts["input_ids"].shape[1] :]


@contextmanager
def _borders_of_language_model(model: "VidCom2GenerationMixin", hook: StageHook) -> Iterator[None]:
    """Tell a hook where each call of the language model starts, and of the end."""
    if hook is NO_HOOK:
        yield
        return
    running = ["prompt"]  # the stage that runs

    def before(module: Any, args: Any, kwargs: Any) -> None:
        hook.ended(running[0])
        running[0] = "prefill" if running[0] == "prompt" else "decode"
        hook.language_model_starts(kwargs["inputs_embeds"].shape[1], kwargs.get("position_ids"))

    handle = model.get_decoder().register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
        hook.ended(running[0])
    finally:
        handle.remove()
