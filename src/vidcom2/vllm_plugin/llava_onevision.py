"""LLaVA-OneVision with VidCom² in vLLM. This file holds what differs from vLLM's own classes."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor
from vllm.model_executor.models.interfaces import SupportsLoRA
from vllm.model_executor.models.llava_onevision import (
    LlavaOnevisionDummyInputsBuilder,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionMultiModalProcessor,
    LlavaOnevisionProcessingInfo,
)
from vllm.model_executor.models.module_mapping import MultiModelKeys
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.utils import WeightsMapper
from vllm.multimodal import MULTIMODAL_REGISTRY

from ..configuration.compression_settings import CompressionSettings
from ..modeling.families.llava_videos import VideoLayout
from ..modeling.families.modeling_vidcom2_llava_onevision import VidCom2LlavaOnevisionModel
from .compressed_videos import CompressedVideosModel, CompressedVideosProcessor


class CompressedLlavaVideosProcessor(CompressedVideosProcessor):
    """The mixin for LLaVA families, whose frames are all squares of the same size. `layout_of` is that of the family's
    Transformers class."""

    layout_of = staticmethod(VidCom2LlavaOnevisionModel.layout_of)

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of tokens in a frame.

        Raises:
            ValueError: if frames do not have the tower's size, which would otherwise stop the engine mid-step.
        """
        layout = self._layout(video)
        return layout.num_frames, (layout.side, layout.side)

    def _layout(self, video: Any) -> VideoLayout:
        frames = video["pixel_values_videos"].data
        pixels = self.info.get_hf_config().vision_config.image_size
        height, width = frames.shape[-2:]
        if (height, width) != (pixels, pixels):
            raise ValueError(
                f"`mm_processor_kwargs` makes frames of {height} × {width} pixels, but the model's vision tower takes "
                f"{pixels} × {pixels}. Leave `size` and `crop_size` out."
            )
        return self.layout_of(self.info.get_hf_config(), len(frames), pixels)

    def placeholders(self, video: Any, kept: int) -> Any:
        """Return the ids for the kept tokens and the newlines."""
        layout = self._layout(video)
        return super().placeholders(video, kept + layout.num_placeholders - layout.num_tokens)


class CompressedLlavaVideosModel(CompressedVideosModel):
    """The mixin for LLaVA families. `layout_of` is that of the family's Transformers class."""

    layout_of = staticmethod(VidCom2LlavaOnevisionModel.layout_of)
    # Transformers 5 has dropped `vision_model` from the names of the SigLIP tower's weights; vLLM still has it.
    hf_to_vllm_mapper = LlavaOnevisionForConditionalGeneration.hf_to_vllm_mapper | WeightsMapper(
        orig_to_new_regex={re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)"): "vision_tower.vision_model."}
    )

    def one_by_one(self, pixel_values_videos: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        """Yield the frames of each video."""
        for frames in pixel_values_videos:
            yield {"pixel_values_videos": frames[None]}

    def compressed_video(self, features: Tensor, settings: CompressionSettings, pixel_values_videos: Tensor) -> Tensor:
        """Return the features of the kept tokens and of the newlines, in their order."""
        video, (_, num_frames, _, _, size) = features.flatten(0, -2), pixel_values_videos.shape
        layout = self.layout_of(self.config, num_frames, size)
        compression = self.compression_of(layout.frames_of(video), (layout.side, layout.side), settings)
        return replace(compression, layout=layout).kept_among(video)


class VidCom2LlavaOnevisionProcessorForVllm(CompressedLlavaVideosProcessor, LlavaOnevisionMultiModalProcessor):
    """vLLM's processor, with a ratio and fewer placeholders for each video."""


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2LlavaOnevisionProcessorForVllm,
    info=LlavaOnevisionProcessingInfo,
    dummy_inputs=LlavaOnevisionDummyInputsBuilder,
)
class VidCom2LlavaOnevisionForVllm(CompressedLlavaVideosModel, LlavaOnevisionForConditionalGeneration, SupportsLoRA):
    """vLLM's LLaVA-OneVision with only the kept tokens of each video. They are those that the Transformers class keeps
    with the same settings. Unlike vLLM's own class it takes LoRA adapters of the language model, which is Qwen2."""

    packed_modules_mapping = Qwen2ForCausalLM.packed_modules_mapping

    def get_mm_mapping(self) -> MultiModelKeys:
        """Return which modules are the language model, so that adapters leave the vision tower alone."""
        return MultiModelKeys.from_string_field("language_model", "multi_modal_projector", "vision_tower")
