"""LLaVA-OneVision with VidCom² in vLLM: what differs from vLLM's own classes."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.llava_onevision import (
    LlavaOnevisionDummyInputsBuilder,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionMultiModalProcessor,
    LlavaOnevisionProcessingInfo,
)
from vllm.model_executor.models.utils import WeightsMapper
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.parse import VideoProcessorItems
from vllm.multimodal.processing import PromptReplacement, PromptUpdate

from ..modeling.compression import compress_with
from ..modeling.video_compression import VideoTokens
from .settings import RATIO, engine_settings, kept_tokens, ratio_of, with_ratio

NEWLINE = 1  # at the end of a video: structure, outside the ratio


def grid_of(tokens_per_frame: int) -> tuple[int, int]:
    """A frame is squeezed to a square."""
    side = math.isqrt(tokens_per_frame)
    return side, side


class CompressedVideosProcessor(LlavaOnevisionMultiModalProcessor):
    """Gives each video as many placeholders as tokens of it stay, and its ratio along."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = engine_settings(self.info.get_hf_config())

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, for the most that a request can ask for: all tokens."""
        inputs = super().get_dummy_inputs(*args, **kwargs)
        inputs.hf_processor_mm_kwargs = {**inputs.hf_processor_mm_kwargs, RATIO: 1.0}
        return inputs

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        fields = super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)
        return {**fields, RATIO: MultiModalFieldConfig.batched("video", keep_on_cpu=True)}

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        ratio = ratio_of(self.settings, hf_kwargs)
        outputs = super()._apply_hf_processor_main(
            mm_items, {name: value for name, value in hf_kwargs.items() if name != RATIO}
        )
        if "pixel_values_videos" in outputs:
            num_videos = len(outputs["pixel_values_videos"])
            outputs[RATIO] = torch.full((num_videos,), ratio, dtype=torch.float64)
        return outputs

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> Sequence[PromptUpdate]:
        ratio = ratio_of(self.settings, hf_processor_mm_kwargs)
        rest = {name: value for name, value in hf_processor_mm_kwargs.items() if name != RATIO}
        video_token_id = self.info.get_hf_config().video_token_index

        def placeholders(item: int) -> list[int]:
            videos = mm_items.get_items("video", VideoProcessorItems)
            size, num_frames = videos.get_frame_size(item), videos.get_num_frames(item)
            per_frame = self.info._get_num_frame_tokens(image_width=size.width, image_height=size.height)
            kept = kept_tokens(with_ratio(self.settings, ratio), num_frames, grid_of(per_frame))
            return [video_token_id] * (kept + NEWLINE)

        updates = super()._get_prompt_updates(mm_items, rest, out_mm_kwargs)
        own = PromptReplacement(modality="video", target=[video_token_id], replacement=placeholders)
        return [own if update.modality == "video" else update for update in updates]


@MULTIMODAL_REGISTRY.register_processor(
    CompressedVideosProcessor, info=LlavaOnevisionProcessingInfo, dummy_inputs=LlavaOnevisionDummyInputsBuilder
)
class VidCom2LlavaOnevisionForVllm(LlavaOnevisionForConditionalGeneration):
    """vLLM's LLaVA-OneVision, with the kept tokens of each video in place of all.

    Modifications:
        - each video brings its own retention ratio, the repo's or its request's.
        - `_process_video_pixels` drops the tokens that the Transformers class drops with the same settings.
    """

    # Transformers 5 has left out a name inside the vision tower, which vLLM still has.
    hf_to_vllm_mapper = LlavaOnevisionForConditionalGeneration.hf_to_vllm_mapper | WeightsMapper(
        orig_to_new_regex={re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)"): "vision_tower.vision_model."}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.settings = engine_settings(self.config)

    def _parse_and_validate_video_input(self, **kwargs: Any) -> dict[str, Any] | None:
        """As the parent's, and the ratios."""
        inputs = super()._parse_and_validate_video_input(**kwargs)
        return None if inputs is None else {"pixel_values_videos": inputs["pixel_values_videos"], RATIO: kwargs[RATIO]}

    def _process_video_pixels(self, inputs: dict[str, Any]) -> list[torch.Tensor]:
        """As the parent's, of the kept tokens alone."""
        videos, pixels = super()._process_video_pixels(inputs), inputs["pixel_values_videos"]
        ratios = torch.as_tensor(inputs[RATIO]).flatten().tolist()
        return [
            self._kept(video.flatten(0, -2), len(frames), ratio)
            for video, frames, ratio in zip(videos, pixels, ratios, strict=True)
        ]

    def _kept(self, video: torch.Tensor, num_frames: int, ratio: float) -> torch.Tensor:
        """Of (T·M + 1, dim) tokens the kept ones and the newline."""
        if ratio == 1.0:
            return video
        tokens = video[:-NEWLINE].unflatten(0, (num_frames, -1))
        settings, grid = with_ratio(self.settings, ratio), grid_of(tokens.shape[1])
        compression = compress_with(settings, VideoTokens(tokens, grid))
        expected = kept_tokens(settings, num_frames, grid)
        if len(compression.indices) != expected:
            raise ValueError(
                f"`compression_method={settings.compression_method!r}` keeps {len(compression.indices)} of "
                f"{compression.num_tokens} tokens at a ratio of {ratio}, but {expected} of a video that shows nothing, "
                "and vLLM counts before it has seen a video. Choose a method that keeps the same number of any."
            )
        return torch.cat([compression.kept(video[:-NEWLINE]), video[-NEWLINE:]])
