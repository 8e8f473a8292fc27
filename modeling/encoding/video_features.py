"""Video features of all families: what the parent encodes, and of that what stays."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from ...configuration.compression_methods import COMPRESSION_METHODS
from ...configuration.compression_settings import CompressionSettings
from ...configuration.saved_with_code import SavedWithCode
from ..hosting.call_arguments import (
    arguments_of_parent,
    check_not_exported,
    check_tensors,
    pop_settings,
    take_parents_signatures,
)
from ..hosting.parent_classes import ParentModel
from ..methods.compression import compress_with
from ..methods.video_compression import VideoCompression, VideoTokens

# A `ModelOutput` with `pooler_output`. Transformers declares that as possibly None, and the whole as possibly a tuple.
ParentFeatures: TypeAlias = Any


@dataclass
class VidCom2VideoFeatures(BaseModelOutputWithPooling):
    """What `get_video_features` returns: the parent's fields in its order, then ours, so that a place in the tuple is
    that of the parent's.

    Attributes:
        pooler_output: one (K_i, dim) tensor per video: the tokens that enter the language model.
        deepstack_features: in families that have them, for each of the first decoder layers what it adds to these
            tokens, one (K_i, dim) tensor per video.
        video_compressions: one `VideoCompression` per video.
    """

    # None only in what this project's classes pass to each other; but `ModelOutput` asks for this default.
    pooler_output: Sequence[Tensor] = field(default=cast(Any, None))
    deepstack_features: list[tuple[Tensor, ...]] | None = None
    video_compressions: tuple[VideoCompression, ...] = field(default=cast(Any, None))

    def without_tower_states(self) -> "VidCom2VideoFeatures":
        """What the language model needs. The tower's states are larger, and `generate` would hold them to its end."""
        return VidCom2VideoFeatures(
            pooler_output=self.pooler_output,
            video_compressions=self.video_compressions,
            deepstack_features=self.deepstack_features,
        )


