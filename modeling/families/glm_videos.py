"""What GLM's families share: placeholders of videos that are those of images, between the marks of a video. Frames,
patches and positions are as in Qwen3-VL.
"""

from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationMixin

from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin, VidCom2QwenCausalLMOutputWithPast


class GlmVideoModelMixin(QwenVideoModelMixin):
    """Makes a GLM inner model run on compressed prompts. It comes before the parent's inner model among the bases.

    Frames, patches and positions are as in Qwen3-VL: `video_grid_thw` counts pairs of frames, and each pair stands
    apart in the prompt, before its time.
    """

    frames_stand_apart = True

    def is_video(self, input_ids: Tensor) -> Tensor:
        """Return which tokens stand for the tokens of a video: bool, of the same shape (..., L).

        They have the id of images, and the marks around them tell that they are a video's. In the ids that
        `distinct_ids` returns, they have an id of their own.
        """
        places = torch.arange(input_ids.shape[-1], device=input_ids.device)
        begun, ended = (  # where the last mark was, since a text may have an end without a beginning
            places.where(input_ids == mark, -1).cummax(dim=-1).values
            for mark in (self.config.video_start_token_id, self.config.video_end_token_id)
        )
        return super().is_video(input_ids) | ((input_ids == self.config.image_token_id) & (begun > ended))

    def distinct_ids(self, input_ids: Tensor) -> Tensor:
        return input_ids.masked_fill(self.is_video(input_ids), self.config.video_token_id)

    def padding_token(self, input_ids: Tensor, kept: Tensor) -> Tensor:
        """Return what `VidCom2ModelMixin` does, but no mark: it would turn images behind the padding into videos."""
        is_mark = (input_ids == self.config.video_start_token_id) | (input_ids == self.config.video_end_token_id)
        return super().padding_token(input_ids, kept & ~is_mark)

    def get_placeholder_mask(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor,
        image_features: Tensor | None = None,
        video_features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return which embeddings images and videos replace, as the parent does, but tell the two from each other.

        The parent takes every image id for both, and so refuses a prompt that has images and videos. Here it is asked
        twice, with ids that leave only the placeholders of one kind.

        Raises:
            ValueError: if their numbers do not fit the features.
        """
        if input_ids is None:
            return super().get_placeholder_mask(None, inputs_embeds, image_features, video_features)
        image, other = self.config.image_token_id, self.config.video_token_id
        of_videos = torch.where(self.is_video(input_ids), image, other)
        return (
            super().get_placeholder_mask(self.distinct_ids(input_ids), inputs_embeds, image_features=image_features)[0],
            super().get_placeholder_mask(of_videos, inputs_embeds, video_features=video_features)[1],
        )


class GlmGenerationMixin(VidCom2GenerationMixin):
    """`VidCom2GenerationMixin` for GLM's classes with a head."""

    output_class = VidCom2QwenCausalLMOutputWithPast

    def _expand_multimodal_outputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Repeat the features of images and videos for beams, as in the other families.

        The parent's own method looks for ids that its prompts do not have, and repeats single images where a prompt
        has several.
        """
        return cast(Any, GenerationMixin)._expand_multimodal_outputs(self, *args, **kwargs)  # it annotates its `self`
