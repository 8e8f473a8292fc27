"""The methods of benchmarks/methods in slow plain loops in float64, written from their descriptions.

They share no code with the methods. Each returns the kept tokens, and what each of them is after merging.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable

from oracle import Vector, cosine, dot, expected_exact_total, finite_tokens, mean
from torch import Tensor

Video = list[list[Vector]]
Place = tuple[int, int]  # a frame and a token in it


def oracle_fastvid(video_tokens: Tensor, attention: Tensor, retention_ratio: float) -> tuple[list[int], list[Vector]]:
    video, finite, granted = described(video_tokens, retention_ratio)
    per_frame, attended = len(video[0]), attention.double().tolist()
    kept: dict[Place, Vector] = {}
    for segment in segments(video, finite):
        num_tokens = sum(granted[t] for t in segment)
        num_anchors = int(num_tokens * 0.4 + 1e-6)
        salient_of, anchors_of = dealt(num_tokens - num_anchors, segment), Counter()
        for interval in (4, 3, 2, 1):
            anchors_of = dealt(num_anchors, segment[::-1][::interval])
            if all(salient_of[t] + anchors_of[t] <= per_frame for t in segment):
                break
        salient = {
            (t, m)
            for t in segment
            for m in sorted(range(per_frame), key=lambda m: (-attended[t][m] if finite[t][m] else 1, m))[
                : salient_of[t]
            ]
        }
        kept |= {(t, m): video[t][m] for t, m in salient}
        for t in segment:
            left = [m for m in range(per_frame) if (t, m) not in salient]
            scores = peak_scores({m: video[t][m] for m in left if finite[t][m]}, 4)
            anchors = sorted(sorted(left, key=lambda m: (-scores.get(m, -1.0), m))[: anchors_of[t]])
            centres = [m for m in anchors if finite[t][m]]
            joined: dict[int, list[Vector]] = {m: [] for m in anchors}
            for place in ((t2, m2) for t2 in segment for m2 in range(per_frame)):
                is_anchor = place[0] == t and place[1] in anchors
                if centres and not is_anchor and place not in salient and is_finite_at(finite, place):
                    token = video[place[0]][place[1]]
                    joined[max(centres, key=lambda m: (cosine_to(token, video[t][m]), -m))].append(token)
            for m in anchors:
                weight = max(1 / (len(joined[m]) + 1), 0.6) if joined[m] else 1.0
                others = mean(joined[m]) or [0.0] * len(video[t][m])
                kept[t, m] = [weight * x + (1 - weight) * y for x, y in zip(video[t][m], others)]
    return listed(kept, per_frame)


def oracle_flashvid(video_tokens: Tensor, attention: Tensor, retention_ratio: float) -> tuple[list[int], list[Vector]]:
    video, finite, granted = described(video_tokens, retention_ratio)
    per_frame, attended = len(video[0]), attention.double().tolist()
    kept: dict[Place, Vector] = {}
    for segment in segments(video, finite):
        event = mean([mean(finite_tokens(video, finite, [t])) or [0.0] * len(video[0][0]) for t in segment])
        selected: set[Place] = set()
        for t in segment:
            weights = {m: attended[t][m] * dot(video[t][m], event) for m in range(per_frame) if finite[t][m]}
            number = math.ceil(granted[t] * 0.7 - 1e-6)
            chosen = diverse({m: video[t][m] for m in weights}, weights, number)
            chosen += [m for m in range(per_frame) if not finite[t][m]][: number - len(chosen)]
            selected |= {(t, m) for m in chosen}
        kept |= {(t, m): video[t][m] for t, m in selected}

        left = sum(granted[t] for t in segment) - len(selected)
        parent = linked(video, finite, segment, selected, len(selected) + left) if left else {}
        trees: dict[Place, list[Vector]] = {}
        for place in ((t, m) for t in segment for m in range(per_frame) if (t, m) not in selected):
            root = place
            while root in parent:
                root = parent[root]
            trees.setdefault(root, []).append(video[place[0]][place[1]])
        begun = [sum(root[0] == t for root in trees) for t in segment]
        exact = [number * left / len(trees) if trees else 0.0 for number in begun]
        clusters = [int(number + 1e-9) for number in exact]
        rest = [round(number - whole, 9) for number, whole in zip(exact, clusters)]
        for at in sorted(range(len(segment)), key=lambda at: (-rest[at], at))[: left - sum(clusters)]:
            clusters[at] += 1
        for t, number in zip(segment, clusters):
            if number == 0:
                continue
            means = {m: mean(tokens) for (t2, m), tokens in trees.items() if t2 == t and finite[t][m]}
            scores = peak_scores(means, min(number, 7))
            roots = sorted(m for t2, m in trees if t2 == t)
            centres = sorted(sorted(roots, key=lambda m: (-scores.get(m, -1.0), m))[:number])
            clustered = {m: [means.get(m, video[t][m])] for m in centres}
            for m in means:
                if m not in centres:
                    nearest = [c for c in centres if c in means]
                    clustered[min(nearest, key=lambda c: (math.dist(means[m], means[c]), c))].append(means[m])
            kept |= {(t, m): mean(of_cluster) for m, of_cluster in clustered.items()}
    return listed(kept, per_frame)


def described(video_tokens: Tensor, retention_ratio: float) -> tuple[Video, list[list[bool]], list[int]]:
    """Return the tokens, which of them are finite, and how many tokens each frame is granted."""
    video: Video = video_tokens.double().tolist()
    finite = [[all(map(math.isfinite, token)) for token in frame] for frame in video]
    total = expected_exact_total(len(video), len(video[0]), retention_ratio)
    ends = [total * t // len(video) for t in range(len(video) + 1)]
    return video, finite, [ends[t + 1] - ends[t] for t in range(len(video))]


def listed(kept: dict[Place, Vector], per_frame: int) -> tuple[list[int], list[Vector]]:
    return [t * per_frame + m for t, m in sorted(kept)], [kept[place] for place in sorted(kept)]


def is_finite_at(finite: list[list[bool]], place: Place) -> bool:
    return finite[place[0]][place[1]]


def dealt(number: int, frames: list[int]) -> Counter[int]:
    """Deal out tokens to frames, one after the other and over again."""
    return Counter(frames[each % len(frames)] for each in range(number))


def segments(video: Video, finite: list[list[bool]]) -> list[list[int]]:
    means = [mean(finite_tokens(video, finite, [t])) for t in range(len(video))]
    similarity = {t: round(cosine(means[t], means[t + 1]), 6) for t in range(len(video) - 1)}
    least = sorted(similarity, key=lambda t: (similarity[t], t))[:7]
    parts: list[list[int]] = [[]]
    for t in range(len(video)):
        parts[-1].append(t)
        if t in similarity and (t in least or similarity[t] < 0.9):
            parts.append([])
    return parts


def cosine_to(token: Vector, centre: Vector) -> float:
    """Return what orders centres as the cosine similarity does."""
    length = math.sqrt(dot(centre, centre))
    return dot(token, centre) / length if length > 0 else 0.0


def peak_scores(tokens: dict[int, Vector], neighbours: int) -> dict[int, float]:
    """Return density times the distance to the nearest denser token; to the farthest one for the densest."""
    distance = {(a, b): math.dist(tokens[a], tokens[b]) for a in tokens for b in tokens}
    density = {}
    for a in tokens:
        nearest = sorted(distance[a, b] for b in tokens)[:neighbours]
        density[a] = math.exp(-math.fsum(d * d for d in nearest) / len(nearest) / len(tokens[a]))
    scores = {}
    for a in tokens:
        denser = [distance[a, b] for b in tokens if (-density[b], b) < (-density[a], a)]
        scores[a] = density[a] * min(denser, default=max(distance.values()))
    return scores


def diverse(tokens: dict[int, Vector], weights: dict[int, float], number: int) -> list[int]:
    """Choose tokens one by one, each as far as possible from those before, by weighted cosine distance."""
    distance = {
        (a, b): (0.0 if a == b else 1 - cosine(tokens[a], tokens[b])) * weights[b] for a in tokens for b in tokens
    }
    chosen: list[int] = []
    while len(chosen) < min(number, len(tokens)):

        def far(b: int) -> float:
            # Of all tokens to b, the least is that of b to itself. The next is its nearest neighbour.
            return (
                min(distance[a, b] for a in chosen)
                if chosen
                else sorted([*(distance[a, b] for a in tokens), math.inf])[1]
            )

        chosen.append(max((b for b in tokens if b not in chosen), key=lambda b: (far(b), -b)))
    return chosen


def linked(
    video: Video, finite: list[list[bool]], segment: list[int], selected: set[Place], least: int
) -> dict[Place, Place]:
    """Return the token of the frame before that each linked token joins, so that at least `least` tokens are left."""
    similarity: dict[Place, float] = {}
    parent: dict[Place, Place] = {}
    per_frame = len(video[0])
    for t in segment[1:]:
        before = [m for m in range(per_frame) if finite[t - 1][m] and (t - 1, m) not in selected]
        for m in range(per_frame):
            if before and finite[t][m] and (t, m) not in selected:
                cosines = {b: cosine(video[t][m], video[t - 1][b]) for b in before}
                best = max(before, key=lambda b: (cosines[b], -b))
                similarity[t, m], parent[t, m] = cosines[best], (t - 1, best)
    threshold, most = 0.8, len(segment) * per_frame - least
    if sum(value > threshold for value in similarity.values()) > most:
        threshold = sorted(similarity.values(), reverse=True)[most - 1] if most else math.inf
    return {place: parent[place] for place, value in similarity.items() if value > threshold}


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