class VideoFeaturesMixin(SavedWithCode, ParentModel):
    """The part of `VidCom2ModelMixin` that encodes videos and compresses them."""

    of_parent: ClassVar[frozenset[str]]  # arguments of the parent's methods

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, VideoFeaturesMixin, "get_video_features")
        # Both, since the parents hand on what the config says for arguments of `forward`.
        cls.of_parent = arguments_of_parent(cls, VideoFeaturesMixin, "get_video_features", "forward")

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def encode_videos(
        self,
        pixel_values_videos: Tensor,
        with_tower_states: bool,
        chunk_frames: int | None = None,
        update_ratio: float = 1.0,
        **kwargs: Any,
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """The parent's `get_video_features`, with one (placeholders, dim) entry of `pooler_output` per video, and the
        tokens of each video that are scored, with their grid.

        Args:
            with_tower_states: whether they shall have `tower_states` too.
            chunk_frames: how many frames the tower takes at a time; None for all. In more than one call its own states
                are not returned.
            update_ratio: as `vision_update_ratio`; 1.0 for a tower that cannot have another.

        Raises:
            ValueError: on an empty video, or sizes that do not fit.
        """
        raise NotImplementedError

    def scored_placeholders(self, compression: VideoCompression) -> Tensor:
        """(T·M,) int64: the placeholder of each scored token, among those of its video."""
        return torch.arange(compression.num_tokens, device=compression.indices.device)

    def placeholders(self, compression: VideoCompression) -> tuple[Tensor, int]:
        """Which of a video's placeholders stay, int64 in the order of their features, and how many it has in the full
        prompt. Structure tokens stay, also those of a frame that keeps nothing."""
        return compression.indices, compression.num_tokens

    def features_for_parent(self, features: Sequence[Tensor]) -> Any:
        """The kept tokens of all videos as the parent's `forward` takes them: tensors, or one."""
        return features

    # -----------------------------------------------------------------------------------------------------------------
    # What all families share
    # -----------------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def get_video_features(self, *args: Any, **kwargs: Any) -> VidCom2VideoFeatures:
        """Encode videos and keep their distinctive tokens.

        Args:
            *args, **kwargs: as the parent's, and the settings of `CompressionSettings` for this call.

        Returns:
            The parent's output, but `pooler_output` is a tuple of (K_i, dim) tensors, kept tokens and structure of each
            video, and `video_compressions` tells which tokens of each video they are.

        Raises:
            ValueError: on an empty video, sizes that do not fit, or a setting outside its accepted set.
        """
        names = [name for name in inspect.signature(super().get_video_features).parameters if name != "kwargs"]
        kwargs |= dict(zip(names, args))
        check_tensors(kwargs)
        settings = self.config.compression_settings(**pop_settings(kwargs, self.of_parent))
        if settings.retention_ratio < 1.0:
            check_not_exported()
        needs = COMPRESSION_METHODS[settings.compression_method].needs
        outputs, videos = self.encode_videos_by(settings, with_tower_states="tower_states" in needs, **kwargs)
        return self.compressed_features(outputs, videos, settings)

    def encode_videos_by(
        self, settings: CompressionSettings, with_tower_states: bool, **kwargs: Any
    ) -> tuple[ParentFeatures, Sequence[VideoTokens]]:
        """`encode_videos` as the settings say."""
        return self.encode_videos(
            with_tower_states=with_tower_states,
            chunk_frames=settings.vision_chunk_frames,
            update_ratio=settings.vision_update_ratio,
            **kwargs,
        )

    def compressed_features(
        self, outputs: ParentFeatures, videos: Sequence[VideoTokens], settings: CompressionSettings
    ) -> VidCom2VideoFeatures:
        """What stays of videos, from the two things that `encode_videos` returns, which may serve several settings."""
        compressions = tuple(compress_with(settings, video) for video in videos)
        fields = {**outputs, "pooler_output": self._kept_features(outputs.pooler_output, compressions)}
        if outputs.get("deepstack_features") is not None:  # for each of the first decoder layers, those of each video
            fields["deepstack_features"] = [
                self._kept_features(layer, compressions) for layer in outputs["deepstack_features"]
            ]
        features = VidCom2VideoFeatures()
        for name, value in (fields | {"video_compressions": compressions}).items():
            features[name] = value  # one by one, which keeps the parent's order
        return features

    def _kept_features(
        self, features: Sequence[Tensor], compressions: Sequence[VideoCompression]
    ) -> tuple[Tensor, ...]:
        """Of (placeholders, dim) features of each video those that stay, merged ones in the places where they stand."""
        return tuple(
            compression.kept_among(video, self.scored_placeholders(compression), self.placeholders(compression)[0])
            for video, compression in zip(features, compressions, strict=True)
        )

    def parent_video_features(self, **kwargs: Any) -> ParentFeatures:
        """The parent's `get_video_features`: all tokens."""
        return self._parents_encoder()(**kwargs | {"return_dict": True})

    def _parents_encoder(self) -> Callable[..., Any]:
        """The parent's `get_video_features`, as one that does what `return_dict` says.

        Qwen3-VL's and Qwen3.5's passes the videos on to `get_image_features`, which hears of the config's `return_dict`
        alone. Where that asks for tuples, the encoder is that of a view of the model with another config.
        """
        if self.config.return_dict:
            return super().get_video_features
        view = copy.copy(self)
        view.config = copy.copy(self.config)
        view.config.return_dict = True
        return super(VideoFeaturesMixin, view).get_video_features

    def _encode_whole(self, inputs: dict[str, Any], settings: CompressionSettings) -> ParentFeatures:
        """The parent's features of the prompt's videos: all tokens."""
        if settings.vision_update_ratio == 1.0:
            return self._encode(self._parents_encoder(), inputs)
        names = inspect.signature(super().get_video_features).parameters
        described = {name: inputs[name] for name in names if name in inputs}
        outputs, _ = self.encode_videos_by(settings, with_tower_states=False, **described)
        return outputs

    def _encode(self, encoder: Callable[..., Any], inputs: dict[str, Any], **settings: Any) -> ParentFeatures:
        """Features of the prompt's images or videos, from whichever arguments their encoder names."""
        names = inspect.signature(encoder).parameters
        return encoder(**{name: inputs[name] for name in names if name in inputs} | settings, return_dict=True)

    def _for_parent(self, features: VidCom2VideoFeatures) -> VidCom2VideoFeatures:
        return VidCom2VideoFeatures(
            pooler_output=self.features_for_parent(features.pooler_output),
            deepstack_features=features.deepstack_features,
        )
