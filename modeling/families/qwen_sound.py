"""What the thinkers of Qwen's Omni models share. Sound comes beside videos or among their tokens, and stays whole."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from ..encoding.video_features import ParentFeatures
from ..hosting.in_transformers import CACHE, cached_length, is_2d
from ..methods.compression import VideoCompression
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin

SOUND = ("input_features", "feature_attention_mask")  # They have an entry for each sound.


class QwenSoundModelMixin(QwenVideoModelMixin):
    """`QwenVideoModelMixin` for a parent that also hears. Sound stays whole, and has a part in the positions."""

    video_arguments = ("video_group_sizes",)

    def parent_video_features(
        self, *, video_second_per_grid: Any = None, video_group_sizes: Any = None, **kwargs: Any
    ) -> ParentFeatures:
        """Call the parent without the times of frames and the sizes of groups, which callers may pass with the videos,
        and which the tower does not read."""
        return super().parent_video_features(**kwargs)

    def with_videos(self, inputs: dict[str, Any], settings: CompressionSettings) -> dict[str, Any]:
        """Return the arguments of a call as they are. Raise a ValueError on images or videos beside embeddings, whose
        positions the parent finds by their ids."""
        media = [name for name in ("pixel_values", "pixel_values_videos") if inputs.get(name) is not None]
        if media and inputs.get("input_ids") is None:
            raise ValueError(
                f"`inputs_embeds` cannot be passed with `{media[0]}`: positions follow from the tokens before images "
                "and videos. Pass `input_ids`."
            )
        return super().with_videos(inputs, settings)

    def group_sizes(self, compressions: Sequence[VideoCompression], inputs: dict[str, Any]) -> Sequence[Sequence[int]]:
        """Return how many placeholders of a video stand between its sounds, as the processor counted them."""
        given = inputs.get("video_group_sizes")
        if given is None:
            return super().group_sizes(compressions, inputs)
        return [[size for size in sizes if size] for sizes in given.tolist()]

    def has_positions_of_its_own(self, inputs: dict[str, Any]) -> bool:
        """Whether new tokens have other positions than their order: those of images, videos and sound have, and those
        of padded text, whose padding the parent does not count. Embeddings may have media in them already."""
        is_masked = inputs.get("inputs_embeds") is None and is_2d(inputs.get("attention_mask"))
        is_heard = any(inputs.get(name) is not None for name in SOUND)
        return super().has_positions_of_its_own(inputs) or is_masked or is_heard

    def rope_index(self, input_ids: Tensor, mask: Tensor, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return what `QwenVideoModelMixin` does. The parent finds images, videos and sound by the marks before them.

        Args:
            mask: (B, P + L). P are earlier tokens, which matter if neither images nor videos are among the L new ones.
            inputs: as well as the sizes and times, the sounds of the new tokens.
        """
        config, num_new = self.config, input_ids.shape[1]
        ids = input_ids.masked_fill(mask[:, -num_new:] == 0, -1)
        num_sounds = int((ids == config.audio_start_token_id).sum())
        following = ids[:, 1:][ids[:, :-1] == config.vision_start_token_id]
        images, silent, sounding = (
            int((following == token).sum())
            for token in (config.image_token_id, config.video_token_id, config.audio_start_token_id)
        )
        heard = bool(inputs.get("use_audio_in_video"))
        if silent if heard else sounding:
            raise ValueError(
                f"`use_audio_in_video` is {inputs.get('use_audio_in_video')}, but {sounding} videos of the prompt have "
                f"their sound among their tokens, and {silent} have not. Pass True if all have, as to the processor, "
                "and leave it out if none has. The parent's positions know no prompt with both."
            )
        if not images + silent + sounding:
            positions, rope_deltas = self.get_rope_index(attention_mask=mask)
            return positions[..., -num_new:], rope_deltas
        num_videos, of_sounds = silent + sounding, inputs.get("feature_attention_mask")
        if num_sounds != (0 if of_sounds is None else len(of_sounds)):
            raise ValueError(
                f"The prompt has {num_sounds} sounds, but `feature_attention_mask` has "
                f"{0 if of_sounds is None else len(of_sounds)}. Pass it and `input_features` as the processor returned "
                "them. Sounds of earlier turns are in the KV cache: leave them out."
            )
        return self.get_rope_index(
            input_ids,
            image_grid_thw=_last(inputs, "image_grid_thw", images, "images"),
            video_grid_thw=_last(inputs, "video_grid_thw", num_videos, "videos"),
            attention_mask=mask[:, -num_new:],
            use_audio_in_video=heard,
            audio_seqlens=None if of_sounds is None else of_sounds.sum(dim=-1),
            second_per_grids=_last(inputs, "video_second_per_grid", num_videos, "videos"),
        )


def _last(inputs: dict[str, Any], name: str, number: int, what: str) -> Any:
    """Return the last entries of an argument, which belong to the new tokens. Others may belong to earlier turns."""
    given = inputs.get(name)
    if number == 0:
        return None
    if given is None or len(given) < number:
        shown = given.tolist() if isinstance(given, Tensor) else given
        raise ValueError(
            f"The prompt has {number} {what}, but `{name}` is {shown}. "
            "Pass it as the processor returned it, with an entry for each image or video, also beside features that "
            "were encoded beforehand."
        )
    return given[len(given) - number :]


class QwenSoundGenerationMixin(VidCom2GenerationMixin):
    """`VidCom2GenerationMixin` for a parent that also hears."""

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, *args: Any, input_ids: Tensor | None = None, **model_kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Repeat prompts, features and sounds for beams. The parent would repeat each sound by itself, but those of a
        prompt follow each other in each of its beams."""
        sounds = {name: model_kwargs[name] for name in SOUND if isinstance(model_kwargs.get(name), Tensor)}
        embeddings = model_kwargs.get("inputs_embeds")
        expanded, model_kwargs = super()._expand_inputs_for_generation(
            expand_size, *args, input_ids=input_ids, **model_kwargs
        )
        if expand_size == 1 or input_ids is None or not sounds:
            return expanded, model_kwargs
        begins = input_ids == self.config.audio_start_token_id
        if embeddings is not None and not input_ids.numel():
            mark = self.get_input_embeddings()(input_ids.new_tensor(self.config.audio_start_token_id))
            begins = (embeddings == mark).all(dim=-1)
        counts = begins[:, cached_length(model_kwargs.get(CACHE)) :].sum(dim=1).tolist()  # earlier sounds are cached
        groups = torch.arange(sum(counts), device=input_ids.device).split(counts)
        order = torch.cat([group.repeat(expand_size) for group in groups])
        return expanded, model_kwargs | {name: value[order.to(value.device)] for name, value in sounds.items()}
