"""What GLM's families share: placeholders of videos that are those of images, between the marks of a video. Frames and
patches are as in Qwen3-VL, and so are positions, except in GLM-5-Next.
"""

import torch
from torch import Tensor, nn

from ..prompt.calls import IMAGE, VIDEO
from ..prompt.prompt_compression import VidCom2ModelMixin
from .qwen_videos import QwenVideoModelMixin


class SharedIdsMixin(VidCom2ModelMixin):
    """Tells the placeholders of videos from those of images, which have the same id. It comes before the mixin that
    takes the videos among the bases."""

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

        The parent takes every image id for both, and so refuses a prompt that has images and videos; or it counts
        marks, and so errs where a text has one. Here it only compares numbers, in ids that leave the placeholders of
        one kind, and those of videos behind a mark.

        Raises:
            ValueError: if their numbers do not fit the features.
        """
        input_ids = self.ids_of(inputs_embeds if input_ids is None else input_ids)
        image, other = self.config.image_token_id, self.config.video_token_id
        kinds = self.kinds(input_ids)
        of_images, of_videos = kinds == IMAGE, kinds == VIDEO
        if image_features is not None:
            ids = torch.where(of_images, image, other)
            super().get_placeholder_mask(ids, inputs_embeds, image_features=image_features)
        if video_features is not None:
            ids = torch.where(of_videos, image, other)
            ids = nn.functional.pad(ids, (1, 0), value=self.config.video_start_token_id)
            super().get_placeholder_mask(ids, inputs_embeds, video_features=video_features)
        device = inputs_embeds.device
        return of_images.unsqueeze(-1).to(device), of_videos.unsqueeze(-1).to(device)


class GlmVideoModelMixin(SharedIdsMixin, QwenVideoModelMixin):
    """Makes a GLM inner model run on short prompts. It comes before the parent's inner model among the bases.

    Frames, patches and positions are as in Qwen3-VL: `video_grid_thw` counts pairs of frames, and each pair stands
    apart in the prompt, before its time.
    """
