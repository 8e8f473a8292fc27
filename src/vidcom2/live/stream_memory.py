"""The memory of a stream: a fixed number of tokens, in which each new frame must find room.

A memory method decides which tokens stay. It sees the tokens that were kept until now and those of the new frame, and
never those that were dropped or are still to come.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from ..errors import OptionError, brief, did_you_mean
from ..modeling.methods.method_coverage import EPSILON, SKETCH, projection


@dataclass(frozen=True)
class ScoredFrame:
    """The M tokens of a frame of a stream, or in Qwen's families those of two frames, which share their tokens.

    Attributes:
        features: (M, dim) what enters the language model, and then what each deepstack layer adds.
        seconds: when its frames are shown.
    """

    features: tuple[Tensor, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class StreamTokens:
    """N tokens of a stream of T frames so far, oldest first, those of the newest frame last.

    Attributes:
        tokens: (N, D) as they enter the language model.
        directions: (N, D') float32, the same at length 1; wide ones by the sketch of `method_coverage.py`, which keeps
            cosines within about a tenth.
        frames, places: (N,) int64 on the CPU: the number of each token's frame in the stream, from 0, and its place
            among the M tokens of this frame.
        likeness: (N,) float32, the cosine of each token and the mean token of its frame.
        num_frames: T.
        tokens_per_frame: M.
        mean, mean_direction: (D,) and (D',) float32, the means of all T·M tokens, also of those that were dropped.
    """

    tokens: Tensor
    directions: Tensor
    frames: Tensor
    places: Tensor
    likeness: Tensor
    num_frames: int
    tokens_per_frame: int
    mean: Tensor
    mean_direction: Tensor


# Takes the tokens and the number K that may stay. Returns their places, (K,) int64, ascending.
MemoryMethod: TypeAlias = Callable[[StreamTokens, int], Tensor]
AnyMemoryMethod = TypeVar("AnyMemoryMethod", bound=MemoryMethod)
MEMORY_METHODS: dict[str, MemoryMethod] = {}


def register_memory_method(name: str) -> Callable[[AnyMemoryMethod], AnyMemoryMethod]:
    """Make a function selectable as `memory_method=name` of a `LiveVideo`.

    It is called for each new frame for which there is no room. It takes `StreamTokens` and the number of tokens that
    may stay, and returns which do: their places among the N tokens, int64, ascending.

    Raises:
        OptionError: if another function has the name.
    """

    def register(method: AnyMemoryMethod) -> AnyMemoryMethod:
        taken = MEMORY_METHODS.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (method.__module__, method.__qualname__):
            raise OptionError(f"the memory method {name!r} is taken; choose another name.")
        MEMORY_METHODS[name] = method
        return method

    return register


def memory_method_named(name: str) -> MemoryMethod:
    """Return a memory method by its name. Raises an OptionError if there is none."""
    if name not in MEMORY_METHODS:
        names = ", ".join(map(repr, MEMORY_METHODS))
        raise OptionError(
            f"`memory_method` is {brief(name)}, but must be one of {names}.{did_you_mean(str(name), MEMORY_METHODS)}"
        )
    return MEMORY_METHODS[name]


class StreamMemory:
    """At most so many tokens of a stream. What it holds follows from the frames until now alone.

    Args:
        method: which tokens stay when there are too many.
        max_tokens: the most that it holds.

    Attributes:
        features: (N, dim) each, as in `ScoredFrame`; empty before the first frame.
        frames, places: as in `StreamTokens`.
        seconds: (N, F) float64, when the F frames of each token's scored frame are shown.
    """

    def __init__(self, method: MemoryMethod, max_tokens: int) -> None:
        self.method, self.max_tokens = method, max_tokens
        self.features: list[Tensor] = []
        self.frames, self.places = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        self.seconds = torch.empty(0, 1, dtype=torch.float64)
        self.num_frames = 0
        self._directions = self._likeness = self._mean = self._mean_direction = torch.empty(0)

    def add(self, frame: ScoredFrame) -> None:
        """Take in the next frame, and drop tokens if there are too many. If the method fails, nothing changes.

        Raises:
            OptionError: if the method returns something else than places that may stay.
        """
        tokens = frame.features[0].float()
        mean, places = tokens.mean(dim=0), torch.arange(len(tokens))
        directions = _directions(tokens)
        mean_direction = directions.mean(dim=0)
        new = {
            "frames": torch.full_like(places, self.num_frames),
            "places": places,
            "seconds": torch.tensor([frame.seconds], dtype=torch.float64).expand(len(places), -1),
            "_directions": directions,
            "_likeness": torch.cosine_similarity(tokens, mean[None], dim=1),
        }
        features = list(frame.features)
        if self.num_frames:
            features = [torch.cat(pair) for pair in zip(self.features, features, strict=True)]
            new = {name: torch.cat([getattr(self, name), each]) for name, each in new.items()}
            weight = 1 / (self.num_frames + 1)
            mean, mean_direction = self._mean.lerp(mean, weight), self._mean_direction.lerp(mean_direction, weight)
        if len(new["frames"]) > self.max_tokens:
            stays = self._chosen(
                StreamTokens(
                    tokens=features[0],
                    directions=new["_directions"],
                    frames=new["frames"],
                    places=new["places"],
                    likeness=new["_likeness"],
                    num_frames=self.num_frames + 1,
                    tokens_per_frame=len(places),
                    mean=mean,
                    mean_direction=mean_direction,
                )
            )
            features = [each[stays.to(each.device)] for each in features]
            new = {name: each[stays.to(each.device)] for name, each in new.items()}
        new |= {"features": features, "num_frames": self.num_frames + 1}
        vars(self).update(new | {"_mean": mean, "_mean_direction": mean_direction})

    def _chosen(self, tokens: StreamTokens) -> Tensor:
        places = self.method(copy.deepcopy(tokens), self.max_tokens)  # which may compute in place
        fits = isinstance(places, Tensor) and places.dtype == torch.int64 and places.ndim == 1
        chosen, known = places.tolist() if fits else [], range(len(tokens.frames))
        if not 0 < len(chosen) <= self.max_tokens or chosen != sorted({*chosen} & {*known}):
            raise OptionError(
                f"the memory method returned {brief(places)}, but must return 1 to {self.max_tokens} places from 0 to "
                f"{known[-1]}: int64, (K,), ascending."
            )
        return places


def _directions(tokens: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(tokens, dim=1, keepdim=True).clamp(min=EPSILON)
    if tokens.shape[1] > SKETCH:
        tokens = tokens @ projection(tokens.shape[1]).to(tokens.device)
    return tokens / lengths


# ---------------------------------------------------------------------------------------------------------------------
# Running coverage
# ---------------------------------------------------------------------------------------------------------------------

TIME_WEIGHT = 2.0  # of the whole stream so far, in mean distances of two tokens: as in `method_coverage.py`
LEAST_VARIETY = 1e-3


@register_memory_method("coverage")
def coverage(stream: StreamTokens, number: int) -> Tensor:
    """Leave no part of the stream far from a kept token: `compression_method="coverage"` for a video without end.

    Again and again, find the two kept tokens that are nearest to each other, in what they show and in time, and drop
    the one whose content the other tokens cover better. The distance is that of `method_coverage.py`, with the
    length of the stream until now.
    """
    variety = (1 - stream.mean_direction.square().sum()).clamp(min=LEAST_VARIETY)
    times = stream.frames.double() / stream.num_frames
    apart = (times[:, None] - times).abs().float().numpy()
    distances = ((1 - stream.directions @ stream.directions.T) / variety).cpu().numpy() + TIME_WEIGHT * apart
    distances[range(len(distances)), range(len(distances))] = math.inf

    stays = torch.ones(len(distances), dtype=torch.bool)
    nearest = distances.argmin(axis=1)
    nearness = distances[range(len(distances)), nearest]
    for _ in range(len(distances) - number):
        one = int(nearness.argmin())
        other = int(nearest[one])
        nearest_two = distances[[one, other]]
        nearest_two[0, other] = nearest_two[1, one] = math.inf
        dropped = one if nearest_two[0].min() <= nearest_two[1].min() else other
        stays[dropped] = False
        distances[dropped] = distances[:, dropped] = nearness[dropped] = math.inf
        orphans = ((nearest == dropped) & stays.numpy()).nonzero()[0]
        nearest[orphans] = distances[orphans].argmin(axis=1)
        nearness[orphans] = distances[orphans, nearest[orphans]]
    return stays.nonzero().flatten()
