"""What families share whose parent takes a video's frames for images: a frame is a row of `pixel_values`, like a tile.

This project's processor passes frames as a video, as in other families: `pixel_values_videos`, with `num_frames` of
each video, and says which placeholders are theirs. The features of frames and images are joined again, in the order of
the prompt, before the parent sees them. A stock processor passes frames among images. If they are to be compressed,
that is refused: the text of the prompt tells that there are some.
"""

from collections.abc import Sequence
from itertools import groupby
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from ...configuration.compression_settings import NUM_KEPT, CompressionSettings
from ..encoding.video_features import ParentFeatures, VidCom2VideoFeatures, VideoFrames
from ..hosting.in_transformers import CACHE, ParentModel, cached_length, check_frame_size, without, without_token_types
from ..prompt.calls import IMAGE, VIDEO, Call
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import VidCom2ModelMixin, video_id_of
from .joined_features import joined

VIDEO_ARGUMENTS = ("pixel_values_videos", "num_frames")
TEXT_BEFORE_A_FRAME = 32  # more tokens than a stock processor writes there


class FramesAndImages(VidCom2VideoFeatures):
    """Features of images and of frames, in the order of their placeholders."""


class VideosAsImages(ParentModel):
    """Gives a parent that takes images alone what the parents of other families have: features of videos, and a
    `forward` that takes these. It comes right before the parent among the bases."""

    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        num_frames: Tensor | None = None,
        vision_feature_layer: int | None = None,
        vision_feature_select_strategy: str | None = None,
        **kwargs: Any,
    ) -> ParentFeatures:
        """Encode the frames (F, channels, height, width) of all videos as the parent encodes images.

        Args:
            num_frames: (num_videos,) how many frames each video has; None if all belong to one.

        Returns:
            The parent's features of images, but with one (tokens, dim) entry of `pooler_output` per video.
        """
        if vision_feature_layer is not None:
            kwargs["vision_feature_layer"] = vision_feature_layer
        if vision_feature_select_strategy is not None:
            kwargs["vision_feature_select_strategy"] = vision_feature_select_strategy
        lengths = lengths_of(pixel_values_videos, num_frames)
        outputs = self.get_image_features(**self.arguments_of_tiles({"pixel_values": pixel_values_videos}), **kwargs)
        found = outputs.pooler_output  # one tensor, or one for each prompt
        tokens = found.flatten(0, -2) if isinstance(found, Tensor) else torch.cat(tuple(found))
        outputs.pooler_output = tokens.split([length * self.config.tokens_per_tile for length in lengths])
        return outputs

    def forward(self, **inputs: Any) -> Any:
        """Run the parent's `forward`, on features of videos too."""
        inputs = without(inputs, VIDEO_ARGUMENTS)
        return super().forward(**inputs | self.joined_features(inputs.get("input_ids"), inputs))

    def joined_features(self, input_ids: Tensor | None, inputs: dict[str, Any]) -> dict[str, Any]:
        """Join the features of videos among a call's inputs with those of images, as the parent takes them.

        Args:
            input_ids: the new tokens.

        Returns:
            The arguments that change; none if there are no features of videos.

        Raises:
            ValueError: if there are features of videos without `input_ids`, or they do not fit the placeholders.
        """
        encoded = dict(inputs.get("mm_encoder_outputs") or {})
        video = encoded.pop("video", None)
        if video is None:
            return {}
        if input_ids is None:
            raise ValueError(
                "`mm_encoder_outputs['video']` needs `input_ids`, which tell where frames and images stand."
            )
        if inputs.get("pixel_values") is not None:
            encoded["image"] = self._encode(self.get_image_features, inputs)
        is_video = input_ids == video_id_of(self.config)
        input_ids = input_ids.masked_fill(is_video, self.config.image_token_id)
        of_images, of_videos = list(getattr(encoded.get("image"), "pooler_output", ())), list(video.pooler_output)
        if of_images:
            tokens = joined(is_video[input_ids == self.config.image_token_id], of_images, of_videos)
        else:  # They are in the order of the prompt, which the device need not be asked for.
            tokens = torch.cat([each.flatten(0, -2) for each in of_videos])
        images: Any = self.features_of_tiles(tokens)  # Transformers 5.19 declares the field as a `FloatTensor`
        encoded["image"] = FramesAndImages(pooler_output=images)
        return {"input_ids": input_ids, "pixel_values": None, "mm_encoder_outputs": encoded}


