"""VidCom²: which tokens of a video to keep (paper, Section 3.2 and Algorithm 1).

Knows tensors, not models: `(num_frames, tokens_per_frame, dim)` in, indices out.

    Stage 1, Frame Compression Adjustment: a frame whose tokens differ from the video's mean gets a larger budget.
    Stage 2, Adaptive Token Compression: each frame keeps the tokens that differ most from its own and the video's mean.

Shapes below: T frames, M tokens per frame, D channels, K kept tokens.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from ..configuration.compression_settings import COMPRESSION_METHODS, CompressionSettings, register_compression_method
from .video_compression import VideoCompression, VideoTokens

EPSILON = 1e-8  # ε of Eq. 5
LOW_VARIANCE_SHARE = 0.5  # released code: the share of channels that is scored, those with the lowest variance
GAUSSIAN_WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)  # released code: a in exp(-d² / 2a)
HIGHEST_SIMILARITY = {"paper": 1.0, "released": float(len(GAUSSIAN_WIDTHS))}
BUDGET_DECIMALS = 4  # frame budgets closer than this to a whole number are that number: the rest is float32 noise
REMAINDER_NOISE = 1e-6  # the same for the float64 arithmetic of `fixed_total_budgets`
# Tokens are scored in float32 in blocks of frames, so a half-precision video is never copied as a whole. They are few
# and large: on the CPU each operation on one is a parallel step that waits for its slowest thread, milliseconds when
# other work holds a core. What the CPU converts or masks goes through one buffer, which stays below 32 MiB: glibc gives
# a larger one fresh pages every time, and to clear those takes longer than the arithmetic.
BLOCK_BYTES = 256 * 2**20
CPU_BUFFER_BYTES = 24 * 2**20
# dtypes for which `torch.batch_norm_update_stats` works in float32 on the CPU
BATCH_NORM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TokenScores(NamedTuple):
    """What a compression method returns: (T, M) float32 each, -inf at non-finite tokens."""

    video_uniqueness: Tensor  # u^video, from which frame budgets follow
    token_uniqueness: Tensor  # u = a·u^frame + b·u^video, which ranks the tokens within a frame


def compress(
    video_tokens: Tensor,
    retention_ratio: float = 0.25,
    *,
    compression_method: str = "vidcom2",
    compression_scoring: str = "paper",
    compression_rounding: str = "ceil",
    compression_temperature: float = 0.01,
    compression_frame_score: str = "mean",
    compression_window: int | None = None,
    compression_positions: str = "consecutive",
    compression_frame_weight: float = 1.0,
    compression_video_weight: float = 1.0,
) -> VideoCompression:
    """Select the distinctive tokens of one video.

    Args:
        video_tokens: (num_frames, tokens_per_frame, dim), any float dtype, any device; scored in float32.
        retention_ratio: fraction of the tokens to keep, in (0, 1].
        compression_method, compression_scoring, ...: see `CompressionSettings`. `compression_positions` says where a
            model lets the kept tokens stand, and selects nothing.

    Returns:
        A `VideoCompression` on the device of `video_tokens`. The kept features are
        `video_tokens.flatten(0, 1)[compression.indices]`. No gradient flows through the selection.

    Raises:
        ValueError: if a setting is outside its accepted set, or `video_tokens` is no non-empty 3-D float tensor.
    """
    settings = CompressionSettings(
        retention_ratio=retention_ratio,
        compression_method=compression_method,
        compression_scoring=compression_scoring,
        compression_rounding=compression_rounding,
        compression_temperature=compression_temperature,
        compression_frame_score=compression_frame_score,
        compression_window=compression_window,
        compression_positions=compression_positions,
        compression_frame_weight=compression_frame_weight,
        compression_video_weight=compression_video_weight,
    )
    return compress_with(settings, VideoTokens(video_tokens))


@torch.compiler.disable  # the sizes depend on the content: compiling this would break the graph at each of them
@torch.no_grad()
def compress_with(settings: CompressionSettings, video: VideoTokens) -> VideoCompression:
    """`compress` with settings that are already checked."""
    video_tokens = video.tokens
    _check_video_tokens(video_tokens)
    with _without_autocast(video_tokens.device.type):
        scores = COMPRESSION_METHODS[settings.compression_method](video_tokens, settings)
        u = frame_uniqueness(scores.video_uniqueness, settings)
        budgets = frame_budgets(u, video_tokens.shape[1], settings)
        num_kept = num_kept_tokens(budgets, video_tokens.shape[1], settings)
        indices = most_unique_tokens(scores.token_uniqueness, budgets, num_kept)
    return VideoCompression(
        indices, budgets, u, scores.token_uniqueness, tokens_per_frame=video_tokens.shape[1], grid=video.grid
    )


def _without_autocast(device_type: str) -> AbstractContextManager:
    """Mixed-precision training would turn the matrix products to half precision."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _check_video_tokens(video_tokens: Tensor) -> None:
    if not isinstance(video_tokens, Tensor) or not video_tokens.is_floating_point() or video_tokens.ndim != 3:
        got = (
            f"{video_tokens.dtype} of shape {tuple(video_tokens.shape)}"
            if isinstance(video_tokens, Tensor)
            else type(video_tokens).__name__
        )
        raise ValueError(
            f"`video_tokens` is {got}, but must be a float tensor (num_frames, tokens_per_frame, dim); "
            "compress the videos of a batch one at a time."
        )
    if 0 in video_tokens.shape:
        raise ValueError(
            f"`video_tokens` has shape {tuple(video_tokens.shape)}: the video is empty. "
            "Pass at least one frame with one token."
        )


