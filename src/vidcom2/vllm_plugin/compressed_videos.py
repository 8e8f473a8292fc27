"""The part that all families share in vLLM: each video carries its settings, and has a placeholder per kept token."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.parse import VideoProcessorItems
from vllm.multimodal.processing import PromptReplacement, PromptUpdate, PromptUpdateDetails

from ..configuration.compression_settings import CompressionSettings
from ..families.table import FAMILIES
from ..modeling.methods.compression import VideoCompression, VideoTokens, compress_with
from .settings import (
    RequestBounds,
    engine_settings,
    has_mrope_positions,
    kept_tokens,
    settings_of_request,
    without_settings,
)

SETTINGS = "vidcom2_settings"  # the field of a video that carries its settings from the processor to the model

SHARED = ("video_token_id",)  # arguments of InternVL's that are the same for all videos

# These stand for vLLM's own classes, which come later in a family's bases.
VllmProcessor: Any = object
VllmModel: Any = object


class DummyKwargs(dict[str, object]):
    """The `mm_processor_kwargs` of vLLM's own dummy inputs. No client can send these, so no bounds apply to them."""


class CompressedVideosProcessor(VllmProcessor):
    """A mixin that `with_processor` puts before vLLM's processor for a family. A family adds `size_of`, and also
    `placeholders` if its videos have more placeholders than kept tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = engine_settings(self.info.get_hf_config())
        self.bounds = RequestBounds.of_config(self.info.get_hf_config())

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of scored tokens in a frame, of a processed video."""
        raise NotImplementedError

    @property
    def video_token_id(self) -> int:
        """The id of a video's placeholders."""
        return self.info.get_hf_config().video_token_id

    def placeholders(self, video: Any, kept: int) -> Any:
        """Return the ids that stand in the prompt for a video of which `kept` tokens stay."""
        return [self.video_token_id] * kept

    def text_before(self, number: int) -> list[int]:
        """Return the ids of the text that stands before the video of this number, from 0, and depends on it. It is no
        part of the video's features, which other prompts reuse."""
        return []

    def _with_text_before(self, number: int, placeholders: list[int]) -> PromptUpdateDetails:
        text = self.text_before(number)
        return (
            PromptUpdateDetails(text + placeholders, is_embed=lambda full: torch.arange(len(full)) >= len(text))
            if text
            else PromptUpdateDetails(placeholders)
        )

    def request_settings(self, processor_kwargs: Mapping[str, object]) -> CompressionSettings:
        """Return the settings for the videos of a request with these `mm_processor_kwargs`."""
        has_mrope = has_mrope_positions(self.info.get_hf_config())
        bounds = RequestBounds() if isinstance(processor_kwargs, DummyKwargs) else self.bounds
        return settings_of_request(self.settings, processor_kwargs, has_mrope, bounds)

    def settings_of_features(self, settings: CompressionSettings) -> dict[str, Any]:
        """Return all settings on which a video's features depend, in a request with these `settings`."""
        config = self.info.get_hf_config()
        return settings.as_dict() | {name: getattr(config, name) for name in FAMILIES[config.model_type].settings}

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """Return the parent's dummy inputs for the most that a request can ask for; without bounds, all tokens."""
        inputs = super().get_dummy_inputs(*args, **kwargs)
        num_frames = 0
        if inputs.mm_data_items.get_all_counts().get("video", 0):
            num_frames = inputs.mm_data_items.get_items("video", VideoProcessorItems).get_num_frames(0)
        most = self.bounds.most(self.settings, num_frames)
        inputs.hf_processor_mm_kwargs = DummyKwargs({**inputs.hf_processor_mm_kwargs, **most})
        return inputs

    def _get_mm_hashes(self, inputs: Any) -> Any:
        """Add to the parent's hashes the settings of the request, whether they are its own or the repo's. vLLM's caches
        may outlive an engine and may be shared by several, so the repo's settings must count too."""
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
        of_videos = hf_inputs.pop(SETTINGS, None)  # vLLM's Transformers backend warns of a field that it does not know
        fields = super()._get_mm_fields_config(hf_inputs, without_settings(hf_processor_mm_kwargs))
        if of_videos is not None:
            hf_inputs[SETTINGS] = of_videos
        return {**fields, SETTINGS: MultiModalFieldConfig.batched("video", keep_on_cpu=True)}

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        settings = self.request_settings(hf_kwargs)
        outputs = super()._apply_hf_processor_main(mm_items, without_settings(hf_kwargs))
        num_videos = mm_items.get_all_counts().get("video", 0)
        if num_videos:
            outputs[SETTINGS] = [as_tensor(settings)] * num_videos
        return outputs

    def _recompute_cached_prompt_update(self, cached_update: Any, new_item_idx: int) -> Any:
        """Return the update of a video that vLLM's cache has, for its place in another prompt."""
        if cached_update.modality != "video":
            return super()._recompute_cached_prompt_update(cached_update, new_item_idx)
        length = len(self.text_before(cached_update.item_idx))
        content = self._with_text_before(new_item_idx, cached_update.content.full[length:])
        return replace(cached_update, item_idx=new_item_idx).with_content(content)

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> Sequence[PromptUpdate]:
        def placeholders(item: int) -> Any:
            video = out_mm_kwargs["video"][item]
            num_frames, grid = self.size_of(video)
            settings = from_tensor(video[SETTINGS].data)
            return self._with_text_before(item, self.placeholders(video, kept_tokens(settings, num_frames, grid)))

        return [
            PromptReplacement(modality="video", target=update.target, replacement=placeholders)
            if update.modality == "video"
            else update
            for update in super()._get_prompt_updates(mm_items, without_settings(hf_processor_mm_kwargs), out_mm_kwargs)
        ]


