"""GLM-4V's processor with VidCom²: only what differs from the stock class."""

from transformers import Glm4vProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Glm4vProcessor(VidCom2ProcessorMixin, Glm4vProcessor):
    """`Glm4vProcessor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
    placeholder = "image_token"  # that of images, between the marks of a video