# ---------------------------------------------------------------------------------------------------------------------
# Token scores (Algorithm 1, stage 1 steps 1-2 and stage 2 steps 1-2)
# ---------------------------------------------------------------------------------------------------------------------


@register_compression_method("vidcom2")
def vidcom2_scores(video_tokens: Tensor, settings: CompressionSettings) -> TokenScores:
    """Uniqueness of each token in its frame and in the video: two reads of the tokens, a third for `"released"`."""
    released = settings.compression_scoring == "released"
    channels = low_variance_channels(video_tokens) if released else None

    norms, finite, frame_sums = token_norms_and_frame_sums(video_tokens, channels, unit_tokens=released)
    centres = torch.stack(frame_and_video_means(frame_sums, finite, settings.compression_window), dim=1)  # (T, 2, D)
    products = token_centre_products(video_tokens, centres)
    centre_norms = torch.linalg.vector_norm(centres, dim=-1)[:, None]

    if released:
        similarity = gaussian_similarity(products, norms[..., None], centre_norms)
    else:
        similarity = cosine_similarity(products, norms[..., None], centre_norms)
    u_frame, u_video = (-similarity).unbind(-1)  # Eqs. 4 and 8: uniqueness is negated similarity
    u = settings.compression_frame_weight * u_frame + settings.compression_video_weight * u_video  # Eq. 9
    return TokenScores(u_video.masked_fill(~finite, -math.inf), u.masked_fill(~finite, -math.inf))


