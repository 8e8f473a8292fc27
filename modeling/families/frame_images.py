"""What families share whose parent takes a video's frames for images: a frame is a row of `pixel_values`, like a tile.

This project's processor passes frames as a video, as in other families: `pixel_values_videos`, with `num_frames` of
each video. In the prompt of a stock processor the text tells which rows are frames (`frame_marks.py`), and here they
are taken out of `pixel_values`. The features of frames and images are joined again, in the order of the prompt, before
the parent sees them.
"""

from collections.abc import Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from ...configuration.compression_settings import NUM_KEPT, CompressionSettings
from ..encoding.video_features import ParentFeatures, VidCom2VideoFeatures, VideoFrames
from ..hosting.in_transformers import CACHE, ParentModel, check_frame_size, check_tensors, without, without_token_types
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import TEXT, VIDEO, Encode, VidCom2ModelMixin
from .frame_marks import FrameMarks

VIDEO_ARGUMENTS = ("pixel_values_videos", "num_frames")


class FramesAndImages(BaseModelOutputWithPooling):
    """Features of images, and of frames that keep all their tokens."""


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
        is_video = self.is_video(input_ids)
        input_ids = input_ids.masked_fill(is_video, self.config.image_token_id)
        of_frame = is_video[input_ids == self.config.image_token_id]
        kinds = {True: list(video.pooler_output), False: list(getattr(encoded.get("image"), "pooler_output", ()))}
        joined = torch.empty(len(of_frame), kinds[True][0].shape[-1]).to(kinds[True][0])
        for is_frame, features in kinds.items():
            rows = torch.cat([each.flatten(0, -2) for each in features]) if features else joined[:0]
            places = (of_frame == is_frame).nonzero()[:, 0].to(joined.device)
            if len(places) != len(rows):
                what = "frames of videos" if is_frame else "images"
                raise ValueError(
                    f"The prompts hold {len(places)} placeholders of {what}, but there are {len(rows)} features. Build "
                    "both with the checkpoint's processor, and don't truncate the prompt."
                )
            joined = joined.index_copy(0, places, rows.to(joined))
        images: Any = self.features_of_tiles(joined)  # Transformers 5.19 declares the field as a `FloatTensor`
        encoded["image"] = FramesAndImages(pooler_output=images)
        return {"input_ids": input_ids, "pixel_values": None, "mm_encoder_outputs": encoded}


