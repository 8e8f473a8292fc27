"""The model says which: of each video it keeps as many tokens as the prompt has room for, and lays the prompt out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...configuration.compression_settings import NUM_KEPT
from ..encoding.video_features import VidCom2VideoFeatures, VideoFeaturesMixin
from ..hosting.in_transformers import without
from ..methods.compression import VideoCompression
from .short_prompt_layout import Group, Layout, prompt_layout

PER_TOKEN = ("mm_token_type_ids", "token_type_ids")  # arguments with an entry for each token, which move with it


class ShortPromptModelMixin(VideoFeaturesMixin):
    """The part of `VidCom2ModelMixin` that runs prompts with a placeholder for each video token that stays."""

    frames_stand_apart = False  # Whether each frame has its own group of placeholders in the prompt, behind its time.

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def group_sizes(self, compressions: Sequence[VideoCompression], inputs: dict[str, Any]) -> Sequence[Sequence[int]]:
        """Return how many placeholders each group of each video has in the full prompt.

        Args:
            inputs: the arguments of the call.
        """
        counts = [len(each.frame_budgets) if self.frames_stand_apart else 1 for each in compressions]
        return [[each.num_placeholders // count] * count for each, count in zip(compressions, counts)]

    def video_places(self, tokens: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return which tokens are placeholders of videos: (B, n) bool.

        Args:
            tokens: (B, n) ids or (B, n, dim) embeddings of the new tokens.
            inputs: the arguments of the call.
        """
        if tokens.ndim == 2:
            return self.is_video(tokens)
        mark = self.get_input_embeddings()(torch.tensor(self.config.video_token_id, device=tokens.device))
        return (tokens == mark).all(dim=-1)

    # -----------------------------------------------------------------------------------------------------------------
    # What all families share
    # -----------------------------------------------------------------------------------------------------------------

    def short_features(self, inputs: dict[str, Any], overrides: dict[str, Any]) -> VidCom2VideoFeatures:
        """Return the features of a call's new videos, as many as the prompt has room for.

        Args:
            inputs: the arguments of `forward`, with `num_kept_video_tokens`.
            overrides: the settings of this call.

        Raises:
            ValueError: if features that were encoded beforehand keep other numbers.
        """
        features = (inputs.get("mm_encoder_outputs") or {}).get("video")
        if features is None:
            return self._encode(self.get_video_features, inputs, **overrides).without_tower_states()
        kept = [len(each.indices) for each in getattr(features, "video_compressions", None) or ()]
        asked = torch.as_tensor(inputs[NUM_KEPT]).flatten().tolist()
        if kept != asked:
            raise ValueError(
                f"`mm_encoder_outputs['video']` keeps {kept} tokens of the videos, but `{NUM_KEPT}` is {asked}. Pass "
                "the output of this model's `get_video_features` with the same number, or the pixels."
            )
        return features

    def laid_out(self, inputs: dict[str, Any], features: VidCom2VideoFeatures) -> tuple[dict[str, Any], Layout]:
        """Lay out the new tokens of a call, and put the features of their videos in the place of pixels.

        Args:
            inputs: the arguments of `forward`, with new tokens alone.
            features: what `short_features` returned for them.

        Returns:
            The arguments with which the parent runs the prompt, and how it was laid out.

        Raises:
            ValueError: if the placeholders do not fit the videos.
        """
        name = "inputs_embeds" if inputs.get("input_ids") is None else "input_ids"
        tokens, compressions = inputs[name], features.video_compressions
        sizes = self.group_sizes(compressions, inputs)
        layout = prompt_layout(
            self.video_places(tokens, inputs), [_groups(each, of) for each, of in zip(compressions, sizes, strict=True)]
        )
        ready = VidCom2VideoFeatures(
            pooler_output=features.pooler_output, deepstack_features=features.deepstack_features
        )
        encoded = (inputs.get("mm_encoder_outputs") or {}) | {"video": ready}
        inputs = without(inputs, ("pixel_values_videos", NUM_KEPT, *self.video_arguments))
        if layout.moves:
            num_new = tokens.shape[1]
            moved = {each: inputs[each] for each in (name, *PER_TOKEN) if inputs.get(each) is not None}
            inputs = inputs | {each: layout.laid_out(value[:, -num_new:]) for each, value in moved.items()}
        return inputs | {"mm_encoder_outputs": encoded}, layout


def _groups(compression: VideoCompression, sizes: Sequence[int]) -> list[Group]:
    """Divide the placeholders of a video that stay among its groups."""
    kept, start, groups = compression.placeholders, 0, []
    for size in sizes:
        groups.append(Group(size, kept[(kept >= start) & (kept < start + size)] - start))
        start += size
    return groups