def token_norms_and_frame_sums(
    video_tokens: Tensor, channels: Tensor | None, unit_tokens: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Length of each token (T, M), whether it is finite (T, M), and the sum over each frame's finite tokens (T, D).

    `channels` (D,) of zeros and ones leaves only those channels in; `unit_tokens` sums tokens scaled to length 1.
    """
    num_frames, tokens_per_frame, dim = video_tokens.shape
    norms = torch.empty(num_frames, tokens_per_frame, dtype=torch.float32, device=video_tokens.device)
    sums = torch.empty(num_frames, 1, dim, dtype=torch.float32, device=video_tokens.device)
    for frames, block in float32_blocks(video_tokens, channels):
        block_norms = torch.linalg.vector_norm(block, dim=-1, out=norms[frames])
        finite = block_norms.isfinite()
        block = clear_tokens(block, ~finite)
        weights = torch.where(finite & (block_norms > 0), 1 / block_norms, 0.0) if unit_tokens else finite.float()
        torch.bmm(weights[:, None], block, out=sums[frames])
    return norms, norms.isfinite(), sums[:, 0]


def frame_and_video_means(frame_sums: Tensor, finite: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """g_f of each frame (Eq. 7) and the g_v that each frame is compared with (Eq. 3, or a window), (T, D) each."""
    num_frames = len(frame_sums)
    counts = finite.sum(dim=1, keepdim=True)  # (T, 1): non-finite tokens are in no mean
    if window is None or window >= num_frames:
        video_sums, video_counts = frame_sums.sum(0, keepdim=True), counts.sum(0, keepdim=True)
    else:
        frames = torch.arange(num_frames, device=frame_sums.device)
        first = (frames - window // 2).clamp(0, num_frames - window)[:, None]
        inside = ((frames >= first) & (frames < first + window)).float()  # (T, T)
        video_sums, video_counts = inside @ frame_sums, inside @ counts.float()
    video_means = video_sums / video_counts.clamp(min=1)
    return frame_sums / counts.clamp(min=1), video_means.expand_as(frame_sums)


def token_centre_products(video_tokens: Tensor, centres: Tensor) -> Tensor:
    """Inner products (T, M, C) of each token with its frame's centres (T, C, D)."""
    num_frames, tokens_per_frame, _ = video_tokens.shape
    products = torch.empty(num_frames, tokens_per_frame, centres.shape[1], dtype=torch.float32, device=centres.device)
    for frames, block in float32_blocks(video_tokens):
        torch.bmm(block, centres[frames].mT, out=products[frames])
    return products


def cosine_similarity(products: Tensor, token_norms: Tensor, centre_norms: Tensor) -> Tensor:
    """Eqs. 4 and 8. A zero vector is similar to nothing: 0."""
    lengths = token_norms * centre_norms
    return torch.where(lengths > 0, products / lengths, 0.0).clamp(-1, 1)


def gaussian_similarity(products: Tensor, token_norms: Tensor, centre_norms: Tensor) -> Tensor:
    """The released code's similarity: five Gaussians of the distance between the unit-length token and the centre.

    Departs from the paper's cosine. A zero token stays at the origin, as it does there.
    """
    nonzero = token_norms > 0
    cosine_part = torch.where(nonzero, products / token_norms, 0.0)
    squared_distance = (nonzero.float() - 2 * cosine_part + centre_norms.square()).clamp(min=0)
    exponents = torch.stack([squared_distance / (-2 * width) for width in GAUSSIAN_WIDTHS])
    return sum(exponents.exp_())  # term by term: equal tokens get equal sums wherever they stand


def low_variance_channels(video_tokens: Tensor) -> Tensor:
    """(D,) float32 with 1 at the half of the channels that vary least over the video's tokens (released code)."""
    dim = video_tokens.shape[-1]
    lowest = channel_variance(video_tokens).argsort(stable=True)[: int(dim * LOW_VARIANCE_SHARE)]
    return torch.zeros(dim, dtype=torch.float32, device=video_tokens.device).index_fill_(0, lowest, 1.0)


def channel_variance(video_tokens: Tensor) -> Tensor:
    """(D,) float32: population variance of each channel over the finite tokens of the video."""
    if video_tokens.device.type == "cpu" and video_tokens.dtype in BATCH_NORM_DTYPES:
        # One operation on the video as it is. It returns float32 because the statistics that it could update are.
        unused = torch.zeros(2, video_tokens.shape[-1], dtype=torch.float32)
        _, variance = torch.batch_norm_update_stats(video_tokens.flatten(0, 1), *unused, momentum=0.0)
        if variance.isfinite().all():  # then so is every token
            return variance

    counts, means, deviations = [], [], []  # per block: finite tokens, channel means, summed squared deviations
    for _, block in float32_blocks(video_tokens):
        block = block.flatten(0, 1)
        finite = torch.linalg.vector_norm(block, dim=-1).isfinite()
        block = clear_tokens(block, ~finite)
        weights = finite.float()
        count = weights.sum()
        mean = (weights @ block) / count.clamp(min=1)
        counts.append(count)
        means.append(mean)
        deviations.append(weights @ (block - mean).square_())
    counts, means, deviations = torch.stack(counts)[:, None], torch.stack(means), torch.stack(deviations)
    total = counts.sum().clamp(min=1)
    video_mean = (counts * means).sum(0) / total
    return (deviations + counts * (means - video_mean).square()).sum(0) / total


def float32_blocks(video_tokens: Tensor, channels: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """The tokens in float32, a block of frames at a time, times `channels` if given: (frames, (t, M, D)).

    A block may share memory with the input or with the next block: use it up before taking the next, never write it.
    """
    num_frames, tokens_per_frame, dim = video_tokens.shape
    in_place = video_tokens.dtype == torch.float32 and channels is None
    block_bytes = BLOCK_BYTES if in_place or video_tokens.device.type != "cpu" else CPU_BUFFER_BYTES
    step = min(num_frames, max(1, block_bytes // (4 * tokens_per_frame * dim)))
    if not in_place:
        buffer = torch.empty(step, tokens_per_frame, dim, dtype=torch.float32, device=video_tokens.device)
    for start in range(0, num_frames, step):
        frames = slice(start, min(start + step, num_frames))
        block = video_tokens[frames]
        if not in_place:
            block = float32_copy(block, channels, out=buffer[: len(block)])
        yield frames, block


def float32_copy(block: Tensor, channels: Tensor | None, out: Tensor) -> Tensor:
    """`out` (t, M, D) float32, filled with `block` times `channels` (D,) if given, in as few steps as it takes."""
    if channels is None:
        return out.copy_(block)
    if block.dtype == torch.float32:
        return torch.mul(block, channels, out=out)
    return out.copy_(block).mul_(channels)


def clear_tokens(block: Tensor, cleared: Tensor) -> Tensor:
    """`block` (..., D) with zeros in the tokens where `cleared` (...), since 0 · inf would spoil their frame's sum."""
    # On the CPU asking is free, and the answer is nearly always no. On an accelerator asking would wait for it.
    if cleared.device.type == "cpu" and not cleared.any():
        return block
    return torch.where(cleared[..., None], 0.0, block)


@register_compression_method("random")
def random_scores(video_tokens: Tensor, settings: CompressionSettings) -> TokenScores:
    """Baseline: the same budget for each frame, tokens at random (paper, Table 1). The same choice at every call."""
    num_frames, tokens_per_frame, _ = video_tokens.shape
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(num_frames, tokens_per_frame, generator=generator, dtype=torch.float32).to(video_tokens.device)
    return TokenScores(torch.zeros_like(u), u)


# ---------------------------------------------------------------------------------------------------------------------
# Stage 1: Frame Compression Adjustment (Algorithm 1, stage 1 steps 3-4)
# ---------------------------------------------------------------------------------------------------------------------


def frame_uniqueness(video_uniqueness: Tensor, settings: CompressionSettings) -> Tensor:
    """u_t (T,) float32: mean (or maximum) of the video-level uniqueness of a frame's finite tokens."""
    finite = video_uniqueness.isfinite()
    lowest = -HIGHEST_SIMILARITY[settings.compression_scoring]  # for a frame without a finite token
    if settings.compression_frame_score == "max":
        u = video_uniqueness.amax(dim=1)
    else:
        u = video_uniqueness.masked_fill(~finite, 0.0).sum(dim=1) / finite.sum(dim=1).clamp(min=1)
    return torch.where(finite.any(dim=1), u, lowest)


def frame_budgets(u: Tensor, tokens_per_frame: int, settings: CompressionSettings) -> Tensor:
    """k_t (T,) int64 from u_t (T,): softmax weights, retention ratios r_t, and r_t·M as whole tokens in [1, M]."""
    if settings.retention_ratio == 1.0:
        return torch.full_like(u, tokens_per_frame, dtype=torch.int64)
    device = u.device
    u = u.cpu().double() if device.type == "mps" else u.double()  # MPS has no float64
    budgets = frame_retention_ratios(u, settings) * tokens_per_frame
    if settings.compression_rounding == "exact":
        return fixed_total_budgets(budgets, tokens_per_frame, settings.retention_ratio).to(device)
    budgets = budgets.round(decimals=BUDGET_DECIMALS)
    # The paper rounds up. The released code rounds half to even and loses what r_t > 1 asks for; so does the clamp.
    budgets = budgets.ceil() if settings.compression_rounding == "ceil" else budgets.round()
    return budgets.clamp(1, tokens_per_frame).long().to(device)


def frame_retention_ratios(u: Tensor, settings: CompressionSettings) -> Tensor:
    """r_t (T,) float64: R·(1 + σ_t - 1/T), with σ the softmax of (u - max u)/τ (Eqs. 5 and 6)."""
    ratio = settings.retention_ratio
    if settings.compression_frame_score == "uniform":
        return torch.full_like(u, ratio)
    exponentials = torch.exp((u - u.max()) / settings.compression_temperature)
    epsilon = EPSILON if settings.compression_scoring == "paper" else 0.0  # the released code has none
    sigma = exponentials / (exponentials.sum() + epsilon)
    return ratio * (1 + sigma - 1 / len(u))


def fixed_total_budgets(budgets: Tensor, tokens_per_frame: int, retention_ratio: float) -> Tensor:
    """(T,) int64 in [1, M] with a total that depends on the sizes alone; not in the paper.

    The real-valued budgets are scaled by the one factor that makes them, held within [1, M], add up to the total: a
    frame that is full leaves the rest to the others in proportion. Whole tokens then follow by largest remainder.
    """
    num_frames = len(budgets)
    total = exact_total(num_frames, tokens_per_frame, retention_ratio)
    # The sum is piecewise linear in the factor, with a bend where a frame reaches 1 or M. Find the last bend at or
    # below the total, and go on from there with the slope of the frames that are between their bounds.
    budgets = budgets.clamp(min=1e-290)  # or the bends of a tiny retention ratio would be infinite
    bends = torch.cat([1 / budgets, tokens_per_frame / budgets]).sort().values
    sums = (bends[:, None] * budgets).clamp(1, tokens_per_frame).sum(dim=1)
    bend = bends.gather(0, (sums <= total + 1e-9).sum(0, keepdim=True).sub_(1).clamp_(min=0))
    at_bend = (bend * budgets).clamp(1, tokens_per_frame)
    growing = (bend * budgets >= 1 - 1e-12) & (bend * budgets < tokens_per_frame * (1 - 1e-12))
    slope = (growing * budgets).sum()
    factor = bend + torch.where(slope > 0, (total - at_bend.sum()) / slope.clamp(min=1e-300), 0.0)
    budgets = (factor * budgets).clamp(1, tokens_per_frame)

    whole = (budgets + REMAINDER_NOISE).floor()
    remainders = (budgets - whole).div(REMAINDER_NOISE).round()
    missing = total - whole.sum()
    order = remainders.argsort(descending=True, stable=True)  # ties to the earlier frame
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(num_frames, device=order.device))
    return (whole + (rank < missing)).long()


def exact_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """K of `compression_rounding="exact"`: ⌊R·T·M⌋, but at least one token a frame."""
    num_tokens = num_frames * tokens_per_frame
    return max(num_frames, min(num_tokens, math.floor(retention_ratio * num_tokens + 1e-6)))


# ---------------------------------------------------------------------------------------------------------------------
# Stage 2: Adaptive Token Compression (Algorithm 1, stage 2 step 3)
# ---------------------------------------------------------------------------------------------------------------------


def most_unique_tokens(token_uniqueness: Tensor, budgets: Tensor, num_kept: int) -> Tensor:
    """The k_t most unique tokens of each frame, in their order: (num_kept,) int64 into the T·M tokens."""
    order = token_uniqueness.argsort(dim=1, descending=True, stable=True)  # ties keep the earlier token
    within_budget = torch.arange(order.shape[1], device=order.device) < budgets[:, None]
    kept = torch.zeros_like(within_budget).scatter_(1, order, within_budget).flatten()
    # The kept positions come first, in their order. Unlike `nonzero` this does not ask the device how many there are.
    return (~kept).to(torch.uint8).argsort(stable=True)[:num_kept]


def num_kept_tokens(budgets: Tensor, tokens_per_frame: int, settings: CompressionSettings) -> int:
    """K. Only `"ceil"` and `"round"` must read it from the device: their total depends on the content."""
    if settings.retention_ratio == 1.0:
        return len(budgets) * tokens_per_frame
    if settings.compression_rounding == "exact":
        return exact_total(len(budgets), tokens_per_frame, settings.retention_ratio)
    return int(budgets.sum())
