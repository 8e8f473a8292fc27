"""Molmo2 with VidCom²: only what differs from the parent classes.

Attention between the tokens of images and videos is in `typed_attention.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Molmo2ForConditionalGeneration, Molmo2Model
from transformers.modeling_outputs import BaseModelOutputWithPooling

from ...configuration.configuration_vidcom2_molmo2 import VidCom2Molmo2Config
from ..encoding.video_features import VideoFrames
from ..hosting.in_transformers import CACHE, cached_length, check_patches
from ..prompt.calls import TEXT, VIDEO, name_of_tokens
from .joined_features import joined
from .typed_attention import TypedAttentionGenerationMixin, TypedAttentionModelMixin


class VidCom2Molmo2Model(TypedAttentionModelMixin, Molmo2Model):
    """Molmo2 without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt. A frame's time and the marks around it are structure,
          and stay even if the frame keeps nothing.
        - `forward` takes images beside videos, which the parent refuses.

    All tokens of a frame (9 × 9 in the released checkpoints) are scored. The kept ones attend to each other.
    """

    config: VidCom2Molmo2Config
    frames_stand_apart = True

    def frames_of_videos(
        self,
        pixel_values_videos: Tensor,
        video_token_pooling: Tensor | None = None,
        video_grids: Tensor | None = None,
        **arguments: Any,
    ) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`.

        Args:
            pixel_values_videos: (F, P, 3 · patch²) patches of all frames.
            video_token_pooling: (ΣT·M, n) which of all these patches make a token; -1 for none.
            video_grids: (num_videos, 3) frames, and rows and columns of a frame's tokens.

        Raises:
            ValueError: if a video is empty, or sizes or patches do not fit.
        """
        grids = [] if video_grids is None else video_grids.tolist()
        lengths, sizes = [t for t, _, _ in grids], [t * rows * columns for t, rows, columns in grids]
        shape, num_patches = tuple(pixel_values_videos.shape), self.config.vision_config.num_position_embeddings
        num_tokens = None if video_token_pooling is None else len(video_token_pooling)
        fits = shape[:2] == (sum(lengths), num_patches) and num_tokens == sum(sizes) and min(sizes, default=0) > 0
        if video_token_pooling is None or not fits:
            raise ValueError(
                f"`pixel_values_videos` has shape {shape}, `video_grids` is {grids} and `video_token_pooling` is of "
                f"{num_tokens} tokens, but they must describe at least one frame, of {num_patches} patches. Pass all "
                "as the processor returned them."
            )
        check_patches(pixel_values_videos, self.config.vision_config)
        videos, first = [], 0
        for (t, rows, columns), pooling in zip(grids, video_token_pooling.split(sizes)):
            of_frame = pooling[: rows * columns]
            of_frame = torch.where(of_frame < 0, -1, of_frame - first * num_patches)
            if of_frame.max() >= num_patches or not torch.equal(pooling, pooling_of(of_frame, t, num_patches, first)):
                raise ValueError(
                    f"`video_token_pooling` does not take the same patches of each frame of video {len(videos)}. Pass "
                    "it as the processor returned it, with the videos in their order."
                )
            pixels = pixel_values_videos[first : first + t]
            videos.append(
                VideoFrames(pixels=pixels, tokens_per_frame=rows * columns, grid=(rows, columns), described=of_frame)
            )
            first += t
        return videos

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames' patches, which of them make a token, and the grids of tokens."""
        pixels = torch.cat([frames for _, frames in chunk])
        pooling, first = [], 0
        for video, frames in chunk:
            pooling.append(pooling_of(video.described, len(frames), pixels.shape[1], first))
            first += len(frames)
        grids = torch.tensor([[len(frames), *(video.grid or ())] for video, frames in chunk])
        return {"pixel_values_videos": pixels, "video_token_pooling": torch.cat(pooling), "video_grids": grids}

    def distinct_ids(self, input_ids: Tensor, kinds: Tensor) -> Tensor:
        """Return the ids as they are. The parent adds features to the embedding of an image's placeholder, and reads
        one output for all."""
        return input_ids

    def _with_features_for_parent(self, inputs: dict[str, Any]) -> dict[str, Any]:
        tokens = inputs[name_of_tokens(inputs)]
        return self.with_joined_features(super()._with_features_for_parent(inputs), tokens)

    def with_joined_features(self, inputs: dict[str, Any], tokens: Tensor) -> dict[str, Any]:
        """Return a call's arguments with the features of images and videos in one output, in the order of the prompt.

        Args:
            tokens: (B, n) ids or (B, n, dim) embeddings of the new tokens.
        """
        encoded = inputs.get("mm_encoder_outputs") or {}
        if encoded.get("image") is None or encoded.get("video") is None:
            return inputs
        kinds = self.kinds(tokens)
        is_media = kinds > TEXT
        of_kinds = (list(encoded[kind].pooler_output) for kind in ("image", "video"))
        features: Any = joined((kinds == VIDEO)[is_media], *of_kinds)
        features = features.split([count for count in is_media.sum(dim=1).tolist() if count])  # an entry per prompt
        return inputs | {"mm_encoder_outputs": {"image": BaseModelOutputWithPooling(pooler_output=features)}}


def pooling_of(of_frame: Tensor, num_frames: int, num_patches: int, first: int) -> Tensor:
    """Return which patches make a token, (num_frames · M, n), in frames of as many patches, from the first on.

    Args:
        of_frame: (M, n) the same of a single frame; -1 for none.
    """
    starts = (first + torch.arange(num_frames, device=of_frame.device)).view(-1, 1, 1) * num_patches
    return torch.where(of_frame < 0, of_frame, of_frame + starts).flatten(0, 1).to(of_frame.dtype)


class VidCom2Molmo2ForConditionalGeneration(TypedAttentionGenerationMixin, Molmo2ForConditionalGeneration):
    """Molmo2 that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Molmo2Model`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.
        - drafts in the first step of `generate` are text.
        - masks for static caches know which of the new tokens are a video's, also after cached ones.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2Molmo2Config
    inner_class = VidCom2Molmo2Model

    def _maybe_prepare_encoder_kwargs_for_generation(
        self, inputs_tensor: Tensor, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        parent: Any = super()
        inner: Any = self.model
        encoded = parent._maybe_prepare_encoder_kwargs_for_generation(inputs_tensor, model_kwargs, *args, **kwargs)
        return inner.with_joined_features(encoded, inputs_tensor[:, cached_length(encoded.get(CACHE)) :])
