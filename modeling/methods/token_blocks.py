"""Reads all tokens of a video in float32 without copying the video as a whole.

Shapes: T frames, M tokens per frame, D channels.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

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
