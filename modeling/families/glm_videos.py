"""What GLM's families share: placeholders of videos that are those of images, between the marks of a video. Frames,
patches and positions are as in Qwen3-VL.
"""

import torch
from torch import Tensor

from ..prompt.prompt_compression import VIDEO
from .qwen_videos import QwenVideoModelMixin


class GlmVideoModelMixin(QwenVideoModelMixin):
    """Makes a GLM inner model run on short prompts. It comes before the parent's inner model among the bases.

    Frames, patches and positions are as in Qwen3-VL: `video_grid_thw` counts pairs of frames, and each pair stands
    apart in the prompt, before its time.
    """

    def stock_ids(self, input_ids: Tensor) -> Tensor:
        return input_ids.masked_fill(input_ids == self.config.video_token_id, self.config.image_token_id)

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
        input_ids = self.ids_of(inputs_embeds if input_ids is None else input_ids)
        image, other = self.config.image_token_id, self.config.video_token_id
        kinds = self.kinds(input_ids)
        of_images, of_videos = self.distinct_ids(input_ids, kinds), torch.where(kinds == VIDEO, image, other)
        return (
            super().get_placeholder_mask(of_images, inputs_embeds, image_features=image_features)[0],
            super().get_placeholder_mask(of_videos, inputs_embeds, video_features=video_features)[1],
        )
