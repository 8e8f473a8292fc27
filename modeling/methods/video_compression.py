"""What a compression method is given, and what it returns.

Shapes: T frames, M tokens per frame, D channels, K kept tokens. A frame is what the family scores together: one frame
of the video, or in Qwen's families two.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class VideoTokens:
    """The tokens of one video, before any is dropped.

    Attributes:
        tokens: (T, M, D), any float dtype: what enters the language model. Structure tokens, such as newlines, are not
            among them.
        grid: rows and columns of a frame's tokens, M = rows · columns, token m at row m // columns; None if not known.
        tower_states: (T, P, V) states of the vision tower, of each patch of a frame, row by row, before they are
            projected and pooled to tokens. None unless the method's registration asks for them.
        tower_grid: rows and columns of a frame's patches, P = rows · columns; None with `tower_states`.
    """

    tokens: Tensor
    grid: tuple[int, int] | None = None
    tower_states: Tensor | None = None
    tower_grid: tuple[int, int] | None = None


class TokenMerge(NamedTuple):
    """Kept tokens as weighted means of a video's tokens, in N entries of any order: token `inputs[n]` enters the kept
    token number `outputs[n]` with weight `weights[n]`. The weights of each kept token add up to 1.

    Attributes:
        outputs: (N,) int64 in [0, K).
        inputs: (N,) int64 in [0, T·M).
        weights: (N,) float32.
    """

    outputs: Tensor
    inputs: Tensor
    weights: Tensor

    @classmethod
    def mean(cls, assignment: Tensor) -> "TokenMerge":
        """Each kept token becomes the mean of the tokens that are assigned to it.

        Args:
            assignment: (T·M,) int64: for each token of the video, the number of the kept token that it enters, in
                [0, K) in the order of `indices`; -1 if it enters none. A kept token that shall count in its own mean is
                assigned to itself.

        Raises:
            ValueError: if it is no such tensor, or leaves out a number below the largest one.
        """
        what = (
            f"{assignment.dtype} of shape {tuple(assignment.shape)}"
            if isinstance(assignment, Tensor)
            else f"a {type(assignment).__name__}"
        )
        if isinstance(assignment, Tensor) and assignment.dtype == torch.int64 and assignment.ndim == 1:
            inputs = (assignment >= 0).nonzero().flatten()
            outputs = assignment[inputs]
            counts = outputs.bincount()
            if len(inputs) and bool((counts > 0).all()) and bool((assignment >= -1).all()):
                return cls(outputs, inputs, 1 / counts[outputs].float())
            what = "int64 that assigns no token"
            if bool((assignment < -1).any()):
                what = f"int64 down to {int(assignment.min())}"
            elif len(inputs):
                what = f"int64 that leaves out {int(counts.argmin())}"
        raise ValueError(
            f"`assignment` is {what}, but must be int64 (T·M,): for each token the number of a kept one, from 0 on "
            "without gaps, or -1 for none."
        )


@dataclass(frozen=True)
class VideoCompression:
    """Which tokens of one video stay, and why.

    Attributes:
        indices: (K,) int64, ascending, into the frame-major flattened (T·M) tokens: the kept tokens, or where in the
            prompt merged ones stand.
        frame_budgets: (T,) int64, k_t: tokens kept in each frame, possibly none; their sum is K.
        frame_uniqueness: (T,) float32, u_t, larger is more unique; None if the method has no such score.
        token_uniqueness: (T, M) float32, u_{t,m}; -inf marks a token that holds a non-finite value; or None.
        merge: how tokens are merged into the kept ones; None if these stay as they are.
        tokens_per_frame: M.
        grid: rows and columns of a frame's tokens, if known.
    """

    indices: Tensor
    frame_budgets: Tensor
    frame_uniqueness: Tensor | None = None
    token_uniqueness: Tensor | None = None
    merge: TokenMerge | None = None
    tokens_per_frame: int = 0
    grid: tuple[int, int] | None = None

    @classmethod
    def of_mask(cls, kept: Tensor, **scores: Any) -> "VideoCompression":
        """From a bool mask (T, M) of the tokens that stay, and the scores that there are."""
        return cls(kept.flatten().nonzero().flatten(), kept.sum(dim=1), **scores)

    @property
    def num_tokens(self) -> int:
        """T·M, before anything was dropped."""
        return len(self.frame_budgets) * self.tokens_per_frame

    def kept_among(self, features: Tensor, scored: Tensor, placeholders: Tensor) -> Tensor:
        """Of a video's (placeholders, ...) features, structure among them, those that stay, merged ones in the places
        where they stand.

        Args:
            scored: (T·M,) int64, the placeholder of each scored token.
            placeholders: int64, those that stay.
        """
        if self.merge is not None:
            features = features.index_copy(0, scored[self.indices], self.kept(features[scored]))
        return features[placeholders]

    def kept(self, features: Tensor) -> Tensor:
        """The kept, or merged, ones of (T·M, ...) features of the tokens: (K, ...) of the same dtype. Sums are in
        float32."""
        if self.merge is None:
            return features[self.indices]
        outputs, inputs, weights = self.merge
        weighted = features[inputs].float() * weights.float().view(-1, *[1] * (features.ndim - 1))
        merged = torch.zeros(len(self.indices), *features.shape[1:], dtype=torch.float32, device=features.device)
        return merged.index_add(0, outputs, weighted).to(features.dtype)
