"""Ways to run less of the vision tower, and the share of its groups of patches that each computes."""

from collections.abc import Sequence
from typing import Any

import torch

from vidcom2.asking.candidates import Candidate
from vidcom2.asking.prompting import prepare_inputs, video_arguments
from vidcom2.loading.checkpoints import Checkpoint
from vidcom2.video.reading import Video


class Tower:
    """A way to run the vision tower.

    Attributes:
        tolerance: the `vision_tolerance` at which it skips what repeats; None for the whole tower.
        given: its settings, as far as they differ from the whole tower's.
    """

    def __init__(self, tolerance: float | None):
        self.tolerance = tolerance
        self.given: dict[str, Any] = {}
        if tolerance is not None:
            self.given = {"vision_method": "skip_repeated", "vision_tolerance": tolerance}

    def candidate(self, whole: Candidate) -> Candidate:
        """Return the candidate that compresses as this one does, and whose videos this tower encodes."""
        if not self.given:
            return whole
        name = f"{whole.method}, tolerance {self.tolerance:g}"
        return Candidate(name, whole.retention_ratio, {**whole.settings, **self.given})


@torch.no_grad()
def computed_shares(towers: Sequence[Tower], checkpoint: Checkpoint, video: Video) -> list[float]:
    """Return the share of a video's groups of patches that each tower computes."""
    model = checkpoint.model
    described = video_arguments(model, prepare_inputs(checkpoint.processor, "", video, model))
    shares = []
    for tower in towers:
        partial = model.model.partial_encoding(settings=model.config.compression_settings(**tower.given), **described)
        shares.append(1.0 if partial is None else partial.computed[0].float().mean().item())
    return shares


TOWERS = [Tower(tolerance) for tolerance in (None, 0.02, 0.05, 0.1)]
