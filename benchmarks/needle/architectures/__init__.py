"""The architectures in which the benchmark trains a toy: what their training needs to know of each.

Shapes: B videos, T groups of frames (a frame, or in Qwen's families two, which share their tokens), M = 25 tokens of a
group, D channels. L levels of features: what enters the prompt, and for each deepstack layer what is added there.
"""

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin

from .llava_onevision import LlavaOnevision
from .qwen3_vl import Qwen3VL

__all__ = ["ARCHITECTURES", "Architecture"]


class Architecture(Protocol):
    """What the training asks of an architecture.

    Attributes:
        name: the value of `--architecture` and of `--toy`.
        frames_per_group: how many frames share their tokens.
        before_question: what the chat template puts between a video and the question.
    """

    name: str
    frames_per_group: int
    before_question: str

    def build(self, seed: int = 0) -> tuple[PreTrainedModel, ProcessorMixin]:
        """Return the untrained model, a stock class in float32, and its processor."""
        ...

    def tower(self, model: Any) -> nn.Module:
        """Return what step 1 trains: the vision tower and the projector."""
        ...

    def language(self, model: Any) -> nn.Module:
        """Return what step 2 trains: the language model, its head, and what else stands in a prompt."""
        ...

    def features(self, model: Any, frames: Tensor) -> Tensor:
        """Return (N, L, M, D), the features of N groups of frames (N, F, 140, 140, 3) uint8."""
        ...

    def hidden(
        self, model: Any, processor: Any, features: Tensor, rate: float, ids: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """Return (B, S + 1, D), the last hidden states before and at the tokens `ids` that follow the videos.

        Args:
            features: (B, T, L, M, D) of videos of the same length.
            rate: frames per second.
            ids: (B, S) of the text that follows each video.
            kept: (B, K) int64, ascending, the tokens of each video's T · M that enter the prompt, at the positions
                that they have in the full one. By default, all.
        """
        ...


ARCHITECTURES: dict[str, Architecture] = {each.name: each for each in (LlavaOnevision(), Qwen3VL())}
