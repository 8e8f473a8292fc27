"""SmolVLM with VidCom²: only what differs from the parent classes.

What the family shares with others is in `frame_images.py`.
"""

from torch import Tensor
from transformers import SmolVLMForConditionalGeneration, SmolVLMModel

from ...configuration.configuration_vidcom2_smolvlm import VidCom2SmolVLMConfig
from .frame_images import FrameImagesGenerationMixin, FrameImagesModelMixin


class VidCom2SmolVLMModel(FrameImagesModelMixin, SmolVLMModel):
    """SmolVLM without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features`, which the parent does not have, returns the kept tokens of each video.
        - `forward` takes frames as `pixel_values_videos`, with `num_frames` of each video, as this project's processor
          passes them. It refuses them among `pixel_values`, unless all tokens stay. The line that introduces a video,
          "Frame from 00:01:" and the marks around a frame are structure, and stay even if the frame keeps nothing.

    All tokens of a frame (9 × 9 or 8 × 8 in the released checkpoints) are scored. Images stay whole.
    """

    config: VidCom2SmolVLMConfig

    def features_of_tiles(self, tokens: Tensor) -> Tensor:
        # Transformers 5.19 fills the placeholders in blocks of as many tokens, which those of a short prompt are not:
        # here a block is one token.
        return tokens[:, None]

    def arguments_of_tiles(self, tiles: dict[str, Tensor]) -> dict[str, Tensor]:
        # A tile a row: so the features have an entry for each, which `generate` repeats prompt by prompt.
        return {name: rows[:, None] for name, rows in tiles.items()}


class VidCom2SmolVLMForConditionalGeneration(FrameImagesGenerationMixin, SmolVLMForConditionalGeneration):
    """SmolVLM that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2SmolVLMModel`.
        - `forward` and `generate` run short prompts, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2SmolVLMConfig
    inner_class = VidCom2SmolVLMModel
