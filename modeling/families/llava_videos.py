"""What LLaVA's families share: pixels of the shape (num_videos, num_frames, channels, height, width), a vision tower
that looks at one frame at a time, and tokens that are pooled patches of a square frame."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from ...configuration.vision_methods import VISION_METHODS
from ..encoding.frame_encoding import FramePlan, Run, encode_in_chunks, frames_of_runs, plan_frames
from ..encoding.left_out_patches import PartialFrames, patches_of_frames
from ..encoding.tower_attention import received_in_frames, with_attention_received
from ..encoding.video_features import ParentFeatures, features_of_chunks, video_tokens
from ..encoding.vision_encoding import check_encoding, frames_encoder
from ..hosting.call_arguments import check_frame_size
from ..hosting.parent_classes import ParentLlavaModel
from ..methods.video_compression import VideoTokens
from ..prompt.prompt_compression import VidCom2ModelMixin

# (runs, frames, feature_layers) -> states: what encodes the frames (F, channels, height, width) of runs when the parent
# does not, and returns the tower's hidden states (F, patches, len(feature_layers) · dim) of these layers.
EncodeRuns: TypeAlias = Callable[[Sequence[Run], Tensor, Sequence[int]], Tensor]


class LlavaVideosMixin(VidCom2ModelMixin, ParentLlavaModel):
    """What the inner models of LLaVA's families add to the parent's. It comes before the parent's in a family's bases.
    A family says what is its own:

    - `tokens_of_patches` turns the tower's states into tokens, as the parent does, and `side_of_frame` says how many;
    - `ends_with_newline` says whether a newline follows the last frame;
    - `frames_of` finds the scored tokens, if a frame has other tokens too.
    """

    ends_with_newline = False

    @property
    def side_of_frame(self) -> int:
        """The number of rows, and of columns, of a frame's scored tokens."""
        raise NotImplementedError

    def tokens_of_patches(self, states: Tensor) -> Tensor:
        """Turn the tower's states (F, patches, V) into tokens (F, placeholders of a frame, dim), as the parent does."""
        raise NotImplementedError

    def frames_of(self, video: Tensor, num_frames: int) -> Tensor:
        """Return the scored tokens (num_frames, tokens_per_frame, dim) among a video's features (placeholders, dim)."""
        return (video[:-1] if self.ends_with_newline else video).unflatten(0, (num_frames, -1))

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        settings: CompressionSettings,
        needs: Collection[str],
        **kwargs: Any,
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """Encode the pixels (num_videos, num_frames, channels, height, width) as the settings say.

        Returns:
            The parent's features of all tokens, and the scored tokens of each video.
        """
        _check_shape(pixel_values_videos)
        if not kwargs.get("interpolate_pos_encoding"):
            check_frame_size(pixel_values_videos, self.config.vision_config)
        method = VISION_METHODS[settings.vision_method]
        check_encoding(settings, needs, kwargs)
        num_frames, of_videos = pixel_values_videos.shape[1], pixel_values_videos.unbind()
        computed = self.computed_groups(pixel_values_videos, settings)
        plan = plan_frames(of_videos, settings.vision_chunk_frames, kwargs, method.group_frames, computed)
        encode = self._encoder(settings, computed)
        if plan.is_one_call and encode is None:
            outputs, of_tower = self._encode_frames(pixel_values_videos, needs, **kwargs)
        else:
            outputs, of_tower = self._encode_in_chunks(pixel_values_videos, plan, needs, encode, **kwargs)
        return outputs, video_tokens([self.frames_of(video, num_frames) for video in outputs.pooler_output], of_tower)

    def video_sizes(self, pixel_values_videos: Tensor, **described: Any) -> list[int]:
        """Return how many scored tokens each video has, as in `VideoFeaturesMixin`."""
        _check_shape(pixel_values_videos)
        num_videos, num_frames = pixel_values_videos.shape[:2]
        return [num_frames * self.side_of_frame**2] * num_videos

    def patch_groups(self, pixel_values_videos: Tensor, **described: Any) -> Iterator[tuple[Tensor, None]]:
        """Yield the patches (T, patches, values) of each video, row by row, as in `VideoFeaturesMixin`."""
        for video in pixel_values_videos:
            yield patches_of_frames(self.vision_tower, video), None

    def _encoder(self, settings: CompressionSettings, computed: Sequence[Tensor] | None) -> EncodeRuns | None:
        """Return what encodes runs of frames when the parent does not: (runs, their frames, layers) -> states."""
        if computed is not None:
            return PartialFrames(self.vision_tower, computed).states
        encode = frames_encoder(settings)
        if encode is None:
            return None
        return lambda runs, frames, layers: encode(
            self.vision_tower, frames, [len(run.frames) for run in runs], settings, layers
        )

    def can_meet(self, needs: Collection[str], settings: CompressionSettings) -> bool:
        if "tower_attention" in needs:
            try:
                self._attention(self._read_layers()[0])
            except ValueError:
                return False
        return super().can_meet(needs, settings)

    def _encode_frames(
        self, pixel_values_videos: Tensor, needs: Collection[str], **kwargs: Any
    ) -> tuple[ParentFeatures, dict[str, Sequence[Tensor]]]:
        """Return the parent's features of videos, and what is needed of the tower, by name: a (T, P, ...) of each."""
        of_tower = {}
        layers, strategy = self._read_layers(**kwargs)
        encode = partial(self.parent_video_features, pixel_values_videos=pixel_values_videos, **kwargs)
        if "tower_attention" in needs:
            received = partial(received_in_frames, has_class_token=strategy == "default")
            outputs, of_tower["tower_attention"] = with_attention_received(encode, self._attention(layers), received)
        else:
            outputs = encode()
        if "tower_states" in needs:
            states = torch.cat([outputs.hidden_states[layer] for layer in layers], dim=-1)
            of_tower["tower_states"] = _of_patches(states, strategy)
        videos = pixel_values_videos.shape[:2]
        return outputs, {name: of_frames.unflatten(0, videos).unbind() for name, of_frames in of_tower.items()}

    def _attention(self, layers: Sequence[int]) -> Any:
        """Return the attention of the last of these layers of the tower.

        Raises:
            ValueError: if the tower is not made like CLIP's and SigLIP's, or only its embeddings are read.
        """
        of_layers = getattr(getattr(self.vision_tower, "encoder", None), "layers", ())
        last = max(range(len(of_layers) + 1)[layer] for layer in layers) if len(of_layers) else 0
        attention = getattr(of_layers[last - 1], "self_attn", None) if last else None
        if not all(hasattr(attention, name) for name in ("q_proj", "k_proj", "num_heads", "scale")):
            raise ValueError(
                f"the compression method needs `tower_attention`, but layer {last} of a "
                f"{type(self.vision_tower).__name__}, the last one whose output is read, has no attention as CLIP and "
                "SigLIP have it. Choose another `compression_method`."
            )
        return attention

    def _encode_in_chunks(
        self,
        pixel_values_videos: Tensor,
        plan: FramePlan,
        needs: Collection[str],
        encode: EncodeRuns | None,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, dict[str, list[Tensor]]]:
        """Return what `_encode_frames` returns, but for the tower's output. Encode one chunk of frames at a time."""
        layers, strategy = self._read_layers(**kwargs)
        end = -1 if self.ends_with_newline else None

        def of_chunk(runs: Sequence[Run]) -> dict[str, Sequence[Tensor]]:
            frames = frames_of_runs(pixel_values_videos.unbind(), runs)
            if encode is None:
                outputs, of_tower = self._encode_frames(frames[None], needs, **kwargs)
                tokens = outputs.pooler_output[0, :end].unflatten(0, (len(frames), -1))
            else:
                states = _of_patches(encode(runs, frames, layers), strategy)
                tokens, of_tower = self.tokens_of_patches(states), {}
                if "tower_states" in needs:
                    of_tower["tower_states"] = [states]
            features = {"tokens": tokens, **{name: of_frames for name, (of_frames,) in of_tower.items()}}
            lengths = [len(run.frames) for run in runs]
            return {name: of_frames.split(lengths) for name, of_frames in features.items()}

        found = encode_in_chunks(plan, of_chunk, rows_after=int(self.ends_with_newline))
        if self.ends_with_newline:
            for video in found["tokens"].videos:
                video[-1] = self.image_newline
        return features_of_chunks(found)

    def _read_layers(
        self,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        **kwargs: Any,
    ) -> tuple[Sequence[int], str]:
        """Return the layers of the tower whose states the parent reads, and its strategy for selecting among these."""
        layers = self.config.vision_feature_layer if vision_feature_layer is None else vision_feature_layer
        strategy = vision_feature_select_strategy or self.config.vision_feature_select_strategy
        return [layers] if isinstance(layers, int) else layers, strategy


def _check_shape(pixel_values_videos: Tensor) -> None:
    if pixel_values_videos.ndim != 5 or 0 in pixel_values_videos.shape:
        raise ValueError(
            f"`pixel_values_videos` has shape {tuple(pixel_values_videos.shape)}, but must be (num_videos, "
            "num_frames, channels, height, width) without an empty axis. Pass at least one frame."
        )


def _of_patches(states: Tensor, strategy: str) -> Tensor:
    """Select among the tower's states (F, patches, V) as the parent does: `"default"` leaves out the first, which is
    the class token's."""
    return states[:, 1:] if strategy == "default" else states
