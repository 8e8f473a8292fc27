"""A tiny random LLaVA-Video, made from the tiny LLaVA-OneVision."""

from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin

from ..configuration.configuration_vidcom2_llava_video import VidCom2LlavaVideoConfig
from ..modeling.families.modeling_vidcom2_llava_video import LlavaVideoForConditionalGeneration
from ..modeling.families.processing_llava_video import LlavaVideoProcessor
from .llava import tiny_llava_onevision


def tiny_llava_video(
    image_size: int = 196, spatial_pool_mode: str = "average", **kwargs: Any
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Return the uncompressed LLaVA-Video with random float32 weights, and its processor.

    Args:
        image_size: pixels per side of a frame.
        spatial_pool_mode: as in the config.
        **kwargs: other arguments of `tiny_llava_onevision`.
    """
    onevision, processor = tiny_llava_onevision(image_size, **kwargs)
    fields: dict[str, Any] = onevision.config.to_dict() | {"spatial_pool_mode": spatial_pool_mode}
    for name in ("model_type", "architectures", "transformers_version"):
        fields.pop(name, None)
    with torch.random.fork_rng(devices=[]):
        model = LlavaVideoForConditionalGeneration(VidCom2LlavaVideoConfig(**fields)).eval()
    model.load_state_dict(onevision.state_dict())
    return model, LlavaVideoProcessor(
        image_processor=processor.image_processor,
        video_processor=processor.video_processor,
        tokenizer=processor.tokenizer,
        num_image_tokens=processor.num_image_tokens,
        vision_feature_select_strategy=processor.vision_feature_select_strategy,
        chat_template=processor.chat_template,
        spatial_pool_mode=spatial_pool_mode,
    )
