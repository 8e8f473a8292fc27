"""Frame Compression Adjustment: how many tokens each frame keeps, given its uniqueness (paper, Eqs. 5 and 6).

This is stage 1, step 4 of Algorithm 1. It stands apart from VidCom²'s scores, so that a method with a score u_t of its
own can use it too.
"""

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from .exact_totals import exact_total, fixed_total_budgets, in_float64
from .token_budgets import lowered

EPSILON = 1e-8  # ε of Eq. 5
BUDGET_DECIMALS = 4  # Budgets are rounded to this many decimals before they become whole: the rest is float32 noise.
# A method that calls `frame_budgets` reads these settings, and declares them.
FRAME_BUDGET_SETTINGS = ("compression_rounding", "compression_temperature")


def frame_budgets(
    u: Tensor, tokens_per_frame: int, settings: CompressionSettings, epsilon: float = EPSILON
) -> tuple[Tensor, int]:
    """Return how many tokens each frame keeps: the higher its score, the more.

    Args:
        u: (T,) finite float: the score u_t of each frame.
        tokens_per_frame: M.
        settings: of these, `retention_ratio`, `compression_temperature`, `compression_rounding` and
            `compression_frame_score="uniform"` are read, and `max_video_tokens` where budgets are rounded.
        epsilon: ε of Eq. 5.

    Returns:
        The budgets k_t (T,) int64 in [1, M], and their sum K. With `"exact"`, K depends on the sizes alone; otherwise
        the device must be asked for it.
    """
    device, ratio = u.device, settings.retention_ratio
    budgets = frame_retention_ratios(in_float64(u), settings, epsilon) * tokens_per_frame
    if settings.compression_rounding == "exact":
        total = exact_total(len(u), tokens_per_frame, ratio)
        return fixed_total_budgets(budgets, tokens_per_frame, ratio).to(device), total
    budgets = budgets.round(decimals=BUDGET_DECIMALS)
    # The paper rounds up, and the released code rounds half to even. If r_t > 1, the released code loses what exceeds
    # the frame's M tokens, and so does the clamp.
    budgets = budgets.ceil() if settings.compression_rounding == "ceil" else budgets.round()
    budgets = budgets.clamp(1, tokens_per_frame).long()
    total = int(budgets.sum())
    if settings.max_video_tokens is not None and total > settings.max_video_tokens:
        # The scores are known here, so that they need not be computed again for the lower ratio.
        return frame_budgets(u, tokens_per_frame, lowered(settings, len(u) * tokens_per_frame), epsilon)
    return budgets.to(device), total


def frame_retention_ratios(u: Tensor, settings: CompressionSettings, epsilon: float = EPSILON) -> Tensor:
    """Return r_t (T,) = R·(1 + σ_t - 1/T), where σ is the softmax of (u - max u)/τ (Eqs. 5 and 6).

    With `compression_frame_score="uniform"`, each r_t is R.
    """
    ratio = settings.retention_ratio
    if settings.compression_frame_score == "uniform":
        return torch.full_like(u, ratio)
    exponentials = torch.exp((u - u.max()) / settings.compression_temperature)
    sigma = exponentials / (exponentials.sum() + epsilon)
    return ratio * (1 + sigma - 1 / len(u))