class HeadOfVideosAsImages(ParentModel):
    """Gives a parent with a head that takes images alone a `generate` that takes features of videos. It comes right
    before the parent among the bases."""

    def generate(self, **arguments: Any) -> Any:
        """Run the parent's `generate`, which finds the features of frames among those of images."""
        ids, cache = arguments.get("input_ids"), arguments.get(CACHE)
        num_cached = cached_length(cache)
        joined = self.model.joined_features(None if ids is None else ids[:, num_cached:], arguments)
        if ids is not None:
            arguments["input_ids"] = ids.masked_fill(ids == video_id_of(self.config), self.config.image_token_id)
        if joined:
            # An entry for each token, since the parent repeats those of a prompt for its beams.
            image = joined["mm_encoder_outputs"]["image"]
            image.pooler_output = image.pooler_output.flatten(0, -2)[:, None]
            arguments = without(arguments, ("pixel_values",)) | {"mm_encoder_outputs": joined["mm_encoder_outputs"]}
        return super().generate(**arguments)


class FrameImagesModelMixin(VidCom2ModelMixin, VideosAsImages):
    """Makes an inner model whose videos are images run on short prompts. It comes before the parent's inner model
    among the bases."""

    video_arguments = VIDEO_ARGUMENTS
    frames_stand_apart = True

    # -----------------------------------------------------------------------------------------------------------------
    # Which placeholders are frames
    # -----------------------------------------------------------------------------------------------------------------

    def kinds(self, tokens: Tensor, inputs: dict[str, Any] | None = None) -> Tensor:
        """Return what each new token stands for. A frame's tokens have the id of images, and this project's processor
        says in `mm_token_type_ids` which they are."""
        inputs, kinds = inputs or {}, super().kinds(tokens, inputs)
        types = inputs.get("mm_token_type_ids")
        if types is None and _has(inputs, "video") and not (kinds == VIDEO).any():
            if _has(inputs, "image"):
                raise ValueError(
                    "`mm_token_type_ids` is missing, which says which placeholders are those of frames, and which "
                    "those of images. Pass it as this project's processor returned it."
                )
            return kinds.masked_fill(kinds == IMAGE, VIDEO)
        if types is None:
            return kinds
        # The tokens before those of a turn are the end of the last answer.
        types = nn.functional.pad(torch.as_tensor(types), (max(0, tokens.shape[1] - types.shape[1]), 0))
        return types[:, -tokens.shape[1] :].to(tokens.device, torch.int32)

    def with_videos(self, inputs: dict[str, Any], settings: CompressionSettings) -> dict[str, Any]:
        """Return the arguments of a call as they are.

        Raises:
            ValueError: if frames that are to be compressed are among its images, as a stock processor passes them, or
                if this cannot be told.
        """
        input_ids, images = inputs.get("input_ids"), (inputs.get("mm_encoder_outputs") or {}).get("image")
        has_videos = _has(inputs, "video")
        may_have_frames = settings.may_drop and not isinstance(images, FramesAndImages)
        if not may_have_frames or not (has_videos or _has(inputs, "image")):
            return inputs
        if input_ids is None:
            raise ValueError(
                "`inputs_embeds` cannot be passed with frames of videos, or with `pixel_values`, which may hold some: "
                "frames are found by the tokens before them. Pass `input_ids`, or `retention_ratio=1.0` without a "
                "budget."
            )
        if has_videos:  # This project's processor tells them apart.
            return inputs
        if self.config.known_frame_marks is None:
            raise ValueError(
                f"`pixel_values` may hold frames of videos, but it is not known how this checkpoint's tokenizer marks "
                f"them: `image_token_id` {self.config.image_token_id} is none of a released one. Load it with "
                "`vidcom2.load`, or call `model.config.read_tokenizer(processor.tokenizer)`."
            )
        if any(map(self._shows_frames, input_ids.tolist())):
            raise ValueError(
                "The prompt holds frames of a video, which its processor passes as images, so they cannot be "
                "compressed. Write it with this project's processor: `vidcom2.apply(model, processor=processor)`, or "
                "pass `retention_ratio=1.0` without a budget. Where the number of tokens depends on what a video shows "
                f"(`compression_rounding='ceil'`), it writes all with `retention_ratio=1.0`: leave out `{NUM_KEPT}`."
            )
        return inputs

    def _shows_frames(self, prompt: list[int]) -> bool:
        """Return whether the text before images of a prompt is that of frames. Those in several tiles are none."""
        end = 0
        for is_placeholder, run in groupby(prompt, lambda token: token == self.config.image_token_id):
            start, end = end, end + len(list(run))
            is_one_tile = is_placeholder and end - start < 2 * self.config.tokens_per_tile
            if is_one_tile and self.config.opens_a_frame(prompt[max(0, start - TEXT_BEFORE_A_FRAME) : start]):
                return True
        return False

    def with_token_types(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments without types, which the parent does not take."""
        return without_token_types(inputs)

    def _with_all_features(self, call: Call) -> dict[str, Any]:
        """Return a call's arguments as in `VidCom2ModelMixin`. If no token can be dropped, frames are still among
        images, and are encoded with them. The features are marked as such, since the steps of `generate` do not know
        the ratio of the call."""
        inputs = super()._with_all_features(call)
        image: Any = (inputs.get("mm_encoder_outputs") or {}).get("image")
        if inputs.get("pixel_values") is None and image is None:
            return inputs
        if call.settings.may_drop:
            return inputs
        image = image or self._encode(self.get_image_features, inputs)
        encoded = {
            **(inputs.get("mm_encoder_outputs") or {}),
            "image": FramesAndImages(pooler_output=image.pooler_output),
        }
        return without(inputs, ("pixel_values",)) | {"mm_encoder_outputs": encoded}

    def arguments_of_tiles(self, tiles: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the arguments by which the parent takes these tiles."""
        return tiles

    def features_of_tiles(self, tokens: Tensor) -> Tensor:
        """Return the tokens (n, dim) of images and frames in a shape that the parent's `forward` takes."""
        # They have the shape of the parent's, if they fill whole rows.
        of_row = self.config.tokens_per_tile if len(tokens) % self.config.tokens_per_tile == 0 else len(tokens)
        return tokens.unflatten(0, (-1, of_row))

    # -----------------------------------------------------------------------------------------------------------------
    # Encoding
    # -----------------------------------------------------------------------------------------------------------------

    def frames_of_videos(
        self, pixel_values_videos: Tensor, num_frames: Tensor | None = None, **arguments: Any
    ) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`.

        Args:
            pixel_values_videos: (F, channels, height, width) frames of all videos.
            num_frames: (num_videos,) how many frames each video has; None if all belong to one.
        """
        lengths, of_tile = lengths_of(pixel_values_videos, num_frames), self.config.tokens_per_tile
        check_frame_size(pixel_values_videos, self.config.vision_config)
        grid = isqrt(of_tile), isqrt(of_tile)
        return [
            VideoFrames(pixels=frames, tokens_per_frame=of_tile, grid=grid)
            for frames in pixel_values_videos.split(lengths)
        ]

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames, and how many are of each video."""
        frames = torch.cat([frames for _, frames in chunk])
        return {"pixel_values_videos": frames, "num_frames": torch.tensor([len(frames) for _, frames in chunk])}


class FrameImagesGenerationMixin(VidCom2GenerationMixin, HeadOfVideosAsImages):
    """`VidCom2GenerationMixin` for classes with a head whose videos are images."""

    def get_video_features(
        self, pixel_values_videos: Tensor, num_frames: Tensor | None = None, **kwargs: Any
    ) -> VidCom2VideoFeatures:
        """Return what the inner model does."""
        return self.model.get_video_features(pixel_values_videos=pixel_values_videos, num_frames=num_frames, **kwargs)


def _has(inputs: dict[str, Any], kind: str) -> bool:
    """Return whether a call has pixels or features of images (`"image"`) or of videos (`"video"`)."""
    pixels = inputs.get({"image": "pixel_values", "video": "pixel_values_videos"}[kind])
    return pixels is not None or (inputs.get("mm_encoder_outputs") or {}).get(kind) is not None


def lengths_of(pixel_values_videos: Tensor, num_frames: Tensor | None) -> list[int]:
    """Return how many of the frames (F, ...) each video has.

    Raises:
        ValueError: if a video has none, or they do not add up.
    """
    found = len(pixel_values_videos) if pixel_values_videos.ndim == 4 and 0 not in pixel_values_videos.shape else 0
    lengths = [found] if num_frames is None else torch.as_tensor(num_frames).flatten().long().tolist()
    if sum(lengths) != found or not lengths or min(lengths) < 1:
        raise ValueError(
            f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)} and `num_frames` is {lengths}, but "
            "they must be (frames of all videos, channels, height, width), and its parts. Pass at least one frame."
        )
    return lengths
