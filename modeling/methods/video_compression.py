"""What a compression method is given, and what it returns.

Shapes: T frames, M tokens per frame, D channels, K kept tokens. A frame here is one frame of the video, or in Qwen's
families two, which share their tokens.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .token_ranking import mask_of

MERGE_BYTES = 16 * 2**20  # of features in float32 that are weighted at a time


@dataclass(frozen=True)
class VideoTokens:
    """The tokens of one video, before any is dropped.

    Attributes:
        tokens: (T, M, D), any float dtype: the tokens that would enter the language model, without structure tokens
            such as newlines.
        grid: rows and columns of a frame's tokens; M = rows · columns, and token m is in row m // columns. None if not
            known, and for frames with slices, whose tokens form no grid.
        in_prompt: (T, M) bool, which tokens have a placeholder in the prompt, where a processor leaves out some that
            repeat what the frame before shows. None if all have. Methods choose among all.
    """

    tokens: Tensor
    grid: tuple[int, int] | None = None
    in_prompt: Tensor | None = None


class TokenMerge(NamedTuple):
    """Describes how tokens are merged: each kept token becomes a weighted mean of the video's tokens.

    There are N entries in any order. In entry n, token `inputs[n]` enters kept token number `outputs[n]` with weight
    `weights[n]`. The weights of each kept token add up to 1.

    Attributes:
        outputs: (N,) int64 in [0, K).
        inputs: (N,) int64 in [0, T·M).
        weights: (N,) float32.
    """

    outputs: Tensor
    inputs: Tensor
    weights: Tensor


@dataclass(frozen=True)
class VideoCompression:
    """Which tokens of one video stay, and why.

    Attributes:
        indices: (K,) int64, ascending, into the frame-major flattened (T·M) tokens: the kept tokens. A merged token
            takes the place of the kept token at its index.
        frame_budgets: (T,) int64, k_t: number of tokens kept in each frame, possibly none; their sum is K.
        frame_uniqueness: (T,) float32, u_t, where larger is more unique; None if the method has no such score.
        token_uniqueness: (T, M) float32, u_{t,m}, where -inf marks a token with a non-finite value; None if the method
            has no such score.
        merge: how tokens are merged into the kept ones; None if these stay as they are.
        tokens_per_frame: M.
        grid: rows and columns of a frame's tokens; None if not known.
        in_prompt: as in `VideoTokens`. The kept tokens are among these.
    """

    indices: Tensor
    frame_budgets: Tensor
    frame_uniqueness: Tensor | None = None
    token_uniqueness: Tensor | None = None
    merge: TokenMerge | None = None
    tokens_per_frame: int = 0
    grid: tuple[int, int] | None = None
    in_prompt: Tensor | None = None

    @classmethod
    def of_mask(cls, kept: Tensor, **scores: Any) -> "VideoCompression":
        """Make a compression from a bool mask (T, M) of the tokens that stay, and other fields by name."""
        return cls(kept.flatten().nonzero().flatten(), kept.sum(dim=1), **scores)

    def within(self, in_prompt: Tensor | None) -> "VideoCompression":
        """Keep only what has a placeholder in the prompt, (T, M) bool, or all if that is None. If nothing has, keep the
        first token that has one, unmerged, so that something of the video stays."""
        if in_prompt is None:
            return self
        stays, merge = in_prompt.flatten()[self.indices], self.merge
        indices = self.indices[stays]
        if len(indices) == 0:
            indices, merge = in_prompt.flatten().nonzero()[0], None
        elif merge is not None:
            left, numbers = stays[merge.outputs], stays.cumsum(0) - 1
            merge = TokenMerge(numbers[merge.outputs[left]], merge.inputs[left], merge.weights[left])
        kept = mask_of(indices, in_prompt)
        return replace(self, indices=indices, frame_budgets=kept.sum(dim=1), merge=merge, in_prompt=in_prompt)

    @property
    def num_tokens(self) -> int:
        """T·M, the number of tokens before any was dropped."""
        return len(self.frame_budgets) * self.tokens_per_frame

    def kept_among(self, features: Tensor, scored: Tensor, placeholders: Tensor) -> Tensor:
        """Return the features that stay of a video; a merged feature takes the place of the token it was merged into.

        Args:
            features: (placeholders, ...) features of all the video's placeholders, including structure tokens; and of
                the scored tokens that have no placeholder.
            scored: (T·M,) int64: the placeholder of each scored token.
            placeholders: int64: the placeholders that stay.
        """
        if self.merge is not None:
            features = features.index_copy(0, scored[self.indices], self.kept(features[scored]))
        if self.in_prompt is not None:
            features = features[self.in_prompt.flatten()]
        return features[placeholders]

    def kept(self, features: Tensor) -> Tensor:
        """Return the kept or merged ones of the tokens' features (T·M, ...): (K, ...) of the same dtype.

        Merged features are summed in float32.
        """
        if self.merge is None:
            return features[self.indices]
        merged = torch.zeros(len(self.indices), *features.shape[1:], dtype=torch.float32, device=features.device)
        # A token may enter many means, so all entries at once could be many times as large as the video.
        step = max(1, MERGE_BYTES // (4 * features[0].numel()))
        for outputs, inputs, weights in zip(*(part.split(step) for part in self.merge)):
            weighted = features[inputs].float() * weights.float().view(-1, *[1] * (features.ndim - 1))
            merged.index_add_(0, outputs, weighted)
        return merged.to(features.dtype)
