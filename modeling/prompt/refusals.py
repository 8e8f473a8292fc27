"""What is refused, since it cannot be done right, in tables that docs/limits.md shows.

A value that does not fit, such as a mask of another length, is refused where it is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.generation import utils as generation_utils

from ..hosting.in_transformers import SEQUENCE_LENGTHS

CHUNKS_FEATURES = hasattr(generation_utils, "_slice_mm_encoder_output")  # not in Transformers 5.19


Asked = Callable[[str], Any]  # returns what a call has under a name: an argument, or the generation config's value


def has_videos(asked: Asked) -> bool:
    return any(asked(name) is not None for name in ("pixel_values_videos", "mm_encoder_outputs"))


@dataclass(frozen=True)
class Refusal:
    """One thing that is refused. The error message is `because` and `instead`, each in whole sentences.

    Attributes:
        asked: what is refused, in a few words.
        applies: tells whether a caller asks for it.
        because: the reason.
        instead: the remedy.
    """

    asked: str
    applies: Callable[[Asked], bool]
    because: str
    instead: str


USE_OURS = "Write the prompt with this project's processor, which is short from the start"

# Refused by `forward` and `generate` where the model shortens the prompt of a stock processor.
OF_STOCK_PROMPTS = (
    Refusal(
        "`position_ids`",
        lambda asked: asked("position_ids") is not None,
        "`position_ids` cannot be given for a prompt that the model shortens: positions follow from the kept tokens.",
        f"{USE_OURS}, leave them out, or pass `retention_ratio=1.0` without a budget.",
    ),
    Refusal(
        "`cu_seq_lens_q` and the other lengths of packed prompts",
        lambda asked: any(asked(name) is not None for name in SEQUENCE_LENGTHS),
        "`cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k` are the lengths of packed prompts before "
        "their tokens are dropped.",
        f"{USE_OURS}, or pass `retention_ratio=1.0` without a budget.",
    ),
)

# Refused by `generate` with images or videos.
OF_GENERATE = (
    Refusal(
        "`prefill_chunk_size` on Transformers 5.19",
        lambda asked: not CHUNKS_FEATURES and asked("prefill_chunk_size") is not None and has_videos(asked),
        "`prefill_chunk_size` with videos needs a newer Transformers, which splits the video features into chunks.",
        "Leave it out, or upgrade Transformers.",
    ),
    Refusal(
        '`cache_implementation="paged"`',
        lambda asked: asked("cache_implementation") == "paged",
        '`cache_implementation="paged"` generates from token ids alone, without the videos.',
        "Leave it out.",
    ),
    Refusal(
        "`token_healing`",
        lambda asked: bool(asked("token_healing")),
        "`token_healing` rewrites the prompt from its text, without its videos.",
        "Leave it out.",
    ),
)

# Refused by `generate` on a KV cache that holds tokens. The stock classes give wrong results for these too.
ON_A_FILLED_CACHE = tuple(
    Refusal(
        f"`{name}` on a filled cache",
        lambda asked, name=name: asked(name) is not None,
        f"`{name}` cannot continue a filled KV cache: Transformers would feed the prompt again.",
        "Leave it out, or start over without the cache.",
    )
    for name in ("prompt_lookup_num_tokens", "assistant_model")
)

TABLES = (OF_STOCK_PROMPTS, OF_GENERATE, ON_A_FILLED_CACHE)


def refuse(refusals: Sequence[Refusal], asked: Asked) -> None:
    """Raise a ValueError for the first of these refusals that applies."""
    for refusal in refusals:
        if refusal.applies(asked):
            raise ValueError(f"{refusal.because} {refusal.instead}")
