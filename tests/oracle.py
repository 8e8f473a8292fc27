"""Independent implementations of VidCom² and V-CAST that `vidcom2.compress` is compared with.

- `oracle_compress` takes every setting, in slow plain loops in float64. It was written from the paper (Section 3.2,
  Algorithm 1) and facts/released_code.md, not from the operator, with which it shares no code.
- `released_reference` is the released algorithm in plain torch and the model's dtype, as a user would write it. The
  golden file pins it, and benchmarks/benchmark_compress.py measures against it.
- `oracle_vcast` is V-CAST in slow plain loops in float64. A golden file pins it too.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-8
GAUSSIAN_WIDTHS = (0.125, 0.25, 0.5, 1.0, 2.0)
ARITHMETIC_NOISE = 1e-6  # a float64 budget this close to a whole number is that number; equal remainders are a tie

Vector = list[float]


class OracleCompression(NamedTuple):
    """What the operator should return, and how clear-cut it is.

    A float32 operator may decide differently where a gap is smaller than float32 noise. The margins are those gaps.
    """

    indices: list[int]
    frame_budgets: list[int]
    frame_uniqueness: list[float]
    token_uniqueness: list[list[float]]  # -inf for a token with a non-finite value
    budget_margin: float  # how far, in tokens, the real-valued budgets are from rounding differently
    channel_margin: float  # relative gap between the variances of the last scored and the first dropped channel


def oracle_compress(
    video_tokens: Tensor,
    retention_ratio: float = 0.25,
    *,
    compression_scoring: str = "paper",
    compression_rounding: str = "ceil",
    compression_temperature: float = 0.01,
    compression_frame_score: str = "mean",
    compression_window: int | None = None,
    compression_frame_weight: float = 1.0,
    compression_video_weight: float = 1.0,
) -> OracleCompression:
    """Run Algorithm 1, or the released code, on `video_tokens` (num_frames, tokens_per_frame, dim) in float64."""
    video: list[list[Vector]] = video_tokens.detach().double().tolist()
    num_frames, tokens_per_frame = len(video), len(video[0])
    finite = [[all(map(math.isfinite, token)) for token in frame] for frame in video]

    channel_margin = math.inf
    similarity: Callable[[Vector, Vector], float] = cosine
    if compression_scoring == "released":
        channels, channel_margin = low_variance_channels(finite_tokens(video, finite, range(num_frames)))
        video = [[unit([token[channel] for channel in channels]) for token in frame] for frame in video]
        similarity = five_gaussians

    video_uniqueness: list[Vector] = []
    token_uniqueness: list[Vector] = []
    whole_video = range(num_frames)
    shared_centre = mean(finite_tokens(video, finite, whole_video))
    for t, frame in enumerate(video):
        window = window_frames(t, num_frames, compression_window)
        video_centre = shared_centre if window == whole_video else mean(finite_tokens(video, finite, window))
        frame_centre = mean(finite_tokens(video, finite, [t]))
        video_row: Vector = []
        token_row: Vector = []
        for token, is_finite in zip(frame, finite[t]):
            if not is_finite:
                video_row.append(-math.inf)
                token_row.append(-math.inf)
                continue
            u_frame, u_video = -similarity(token, frame_centre), -similarity(token, video_centre)
            video_row.append(u_video)
            token_row.append(compression_frame_weight * u_frame + compression_video_weight * u_video)
        video_uniqueness.append(video_row)
        token_uniqueness.append(token_row)

    least_unique = -1.0 if compression_scoring == "paper" else -5.0
    u = [frame_score(row, compression_frame_score, least_unique) for row in video_uniqueness]

    if retention_ratio == 1.0:
        budgets, budget_margin = [tokens_per_frame] * num_frames, math.inf
    else:
        if compression_frame_score == "uniform":
            wanted = [retention_ratio * tokens_per_frame] * num_frames
        else:
            weights = [math.exp((u_t - max(u)) / compression_temperature) for u_t in u]
            denominator = math.fsum(weights) + (EPSILON if compression_scoring == "paper" else 0.0)
            sigma = [weight / denominator for weight in weights]
            wanted = [retention_ratio * (1 + sigma_t - 1 / num_frames) * tokens_per_frame for sigma_t in sigma]
        budgets, budget_margin = whole_budgets(wanted, tokens_per_frame, retention_ratio, compression_rounding)
        if compression_frame_score == "uniform" and compression_rounding == "exact":
            budget_margin = math.inf  # a tie of all frames, whatever their scores

    indices: list[int] = []
    for t, (row, budget) in enumerate(zip(token_uniqueness, budgets)):
        best_first = sorted(range(tokens_per_frame), key=lambda m: (-row[m], m))
        indices += [t * tokens_per_frame + m for m in sorted(best_first[:budget])]
    return OracleCompression(indices, budgets, u, token_uniqueness, budget_margin, channel_margin)


def finite_tokens(video: list[list[Vector]], finite: list[list[bool]], frames: Iterable[int]) -> list[Vector]:
    return [token for t in frames for token, is_finite in zip(video[t], finite[t]) if is_finite]


def mean(tokens: list[Vector]) -> Vector:
    """Return the mean token. Of no tokens it is an empty vector, which is never compared with anything."""
    return [math.fsum(channel) / len(tokens) for channel in zip(*tokens)]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b))


def unit(token: Vector) -> Vector:
    length = math.sqrt(dot(token, token))
    return [x / length for x in token] if length > 0 else token


def cosine(token: Vector, centre: Vector) -> float:
    lengths = math.sqrt(dot(token, token)) * math.sqrt(dot(centre, centre))
    return dot(token, centre) / lengths if lengths > 0 else 0.0


def five_gaussians(token: Vector, centre: Vector) -> float:
    distance = math.dist(token, centre)
    return math.fsum(math.exp(-(distance**2) / (2 * width)) for width in GAUSSIAN_WIDTHS)


def low_variance_channels(tokens: list[Vector]) -> tuple[list[int], float]:
    """Return the half of the channels with the smallest population variance, and how clearly they are that half."""
    if not tokens:
        return [], math.inf
    centre = mean(tokens)
    variances = [
        math.fsum((x - centre_x) ** 2 for x in channel) / len(tokens) for channel, centre_x in zip(zip(*tokens), centre)
    ]
    by_variance = sorted(range(len(variances)), key=lambda channel: variances[channel])
    num_scored = int(len(variances) * 0.5)
    if num_scored == 0:
        return [], math.inf
    last, first_dropped = variances[by_variance[num_scored - 1]], variances[by_variance[num_scored]]
    margin = (first_dropped - last) / first_dropped if first_dropped > 0 else 0.0
    return by_variance[:num_scored], margin


def window_frames(t: int, num_frames: int, window: int | None) -> range:
    """Return the `window` frames around frame t, shifted until they lie inside the video."""
    if window is None or window >= num_frames:
        return range(num_frames)
    first = t - window // 2
    while first < 0:
        first += 1
    while first + window > num_frames:
        first -= 1
    return range(first, first + window)


def frame_score(row: Vector, score: str, least_unique: float) -> float:
    values = [u for u in row if u > -math.inf]
    if not values:
        return least_unique
    return max(values) if score == "max" else math.fsum(values) / len(values)


def whole_budgets(
    wanted: Vector, tokens_per_frame: int, retention_ratio: float, rounding: str
) -> tuple[list[int], float]:
    """Return whole budgets in [1, M], and how far `wanted` is from another result."""
    if rounding == "exact":
        return exact_budgets(wanted, tokens_per_frame, retention_ratio)
    budgets, margin = [], math.inf
    for value in wanted:
        whole = round(value)  # half to even, as torch rounds
        # The result steps at the whole numbers, or half-way between them. It never steps outside [1, M].
        step = float(whole) if rounding == "ceil" else math.floor(value) + 0.5
        if rounding == "ceil" and abs(value - whole) > ARITHMETIC_NOISE:
            whole = math.ceil(value)
        if 1 <= step < tokens_per_frame:
            margin = min(margin, abs(value - step))
        budgets.append(min(max(whole, 1), tokens_per_frame))
    return budgets, margin


def exact_budgets(wanted: Vector, tokens_per_frame: int, retention_ratio: float) -> tuple[list[int], float]:
    """Return budgets in [1, M] that add up to K of `compression_rounding="exact"`."""
    total = expected_exact_total(len(wanted), tokens_per_frame, retention_ratio)
    return shares_by_largest_remainder(wanted, total, 1, tokens_per_frame)


def shares_by_largest_remainder(wanted: Vector, total: int, least: int, most: int) -> tuple[list[int], float]:
    """Scale `wanted` until it adds up to the total within the bounds, then hand out tokens by largest remainder."""
    num_frames = len(wanted)

    def clipped(factor: float) -> Vector:
        return [min(max(factor * value, float(least)), float(most)) for value in wanted]

    low, high = 0.0, most / min(wanted)  # everything at the lower bound, everything at the upper one
    for _ in range(300):
        middle = (low + high) / 2
        if math.fsum(clipped(middle)) < total:
            low = middle
        else:
            high = middle
    shares = clipped(high)

    budgets = [math.floor(share + ARITHMETIC_NOISE) for share in shares]
    remainders = [share - budget for share, budget in zip(shares, budgets)]
    granted: list[int] = []
    while sum(budgets) < total:
        winner = -1
        for t in range(num_frames):
            # Only a clearly larger remainder beats an earlier frame.
            if t not in granted and (winner < 0 or remainders[t] > remainders[winner] + ARITHMETIC_NOISE):
                winner = t
        granted.append(winner)
        budgets[winner] += 1

    margin = min(
        (abs(share - round(share)) for share in shares if least < share < most),
        default=math.inf,
    )
    denied = [remainders[t] for t in range(num_frames) if t not in granted]
    if granted and denied:
        margin = min(margin, min(remainders[t] for t in granted) - max(denied))
    return budgets, margin


def expected_exact_total(num_frames: int, tokens_per_frame: int, retention_ratio: float) -> int:
    """Return K of `compression_rounding="exact"`, as the contract states it."""
    num_tokens = num_frames * tokens_per_frame
    return max(num_frames, min(num_tokens, math.floor(retention_ratio * num_tokens + 1e-6)))


class ReleasedCompression(NamedTuple):
    indices: Tensor
    frame_budgets: Tensor
    frame_uniqueness: Tensor


def released_reference(video_tokens: Tensor, retention_ratio: float = 0.25) -> ReleasedCompression:
    """Select as the released code does (facts/released_code.md, D1-D8), from (num_frames, tokens_per_frame, dim)."""
    num_frames, tokens_per_frame, dim = video_tokens.shape
    tokens = video_tokens.flatten(0, 1)

    variance = tokens.var(dim=0, unbiased=False)
    channels = variance.topk(int(dim * 0.5), largest=False).indices
    tokens = F.normalize(tokens[:, channels], dim=-1).view(num_frames, tokens_per_frame, -1)

    video_similarity = gaussian_similarity(tokens, tokens.mean(dim=(0, 1), keepdim=True))
    frame_similarity = gaussian_similarity(tokens, tokens.mean(dim=1, keepdim=True))

    frame_uniqueness = -video_similarity.mean(dim=1)
    sigma = ((frame_uniqueness - frame_uniqueness.max()) / 0.01).softmax(dim=0)
    ratios = (retention_ratio * (1 + sigma - sigma.mean())).clamp(max=1.0)
    budgets = (ratios * tokens_per_frame).round().clamp(min=1).long()

    similarity = video_similarity + frame_similarity
    kept = []
    for t, budget in enumerate(budgets.tolist()):
        least_similar = similarity[t].topk(budget, largest=False).indices
        kept.append(least_similar.sort().values + t * tokens_per_frame)
    return ReleasedCompression(torch.cat(kept), budgets, frame_uniqueness)


def gaussian_similarity(tokens: Tensor, centre: Tensor) -> Tensor:
    distance = (tokens - centre).norm(dim=-1)
    return sum(torch.exp(-(distance**2) / (2 * width)) for width in GAUSSIAN_WIDTHS)


class OracleVcast(NamedTuple):
    """What `compression_method="vcast"` should return, and how clear-cut it is, as in `OracleCompression`."""

    indices: list[int]
    frame_budgets: list[int]
    curvature: list[float]
    token_scores: list[list[float]]  # -inf for a token with a non-finite value
    budget_margin: float
    token_margin: float  # the smallest gap between the score of a kept token and that of a dropped one of its frame


def oracle_vcast(video_tokens: Tensor, retention_ratio: float, compression_scoring: str = "paper") -> OracleVcast:
    """Run V-CAST on `video_tokens` (num_frames, tokens_per_frame, dim) in float64."""
    video: list[list[Vector]] = video_tokens.double().tolist()
    num_frames, tokens_per_frame, dim = video_tokens.shape
    finite = [[all(map(math.isfinite, token)) for token in frame] for frame in video]
    means = [mean(finite_tokens(video, finite, [t])) or [0.0] * dim for t in range(num_frames)]

    path = [scaled_to_one(centre) for centre in means]
    curvature = [1.0] * num_frames
    for t in range(1, num_frames - 1):
        step_in = scaled_to_one([x - y for x, y in zip(path[t], path[t - 1])])
        step_out = scaled_to_one([x - y for x, y in zip(path[t + 1], path[t])])
        curvature[t] = 1.0 - dot(step_in, step_out)

    total = max(num_frames, round(retention_ratio * num_frames * tokens_per_frame)) - num_frames
    exponentials = [math.exp(kappa / 0.7) for kappa in curvature]
    weights = [value / math.fsum(exponentials) for value in exponentials]
    share = shares_by_largest_remainder if compression_scoring == "paper" else shares_one_frame_after_another
    shares, budget_margin = share(weights, total, 0, tokens_per_frame - 1)

    indices: list[int] = []
    token_scores: list[list[float]] = []
    token_margin = math.inf
    for t, frame in enumerate(video):
        lengths = [math.sqrt(dot(token, token)) for token in finite_tokens(video, finite, [t])]
        row = []
        for token, is_finite in zip(frame, finite[t]):
            score = -math.inf
            if is_finite:
                activation = (math.sqrt(dot(token, token)) - min(lengths)) / (max(lengths) - min(lengths) + 1e-6)
                score = 1 - cosine(token, means[t]) + activation
            row.append(score)
        best_first = sorted(range(tokens_per_frame), key=lambda m: (-row[m], m))
        kept, dropped = best_first[: 1 + shares[t]], best_first[1 + shares[t] :]
        if dropped and row[kept[-1]] > -math.inf:
            token_margin = min(token_margin, row[kept[-1]] - row[dropped[0]])
        indices += [t * tokens_per_frame + m for m in sorted(kept)]
        token_scores.append(row)
    return OracleVcast(indices, [1 + each for each in shares], curvature, token_scores, budget_margin, token_margin)


def scaled_to_one(vector: Vector) -> Vector:
    """Scale a vector to length 1, but lengthen none of less than 1e-6 by more than a million."""
    length = max(math.sqrt(dot(vector, vector)), 1e-6)
    return [x / length for x in vector]


def shares_one_frame_after_another(weights: Vector, total: int, least: int, most: int) -> tuple[list[int], float]:
    """Round shares down, and give what is left to the frame of the largest fraction until it is full, then the next."""
    wanted = [weight * total for weight in weights]
    shares = [math.floor(value + ARITHMETIC_NOISE) for value in wanted]
    fractions = [value - share for value, share in zip(wanted, shares)]
    margin = min((abs(value - round(value)) for value in wanted), default=math.inf)
    shares = [min(max(share, least), most) for share in shares]
    while sum(shares) < total:
        open_frames = [t for t in range(len(shares)) if shares[t] < most]
        winner = open_frames[0]
        for t in open_frames:
            if fractions[t] > fractions[winner] + ARITHMETIC_NOISE:  # only a clearly larger one beats an earlier frame
                winner = t
        others = [fractions[winner] - fractions[t] for t in open_frames if t != winner]
        margin = min([margin, *others])
        shares[winner] += 1
    return shares, margin
