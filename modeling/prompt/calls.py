"""What a call of `forward` or `generate` brings, what is made of it, and which calls are refused.

A `Call` is what the caller passed, a `Turn` the same with its tokens laid out, and `Prepared` holds the call of the
stock class that results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.generation import utils as generation_utils

from ...configuration.compression_settings import NUM_KEPT, SETTING_NAMES, CompressionSettings
from ..encoding.video_features import VidCom2VideoFeatures
from ..hosting.in_transformers import SEQUENCE_LENGTHS, is_missing
from .conversation_cache import Conversation
from .prompt_layout import Layout

MARK, TEXT, IMAGE, VIDEO, SOUND = range(-1, 4)  # What a token stands for. A mark is text that tells what others are.
# The names in a config of the ids by which images and videos are found.
MARKS = ("image_token_id", "video_token_id", "video_start_token_id", "video_end_token_id")
PER_TOKEN = ("mm_token_type_ids", "token_type_ids")  # arguments with an entry for each token
OF_PROMPTS = (*PER_TOKEN, NUM_KEPT, *SETTING_NAMES)  # arguments that a step has none of
# Arguments that say how large images and videos are, and when their frames are shown.
DESCRIBING = (
    *("image_grid_thw", "video_grid_thw", "target_sizes_videos", "num_patches_per_frame"),
    *("second_per_grid_ts", "video_second_per_grid", "video_group_sizes", "feature_attention_mask"),
)
Encode = Callable[[str, dict[str, Any]], Any]
CHUNKS_FEATURES = hasattr(generation_utils, "_slice_mm_encoder_output")  # not in Transformers 5.19


# ---------------------------------------------------------------------------------------------------------------------
# Calls
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    """What the host knows of the new tokens of a call. It is copied from the device before the vision tower runs, so
    that nothing waits for this.

    Attributes:
        ids: (B, n) the caller's, or what `ids_of` finds in embeddings.
        kinds: (B, n) what they stand for, as `kinds` returns it.
        attended: (B, n) bool: the caller's mask of them.
        described: the arguments that say how large images and videos are, and when their frames are shown.
        past: (B, P) the mask of the tokens in the KV cache; None if the caller knows the positions, or gave a mask of
            other tokens, which is refused where it matters.
        start: the first position after these, in the row where it is largest.
    """

    ids: Tensor
    kinds: Tensor
    attended: Tensor
    described: dict[str, Any]
    past: Tensor | None
    start: int


@dataclass(frozen=True)
class Call:
    """A call of `forward` or `generate`, on its way to the stock class. `inputs` and `before` change on the way.

    Attributes:
        inputs: its arguments, with new tokens alone and without settings.
        tokens: (B, n) ids or (B, n, dim) embeddings: the caller's new tokens.
        caller_mask: the caller's `attention_mask`, of whatever kind; None if there is none.
        settings: those that hold for it.
        overrides: those that were passed with it.
        before: what the KV cache holds, which stands for C of the caller's tokens.
        past_tokens: ids (B, C) or embeddings (B, C, dim) of these; None in `forward`, which is not given them.
        prompt: what the host knows of the new tokens; None if it need not know anything about them.
        encode: encodes videos or images; it is called like `VidCom2ModelMixin._only_features`.
    """

    inputs: dict[str, Any]
    tokens: Tensor
    caller_mask: Any
    settings: CompressionSettings
    overrides: dict[str, Any]
    before: Conversation
    past_tokens: Tensor | None
    prompt: Prompt | None
    encode: Encode

    @property
    def is_of_generate(self) -> bool:
        """Whether `generate` makes it, which passes the whole conversation, and encodes images by itself."""
        return self.past_tokens is not None


@dataclass(frozen=True)
class Turn(Call):
    """A call whose new tokens are laid out, behind those in the KV cache.

    Attributes:
        layout: how the n caller's tokens are laid out, as n'; None if they are the caller's.
        attended: (B, n) the mask of the caller's new tokens.
        mask: (B, P + n') over the P cached tokens and those that run.
        start: (B, 1) the first position after the cached tokens.
        spreads: whether kept tokens stay at their positions in the full prompt (`compression_positions="original"`).
    """

    layout: Layout | None
    attended: Tensor
    mask: Tensor
    start: Tensor
    spreads: bool

    @property
    def num_new(self) -> int:
        return self.tokens.shape[1] if self.layout is None else self.layout.order.shape[1]

    @property
    def run(self) -> Tensor:
        """(B, n') mask of the tokens that run."""
        return self.mask[:, self.mask.shape[1] - self.num_new :]

    @property
    def last_position(self) -> int:
        """The last position of the tokens that run, at most, where these are numbered in order. The host knows it."""
        start = self.before.length if self.prompt is None else max(self.prompt.start, self.before.length)
        full = None if self.layout is None else self.layout.full
        number = self.tokens.shape[1] if full is None else int(full.lengths.max())
        return start + (number if self.spreads else self.num_new) - 1

    @property
    def begins(self) -> bool:
        """Whether the conversation begins with it, in a call of `forward`."""
        return self.before.length == 0 and not self.is_of_generate

    @property
    def differs(self) -> bool:
        """Whether the tokens that run are not the caller's, in the caller's order: some are gone, or placeholders moved
        past hidden text, so that the mask differs, too."""
        return self.layout is not None and (self.layout.shortens or self.layout.moves_hidden)

    @property
    def needs_positions(self) -> bool:
        """Whether the stock class would find other positions by itself, here or in the cache."""
        return self.differs or not self.before.is_stock


@dataclass(frozen=True)
class Prepared:
    """A call of the stock class, made of the caller's.

    Attributes:
        inputs: its arguments, with new tokens alone.
        layout: how the new tokens were laid out; None if they are the caller's.
        after: what the KV cache will hold.
    """

    inputs: dict[str, Any]
    layout: Layout | None
    after: Conversation


def is_prepared(inputs: dict[str, Any]) -> bool:
    """Return whether the arguments of `forward` are those that the head prepared, in `generate` or in `forward`."""
    encoded = (inputs.get("mm_encoder_outputs") or {}).values()
    ours = [each for each in encoded if isinstance(each, VidCom2VideoFeatures)]
    is_ready = bool(ours) and all(each.video_compressions is None for each in ours)
    is_laid_out = inputs.get("position_ids") is not None and inputs.get(NUM_KEPT) is None
    return is_ready and is_laid_out and inputs.get("pixel_values_videos") is None


def name_of_tokens(inputs: dict[str, Any]) -> str:
    return "inputs_embeds" if inputs.get("input_ids") is None else "input_ids"


def has_media(inputs: dict[str, Any]) -> bool:
    pixels = (inputs.get(name) for name in ("pixel_values", "pixel_values_videos"))
    encoded = (inputs.get("mm_encoder_outputs") or {}).values()
    return any(each is not None for each in (*pixels, *encoded))


def is_step(inputs: dict[str, Any]) -> bool:
    """Return whether a call of `forward` is a step of `generate`: a token of each answer, whose position is known. It
    is the stock class's step, of which the device is asked nothing. The KV cache counts its tokens."""
    tokens = inputs.get(name_of_tokens(inputs))
    is_known = inputs.get("position_ids") is not None and not is_missing(inputs.get("attention_mask"))
    is_one = isinstance(tokens, Tensor) and tokens.shape[1] == 1 and not has_media(inputs)
    return is_known and is_one and not any(inputs.get(name) is not None for name in OF_PROMPTS)


# ---------------------------------------------------------------------------------------------------------------------
# Calls that are refused because they cannot be done right. docs/limits.md shows these tables. A value that does not
# fit, such as a mask of another length, is refused where it is read.
# ---------------------------------------------------------------------------------------------------------------------

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
