"""`"visionzip"` and `"holitom"` in slow plain loops in float64, written from their descriptions.

They share no code with the methods. Both return the kept tokens, and what each of them is after merging."""

import functools
import math
from collections.abc import Callable

from oracle import Vector, cosine, mean
from segment_oracles import Place, described, listed, peak_scores
from torch import Tensor


def oracle_visionzip(video_tokens: Tensor, attention: Tensor, retention_ratio: float) -> tuple[list[int], list[Vector]]:
    video, finite, granted = described(video_tokens, retention_ratio)
    attended, per_frame = attention.double().tolist(), len(video[0])
    kept: dict[Place, Vector] = {}
    for t, frame in enumerate(video):
        num_dominant = granted[t] * 27 // 32
        num_targets = granted[t] - num_dominant
        ranked = sorted(range(per_frame), key=lambda m: (-attended[t][m] if finite[t][m] else 1, m))
        rest = sorted(ranked[num_dominant:], key=lambda m: (not finite[t][m], m))
        step = max(1, sum(finite[t][m] for m in rest) // num_targets)
        targets = rest[::step][:num_targets]
        joined: dict[int, list[Vector]] = {m: [] for m in targets}
        into = [m for m in targets if finite[t][m]]
        for m in rest:
            if m not in targets and finite[t][m] and into:
                joined[max(into, key=lambda b: (cosine(frame[m], frame[b]), -into.index(b)))].append(frame[m])
        kept |= {(t, m): frame[m] for m in ranked[:num_dominant]}
        kept |= {(t, m): mean([frame[m], mean(others)]) if others else frame[m] for m, others in joined.items()}
    return listed(kept, per_frame)


def oracle_holitom(video_tokens: Tensor, attention: Tensor, retention_ratio: float) -> tuple[list[int], list[Vector]]:
    video, finite, granted = described(video_tokens, retention_ratio)
    attended, frames, per_frame = attention.double().tolist(), len(video), len(video[0])

    @functools.cache
    def alike(t: int, m: int) -> bool:
        return finite[t][m] and finite[t - 1][m] and cosine(video[t][m], video[t - 1][m]) > 0.8

    def static_in(segment: range) -> list[int]:
        return [m for m in range(per_frame) if len(segment) > 1 and all(alike(t, m) for t in segment[1:])]

    segments = best_segments(frames, static_in)
    parts: list[tuple[range, list[int]]] = []  # frames, and the places of the tokens that share a budget
    for segment in segments:
        static = static_in(segment)
        parts.append((segment, static))
        parts += [(range(t, t + 1), [m for m in range(per_frame) if m not in static]) for t in segment]
    left, total = sum(len(places) for _, places in parts), sum(granted)
    budgets, before = [], 0
    for _, places in parts:
        budgets.append((before + len(places)) * min(total, left) // left - before * min(total, left) // left)
        before += len(places)

    kept: dict[Place, Vector] = {}
    later = [(t, m) for segment in segments for m in static_in(segment) for t in segment[1:]]
    extra = sorted(later, key=lambda place: (-attended[place[0]][place[1]], place))[: max(0, total - left)]
    at = 0
    for segment in segments:
        static, number = parts[at][1], budgets[at]
        means = {m: mean([video[t][m] for t in segment if (t, m) not in extra]) for m in static}
        scores = peak_scores(means, min(7, number)) if number else {}
        centres = sorted(sorted(static, key=lambda m: (-scores[m], m))[:number]) if number else []
        others: dict[int, list[Vector]] = {m: [] for m in centres}
        for m in static:
            if m not in centres and centres:
                others[min(centres, key=lambda c: (math.dist(means[m], means[c]), c))].append(means[m])
        for m, of_cluster in others.items():
            weight = 0.6 if of_cluster else 1.0
            rest = mean(of_cluster) or means[m]
            kept[segment[0], m] = [weight * x + (1 - weight) * y for x, y in zip(means[m], rest)]
        for t in segment:
            at += 1
            ranked = sorted(parts[at][1], key=lambda m: (-attended[t][m] if finite[t][m] else 1, m))
            kept |= {(t, m): video[t][m] for m in ranked[: budgets[at]]}
        at += 1
    kept |= {(t, m): video[t][m] for t, m in extra}
    return listed(kept, per_frame)


def best_segments(frames: int, static_in: Callable[[range], list[int]]) -> list[range]:
    """Of segmentations that save most tokens, return the one whose last segment is shortest, and so on backwards."""

    @functools.cache
    def best(frames: int) -> tuple[int, tuple[range, ...]]:
        found = (0, ()) if frames == 0 else None
        for start in reversed(range(frames)):
            saved, before = best(start)
            segment = range(start, frames)
            saved += len(static_in(segment)) * (len(segment) - 1)
            if found is None or saved > found[0]:
                found = saved, (*before, segment)
        assert found is not None
        return found

    return list(best(frames)[1])
