"""Timing the stages of an answer. They follow each other without a gap, so that their times add up to the whole.

On a single CUDA device, events in its own queue mark the borders, so that nothing waits for the device at a border.
Elsewhere, and for a model that is spread over devices, wall-clock times mark the borders.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .generation import StageHook


@dataclass(frozen=True, eq=False)
class LanguageModelCall:
    """One call of the language model.

    Attributes:
        tokens: the number of tokens of each prompt in this call.
        position_ids: (B, tokens), or (4, B, tokens) for M-RoPE: the token's place for the mask, then t, h and w. None
            if the positions count up by one.
    """

    tokens: int
    position_ids: Tensor | None


class Stopwatch(StageHook):
    """Measures the stages of an answer. It starts when it is made; read it once the last stage has ended.

    Attributes:
        calls: the calls of the language model; the first is the prefill.
    """

    def __init__(self, model: PreTrainedModel):
        places = {str(place) for place in getattr(model, "hf_device_map", {"": model.device}).values()}
        self.device, self.is_spread = model.device, len(places) > 1
        self.calls: list[LanguageModelCall] = []
        self._stages: list[str] = []
        synchronize(self.device)
        self._borders = [self._border()]

    def ended(self, stage: str) -> None:
        self._stages.append(stage)
        self._borders.append(self._border())

    def language_model_starts(self, num_tokens: int, position_ids: Tensor | None) -> None:
        self.calls.append(LanguageModelCall(num_tokens, position_ids))

    def each(self) -> list[tuple[str, float]]:
        """Return the stages that ended, in their order, each with its seconds."""
        synchronize(self.device)
        pairs = zip(self._borders, self._borders[1:])
        if self._counts_events:
            seconds = [first.elapsed_time(second) / 1000 for first, second in pairs]
        else:
            seconds = [second - first for first, second in pairs]
        return list(zip(self._stages, seconds, strict=True))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage that ended, summed over all of its steps."""
        sums: dict[str, float] = {}
        for stage, seconds in self.each():
            sums[stage] = sums.get(stage, 0.0) + seconds
        return sums

    @property
    def num_positions(self) -> int:
        """One more than the highest position that the language model was given."""
        highest, length = 0, 0
        for call in self.calls:
            length += call.tokens
            positions = call.position_ids
            if positions is None:
                highest = max(highest, length - 1)
            else:
                of_rotation = positions[1:] if len(positions) == 4 and positions.ndim == 3 else positions
                highest = max(highest, int(of_rotation.max()))
        return highest + 1

    @property
    def _counts_events(self) -> bool:
        return self.device.type == "cuda" and not self.is_spread

    def _border(self) -> Any:
        if self._counts_events:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            return event
        if self.is_spread and torch.accelerator.is_available():
            for index in range(torch.accelerator.device_count()):
                torch.accelerator.synchronize(index)
        synchronize(self.device)
        return time.perf_counter()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work. The CPU has no queue to wait for."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
