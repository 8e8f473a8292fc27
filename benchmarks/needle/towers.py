"""Ways to run less of the vision tower, and the share of its patches that each computes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vidcom2.answering.candidates import Candidate
from vidcom2.answering.generation import Batch, encode
from vidcom2.answering.prompting import prepare_inputs, video_arguments
from vidcom2.checkpoints import Checkpoint
from vidcom2.evaluation.batches import compressed_answers
from vidcom2.modeling.encoding.vision_changed_patches import (
    REFERENCE_INTERVAL,
    first_keys,
    num_dynamic,
    split_at_cuts,
)
from vidcom2.video.reading import Video


class Tower:
    """A way to run the vision tower.

    Attributes:
        setting: what tells it apart from the others of a group, in result files.
        value: of that setting. None is the whole tower, where no value stands for it.
        given: its settings, as far as they differ from the whole tower's.
        computed_share: takes an inner model, the settings of the tower and the inputs that describe a video. Returns
            the share of its patches that the tower computes.
    """

    def __init__(
        self, setting: str, value: float | None, given: Mapping[str, Any], computed_share: Callable[..., float]
    ):
        self.setting, self.value, self.given, self.computed_share = setting, value, given, computed_share
        self._held: tuple[Batch, Batch] | None = None

    def candidate(self, whole: Candidate) -> Candidate:
        """Return the candidate that compresses as this one does, and whose videos this tower encodes. All candidates of
        a tower share what it encoded."""
        if not self.given:
            return whole
        answer = partial(self._answer, of_method=whole.overrides)
        return Candidate(f"{whole.method}, {self.setting} {self.value:g}", whole.retention_ratio, answer=answer)

    def _answer(
        self, model: Any, batch: Batch, max_new_tokens: int, of_method: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Answer a batch, in the form of `Candidate.answer`."""
        settings = model.config.compression_settings(**of_method, **self.given)
        if self._held is None or self._held[0] is not batch:
            videos = tuple(encode(model, video.inputs, settings) for video in batch.videos)
            self._held = batch, Batch(batch.inputs, videos)
        return compressed_answers(model, self._held[1], settings, max_new_tokens)


@torch.no_grad()
def computed_shares(towers: Sequence[Tower], checkpoint: Checkpoint, video: Video) -> list[float]:
    """Return the share of a video's patches that each tower computes."""
    model = checkpoint.model
    described = video_arguments(model, prepare_inputs(checkpoint.processor, "", video, model))
    return [
        tower.computed_share(model.model, model.config.compression_settings(**tower.given), described)
        for tower in towers
    ]


def _of_changed_patches(model: Any, settings: Any, described: Mapping[str, Any]) -> float:
    """Return the share of patches that `changed_patches` computes. Those of reference frames count too."""
    tower, (pixels,) = model.vision_tower, described["pixel_values_videos"]
    keys = first_keys(tower, tower.embeddings(pixels))
    budget = num_dynamic(keys.shape[1], settings.vision_update_ratio)
    lengths = [REFERENCE_INTERVAL] * (len(keys) // REFERENCE_INTERVAL)
    full = len(split_at_cuts(keys, lengths, budget)) / len(keys)
    return full + (1 - full) * budget / keys.shape[1]


def _of_skip_repeated(model: Any, settings: Any, described: Mapping[str, Any]) -> float:
    """Return the share of groups of patches that `skip_repeated` computes."""
    computed = model.computed_groups(settings=settings, **described)
    return 1.0 if computed is None else computed[0].float().mean().item()


def _whole(*_: Any) -> float:
    return 1.0


def _ways(
    setting: str, whole: float | None, vision_method: str, values: Sequence[float], share: Callable[..., float]
) -> list[Tower]:
    """Return the whole tower, and after it a vision method at each value of its setting `vision_<setting>`."""
    settings = [{"vision_method": vision_method, f"vision_{setting}": value} for value in values]
    return [
        Tower(setting, whole, {}, _whole),
        *(Tower(setting, value, each, share) for value, each in zip(values, settings, strict=True)),
    ]


UPDATE_RATIOS = _ways("update_ratio", 1.0, "changed_patches", (0.5, 0.25, 0.1), _of_changed_patches)
TOLERANCES = _ways("tolerance", None, "skip_repeated", (0.02, 0.05, 0.1), _of_skip_repeated)
