"""What all families share in vLLM: each video brings settings, and has as many placeholders as tokens of it stay."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import PromptReplacement, PromptUpdate
from vllm.transformers_utils.config import uses_mrope

from ..configuration.compression_settings import CompressionSettings
from ..modeling.methods.compression import compress_with
from ..modeling.methods.video_compression import VideoCompression, VideoTokens
from .settings import RATIO, engine_settings, kept_tokens, settings_of_request, without_settings

SETTINGS = "vidcom2_settings"  # what travels with a video from the processor to the model

# What vLLM's own classes, further back in the bases, bring along.
VllmProcessor: Any = object
VllmModel: Any = object


class CompressedVideosProcessor(VllmProcessor):
    """Comes before vLLM's processor in the bases of a family's. A family adds `size_of`, and `placeholders` if a video
    has more of them than kept tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = engine_settings(self.info.get_hf_config())

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Frames, and rows and columns of a frame's scored tokens, of what vLLM's processor made of a video."""
        raise NotImplementedError

    def placeholders(self, video: Any, kept: int) -> Any:
        """What stands in the prompt for a video of which so many tokens stay."""
        return [self.info.get_hf_config().video_token_id] * kept

    def request_settings(self, processor_kwargs: Mapping[str, object]) -> CompressionSettings:
        """Those of the videos of a request with these `mm_processor_kwargs`."""
        return settings_of_request(self.settings, processor_kwargs, uses_mrope(self.info.get_hf_config()))

    def settings_of_features(self, settings: CompressionSettings) -> dict[str, Any]:
        """On which the features of a video depend, in a request with these settings."""
        return settings.as_dict()

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, for the most that a request can ask for: all tokens."""
        inputs = super().get_dummy_inputs(*args, **kwargs)
        inputs.hf_processor_mm_kwargs = {**inputs.hf_processor_mm_kwargs, RATIO: 1.0}
        return inputs

    def _get_mm_hashes(self, inputs: Any) -> Any:
        """As the parent's, with the settings that hold for the request, be they its own or the repo's: caches of vLLM
        may live longer than an engine, and belong to several."""
        asked = inputs.hf_processor_mm_kwargs
        settings = self.settings_of_features(self.request_settings(asked))
        hashes = dict(super()._get_mm_hashes(replace(inputs, hf_processor_mm_kwargs=without_settings(asked))))
        if "video" in hashes:
            algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
            hashes["video"] = [
                MultiModalHasher.hash_kwargs(algorithm, video=each, settings=settings) for each in hashes["video"]
            ]
        return hashes

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        fields = super()._get_mm_fields_config(hf_inputs, without_settings(hf_processor_mm_kwargs))
        return {**fields, SETTINGS: MultiModalFieldConfig.batched("video", keep_on_cpu=True)}

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        settings = self.request_settings(hf_kwargs)
        outputs = super()._apply_hf_processor_main(mm_items, without_settings(hf_kwargs))
        num_videos = mm_items.get_all_counts().get("video", 0)
        if num_videos:
            outputs[SETTINGS] = [as_tensor(settings)] * num_videos
        return outputs

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> Sequence[PromptUpdate]:
        def placeholders(item: int) -> Any:
            video = out_mm_kwargs["video"][item]
            num_frames, grid = self.size_of(video)
            settings = from_tensor(video[SETTINGS].data)
            return self.placeholders(video, kept_tokens(settings, num_frames, grid))

        return [
            PromptReplacement(modality="video", target=update.target, replacement=placeholders)
            if update.modality == "video"
            else update
            for update in super()._get_prompt_updates(mm_items, without_settings(hf_processor_mm_kwargs), out_mm_kwargs)
        ]


def as_tensor(settings: CompressionSettings) -> Tensor:
    """(bytes,) uint8: settings as vLLM sends them between its processes, which takes nothing but numbers."""
    return torch.tensor(list(json.dumps(settings.as_dict()).encode()), dtype=torch.uint8)


def from_tensor(settings: Tensor) -> CompressionSettings:
    """What `as_tensor` was given."""
    return CompressionSettings(**json.loads(bytes(settings.tolist())))


class CompressedVideosModel(VllmModel):
    """Comes before vLLM's model in the bases of a family's. A family adds `one_by_one` and `compressed_video`."""

    def embed_multimodal(self, **kwargs: Any) -> Any:
        """As the parent's, of the kept tokens of each video. vLLM asks for one modality at a time.

        The tower has one video at a time: vLLM's budget for it counts tokens that are left, not frames.
        """
        of_videos = kwargs.pop(SETTINGS, None)
        if of_videos is None:
            return super().embed_multimodal(**kwargs)
        kept = []
        for video, settings in zip(self.one_by_one(**kwargs), of_videos, strict=True):
            (features,) = super().embed_multimodal(**video)
            kept.append(self.compressed_video(features, from_tensor(settings), **video))
        return tuple(kept)

    def one_by_one(self, **kwargs: Any) -> Iterator[dict[str, Any]]:
        """The arguments of `embed_multimodal` for some videos -> those for each of them."""
        raise NotImplementedError

    def compressed_video(self, features: Tensor, settings: CompressionSettings, **kwargs: Any) -> Tensor:
        """The parent's features of a video -> what takes the place of its placeholders."""
        raise NotImplementedError

    def compression_of(self, tokens: Tensor, grid: tuple[int, int], settings: CompressionSettings) -> VideoCompression:
        """Of the scored tokens (T, M, D), as many as the processor has told vLLM.

        Raises:
            ValueError: if the method keeps another number.
        """
        compression = compress_with(settings, VideoTokens(tokens, grid))
        expected = kept_tokens(settings, len(tokens), grid)
        if len(compression.indices) != expected:
            raise ValueError(
                f"`compression_method={settings.compression_method!r}` keeps {len(compression.indices)} of "
                f"{compression.num_tokens} tokens at a ratio of {settings.retention_ratio}, but {expected} of a video "
                "that shows nothing, and vLLM counts before it has seen a video. Choose a method that keeps the same "
                "number of any."
            )
        return compression
