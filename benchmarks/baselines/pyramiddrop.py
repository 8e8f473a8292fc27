"""PyramidDrop (Xing et al., CVPR 2025, arXiv 2410.17247), without training.

The layers are divided into S stages, and at the end of each but the last a share λ of the video tokens goes on (Section
3.2); by default S = 4 stages of the same length, λ = 0.5. The tokens are ranked by attention with the last token of the
instruction as the query.

What the code (github.com/Cooperx521/PyramidDrop, `pdrop_rank_drop`) settles, and this follows: a drop after l layers
ranks with the queries and keys of layer l + 1, on what would enter it; softmax over the whole prompt, then the mean
over heads; the query is the last token of the whole prompt, with what the chat template adds. It differs in one point:
the code renumbers the positions after a drop, and here they stay (see `in_model_pruning`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlavaOnevisionForConditionalGeneration

from .in_model_pruning import Answer, Pruning, answer_with_pruning
from .prompts import Inputs, num_layers_of, read_prompt
from .schedules import Stage, check_ratio, kept_tokens

NUM_DROPS = 3  # S - 1


def answer(
    model: LlavaOnevisionForConditionalGeneration,
    inputs: Inputs,
    retention_ratio: float,
    max_new_tokens: int = 4,
    *,
    video_features: Tensor | None = None,
    frame_adjustment: bool = False,
    layers: Sequence[int] | None = None,
) -> Answer:
    """
    Args:
        inputs, video_features: see `read_prompt`.
        retention_ratio: R, the average share of video tokens over the layers.
        frame_adjustment: take the best k_t tokens of each frame, with VidCom²'s budgets, and not the best of the video.
        layers: after how many layers tokens are dropped; by default what `default_layers` says.

    Raises:
        ValueError: if R is out of reach, which is so below (first of `layers`) / L, or the inputs do not fit.
    """
    prompt = read_prompt(model, inputs, video_features)
    drops = stages(retention_ratio, num_layers_of(model), prompt.num_video_tokens, layers)
    last_token = torch.ones_like(prompt.positions[:, :1])
    pruning = Pruning(drops, last_token, ranks_in_next_layer=True, frame_adjustment=frame_adjustment)
    return answer_with_pruning(model, prompt, pruning, max_new_tokens)


def stages(
    retention_ratio: float, num_layers: int, num_tokens: int, layers: Sequence[int] | None = None
) -> list[Stage]:
    """N·λ, N·λ², N·λ³ tokens after the layers, with the λ for which the average is R."""
    layers = default_layers(retention_ratio, num_layers) if layers is None else layers
    return [Stage(*stage) for stage in zip(layers, kept_tokens(retention_ratio, num_layers, layers, num_tokens))]


def default_layers(retention_ratio: float, num_layers: int) -> list[int]:
    """Three stages of the same length and the rest, of which the first takes half of the budget of R·L layers.

    With the paper's quarters R = 0.25 would leave nothing after the first, and smaller R are out of reach. This rule
    gives the quarters at the ratio of the paper's own setting (R = 0.469, λ = 0.5), and λ stays between 0.3 and 0.5 at
    smaller ones: at R = 0.25 drops come after layers 4, 8, 12 of 28 (λ = 0.38) and 3, 6, 9 of 24 (λ = 0.43), at
    R = 0.15 after 2, 4, 6 of both. L = 3 has room for drops after layers 1 and 2.
    """
    check_ratio(retention_ratio)
    length = max(1, round(retention_ratio * num_layers / 2))
    return [after for after in range(length, NUM_DROPS * length + 1, length) if after < num_layers]
