"""Nemotron 3 Omni with VidCom²: only what differs from the parent class.

The parent is one class: its language model has the head. So the two mixins that other families have on two classes are
both on this one.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import NemotronH_Omni_Reasoning_V3
from transformers.utils.generic import can_return_tuple

from ...configuration.compression_settings import NUM_KEPT, CompressionSettings
from ...configuration.configuration_vidcom2_nemotron_h_omni import VidCom2NemotronHOmniConfig
from ..encoding.video_features import VidCom2VideoFeatures, VideoFrames
from ..hosting.in_transformers import pop_settings, take_parents_signatures
from ..prompt.calls import IMAGE, VIDEO, Call
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import VidCom2ModelMixin
from .linear_attention import LinearAttentionMixin


class OneClassMixin(LinearAttentionMixin, VidCom2GenerationMixin, VidCom2ModelMixin):
    """Both mixins on one class, since the parent has no inner model: it is its own. It comes before the parent among a
    model's bases."""

    config: VidCom2NemotronHOmniConfig
    frames_stand_apart = True
    video_pruning_rate: float  # the parent's

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, OneClassMixin, "forward", behind=VidCom2ModelMixin)
        cls.inner_class = cls

    @property
    def model(self) -> Any:
        """The model itself, which encodes videos and lays prompts out."""
        return self

    @can_return_tuple
    def forward(self, only_features: str | None = None, **inputs: Any) -> Any:
        """Run the parent's `forward` on the tokens that stay; or only encode videos or images, as the inner models of
        other families do. Where all tokens stay and the config has a `video_pruning_rate`, it is the parent's own call,
        which then drops some."""
        if only_features is not None:
            return VidCom2ModelMixin.forward(self, only_features=only_features, **inputs)
        if (parents := self._arguments_of_pruning(inputs)) is not None:
            return NemotronH_Omni_Reasoning_V3.forward(self._as_parent(), **parents)
        return super().forward(**inputs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Run the parent's `generate` on the tokens that stay, or as it is, as in `forward`.

        Raises:
            ValueError: as the mixin, and if several sounds of a prompt would be repeated for beams, for which the
                parent repeats each by itself.
        """
        parents = self._arguments_of_pruning(kwargs)
        return super().generate(*args, **kwargs) if parents is None else self._as_parent().generate(*args, **parents)

    def frames_of_videos(self, pixel_values_videos: Tensor, **arguments: Any) -> Sequence[VideoFrames]:
        """Return the frames of each video, as in `VideoFeaturesMixin`.

        Args:
            pixel_values_videos: (num_videos, T, frames together · channels, height, width).

        Raises:
            ValueError: on no frame, or frames of another form.
        """
        vision, shape = self.config.vision_config, tuple(pixel_values_videos.shape)
        channels = self.config.video_temporal_patch_size * vision.num_channels
        side = vision.patch_size * round(1 / self.config.downsample_ratio)  # of what becomes a token
        if len(shape) != 5 or 0 in shape or shape[2] != channels or shape[3] % side or shape[4] % side:
            raise ValueError(
                f"`pixel_values_videos` has shape {shape}, but must be (num_videos, frames, {channels}, height, "
                f"width), with at least one frame, and sides that {side} divides. Pass it as the processor returned it."
            )
        rows, columns = shape[3] // side, shape[4] // side
        size: dict[str, Any] = {"tokens_per_frame": rows * columns, "grid": (rows, columns)}
        return [VideoFrames(pixels=video, **size) for video in pixel_values_videos]

    def arguments_of_frames(self, chunk: Sequence[tuple[VideoFrames, Tensor]]) -> dict[str, Any]:
        """Return the frames as if they were one video's, since the parent takes only videos of one length."""
        return {"pixel_values_videos": torch.cat([pixels for _, pixels in chunk])[None]}

    def kinds(self, tokens: Tensor, inputs: dict[str, Any] | None = None) -> Tensor:
        """Return what each token stands for, as in `VidCom2ModelMixin`. Placeholders are those of images if a call has
        images, and those of videos otherwise."""
        kinds, inputs = super().kinds(tokens), inputs or {}
        encoded = inputs.get("mm_encoder_outputs") or {}
        has_images = inputs.get("pixel_values") is not None or encoded.get("image") is not None
        return kinds if has_images else kinds.masked_fill(kinds == IMAGE, VIDEO)

    def distinct_ids(self, input_ids: Tensor, kinds: Tensor) -> Tensor:
        """Return the ids as they are. Videos are images to Transformers: they have the same placeholders."""
        return input_ids

    def _check_asked(self, kwargs: dict[str, Any], tokens: Tensor) -> None:
        super()._check_asked(kwargs, tokens)
        repeats = max(self._setting(kwargs, "num_beams") or 1, self._setting(kwargs, "num_return_sequences") or 1)
        if repeats == 1 or kwargs.get("input_features") is None or tokens.ndim == 3:
            return
        is_sound = tokens == self.config.audio_token_id
        numbers = (is_sound & ~nn.functional.pad(is_sound, (1, -1))).sum(dim=1).tolist()
        if set(numbers) != {1}:
            raise ValueError(
                f"`num_beams` or `num_return_sequences` is {repeats}, but the prompts have {numbers} sounds, of which "
                "the parent would give a beam one several times. Leave it out, or give each prompt one sound."
            )

    def ids_of(self, tokens: Tensor) -> Tensor:
        """Return ids (B, n); those of embeddings (B, n, dim) only tell placeholders from text. Checkpoints name an id
        of videos that is beyond the vocabulary."""
        if tokens.ndim == 2:
            return tokens
        ids = tokens.new_zeros(tokens.shape[:2], dtype=torch.int64)
        mark = self.get_input_embeddings()(ids.new_tensor(self.config.image_token_id))
        return ids.masked_fill((tokens == mark).all(dim=-1), self.config.image_token_id)

    def with_videos(self, inputs: dict[str, Any], settings: CompressionSettings) -> dict[str, Any]:
        """Return the arguments as they are.

        Raises:
            ValueError: if there are images and videos, whose placeholders cannot be told apart. The parent fails, too.
                And on sound beside embeddings, which the parent would leave out.
        """
        if inputs.get("input_features") is not None and inputs.get("input_ids") is None:
            raise ValueError(
                "`input_features` are given with `inputs_embeds`, beside which the parent hears no sound. Pass "
                "`input_ids`, or embeddings that hold the sound already."
            )
        encoded, pixels = inputs.get("mm_encoder_outputs") or {}, inputs.get("pixel_values_videos")
        has_images = inputs.get("pixel_values") is not None or encoded.get("image") is not None
        if has_images and (pixels is not None or encoded.get("video") is not None):
            raise ValueError(
                "Images and videos are given in one call, but have the same placeholders, so it cannot be told which "
                "are whose. Show them in different turns of a conversation, or leave the images or the videos out."
            )
        return inputs

    def with_features(self, inputs: dict[str, Any], features: VidCom2VideoFeatures) -> dict[str, Any]:
        """Return a call's arguments with features in place of videos: as those of images, of which the parent drops
        none, and which Transformers finds by `config.image_token_id`."""
        return super().with_features(inputs, features) | {"mm_encoder_outputs": {"image": features}}

    def _check_videos_given(self, call: Call) -> None:
        encoded = call.inputs.get("mm_encoder_outputs") or {}
        if encoded.get("image") is None:  # where `with_features` puts those of videos
            super()._check_videos_given(call)

    # --- Where the parent drops tokens by itself

    def _arguments_of_pruning(self, inputs: dict[str, Any]) -> dict[str, Any] | None:
        """Return a call's arguments without those of this project, if the parent drops tokens of its videos; None if it
        does not."""
        encoded, pixels = (inputs.get("mm_encoder_outputs") or {}).get("video"), inputs.get("pixel_values_videos")
        is_stock = encoded is not None and not isinstance(encoded, VidCom2VideoFeatures)
        if not self.video_pruning_rate or (pixels is None and not is_stock):
            return None
        inputs = dict(inputs)
        if self.config.compression_settings(**pop_settings(inputs, self.of_parent)).may_drop:
            return None
        asked = inputs.pop(NUM_KEPT, None)
        is_whole = asked is None or asked.flatten().tolist() == self.video_sizes(**inputs)
        return inputs if is_whole else None

    def _as_parent(self) -> Any:
        """Return a view of the model that is the parent's."""
        view: Any = copy.copy(self)
        view.__class__ = NemotronH_Omni_Reasoning_V3
        return view


class VidCom2NemotronHOmniForConditionalGeneration(OneClassMixin, NemotronH_Omni_Reasoning_V3):
    """Nemotron 3 Omni that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call. A frame's time
          and the marks around it are structure, and stay even if the frame keeps nothing.
        - the parent's own pruning (`video_pruning_rate`) acts only where all tokens stay (`retention_ratio=1.0`).
        - prompts of a batch that continue a KV cache with different numbers of tokens are refused.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.

    A scored "frame" is two frames of the file, which the tower joins. A call has images or videos, since both have the
    same placeholders.
    """

    config: VidCom2NemotronHOmniConfig