def check_frame_size(frames: Tensor, hf_config: Any) -> None:
    """Check that frames (..., height, width) have the tower's size.

    Raises:
        ValueError: if they have another, which would otherwise stop the engine mid-step.
    """
    size = hf_config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    if frames.shape[-2:] != (height, width):
        raise ValueError(
            f"`mm_processor_kwargs` makes frames of {frames.shape[-2]} × {frames.shape[-1]} pixels, but the model's "
            f"vision tower takes {height} × {width}. Leave `size`, `crop_size` and `do_resize` out."
        )


def as_tensor(settings: CompressionSettings) -> Tensor:
    """Return the settings as (bytes,) uint8, because vLLM sends only numbers between its processes."""
    return torch.tensor(list(json.dumps(settings.as_dict()).encode()), dtype=torch.uint8)


def from_tensor(settings: Tensor) -> CompressionSettings:
    """Return the settings that `as_tensor` was given."""
    return CompressionSettings(**json.loads(bytes(settings.tolist())))


def with_processor(mixin: type[CompressedVideosProcessor], info: Any = None) -> Callable[[Any], Any]:
    """Return a decorator of a family's model that puts a mixin before the processor of vLLM's own model.

    Args:
        info: replaces vLLM's class for the sizes of the family's images and videos.
    """

    def registered(model_class: Any) -> Any:
        vllms = model_class._processor_factory
        processor = type(mixin.__name__, (mixin, vllms.processor), {})
        register = MULTIMODAL_REGISTRY.register_processor
        return register(processor, info=info or vllms.info, dummy_inputs=vllms.dummy_inputs)(model_class)

    return registered


class CompressedVideosModel(VllmModel):
    """A mixin that stands before vLLM's model in the bases of a family's model. A family adds `compressed_video`, and
    also `rows_of_videos` if vLLM joins what it knows of several videos."""

    def embed_multimodal(self, **kwargs: Any) -> Any:
        """Return what the parent does, but only the kept tokens of each video. vLLM asks for one modality at a time.

        The tower gets one video at a time, because vLLM's budget for it counts kept tokens, not frames.
        """
        of_videos = kwargs.pop(SETTINGS, None)
        if of_videos is None:
            return super().embed_multimodal(**kwargs)
        videos = self._one_by_one(len(of_videos), kwargs)
        return tuple(self.kept_of_video(from_tensor(each), **video) for each, video in zip(of_videos, videos))

    def kept_of_video(self, settings: CompressionSettings, **video: Any) -> Tensor:
        """Return the features that take the place of a video's placeholders.

        Args:
            **video: the arguments of `embed_multimodal` for this video.
        """
        (features,) = super().embed_multimodal(**video)
        return self.compressed_video(features, settings, **video)

    def _one_by_one(self, num_videos: int, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Split the arguments of `embed_multimodal` for several videos into the arguments for each."""
        of_all = self.rows_of_videos(**arguments)
        rows = {name: arguments[name].split(of_all[name].tolist()) for name in of_all.keys() & arguments.keys()}
        for i in range(num_videos):
            yield {
                name: rows[name][i] if name in rows else each if name in SHARED else each[i : i + 1]
                for name, each in arguments.items()
            }

    def rows_of_videos(self, **kwargs: Any) -> Mapping[str, Tensor]:
        """Return (num_videos,) how many rows each video has, by the arguments in which the rows of all are joined. The
        others have an entry for each video."""
        return {}

    def compressed_video(self, features: Tensor, settings: CompressionSettings, **kwargs: Any) -> Tensor:
        """Turn the parent's features of a video into those that take the place of its placeholders."""
        raise NotImplementedError

    def compression_of(
        self, tokens: Tensor, grid: tuple[int, int], settings: CompressionSettings, layout: Any = None
    ) -> VideoCompression:
        """Select from the scored tokens (T, M, D) as many as the processor has told vLLM.

        Raises:
            ValueError: if the method keeps another number of them.
        """
        compression = compress_with(settings, VideoTokens(tokens, grid, layout=layout))
        expected = kept_tokens(settings, len(tokens), grid)
        if len(compression.indices) != expected:
            raise ValueError(
                f"`compression_method={settings.compression_method!r}` keeps {len(compression.indices)} of "
                f"{compression.num_tokens} tokens at a ratio of {settings.retention_ratio}, but keeps {expected} of an "
                "empty video of this size, and vLLM counts tokens before it has seen the video. Choose a method that "
                "keeps the same number whatever a video shows."
            )
        return compression


class WithoutTowerGraphs(VllmModel):
    """A mixin for the families whose tower vLLM would run in CUDA graphs, which bypass `embed_multimodal`."""

    def get_encoder_cudagraph_config(self) -> Any:
        """Use no CUDA graphs of the tower, for any modality."""
        return replace(super().get_encoder_cudagraph_config(), modalities=[])


def with_integers(features: Tensor, integers: Tensor) -> Tensor:
    """Append integers (n, k) to features (n, dim). vLLM keeps both together, for later requests too."""
    # Their bits are stored, because bfloat16 has no numbers like 257.
    bits = integers.to(features.device, torch.int32).view(features.dtype)
    return torch.cat([features, bits], dim=1)


def without_integers(features: Sequence[Tensor], width: int, num_integers: int) -> tuple[list[Tensor], Tensor]:
    """Return each item's features (n, width), and the integers (N, k) int32 of all. Those of items to which none were
    appended, such as images, are zero."""
    integers = [
        each[:, width:].contiguous().view(torch.int32)
        if each.shape[1] > width
        else each.new_zeros(len(each), num_integers, dtype=torch.int32)
        for each in features
    ]
    return [each[:, :width] for each in features], torch.cat(integers)
