"""MiniCPM-V 4.6 with VidCom²: only what differs from the parent classes.

What the family shares with others is in `packed_frames.py`.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import MiniCPMV4_6ForConditionalGeneration, MiniCPMV4_6Model

from ...configuration.compression_settings import CompressionSettings
from ...configuration.configuration_vidcom2_minicpmv4_6 import VidCom2MiniCPMV4_6Config
from ..encoding.video_features import ParentFeatures, VideoFrames
from ..methods.compression import VideoCompression
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import VidCom2ModelMixin
from .linear_attention import LinearAttentionMixin
from .packed_frames import LAYOUT, PackedVideo, VideosByTile, layout_of, videos_in


class VidCom2MiniCPMV4_6Model(LinearAttentionMixin, VidCom2ModelMixin, VideosByTile, MiniCPMV4_6Model):
    """MiniCPM-V 4.6 without its head. The language model, Qwen3.5's, runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video. The parent's returns those of each tile.
        - `forward` finds in a stock prompt which frames belong to which video, and leaves the dropped tokens out of
          it. The marks around a frame and its slices are structure, and stay even if the frame keeps nothing.
        - it also takes `num_frames_per_video` and `num_patches_per_frame`, which the stock processor does not return.
        - prompts of a batch that continue a KV cache with different numbers of tokens are refused.

    All tokens of a frame are scored, those of its slices together with those of the frame as a whole.
    """

    config: VidCom2MiniCPMV4_6Config
    video_arguments = LAYOUT

    def group_sizes(self, compressions: Sequence[VideoCompression], inputs: dict[str, Any]) -> Sequence[Sequence[int]]:
        """Return how many placeholders each tile of each video has, one after the other."""
        sizes = inputs["target_sizes_videos"].tolist()
        of_tiles = iter(rows * columns // self._side(inputs.get("downsample_mode")) ** 2 for rows, columns in sizes)
        tiles = iter(inputs["num_patches_per_frame"].tolist())
        numbers = [sum(next(tiles) for _ in each.frame_budgets) for each in compressions]
        return [[next(of_tiles) for _ in range(number)] for number in numbers]

    def with_videos(self, inputs: dict[str, Any], settings: CompressionSettings) -> dict[str, Any]:
        """Return the arguments of a call with the numbers of frames and tiles, as the prompts show them.

        If no token may be dropped, they are not needed. Pixels that were joined as rows, as Transformers' pipelines do,
        are packed, since the parent would look at the first row alone.

        Raises:
            ValueError: if the prompts do not hold as many tiles as there are pixels of.
        """
        input_ids, sizes = (inputs.get(each) for each in ("input_ids", "target_sizes_videos"))
        is_known = inputs.get("num_frames_per_video") is not None
        pixels = inputs.get("pixel_values_videos")
        if isinstance(pixels, Tensor) and pixels.ndim == 4 and len(pixels) > 1:
            inputs = inputs | {"pixel_values_videos": pixels.permute(1, 2, 0, 3).flatten(2)[None]}
        if input_ids is None or sizes is None or not isinstance(pixels, Tensor) or is_known:
            return inputs
        if not settings.may_drop:
            return inputs
        placeholder = self.config.video_token_id
        videos = list(chain.from_iterable(videos_in(prompt, placeholder) for prompt in input_ids.tolist()))
        tiles = list(chain.from_iterable(videos))
        if sum(tiles) != len(sizes):
            raise ValueError(
                f"The prompts hold {sum(tiles)} frames and slices of videos (runs of token {placeholder}), but "
                f"`target_sizes_videos` has {len(sizes)} rows. Build both with the checkpoint's processor, and don't "
                "truncate the prompt. Videos of earlier turns are in the KV cache: leave their pixels out."
            )
        lengths = torch.tensor([len(video) for video in videos])
        return inputs | {"num_frames_per_video": lengths, "num_patches_per_frame": torch.tensor(tiles)}

    def frames_of_videos(
        self,
        pixel_values_videos: Tensor,
        downsample_mode: str | None = None,
        target_sizes_videos: Tensor | None = None,
        num_frames_per_video: Tensor | None = None,
        num_patches_per_frame: Tensor | None = None,
        **arguments: Any,
    ) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`.

        Args:
            pixel_values_videos: (1, channels, patch size, patches · patch size), tile after tile.
            downsample_mode: `"16x"` or `"4x"`; None for the config's.
            target_sizes_videos: (tiles, 2) rows and columns of patches of each tile.
            num_frames_per_video: (num_videos,) how many frames each video has; None if all belong to one.
            num_patches_per_frame: (F,) how many tiles each frame has; None for one.

        Raises:
            ValueError: if a video is empty, if its frames have different tiles, or if numbers do not fit.
        """
        videos = self._videos(pixel_values_videos, target_sizes_videos, num_frames_per_video, num_patches_per_frame)
        side = self._side(downsample_mode)
        self._check_tiles(videos, side)
        patch = self.config.vision_config.patch_size
        pixels = pixel_values_videos[0].split([video.length * video.patches * patch for video in videos], dim=-1)
        found = []
        for of_video, video in zip(pixels, videos, strict=True):
            (rows, columns), *slices = video.tiles
            found.append(
                VideoFrames(  # (T, channels, patch size, patches · patch size)
                    pixels=of_video.unflatten(-1, (video.length, -1)).movedim(-2, 0),
                    tokens_per_frame=video.patches // side**2,
                    grid=None if slices else (rows // side, columns // side),
                    described=video.tiles,
                )
            )
        return found

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames' pixels, packed, and the arguments that describe their tiles."""
        pixels = torch.cat([frames.movedim(0, -2).flatten(-2) for _, frames in chunk], dim=-1)[None]
        videos = [PackedVideo(len(frames), video.described) for video, frames in chunk]
        return {"pixel_values_videos": pixels, **layout_of(videos, pixels)}

    def parent_video_features(self, **kwargs: Any) -> ParentFeatures:
        """Return the parent's features, with an entry for each video. All frames are one video's if no numbers say
        otherwise."""
        if kwargs.get("num_frames_per_video") is None:
            tiles = kwargs.get("num_patches_per_frame")
            frames = kwargs["target_sizes_videos"] if tiles is None else tiles
            kwargs["num_frames_per_video"] = torch.tensor([len(frames)])
        return super().parent_video_features(**kwargs)

    def _side(self, downsample_mode: str | None) -> int:
        """Return how many rows, and columns, of patches a token stands for."""
        of_tower = 1 if (downsample_mode or self.config.downsample_mode) == "4x" else 2
        return of_tower * self.config.merge_kernel_size[0] ** self.config.merger_times

    def _videos(
        self, pixels: Tensor, sizes: Tensor | None, num_frames: Tensor | None, num_tiles: Tensor | None
    ) -> list[PackedVideo]:
        """Return the frames of each video. The device is read once for each argument.

        Raises:
            ValueError: if a video is empty, if its frames have different tiles, or if numbers do not fit.
        """
        if not isinstance(sizes, Tensor) or len(sizes) == 0:
            raise ValueError(
                f"`target_sizes_videos` is {sizes!r}, but must have the rows and columns of patches of each frame in "
                "`pixel_values_videos`. The processor returns them together."
            )
        if pixels.numel() == 0 or pixels.ndim != 4 or len(pixels) != 1:
            raise ValueError(
                f"`pixel_values_videos` has shape {tuple(pixels.shape)}, but must be (1, channels, patch size, patches "
                "· patch size), with the patches of at least one frame, as the processor returns it."
            )
        tiles = [(rows, columns) for rows, columns in sizes.tolist()]
        per_frame = [1] * len(tiles) if num_tiles is None else num_tiles.tolist()
        lengths = [len(per_frame)] if num_frames is None else num_frames.tolist()
        patch = self.config.vision_config.patch_size
        fewest = min([*lengths, *per_frame, *chain.from_iterable(tiles)], default=0)
        found = (fewest > 0, sum(lengths), sum(per_frame), pixels.shape[-1])
        patches = sum(rows * columns for rows, columns in tiles)
        if found != (True, len(per_frame), len(tiles), patches * patch):
            raise ValueError(
                f"`target_sizes_videos` has {len(tiles)} tiles of {patches} patches, `num_frames_per_video` is "
                f"{lengths} and `num_patches_per_frame` {per_frame}, but `pixel_values_videos` holds "
                f"{pixels.shape[-1] // patch} patches. Pass them as the processor made them, or leave the numbers out "
                "of `forward` and `generate`, which find them in the prompt."
            )
        left, frames = iter(tiles), iter(per_frame)
        videos = []
        for number, length in enumerate(lengths):
            of_frames = [tuple(next(left) for _ in range(next(frames))) for _ in range(length)]
            if len(set(of_frames)) > 1:
                found_sizes = " and ".join(map(str, sorted(set(of_frames))[:2]))
                raise ValueError(
                    f"The frames of video {number} have tiles of different sizes, in patches: {found_sizes}. So they "
                    "have no common number of tokens. Pass `stack_frames=1` to the processor, put text between two "
                    "videos, or pass `retention_ratio=1.0` without a budget."
                )
            videos.append(PackedVideo(length, of_frames[0]))
        return videos

    def _check_tiles(self, videos: Sequence[PackedVideo], side: int) -> None:
        for rows, columns in chain.from_iterable(video.tiles for video in videos):
            if rows % side or columns % side:
                raise ValueError(
                    f"A frame or slice has {rows} × {columns} patches, but {side} must divide both: a token stands for "
                    f"{side} × {side}. Pass the same `downsample_mode` to the processor and the model."
                )


class VidCom2MiniCPMV4_6ForConditionalGeneration(VidCom2GenerationMixin, MiniCPMV4_6ForConditionalGeneration):
    """MiniCPM-V 4.6 that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2MiniCPMV4_6Model`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2MiniCPMV4_6Config
    inner_class = VidCom2MiniCPMV4_6Model

    def get_video_features(
        self,
        pixel_values_videos: Tensor,
        target_sizes_videos: Tensor,
        downsample_mode: str | None = None,
        num_frames_per_video: Tensor | None = None,
        num_patches_per_frame: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return what the inner model's method returns, with its arguments by name."""
        return self.model.get_video_features(
            pixel_values_videos=pixel_values_videos,
            target_sizes_videos=target_sizes_videos,
            downsample_mode=downsample_mode,
            num_frames_per_video=num_frames_per_video,
            num_patches_per_frame=num_patches_per_frame,
            **kwargs,
        )
