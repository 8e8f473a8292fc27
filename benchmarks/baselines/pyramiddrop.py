"""PyramidDrop (Xing et al., CVPR 2025, arXiv 2410.17247), without training.

The layers are divided into S stages, and a share λ of the video tokens is kept at the end of each stage but the last
(Section 3.2). By default there are S = 4 stages of the same length, and λ = 0.5. The tokens are ranked by their
attention from the last token of the instruction.

The paper leaves some points open, and this file follows the code (github.com/Cooperx521/PyramidDrop,
`pdrop_rank_drop`): a drop after l layers ranks with the queries and keys of layer l + 1, applied to its input; the
softmax is over the whole prompt, followed by the mean over heads; and the query is the last token of the whole prompt,
including what the chat template adds. There is one difference: the code renumbers the positions after a drop, but here
they stay (see `in_model_pruning`).
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
    """Answer with PyramidDrop.

    Args:
        inputs, video_features: see `read_prompt`.
        retention_ratio: R, the average share of video tokens over the layers.
        frame_adjustment: keep the best k_t tokens of each frame, with VidCom²'s budgets, instead of the video's best.
        layers: after how many layers tokens are dropped; by default as `default_layers` returns.

    Raises:
        ValueError: if R is out of reach, as it is below (first of `layers`) / L, or if the inputs do not fit.
    """
    prompt = read_prompt(model, inputs, video_features)
    drops = stages(retention_ratio, num_layers_of(model), prompt.num_video_tokens, layers)
    last_token = torch.ones_like(prompt.positions[:, :1])
    pruning = Pruning(drops, last_token, ranks_in_next_layer=True, frame_adjustment=frame_adjustment)
    return answer_with_pruning(model, prompt, pruning, max_new_tokens)


def stages(
    retention_ratio: float, num_layers: int, num_tokens: int, layers: Sequence[int] | None = None
) -> list[Stage]:
    """Return stages that keep N·λ, N·λ² and N·λ³ tokens after the layers, with the λ for which the average is R."""
    layers = default_layers(retention_ratio, num_layers) if layers is None else layers
    return [Stage(*stage) for stage in zip(layers, kept_tokens(retention_ratio, num_layers, layers, num_tokens))]


def default_layers(retention_ratio: float, num_layers: int) -> list[int]:
    """Return the layers to drop after: three stages of the same length, the first of which uses half of the budget of
    R·L layers, and a last stage with all other layers.

    With the paper's quarters, R = 0.25 would leave nothing after the first stage, and smaller R are out of reach. This
    rule gives the quarters at the ratio of the paper's own setting (R = 0.469, λ = 0.5), and keeps λ between 0.3 and
    0.5 at smaller ratios. At R = 0.25, drops come after layers 4, 8, 12 of 28 (λ = 0.38) and 3, 6, 9 of 24 (λ = 0.43);
    at R = 0.15, after layers 2, 4, 6 of both. L = 3 has room for drops after layers 1 and 2.
    """
    check_ratio(retention_ratio)
    length = max(1, round(retention_ratio * num_layers / 2))
    return [after for after in range(length, NUM_DROPS * length + 1, length) if after < num_layers]
