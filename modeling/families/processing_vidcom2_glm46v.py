"""GLM-4.6V's processor with VidCom²: only what differs from the stock class."""

from transformers import Glm46VProcessor

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class VidCom2Glm46VProcessor(VidCom2ProcessorMixin, Glm46VProcessor):
    """`Glm46VProcessor` that writes a placeholder for each video token that stays."""

    frames_stand_apart = True
    placeholder = "image_token"  # that of images, between the marks of a video
