"""Frame Compression Adjustment: how many tokens each frame keeps, from its uniqueness (paper, Eqs. 5 and 6).

Stage 1, step 4 of Algorithm 1, apart from VidCom²'s scores: a method with a score u_t of its own can use it too.
"""

import torch
from torch import Tensor

from ...configuration.compression_settings import CompressionSettings
from .exact_totals import exact_total, fixed_total_budgets

EPSILON = 1e-8  # ε of Eq. 5
BUDGET_DECIMALS = 4  # budgets closer than this to a whole number are that number: the rest is float32 noise
# What a method that calls `frame_budgets` reads, and declares.
FRAME_BUDGET_SETTINGS = ("compression_rounding", "compression_temperature")


def frame_budgets(
    u: Tensor, tokens_per_frame: int, settings: CompressionSettings, epsilon: float = EPSILON
) -> tuple[Tensor, int]:
    """Tokens to keep in each frame, more in those of higher score.

    Args:
        u: (T,) finite float, the score of each frame.
        tokens_per_frame: M.
        settings: reads `retention_ratio`, `compression_temperature`, `compression_rounding`, and
            `compression_frame_score="uniform"`.

    Returns:
        k_t (T,) int64 in [1, M], and their sum K. Only `"exact"`, whose total depends on the sizes alone, knows K
        without waiting for the device.
    """
    device, ratio = u.device, settings.retention_ratio
    u = u.cpu().double() if device.type == "mps" else u.double()  # MPS has no float64
    budgets = frame_retention_ratios(u, settings, epsilon) * tokens_per_frame
    if settings.compression_rounding == "exact":
        total = exact_total(len(u), tokens_per_frame, ratio)
        return fixed_total_budgets(budgets, tokens_per_frame, ratio).to(device), total
    budgets = budgets.round(decimals=BUDGET_DECIMALS)
    # The paper rounds up. The released code rounds half to even and loses what r_t > 1 asks for; so does the clamp.
    budgets = budgets.ceil() if settings.compression_rounding == "ceil" else budgets.round()
    budgets = budgets.clamp(1, tokens_per_frame).long()
    return budgets.to(device), int(budgets.sum())


def frame_retention_ratios(u: Tensor, settings: CompressionSettings, epsilon: float = EPSILON) -> Tensor:
    """r_t (T,): R·(1 + σ_t - 1/T), with σ the softmax of (u - max u)/τ (Eqs. 5 and 6); R in all with `"uniform"`."""
    ratio = settings.retention_ratio
    if settings.compression_frame_score == "uniform":
        return torch.full_like(u, ratio)
    exponentials = torch.exp((u - u.max()) / settings.compression_temperature)
    sigma = exponentials / (exponentials.sum() + epsilon)
    return ratio * (1 + sigma - 1 / len(u))
