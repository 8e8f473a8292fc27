"""LLaVA-Video with VidCom² in vLLM, which has no class for it. This file holds what differs from LLaVA-OneVision."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from vllm.model_executor.models.llava_onevision import (
    LlavaOnevisionDummyInputsBuilder,
    LlavaOnevisionMultiModalProcessor,
    LlavaOnevisionProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from ..configuration.compression_settings import CompressionSettings
from ..modeling.families.llava_videos import VideoLayout
from ..modeling.families.modeling_vidcom2_llava_video import VidCom2LlavaVideoModel, pooled_rows
from .llava_onevision import CompressedLlavaVideosProcessor, VidCom2LlavaOnevisionForVllm


class LlavaVideoProcessingInfo(LlavaOnevisionProcessingInfo):
    """The sizes of LLaVA-Video's frames."""

    def layout(self, num_frames: int) -> VideoLayout:
        config = self.get_hf_config()
        return VidCom2LlavaVideoModel.layout_of(config, num_frames, config.vision_config.image_size)

    def _get_num_frame_tokens(self, *, image_width: int, image_height: int) -> int:
        return self.layout(num_frames=1).num_tokens

    def get_num_video_tokens(self, *, image_width: int, image_height: int, num_frames: int) -> int:
        """Return the number of tokens of a video, with the newlines behind the rows."""
        return self.layout(num_frames).num_placeholders


class VidCom2LlavaVideoProcessorForVllm(CompressedLlavaVideosProcessor, LlavaOnevisionMultiModalProcessor):
    """vLLM's processor, with a ratio and fewer placeholders for each video. The caller writes the time instruction,
    because vLLM tokenizes the prompt before it knows the video."""

    layout_of = staticmethod(VidCom2LlavaVideoModel.layout_of)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        newlines = self.info.get_hf_config().compression_newlines
        if newlines == "occupied":
            raise ValueError(
                f"`compression_newlines` is {newlines!r}, which makes the number of newlines depend on what a video "
                'shows, but vLLM counts them before it has seen the video. Set it to "all" or "trailing" in '
                """config.json, or pass `--hf-overrides '{"compression_newlines": "all"}'`."""
            )

    def settings_of_features(self, settings: CompressionSettings) -> dict[str, Any]:
        """Return the settings of the compression and those of the model."""
        config = self.info.get_hf_config()
        own = {"newlines": config.compression_newlines, "pooling": config.spatial_pool_mode}
        return super().settings_of_features(settings) | own

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        if hf_kwargs.get("add_time_instruction"):
            raise ValueError(
                "`add_time_instruction` is True, but vLLM tokenizes the prompt before it knows the video. "
                "Write the instruction into the prompt yourself; "
                "`vidcom2.modeling.families.processing_llava_video.time_instruction` returns it."
            )
        return super()._apply_hf_processor_main(mm_items, {**hf_kwargs, "add_time_instruction": False})


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2LlavaVideoProcessorForVllm, info=LlavaVideoProcessingInfo, dummy_inputs=LlavaOnevisionDummyInputsBuilder
)
class VidCom2LlavaVideoForVllm(VidCom2LlavaOnevisionForVllm):
    """LLaVA-Video with only the kept tokens of each video."""

    layout_of = staticmethod(VidCom2LlavaVideoModel.layout_of)

    def apply_pooling(self, image_features: Tensor, stride: int = 2) -> Tensor:
        """Pool as LLaVA-Video does, and put a newline behind each row."""
        return pooled_rows(image_features, self.config, super().apply_pooling, self.image_newline)

    def _process_video_pixels(self, inputs: Any) -> Any:
        """Return the parent's features without the newline that it puts behind the video."""
        return [video.flatten(0, -2)[:-1] for video in super()._process_video_pixels(inputs)]
