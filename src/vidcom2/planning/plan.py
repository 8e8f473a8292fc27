"""How a load of videos runs on a GPU: whether it fits, how many requests run at once, how many GPUs are needed."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..modeling.methods.compression import exact_total
from .gpus import Gpu
from .sizes import ModelCosts, VideoSize

BYTES = 2  # of a number in bfloat16
STATE_BYTES = 4  # of a number in the states of linear attention, which engines keep in float32
USABLE = 0.9  # of a GPU's memory
PREFILL_CHUNK = 8192  # tokens that an engine prefills at once
# Shares of a GPU's peak that engines reach, for matrix products and for reading memory. They are assumptions.
OF_FLOPS, OF_BANDWIDTH = 0.4, 0.6
TOGETHER = (1, 2, 4, 8)  # GPUs that hold one model


@dataclass(frozen=True)
class Load:
    """What is asked of the GPUs.

    Attributes:
        text_tokens: of the prompt, besides the video's.
        new_tokens: of the answer.
        concurrency: requests that run at once.
        videos_per_minute: how many videos must be answered about; None if that is not asked.
        max_video_tokens: the budget of a video at ratios below 1; None for no budget.
    """

    text_tokens: int = 100
    new_tokens: int = 128
    concurrency: int = 16
    videos_per_minute: float | None = None
    max_video_tokens: int | None = None


@dataclass(frozen=True)
class Plan:
    """A load on GPUs of one kind, at one retention ratio.

    Attributes:
        gpu: the name of the kind.
        together: how many hold the model together, each a part of its weights and of each KV cache. None if the model
            fits on none of `TOGETHER`; then all that follows is None, too.
        prompt_tokens: of the KV cache after the prefill.
        request_bytes: of a request's KV cache, with the answer.
        at_once: requests whose KV caches fit at once.
        first_token_seconds: of one request that runs alone: the vision tower and the prefill.
        videos_per_minute: that they answer about together, with the load's concurrency or as many as fit.
        needed: how many GPUs answer about as many videos as the load asks for; None if it asks for no number.
    """

    gpu: str
    retention_ratio: float
    prompt_tokens: int
    request_bytes: int
    together: int | None = None
    at_once: int | None = None
    first_token_seconds: float | None = None
    videos_per_minute: float | None = None
    needed: int | None = None

    @property
    def videos_per_gpu(self) -> float:
        """Videos per minute of each, rounded so that plans which differ by float noise count as equal; 0 if the model
        does not fit."""
        return round((self.videos_per_minute or 0.0) / (self.together or 1), 6)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def prompt_tokens(video: VideoSize, load: Load, retention_ratio: float) -> int:
    """Return how many tokens a prompt has after compression. Newlines and the times of frames stay."""
    kept = exact_total(video.num_frames, video.tokens_per_frame, retention_ratio)
    if load.max_video_tokens is not None and retention_ratio < 1:
        kept = min(kept, load.max_video_tokens)
    return kept + video.structure + video.text + load.text_tokens


def plan(costs: ModelCosts, video: VideoSize, load: Load, gpu: Gpu, retention_ratio: float) -> Plan:
    """Compute how a load runs on one kind of GPU. As many of them share the model as need the fewest GPUs in all.

    Memory: weights, the activations of one video in the vision tower (as in vLLM, all frames at once) or of one chunk
    of a prefill, and KV caches. Time: a video's share of the vision tower, of the prefill and of the steps of decoding,
    each of which reads the weights once for all requests that run at once.
    """
    found = [_plan(costs, video, load, gpu, retention_ratio, together) for together in TOGETHER]
    fitting = [each for each in found if each.together is not None]
    if not fitting:
        return found[0]
    if load.videos_per_minute is None:
        return max(fitting, key=lambda each: (each.videos_per_gpu, -(each.together or 0)))
    return min(fitting, key=lambda each: (each.needed, each.together))


def _plan(costs: ModelCosts, video: VideoSize, load: Load, gpu: Gpu, retention_ratio: float, together: int) -> Plan:
    """Compute how a load runs on this many GPUs together."""
    attention_heads, kv_heads = costs.heads
    tokens = prompt_tokens(video, load, retention_ratio)
    # With more GPUs than heads of keys and values, each head is kept on several.
    cached = costs.cached * max(1.0, together / kv_heads)
    request = int(BYTES * cached * (tokens + load.new_tokens) + STATE_BYTES * costs.state)
    activations = BYTES * max(costs.tower_activations * video.patches, costs.activations * min(tokens, PREFILL_CHUNK))
    room = together * (USABLE * gpu.memory - activations) - BYTES * costs.weights
    if room < request or attention_heads % together:
        return Plan(gpu.name, retention_ratio, tokens, request)
    at_once = int(room // request)
    running = min(load.concurrency, at_once)
    flops, bandwidth = together * OF_FLOPS * gpu.flops, together * OF_BANDWIDTH * gpu.bandwidth
    first = (costs.tower_flops(video) + costs.prefill_flops(tokens)) / flops
    reading = (BYTES * costs.read_weights(running) + running * request) / bandwidth
    step = max(reading, costs.decoding_flops(running) / flops)
    per_minute = 60 / (first + load.new_tokens * step / running)
    asked = load.videos_per_minute
    return Plan(
        gpu.name,
        retention_ratio,
        tokens,
        request,
        together=together,
        at_once=at_once,
        first_token_seconds=first,
        videos_per_minute=per_minute,
        needed=None if asked is None else together * math.ceil(asked / per_minute),
    )
