"""What one call of `forward` or `generate` asks for, which is decided once, and what is refused.

Both methods read the description and take its path. Nothing later in the call asks again whether to compress.
docs/limits.md shows the tables of refusals. A value that does not fit, such as a mask of another length, is refused
where it is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from transformers.generation import utils as generation_utils

from ...configuration.compression_settings import CompressionSettings
from ..encoding.video_features import VidCom2VideoFeatures
from ..hosting.in_transformers import CACHE, SEQUENCE_LENGTHS, check_not_exported
from .conversation_cache import CachedPrompt

# ---------------------------------------------------------------------------------------------------------------------
# What cannot be combined with a compressed prompt
# ---------------------------------------------------------------------------------------------------------------------


CHUNKS_FEATURES = hasattr(generation_utils, "_slice_mm_encoder_output")  # not in Transformers 5.19


@dataclass(frozen=True)
class Asked:
    """What a caller asks for.

    Attributes:
        arguments: the arguments of `forward` or `generate`.
        setting: returns what `generate` would use for a name: the argument, or the generation config's value.
        uses_mrope: whether positions are (t, h, w).
        is_stateful: whether some layers keep states in place of keys and values.
    """

    arguments: dict[str, Any]
    setting: Callable[[str], Any] = lambda name: None
    uses_mrope: bool = False
    is_stateful: bool = False

    def has(self, name: str) -> bool:
        return self.arguments.get(name) is not None

    def more_than_one(self, name: str) -> bool:
        return (self.setting(name) or 1) > 1


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


# Refused by `forward` and `generate` where a prompt is compressed.
OF_A_COMPRESSED_PROMPT = (
    Refusal(
        "`inputs_embeds`",
        lambda asked: asked.has("inputs_embeds") or not asked.has("input_ids"),
        "`inputs_embeds` cannot be compressed: dropped tokens are found by their placeholders.",
        "Pass `input_ids` with the videos, or `retention_ratio=1.0` without a budget.",
    ),
    Refusal(
        "`position_ids`",
        lambda asked: asked.has("position_ids"),
        "`position_ids` cannot be given for a prompt that is compressed: positions follow from the kept tokens.",
        "Leave them out, or pass `retention_ratio=1.0` without a budget.",
    ),
    Refusal(
        "`cu_seq_lens_q` and the other lengths of packed prompts",
        lambda asked: any(asked.has(name) for name in SEQUENCE_LENGTHS),
        "`cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k` are the lengths of packed prompts before "
        "their tokens are dropped.",
        "Pass the prompts as rows of a padded batch, or pass `retention_ratio=1.0` without a budget.",
    ),
    Refusal(
        '`cache_implementation="paged"`',
        lambda asked: asked.arguments.get("cache_implementation") == "paged",
        '`cache_implementation="paged"` generates from token ids alone, without the videos.',
        "Leave it out.",
    ),
)

# Refused by `generate` where a prompt is compressed, and with all tokens where videos are images to the parent.
OF_CHUNKS = (
    Refusal(
        "`prefill_chunk_size` on Transformers 5.19",
        lambda asked: asked.setting("prefill_chunk_size") is not None and not CHUNKS_FEATURES,
        "`prefill_chunk_size` with videos needs a newer Transformers, which splits the video features into chunks.",
        "Leave it out, or upgrade Transformers.",
    ),
)

# Refused by `generate` where a prompt has a placeholder for each token that stays.
OF_SHORT_PROMPTS = (
    *OF_CHUNKS,
    Refusal(
        "`token_healing`",
        lambda asked: bool(asked.setting("token_healing")),
        "`token_healing` rewrites the prompt from its text, without its videos.",
        "Leave it out.",
    ),
)

# Refused by `generate` where a prompt is compressed or a compressed prompt is continued.
OF_GENERATE = (
    *OF_SHORT_PROMPTS,
    # A model with states is left to its parent class, which refuses every kind of speculation and says so.
    Refusal(
        "`assistant_model`, in Qwen's families",
        lambda asked: asked.uses_mrope and not asked.is_stateful and asked.has("assistant_model"),
        "`assistant_model` cannot follow the M-RoPE positions of a compressed prompt.",
        "Leave it out, or use `prompt_lookup_num_tokens`.",
    ),
)

# Refused by `generate` on a KV cache that holds tokens. The stock classes give wrong results for these too.
ON_A_FILLED_CACHE = tuple(
    Refusal(
        f"`{name}` on a filled cache",
        lambda asked, name=name: asked.setting(name) is not None,
        f"`{name}` cannot continue a filled KV cache: Transformers would feed the prompt again.",
        "Leave it out, or start over without the cache.",
    )
    for name in ("prompt_lookup_num_tokens", "assistant_model")
)

# Refused by `generate` on a KV cache with a memory, which the parent class cannot continue by itself.
ON_A_REMEMBERED_CACHE = tuple(
    Refusal(
        f"`{name}` above 1 on the cache of a compressed prompt",
        lambda asked, name=name: asked.more_than_one(name),
        f"`{name}` cannot be more than 1 with a filled KV cache, which has one row for each prompt.",
        "Repeat the rows by `reorder_cache`, and the prompts alike, or start over without the cache.",
    )
    for name in ("num_beams", "num_return_sequences")
)

TABLES = (OF_A_COMPRESSED_PROMPT, OF_GENERATE, ON_A_FILLED_CACHE, ON_A_REMEMBERED_CACHE)


def refuse(refusals: Sequence[Refusal], asked: Asked) -> None:
    """Raise a ValueError for the first of these refusals that applies."""
    for refusal in refusals:
        if refusal.applies(asked):
            raise ValueError(f"{refusal.because} {refusal.instead}")


def check_compressible(arguments: dict[str, Any]) -> None:
    """Refuse arguments that cannot be combined with a compressed prompt.

    Raises:
        ValueError: if a row of `OF_A_COMPRESSED_PROMPT` applies, or the model is being exported.
    """
    check_not_exported()
    refuse(OF_A_COMPRESSED_PROMPT, Asked(arguments))


def check_on_cache(asked: Asked) -> None:
    """Refuse what `generate` cannot do on a KV cache that holds tokens.

    Raises:
        ValueError: if a row of `ON_A_FILLED_CACHE` applies, or of `ON_A_REMEMBERED_CACHE` on a cache with a memory.
    """
    cache = asked.arguments.get(CACHE)
    if cache is None or cache.get_seq_length() == 0:
        return
    refuse(ON_A_FILLED_CACHE, asked)
    if CachedPrompt.attached_to(cache) is not None:
        refuse(ON_A_REMEMBERED_CACHE, asked)


# ---------------------------------------------------------------------------------------------------------------------
# What a call asks for
# ---------------------------------------------------------------------------------------------------------------------


class NewVideos(Enum):
    """The form in which a call passes the videos of its new tokens."""

    NONE = auto()
    PIXELS = auto()
    KEPT_FEATURES = auto()  # features of the kept tokens alone; the prompt still has a placeholder for every token
    ALL_FEATURES = auto()  # features of all tokens


class CallPath(Enum):
    """The way in which a call is answered."""

    PARENT = auto()  # The parent class answers: no token is dropped, now or in the cache.
    CONTINUE = auto()  # New tokens follow on a cache whose memory knows its layout.
    COMPRESS = auto()  # The prompt runs without its dropped tokens, or with positions that the parent does not compute.


@dataclass(frozen=True)
class CallDescription:
    """What a call asks for.

    Attributes:
        settings: the config's settings, overridden by those of the call.
        drops_tokens: whether tokens of its new videos are dropped.
        memory: what the KV cache remembers of its tokens; None if the parent class can continue the cache by itself.
        videos: the form in which the videos of the new tokens come.
        path: the way in which the call is answered.
    """

    settings: CompressionSettings
    drops_tokens: bool
    memory: CachedPrompt | None
    videos: NewVideos
    path: CallPath


def videos_of(inputs: dict[str, Any], settings: CompressionSettings, overrides: dict[str, Any]) -> NewVideos:
    """Return the form in which the arguments of `forward` or `generate` hold videos.

    Args:
        settings: all settings of the call.
        overrides: the settings that the caller passed to this call.

    Raises:
        ValueError: if videos are given twice, if features of all tokens are given although some are to be dropped, or
            if settings are passed beside features that were compressed before the call.
    """
    features = (inputs.get("mm_encoder_outputs") or {}).get("video")
    if inputs.get("pixel_values_videos") is not None:
        if features is not None:
            raise ValueError(
                "`pixel_values_videos` and `mm_encoder_outputs['video']` both hold the prompt's videos. Pass one."
            )
        return NewVideos.PIXELS
    if features is None:
        return NewVideos.NONE
    compressions = getattr(features, "video_compressions", None)
    if compressions is not None:
        for name in overrides:
            if name != "compression_positions":
                raise ValueError(
                    f"`{name}` is {overrides[name]!r} for this call, but `mm_encoder_outputs['video']` was encoded "
                    "before it. Pass the setting to `get_video_features`, or `pixel_values_videos` in place of the "
                    "features."
                )
        keeps_all = all(len(each.indices) == each.num_tokens for each in compressions)
        return NewVideos.ALL_FEATURES if keeps_all else NewVideos.KEPT_FEATURES
    if not isinstance(features, VidCom2VideoFeatures) and settings.may_drop:
        name = "retention_ratio" if settings.retention_ratio < 1.0 else "max_video_tokens"
        raise ValueError(
            f"`mm_encoder_outputs['video']` is a {type(features).__name__} of uncompressed features, but "
            f"`{name}` is {getattr(settings, name)}. Pass `pixel_values_videos`, the output of this model's "
            "`get_video_features`, or `retention_ratio=1.0` without a budget."
        )
    return NewVideos.ALL_FEATURES
