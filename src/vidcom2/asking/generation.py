"""The one way to an answer: encode videos, compress them with the settings of a call, and generate for a batch of
prompts about them.

`prompting.py` makes the inputs. The caller decides which videos are encoded together, and with how many settings they
are compressed. To measure, it passes a `StageHook`, which is told when each stage ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    ProcessorMixin,
    StoppingCriteria,
    StoppingCriteriaList,
)

from ..configuration.compression_settings import CompressionSettings
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.compression import VideoTokens
from .prepared_video import VideoPrompt
from .prompting import OF_TEXTS, OF_VIDEOS, padded, video_arguments

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

STAGES = {
    "read": "opening the file, finding the frames and decoding them",
    "preprocess": "the processor, which resizes, normalises and makes the prompt, and the copy to the device",
    "vision": "the vision tower with projector and pooling",
    "compression": "choosing the tokens and taking their features",
    "prompt": "writing the prompt for the tokens that stay, its embeddings and its positions",
    "prefill": "the language model's pass over the prompt, and the first token",
    "decode": "the other tokens",
}


class StageHook:
    """Is told about the stages of an answer while it is made. This base class ignores what it is told."""

    def ended(self, stage: str) -> None:
        """Called when one of `STAGES` ends and the next begins. Each step of decoding ends on its own."""

    def language_model_starts(self, num_tokens: int, position_ids: Tensor | None) -> None:
        """Called before each call of the language model, with the number of tokens of each prompt in it."""


NO_HOOK = StageHook()


@dataclass(frozen=True, eq=False)
class EncodedVideos:
    """Videos that were encoded together: the model's inputs, and the features that its vision tower computed.

    Attributes:
        inputs: `pixel_values_videos` and sizes.
        outputs: the parent's features. `pooler_output` has an entry (placeholders, dim) for each video, with all of its
            tokens, structure tokens included.
        tokens: the scored tokens of each video.
        vision_settings: the settings that they were encoded with.
    """

    inputs: dict[str, Any]
    outputs: VidCom2VideoFeatures
    tokens: Sequence[VideoTokens]
    vision_settings: dict[str, Any]

    def on(self, device: torch.device | str) -> "EncodedVideos":
        """What `keep_tokens` needs of them, on another device: their pixels are left out."""
        layers = self.outputs.deepstack_features
        outputs = VidCom2VideoFeatures(
            pooler_output=tuple(each.to(device) for each in self.outputs.pooler_output),
            deepstack_features=None if layers is None else [tuple(each.to(device) for each in one) for one in layers],
        )
        tokens = [replace(video, tokens=video.tokens.to(device)) for video in self.tokens]
        return replace(self, inputs={}, outputs=outputs, tokens=tokens)


@dataclass(frozen=True, eq=False)
class Batch:
    """Questions that are answered together.

    Attributes:
        prompts: B questions.
        videos: their B videos, each encoded on its own. Questions about the same video may share one object.
    """

    processor: ProcessorMixin
    prompts: tuple[VideoPrompt, ...]
    videos: tuple[EncodedVideos, ...]

    def inputs(self, model: "VidCom2GenerationMixin", features: Sequence[VidCom2VideoFeatures]) -> dict[str, Any]:
        """Return the model's inputs for these features of the videos, without pixels: `input_ids` and `attention_mask`
        (B, L), padded on the left, and the sizes and times of the videos."""
        pairs = zip(self.prompts, features, strict=True)
        written = [prompt.inputs(self.processor, model, of_video) for prompt, of_video in pairs]
        return padded(written, cast(Any, self.processor).tokenizer)


@torch.no_grad()
def run_tower(
    model: "VidCom2GenerationMixin",
    inputs: Mapping[str, Any],
    settings: CompressionSettings,
    hook: StageHook = NO_HOOK,
) -> EncodedVideos:
    """Run the vision tower over videos.

    Args:
        inputs: the processor's outputs, or at least those that describe videos, on the model's device.
        settings: how the vision tower runs. The others are not read.

    Raises:
        ValueError: on a video that the model refuses.
    """
    described = video_arguments(model, inputs)
    outputs, tokens = model.model.encode_videos(settings=settings, **described)
    # Drop the tower's own states, which would fill the memory for a batch of videos.
    kept = VidCom2VideoFeatures(
        pooler_output=outputs.pooler_output, deepstack_features=outputs.get("deepstack_features")
    )
    hook.ended("vision")
    return EncodedVideos(described, kept, tokens, settings.vision_settings())


@torch.no_grad()
def keep_tokens(
    model: "VidCom2GenerationMixin",
    videos: EncodedVideos,
    settings: CompressionSettings,
    hook: StageHook = NO_HOOK,
) -> VidCom2VideoFeatures:
    """Return the features of encoded videos that stay under these settings. Call it again to try other settings.

    Raises:
        ValueError: on settings that the method refuses for one of the videos, and on settings for the vision tower
            other than those that the videos were encoded with.
    """
    _check_encoded_alike(settings, videos.vision_settings)
    features = model.model.compressed_features(videos.outputs, videos.tokens, settings)
    hook.ended("compression")
    return features


def _check_encoded_alike(settings: CompressionSettings, encoded_with: Mapping[str, Any]) -> None:
    """Check that settings go with videos that are encoded once, for several methods.

    Args:
        encoded_with: the `vision_settings` of the videos.

    Raises:
        ValueError: if they ask for another encoding.
    """
    asked = settings.vision_settings()
    for name in [*asked, *encoded_with]:
        if asked.get(name) != encoded_with.get(name):
            raise ValueError(
                f"`{name}` is {getattr(settings, name)!r} for one of several methods, but their video is encoded once "
                f"for all, with {', '.join(f'`{k}={v!r}`' for k, v in encoded_with.items())}. "
                "For `vidcom2 bench`, leave --encode-once out."
            )


def joined(features: Sequence[VidCom2VideoFeatures]) -> VidCom2VideoFeatures:
    """Join the features of several calls into those of one call, in the same order."""
    deepstack = None
    if features[0].deepstack_features is not None:
        layers = zip(*(each.deepstack_features or () for each in features), strict=True)
        deepstack = [tuple(video for level in layer for video in level) for layer in layers]
    return VidCom2VideoFeatures(
        pooler_output=tuple(video for each in features for video in each.pooler_output),
        video_compressions=tuple(video for each in features for video in each.video_compressions),
        deepstack_features=deepstack,
    )


class NumbersAlone(LogitsProcessor):
    """Refuses logits that are not numbers. `generate` would take token 0 for the answer, such as "!!!"."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores as they are.

        Raises:
            ValueError: if one of them is not a number.
        """
        if bool(scores.isnan().any()):
            raise ValueError(
                "the model's logits are not numbers (NaN): values are beyond the range of its dtype, or its weights "
                "are damaged. Load it in another dtype, such as bfloat16."
            )
        return scores


@torch.no_grad()
def generate_answers(
    model: "VidCom2GenerationMixin",
    prompts: Mapping[str, Any],
    features: VidCom2VideoFeatures | None,
    positions: str,
    hook: StageHook = NO_HOOK,
    **arguments: Any,
) -> Any:
    """Answer a batch of prompts whose videos are encoded.

    Args:
        prompts: what `VideoPrompt.inputs` returns for these features: `input_ids` (B, L) and others, on the model's
            device. Only those of `OF_TEXTS` and `OF_VIDEOS` are read.
        features: the features of their videos, as `keep_tokens` returns them. To keep all tokens, the `outputs` of
            `run_tower`. None if a KV cache among the arguments holds the videos.
        positions: the setting `compression_positions`. The features reflect all other settings already.
        arguments: arguments of `generate`. It decodes greedily unless told `do_sample=True`.

    Returns:
        Ids of the new tokens (B, n), with padding after the end of each answer. With `return_dict_in_generate`, what
        Transformers returns.

    Raises:
        ValueError: on a batch or arguments that the model refuses, and on logits that are not numbers.
    """
    keeps_all = features is not None and features.video_compressions is None
    encoded = {} if features is None else {"mm_encoder_outputs": {"video": features}}
    call_settings = {"retention_ratio": 1.0} if keeps_all else {"compression_positions": positions}
    processors = LogitsProcessorList([*(arguments.pop("logits_processor", None) or ()), NumbersAlone()])
    on_static_cache = is_static(model, arguments)
    with _borders_of_language_model(model, hook, on_static_cache) as criteria:
        if criteria:
            arguments["stopping_criteria"] = StoppingCriteriaList(
                [*(arguments.get("stopping_criteria") or ()), *criteria]
            )
        output = model.generate(
            **{name: prompts[name] for name in (*OF_TEXTS, *OF_VIDEOS) if name in prompts},
            **encoded,
            **call_settings,
            logits_processor=processors,
            **{"do_sample": False, "return_dict_in_generate": False, "num_return_sequences": 1, **arguments},
        )
    return output[:, prompts["input_ids"].shape[1] :] if isinstance(output, Tensor) else output


def is_static(model: Any, arguments: Mapping[str, Any]) -> bool:
    """Tell whether `generate` makes a static KV cache, by its arguments or by the model's generation config."""
    return "static" in (arguments.get("cache_implementation") or model.generation_config.cache_implementation or "")


