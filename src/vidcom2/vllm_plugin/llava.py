"""LLaVA-OneVision, LLaVA-Video and LLaVA-NeXT-Video with VidCom² in vLLM, whose Transformers backend runs this
project's classes. The plugin adds that each request may bring all settings, their refusals, and stock checkpoints."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor
from transformers import AutoModel
from vllm.config import CompilationMode
from vllm.model_executor.models.transformers import TransformersMultiModalForCausalLM
from vllm.model_executor.models.transformers.multimodal import MultiModalProcessingInfo

from ..configuration.compression_settings import NUM_KEPT, CompressionSettings
from ..families.table import FAMILIES
from ..modeling.families.llava_videos import VideoLayout
from .compressed_videos import (
    CompressedVideosModel,
    CompressedVideosProcessor,
    DummyKwargs,
    check_frame_size,
    with_processor,
)


class WholeVideos(MultiModalProcessingInfo):
    """vLLM's sizes, of a processor that writes a placeholder for every token. The mixin below leaves out the others."""

    def get_hf_processor(self, **kwargs: Any) -> Any:
        """Return the repo's processor as one of this project's, which also counts LLaVA-NeXT-Video's tokens. It is
        loaded as such, since Transformers has none for LLaVA-Video."""
        own = FAMILIES[self.get_hf_config().model_type].processor_class
        processor = copy.copy(self.ctx.get_hf_processor(own, **kwargs))
        processor.retention_ratio, processor.max_video_tokens = 1.0, None
        return processor


class CompressedLlavaVideosProcessor(CompressedVideosProcessor):
    """The mixin for LLaVA families, whose frames are all squares of the same size. The caller writes the time
    instruction of LLaVA-Video, because vLLM tokenizes the prompt before it knows the video."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        newlines = getattr(self.info.get_hf_config(), "compression_newlines", None)
        if newlines == "occupied":
            raise ValueError(
                f"`compression_newlines` is {newlines!r}, which makes the number of newlines depend on what a video "
                'shows, but vLLM counts them before it has seen the video. Set it to "all" or "trailing" in '
                """config.json, or pass `--hf-overrides '{"compression_newlines": "all"}'`."""
            )

    def layout_of(self, video: Any) -> VideoLayout:
        """Return how a video's tokens stand in the prompt. Raises a ValueError on frames of another size."""
        frames, config = video["pixel_values_videos"].data, self.info.get_hf_config()
        check_frame_size(frames, config)
        return inner_class(config).layout_of(config, len(frames), frames.shape[-1])

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Return the number of frames, and the rows and columns of scored tokens in a frame."""
        layout = self.layout_of(video)
        return layout.num_frames, (layout.side, layout.side)

    def placeholders(self, video: Any, kept: int) -> Any:
        """Return the ids for the kept tokens and the newlines."""
        layout = self.layout_of(video)
        return super().placeholders(video, kept + layout.num_placeholders - layout.num_tokens)

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        if hf_kwargs.get("add_time_instruction"):
            raise ValueError(
                "`add_time_instruction` is True, but vLLM tokenizes the prompt before it knows the video. "
                "Write the instruction into the prompt yourself; "
                "`vidcom2.modeling.families.processing_llava_video.time_instruction` returns it."
            )
        writes_times = hasattr(self.info.get_hf_processor(), "add_time_instruction")
        without_times = {"add_time_instruction": False} if writes_times else {}
        of_all = {**hf_kwargs, **without_times}
        outputs = super()._apply_hf_processor_main(
            mm_items, DummyKwargs(of_all) if isinstance(hf_kwargs, DummyKwargs) else of_all
        )
        outputs.pop(NUM_KEPT, None)
        return outputs


def inner_class(hf_config: Any) -> Any:
    """Return this project's model of a family without its head, for vLLM puts its own head on it."""
    return FAMILIES[hf_config.model_type].model_class.inner_class


@with_processor(CompressedLlavaVideosProcessor, info=WholeVideos)
class VidCom2LlavaForVllm(CompressedVideosModel, TransformersMultiModalForCausalLM):
    """vLLM's Transformers backend around this project's model, whatever the repo's `auto_map` names."""

    @cached_property
    def _from_config_kwargs(self) -> dict[str, Any]:
        config, inner = copy.copy(self.config), inner_class(self.config)
        # `AutoModel` builds the model that is registered for the config's class, so this config has one of its own.
        config.__class__ = type(inner.config_class.__name__, (type(config),), {})
        AutoModel.register(type(config), inner)
        return super()._from_config_kwargs | {"config": config, "trust_remote_code": False}

    def _decorate_for_torch_compile(self) -> None:
        """Let vLLM decorate classes of Transformers only where it compiles. Nothing else in this process could use them
        any more."""
        if self.compilation_config.mode != CompilationMode.NONE:
            super()._decorate_for_torch_compile()

    def kept_of_video(self, settings: CompressionSettings, pixel_values_videos: Any, **kwargs: Any) -> Tensor:
        """Return the features of the kept tokens and of the newlines, in their order."""
        outputs, (video,) = self.model.encode_videos(settings, pixel_values_videos=pixel_values_videos[0][None])
        compression = self.compression_of(video.tokens, video.grid, settings, video.layout)
        return compression.kept_among(outputs.pooler_output[0])


VidCom2LlavaOnevisionForVllm = VidCom2LlavaVideoForVllm = VidCom2LlavaNextVideoForVllm = VidCom2LlavaForVllm
