"""Measure where the time of an answer goes, stage by stage: with all tokens, and with each method at each ratio.

`sizes.py` and `models.py` have the models, `stages.py` measures one answer, and `figures.py` summarises the
repetitions.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import torch

from ..asking.candidates import AllTokens, Candidate
from ..errors import is_out_of_memory
from ..loading.checkpoints import Checkpoint
from ..video.reading import Progress
from .figures import COMPILED, EAGER, STATIC
from .stages import Encoded, MethodRefused, Task, Turn, answer, encode

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Setup:
    """The conditions that the contenders of one comparison share."""

    num_frames: int
    batch_size: int
    attn_implementation: str
    steps: str = EAGER


@dataclass
class Series:
    """The turns of one contender.

    Attributes:
        turns: the turns that count, which are those after the warm-up.
        failed: why it takes no more turns: the words with which its method refused, or `OUT_OF_MEMORY`. None while it
            still takes turns.
    """

    setup: Setup
    candidate: Candidate
    turns: list[Turn] = field(default_factory=list)
    failed: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.setup),
            "method": self.candidate.method,
            "retention_ratio": self.candidate.retention_ratio,
            "settings": dict(self.candidate.overrides),
            "turns": [asdict(turn) for turn in self.turns],
            "failed": self.failed,
        }


def order(num_contenders: int, num_rounds: int) -> Iterator[list[int]]:
    """Yield the order in which the contenders are measured in each round. A different one begins each round, and every
    second round runs backwards, so that no contender always follows the same other one."""
    for round_ in range(num_rounds):
        first = round_ % num_contenders
        ahead = [*range(first, num_contenders), *range(first)]
        yield ahead if round_ % 2 == 0 else [ahead[0], *reversed(ahead[1:])]


def bench(
    checkpoint: Checkpoint,
    candidates: Sequence[Candidate],
    video: str,
    *,
    num_frames: Sequence[int] = (32,),
    batch_sizes: Sequence[int] = (1,),
    attn_implementations: Sequence[str | None] = (None,),
    max_new_tokens: int = 16,
    repeats: int = 5,
    encode_once: bool = False,
    compiled: bool = False,
    save: Callable[[list[Series]], None] = lambda _: None,
    progress: Progress = lambda *_: None,
) -> list[Series]:
    """Measure all tokens and each candidate, for all combinations of frames, batch sizes and attention.

    Within a combination the contenders take turns. A contender that refuses or runs out of memory drops out, and the
    others continue. The first round is a warm-up and does not count.

    Args:
        attn_implementations: None stands for the one that the model already has.
        encode_once: whether to read and encode the video once a round and to count that time for every contender, so
            that the work that they share takes the same time for all. The vision tower then runs as the stock model's,
            and a contender with other settings of it is refused. Otherwise each does all of it, with its own settings.
        compiled: whether to measure all of it also with decoding on a static cache, whose steps Transformers compiles
            on an accelerator. The warm-up round pays for that. Where the model's generation config asks for a static
            cache, all of it is measured so, and with `compiled` also on a dynamic one.
        save: called after each round with all series so far, so that little is lost when a run is stopped.

    Returns:
        The series of all combinations. The first series of each combination is that of all tokens.
    """
    on_static = COMPILED if checkpoint.model.device.type != "cpu" else STATIC  # where Transformers compiles nothing
    own = checkpoint.model.generation_config.cache_implementation
    usual = on_static if "static" in (own or "") else EAGER
    setups = list(product(attn_implementations, num_frames, batch_sizes, [EAGER, on_static] if compiled else [usual]))
    steps = len(setups) * (repeats + 1) * (len(candidates) + 1)
    every: list[Series] = []
    gc.freeze()  # nothing that exists now is garbage, and searching it between turns would take long
    try:
        for number, (attention, frames, batch_size, how) in enumerate(setups):
            if attention is not None:
                checkpoint.model.set_attn_implementation(attention)
            setup = Setup(frames, batch_size, str(checkpoint.model.config._attn_implementation), how)
            series = [Series(setup, candidate) for candidate in (AllTokens(), *candidates)]
            every += series
            kind = own if how == usual else "static" if how == on_static else "dynamic"
            task = Task(video, frames, batch_size, max_new_tokens, cache_implementation=kind)
            what = f"{checkpoint.name}, {frames} frames" + (f" × {batch_size}" if batch_size > 1 else "")
            done = number * (repeats + 1) * len(series)
            for round_, turns in enumerate(order(len(series), repeats + 1)):
                encoded: Encoded | None = None
                for i in turns:
                    progress(what, done, steps)
                    done += 1
                    if series[i].failed is None:
                        encoded_for = series[0 if encode_once else i].candidate
                        encoded = _take(checkpoint, series[i], task, encoded, encoded_for, counts=round_ > 0)
                        encoded = encoded if encode_once else None
                save(every)
    finally:
        gc.unfreeze()
    return every


def _take(
    checkpoint: Checkpoint,
    series: Series,
    task: Task,
    encoded: Encoded | None,
    encoded_for: Candidate,
    counts: bool,
) -> Encoded | None:
    """Take a turn, and return the encoded video. If `encoded` is None, it is encoded first, with the settings of
    `encoded_for`."""
    try:
        if encoded is None:
            encoded = encode(checkpoint, task, encoded_for)
        turn = answer(checkpoint, task, series.candidate, encoded)
    except MethodRefused as error:
        series.failed = str(error)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        series.failed = OUT_OF_MEMORY
    else:
        if counts:
            series.turns.append(turn)
        return encoded
    # The memory of the failed turn can be freed now that its error is gone.
    gc.collect()
    if checkpoint.model.device.type == "cuda":
        torch.cuda.empty_cache()
    return encoded