class _EndsOfSteps(StoppingCriteria):
    """Tells a hook when each new token is chosen, and stops nothing. Steps that are compiled cannot tell it
    themselves: a hook of a module would be a part of their graph, and break it.

    Attributes:
        position_ids: those of the prefill, once it has begun.
    """

    def __init__(self, hook: StageHook) -> None:
        self.hook, self.position_ids, self._num_tokens = hook, cast("Tensor | None", None), 0

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        if self._num_tokens:
            last = self.position_ids
            self.hook.language_model_starts(1, None if last is None else last[..., -1:] + self._num_tokens)
        self.hook.ended("decode" if self._num_tokens else "prefill")
        self._num_tokens += 1
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@contextmanager
def _borders_of_language_model(
    model: "VidCom2GenerationMixin", hook: StageHook, on_static_cache: bool
) -> Iterator[list[StoppingCriteria]]:
    """Tell a hook when each call of the language model starts, and when the last one ends.

    Yields:
        What `generate` needs for that besides.
    """
    if hook is NO_HOOK:
        yield []
        return
    running = ["prompt"]  # the current stage
    ends = _EndsOfSteps(hook)

    def before(module: Any, args: Any, kwargs: Any) -> None:
        hook.ended(running[0])
        running[0] = "prefill" if running[0] == "prompt" else "decode"
        hook.language_model_starts(kwargs["inputs_embeds"].shape[1], kwargs.get("position_ids"))
        if on_static_cache:
            ends.position_ids = kwargs.get("position_ids")
            handle.remove()  # before the steps, which Transformers may compile

    handle = model.get_decoder().register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield [ends] if on_static_cache else []
        if not on_static_cache:
            hook.ended(running[0])
    finally:
        handle.remove()