class HeadOfVideosAsImages(ParentModel):
    """Gives a parent with a head that takes images alone a `generate` that takes features of videos. It comes right
    before the parent among the bases."""

    def generate(self, **arguments: Any) -> Any:
        """Run the parent's `generate`, which finds the features of frames among those of images."""
        ids, cache = arguments.get("input_ids"), arguments.get(CACHE)
        num_cached = 0 if cache is None else int(cache.get_seq_length())
        joined = self.model.joined_features(None if ids is None else ids[:, num_cached:], arguments)
        if ids is not None:
            arguments["input_ids"] = ids.masked_fill(ids == self.model.video_id, self.config.image_token_id)
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
    parent_knows_videos = False
    frames_stand_apart = True
    marks_class: type[FrameMarks]  # how the processor marks frames

    # -----------------------------------------------------------------------------------------------------------------
    # Which rows and placeholders are frames
    # -----------------------------------------------------------------------------------------------------------------

    def kinds(self, input_ids: Tensor) -> Tensor:
        """Return what each token stands for. A frame's tokens have the id of images, and the text before them tells
        that they are a frame's."""
        kinds = super().kinds(input_ids)
        if self._marks is None or not input_ids.numel() or (kinds == VIDEO).any():
            return kinds
        return self._with_frames(kinds, self._videos_of(input_ids))

    def _with_frames(self, kinds: Tensor, videos_of_prompts: Sequence[Sequence[Sequence[range]]]) -> Tensor:
        found = kinds.cpu().view(-1, kinds.shape[-1])
        for prompt, videos in zip(found, videos_of_prompts):
            for frame in (frame for video in videos for frame in video):
                prompt[frame.start : frame.stop] = VIDEO
        return found.view(kinds.shape).to(kinds.device)

    @property
    def _marks(self) -> FrameMarks | None:
        marks = self.config.known_frame_marks
        return None if marks is None else self.marks_class(marks)

    def _videos_of(self, input_ids: Tensor) -> list[list[list[range]]]:
        """Return for each prompt where the placeholders of each frame of its videos are."""
        marks, of_frame = self._marks, self.config.tokens_per_tile
        if marks is None:
            return []
        prompts = input_ids.reshape(-1, input_ids.shape[-1]).tolist()
        return [list(marks.videos_of(prompt, of_frame, self.config.image_token_id)) for prompt in prompts]

    def with_videos(self, inputs: dict[str, Any], settings: CompressionSettings) -> dict[str, Any]:
        """Return the arguments of a call with the frames of `pixel_values` in `pixel_values_videos`.

        They stay where they are if the parent answers the call from the start. So it encodes frames and images
        together, as the stock class does.

        Raises:
            ValueError: if it is not known how frames are marked, if the placeholders do not fit the pixels, or if
                frames that are to be compressed are encoded already.
        """
        input_ids, pixels, cache = (inputs.get(name) for name in ("input_ids", "pixel_values", CACHE))
        encoded = inputs.get("mm_encoder_outputs") or {}
        given = [inputs.get("pixel_values_videos"), encoded.get("video")]
        has_videos = any(each is not None for each in given)
        if input_ids is None and settings.may_drop and (has_videos or pixels is not None):
            raise ValueError(
                "`inputs_embeds` cannot be passed with frames of videos, or with `pixel_values`, which may hold some: "
                "frames are found by the tokens before them. Pass `input_ids`, or `retention_ratio=1.0` without a "
                "budget."
            )
        if has_videos or input_ids is None or isinstance(encoded.get("image"), FramesAndImages):
            return inputs
        is_first = cache is None or cache.get_seq_length() == 0
        if (pixels is None and encoded.get("image") is None) or (is_first and not settings.may_drop):
            return inputs
        check_tensors(inputs)
        if self._marks is None:
            if not settings.may_drop:
                return inputs
            raise ValueError(
                f"`pixel_values` may hold frames of videos, but it is not known how this checkpoint's tokenizer marks "
                f"them: `image_token_id` {self.config.image_token_id} is none of a released one. Load it with "
                "`vidcom2.load`, or call `model.config.read_tokenizer(processor.tokenizer)`."
            )
        videos_of_prompts = self._videos_of(input_ids)
        lengths = [len(video) for videos in videos_of_prompts for video in videos]
        if not lengths:
            return inputs
        if pixels is None:
            raise ValueError(
                f"`mm_encoder_outputs['image']` holds frames of {len(lengths)} videos, which are to be compressed. "
                "Pass `pixel_values`, or `retention_ratio=1.0` without a budget."
            )
        of_tile = self.config.tokens_per_tile
        kinds = self._with_frames(super().kinds(input_ids), videos_of_prompts)
        of_frame = kinds[kinds > TEXT] == VIDEO
        is_frame = of_frame[::of_tile]
        tiles = self.tiles_of(inputs)
        num_tiles = len(tiles["pixel_values"])
        if not torch.equal(of_frame, is_frame.repeat_interleave(of_tile)) or len(is_frame) != num_tiles:
            raise ValueError(
                f"The prompts hold {len(of_frame)} placeholders of images and frames, {int(of_frame.sum())} of them of "
                f"frames, but `pixel_values` holds {num_tiles} rows of {of_tile} tokens each. Build both with the "
                "checkpoint's processor, and don't truncate the prompt."
                + ("" if is_first else " Images and videos of earlier turns are in the KV cache: leave them out.")
            )
        is_frame = is_frame.to(pixels.device)
        frames = {name: rows[is_frame] for name, rows in tiles.items()}
        images = {name: rows[~is_frame] for name, rows in tiles.items()}
        mask = frames.get("pixel_attention_mask")
        if mask is not None and not mask.all():
            raise ValueError(
                "`pixel_attention_mask` hides pixels of frames, but must be 1 at all pixels of a video. Leave the "
                "processor's `do_resize=True`, which makes each frame a square of the same size, or pass "
                "`retention_ratio=1.0` without a budget."
            )
        return (
            without(inputs, tiles)
            | ({} if is_frame.all() else self.arguments_of_tiles(images))
            | {"pixel_values_videos": frames["pixel_values"]}
            | {"num_frames": torch.tensor(lengths, device=pixels.device)}
        )

    def with_token_types(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments without types, which the parent does not take."""
        return without_token_types(inputs)

    def _with_all_features(self, inputs: dict[str, Any], overrides: dict[str, Any], encode: Encode) -> dict[str, Any]:
        """Return a call's arguments as in `VidCom2ModelMixin`. If no token can be dropped, frames are still among
        images, and are encoded with them. The features are marked as such, since the steps of `generate` do not know
        the ratio of the call."""
        inputs = super()._with_all_features(inputs, overrides, encode)
        image: Any = (inputs.get("mm_encoder_outputs") or {}).get("image")
        if inputs.get("pixel_values") is None and image is None:
            return inputs
        if self.config.compression_settings(**overrides).may_drop:
            return inputs
        image = image or self._encode(self.get_image_features, inputs)
        encoded = {
            **(inputs.get("mm_encoder_outputs") or {}),
            "image": FramesAndImages(pooler_output=image.pooler_output),
        }
        return without(inputs, ("pixel_values",)) | {"mm_encoder_outputs": encoded}

    def tiles_of(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Return a call's arguments for the pixels of images and frames, with a row for each tile, as the prompt shows
        them."""
        return {"pixel_values": inputs["pixel_values"]}

    def arguments_of_tiles(self, tiles: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the arguments by which the parent takes these tiles."""
        return tiles

    def features_of_tiles(self, tokens: Tensor) -> Tensor:
        """Return the tokens (n, dim) of images and frames in a shape that the parent's `forward` takes."""
        # They have the shape of the parent's, if they fill whole rows.
        of_row = self.config.tokens_per_tile if len(tokens) % self.config.tokens_per_tile == 0 else len(tokens)
        return tokens.unflatten(0, (-1, of_row))

    def kinds_of(self, tokens: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return what each new token stands for. This project's processor says in `mm_token_type_ids` what is a
        frame's."""
        if inputs.get(NUM_KEPT) is None:
            return super().kinds_of(tokens, inputs)
        types = inputs.get("mm_token_type_ids")
        if types is None:
            raise ValueError(
                "`mm_token_type_ids` is missing, which says which placeholders are those of frames. Pass it as the "
                "processor returned it."
            )
        # The tokens before those of a turn are the end of the last answer.
        types = nn.functional.pad(types, (max(0, tokens.shape[1] - types.shape[1]), 0))
        return types[:, -tokens.shape[1] :].to(torch.int32)

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
