"""`compression_method="vidcom2"`: VidCom² as in the paper, Section 3.2 and Algorithm 1.

    Stage 1, Frame Compression Adjustment: a frame whose tokens differ from the video's mean gets a larger budget.
    Stage 2, Adaptive Token Compression: each frame keeps the tokens that differ most from its own and the video's mean.

Shapes: T frames, M tokens per frame, D channels. Tokens are scored in float32. A token with a non-finite value enters
no mean and is kept last.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ...configuration.compression_settings import OF_SOME_COMPRESSION_METHODS, CompressionSettings
from .compression import (
    VideoCompression,
    VideoTokens,
    exact_total,
    fixed_total_budgets,
    in_float64,
    keeping,
    most_unique_tokens,
    own_method,
)

SCORES = """u_t says how unlike the tokens of a frame are to the video's mean, and u how unlike a token is to that mean
and to its frame's. Both are similarities with a minus in front: the higher, the more unique."""


@own_method("vidcom2", settings=OF_SOME_COMPRESSION_METHODS, count=exact_total, compiles=True, scores=SCORES)
def vidcom2(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    """Keep each frame's most unique tokens (Algorithm 1). The tokens are read twice, with `"released"` three times."""
    scoring = SCORINGS[settings.compression_scoring]
    norms, finite, frame_sums = token_norms_and_frame_sums(
        video.tokens, scoring.channels(video.tokens), scoring.unit_tokens
    )

    # Stage 1, step 1: the global representation g_v of the video (Eq. 3). Stage 2, step 1: g_f of each frame (Eq. 7).
    counts = finite.sum(dim=1, keepdim=True)
    g_f = frame_sums / counts.clamp(min=1)
    g_v = video_means(frame_sums, counts, settings.compression_window)

    # Stage 1, step 2, and stage 2, step 1: uniqueness is negated similarity (Eqs. 4 and 8).
    centres = torch.stack([g_f, g_v], dim=1)  # (T, 2, D)
    products = token_centre_products(video.tokens, centres)  # (T, M, 2)
    centre_norms = torch.linalg.vector_norm(centres, dim=-1)[:, None]
    u_frame, u_video = (-scoring.similarity(products, norms[..., None], centre_norms)).unbind(-1)

    # Stage 1, step 3: frame uniqueness u_t.
    u_t = frame_uniqueness(u_video, finite, settings.compression_frame_score, lowest=-scoring.highest_similarity)

    # Stage 1, step 4: retention ratios r_t (Eqs. 5 and 6), from which the budgets k_t = ⌈r_t · M⌉ of stage 2, step 3.
    budgets, num_kept = frame_budgets(u_t, norms.shape[1], settings, scoring.epsilon)

    # Stage 2, step 2: comprehensive uniqueness u, from both levels (Eq. 9, where both weights are 1).
    u = settings.compression_frame_weight * u_frame + settings.compression_video_weight * u_video
    u = u.masked_fill(~finite, -math.inf)

    # Stage 2, step 3: keep the k_t most unique tokens of each frame.
    indices = most_unique_tokens(u, budgets, num_kept)
    return VideoCompression(indices, budgets, u_t, u)


def video_means(frame_sums: Tensor, counts: Tensor, window: int | None) -> Tensor:
    """Return the mean g_v (T, D) that each frame is compared with: of the video (Eq. 3), or of a window of frames.

    Args:
        frame_sums: (T, D) sum over the finite tokens of each frame.
        counts: (T, 1) number of these tokens.
        window: number of frames in the window around each frame; None for the whole video.
    """
    num_frames = len(frame_sums)
    if window is None or window >= num_frames:
        return (frame_sums.sum(0, keepdim=True) / counts.sum(0, keepdim=True).clamp(min=1)).expand_as(frame_sums)
    frames = torch.arange(num_frames, device=frame_sums.device)
    first = (frames - window // 2).clamp(0, num_frames - window)[:, None]
    inside = ((frames >= first) & (frames < first + window)).float()  # (T, T)
    return inside @ frame_sums / (inside @ counts.float()).clamp(min=1)


def cosine_similarity(products: Tensor, token_norms: Tensor, centre_norms: Tensor) -> Tensor:
    """Return the cosine similarity of Eqs. 4 and 8. That of a zero vector is 0."""
    lengths = token_norms * centre_norms
    return torch.where(lengths > 0, products / lengths, 0.0).clamp(-1, 1)


def frame_uniqueness(u_video: Tensor, finite: Tensor, frame_score: str, lowest: float) -> Tensor:
    """Return u_t (T,): the mean or maximum of u_video (T, M) over a frame's finite tokens; `lowest` if it has none."""
    if frame_score == "max":
        u = u_video.masked_fill(~finite, -math.inf).amax(dim=1)
    else:
        u = u_video.masked_fill(~finite, 0.0).sum(dim=1) / finite.sum(dim=1).clamp(min=1)
    return torch.where(finite.any(dim=1), u, lowest)


# ---------------------------------------------------------------------------------------------------------------------
# Frame Compression Adjustment: how many tokens each frame keeps (stage 1, step 4). Other methods use it too.
# ---------------------------------------------------------------------------------------------------------------------


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
        lower = keeping(settings.max_video_tokens, len(u) * tokens_per_frame, settings)
        return frame_budgets(u, tokens_per_frame, lower, epsilon)
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


# ---------------------------------------------------------------------------------------------------------------------
# `compression_scoring="released"`: the similarity that the authors' published code computes in place of the cosine
# ---------------------------------------------------------------------------------------------------------------------


LOW_VARIANCE_SHARE = 0.5  # The share of channels that are compared, those with the lowest variance.
GAUSSIAN_WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)  # The values of a in exp(-d² / 2a).
HIGHEST_SIMILARITY = float(len(GAUSSIAN_WIDTHS))
# For these dtypes `torch.batch_norm_update_stats` computes in float32 on the CPU.
BATCH_NORM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def gaussian_similarity(products: Tensor, token_norms: Tensor, centre_norms: Tensor) -> Tensor:
    """Return the released code's similarity: five Gaussians of the distance between unit-length token and centre.

    This departs from the paper's cosine similarity. A zero token stays at the origin, as in the released code.
    """
    nonzero = token_norms > 0
    cosine_part = torch.where(nonzero, products / token_norms, 0.0)
    squared_distance = (nonzero.float() - 2 * cosine_part + centre_norms.square()).clamp(min=0)
    exponents = torch.stack([squared_distance / (-2 * width) for width in GAUSSIAN_WIDTHS])
    return cast(Tensor, sum(exponents.exp_()))  # Summed term by term, so that equal tokens get equal sums anywhere.


def low_variance_channels(video_tokens: Tensor) -> Tensor:
    """Return (D,) float32 with 1 at the half of the channels that vary least over the video's tokens, else 0."""
    dim = video_tokens.shape[-1]
    lowest = channel_variance(video_tokens).argsort(stable=True)[: int(dim * LOW_VARIANCE_SHARE)]
    return torch.zeros(dim, dtype=torch.float32, device=video_tokens.device).index_fill_(0, lowest, 1.0)


def channel_variance(video_tokens: Tensor) -> Tensor:
    """Return the population variance (D,) float32 of each channel over the finite tokens of the video."""
    can_ask = video_tokens.device.type == "cpu" and not torch.compiler.is_compiling()
    if can_ask and video_tokens.dtype in BATCH_NORM_DTYPES:
        # This is one operation on the video as it is. It returns float32 because the statistics passed to it are.
        unused = torch.zeros(2, video_tokens.shape[-1], dtype=torch.float32)
        _, variance = torch.batch_norm_update_stats(video_tokens.flatten(0, 1), *unused, momentum=0.0)
        if variance.isfinite().all():  # Then every token is finite too.
            return variance

    counts, means, deviations = [], [], []  # Per block: finite tokens, channel means, summed squared deviations.
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


class Scoring(NamedTuple):
    """The parts of Algorithm 1 that `compression_scoring` decides.

    Attributes:
        channels: returns, for tokens (T, M, D), ones (D,) at the channels that are compared and zeros at the others;
            None for all channels.
        unit_tokens: whether the means are taken over tokens scaled to length 1.
        similarity: takes inner products (T, M, 2), token norms (T, M, 1) and norms of the means (T, 1, 2).
        highest_similarity: the largest value of `similarity`.
        epsilon: ε of Eq. 5.
    """

    channels: Callable[[Tensor], Tensor | None]
    unit_tokens: bool
    similarity: Callable[[Tensor, Tensor, Tensor], Tensor]
    highest_similarity: float
    epsilon: float


SCORINGS = {
    "paper": Scoring(lambda tokens: None, False, cosine_similarity, 1.0, EPSILON),
    "released": Scoring(low_variance_channels, True, gaussian_similarity, HIGHEST_SIMILARITY, 0.0),
}


# ---------------------------------------------------------------------------------------------------------------------
# Reading all tokens of a video in float32, without copying the video as a whole
# ---------------------------------------------------------------------------------------------------------------------


# Tokens are scored in float32 in blocks of frames, so a half-precision video is never copied as a whole. The blocks are
# few and large: on the CPU, each operation on a block is a parallel step that waits for its slowest thread, which takes
# milliseconds when other work holds a core. What the CPU converts or masks goes through one buffer below 32 MiB: glibc
# gives a larger buffer fresh pages every time, and clearing these takes longer than the arithmetic. A single thread
# waits for no other. It gets a buffer that stays in its cache, which is 1.1 to 1.8 times as fast.
BLOCK_BYTES = 256 * 2**20
CPU_BUFFER_BYTES = 24 * 2**20
ONE_THREAD_BUFFER_BYTES = 6 * 2**20


def token_norms_and_frame_sums(
    video_tokens: Tensor, channels: Tensor | None, unit_tokens: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's length (T, M), whether it is finite (T, M), and the sum of each frame's finite tokens (T, D).

    Args:
        video_tokens: (T, M, D), any float dtype.
        channels: (D,) ones at the channels that count and zeros at the others; None for all channels.
        unit_tokens: whether the sums are of tokens scaled to length 1.
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


def frame_means(video_tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's length (T, M), whether it is finite (T, M), and each frame's mean of finite tokens (T, D).

    Args:
        video_tokens: (T, M, D), any float dtype. The mean of a frame without finite tokens is 0.
    """
    norms, finite, sums = token_norms_and_frame_sums(video_tokens, None, unit_tokens=False)
    return norms, finite, sums / finite.sum(dim=1, keepdim=True).clamp(min=1)


def token_centre_products(video_tokens: Tensor, centres: Tensor) -> Tensor:
    """Return the inner products (T, M, C) of each token with its frame's centres (T, C, D)."""
    num_frames, tokens_per_frame, _ = video_tokens.shape
    products = torch.empty(num_frames, tokens_per_frame, centres.shape[1], dtype=torch.float32, device=centres.device)
    for frames, block in float32_blocks(video_tokens):
        torch.bmm(block, centres[frames].mT, out=products[frames])
    return products


def float32_blocks(video_tokens: Tensor, channels: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Yield the tokens in float32, a block of frames at a time, times `channels` if given: (frames, (t, M, D)).

    A block may share memory with the input or with the next block, so finish with it before taking the next one, and
    never write to it.
    """
    num_frames, tokens_per_frame, dim = video_tokens.shape
    in_place = video_tokens.dtype == torch.float32 and channels is None
    block_bytes = BLOCK_BYTES if in_place or video_tokens.device.type != "cpu" else cpu_buffer_bytes()
    step = min(num_frames, max(1, block_bytes // (4 * tokens_per_frame * dim)))
    buffer = None
    if not in_place:
        buffer = torch.empty(step, tokens_per_frame, dim, dtype=torch.float32, device=video_tokens.device)
    for start in range(0, num_frames, step):
        frames = slice(start, min(start + step, num_frames))
        block = video_tokens[frames]
        if buffer is not None:
            block = float32_copy(block, channels, out=buffer[: len(block)])
        yield frames, block


def cpu_buffer_bytes() -> int:
    """Return the most bytes of the CPU's buffer. A compiled graph must not depend on the number of threads."""
    is_alone = not torch.compiler.is_compiling() and torch.get_num_threads() == 1
    return ONE_THREAD_BUFFER_BYTES if is_alone else CPU_BUFFER_BYTES


def float32_copy(block: Tensor, channels: Tensor | None, out: Tensor) -> Tensor:
    """Fill `out` (t, M, D) float32 with `block`, times `channels` (D,) if given, in as few steps as possible."""
    if channels is None:
        return out.copy_(block)
    if block.dtype == torch.float32:
        return torch.mul(block, channels, out=out)
    return out.copy_(block).mul_(channels)


def clear_tokens(block: Tensor, cleared: Tensor) -> Tensor:
    """Return `block` (..., D) with zero tokens where `cleared` (...), since 0 · inf would spoil their frame's sum."""
    # On the CPU, asking whether any is cleared is free, and the answer is nearly always no. On an accelerator, asking
    # would wait for the device, and a compiled graph cannot ask.
    if cleared.device.type == "cpu" and not torch.compiler.is_compiling() and not cleared.any():
        return block
    return torch.where(cleared[..., None], 0.0, block)
