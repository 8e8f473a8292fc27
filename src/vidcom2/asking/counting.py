"""How many tokens a video costs in a prompt, before a model is loaded: config and processor say."""

from dataclasses import dataclass
from itertools import repeat
from os import PathLike, fspath
from typing import Any, cast

import torch
from transformers import PreTrainedConfig

from ..loading.checkpoints import read_config_and_processor
from ..loading.finding_checkpoints import Resolved, resolve
from ..loading.placement import Placement
from ..loading.processors import of_whole_frames, placeholder_of, show_sizes_alone
from ..presets import NUM_FRAMES
from ..video.reading import Video, read_video
from .prompting import at_least_a_pair, prepare_inputs, prompt_text

QUESTION = "What happens in this video?"
# Fields of layers that keep something else than the keys and values of each head.
OF_OTHER_CACHES = ("kv_lora_rank", "num_kv_shared_layers", "index_head_dim", "indexer_head_dim")
FULL = "full_attention"
STATES = ("linear_attention", "conv", "mamba", "recurrent")  # layers whose state has one size for all prompts


@dataclass(frozen=True)
class TokenCount:
    """What a video costs a model.

    Attributes:
        frames: how many of its frames the model sees.
        seconds: how long it is.
        full_video_tokens, full_prompt_tokens: its tokens, and those of a prompt with a short question, if all stay.
        video_tokens, prompt_tokens: the same of the tokens that stay; None if their number depends on what the video
            shows.
        full_cache_bytes, cache_bytes: the size of the prompt's keys and values; None where that is not known.
    """

    frames: int
    seconds: float
    full_video_tokens: int
    full_prompt_tokens: int
    video_tokens: int | None
    prompt_tokens: int | None
    full_cache_bytes: int | None
    cache_bytes: int | None


def count_tokens(
    video: str | PathLike[str] | Video,
    model: str | PathLike[str] | None = None,
    *,
    question: str = QUESTION,
    num_frames: int = NUM_FRAMES,
    revision: str | None = None,
    **settings: Any,
) -> TokenCount:
    """Count the tokens of a video in a model's prompt. No weights are read, and only small files are downloaded.

    Args:
        video: a path, an http(s) or file URL, or a `Video`.
        model: a Hub id or a folder, as in `ask`. None means the bundled toy model.
        question: the text of the prompt beside the video.
        num_frames: how many frames are sampled, evenly in time. All frames of a `Video` are counted.
        revision: a commit, tag or branch of the Hub repo.
        **settings: settings of VidCom² (`retention_ratio=0.15`), the checkpoint's own where not given.

    Raises:
        VideoError: if the video cannot be read.
        CheckpointError: if the model's config or processor cannot be read.
        ValueError: on a setting that is unknown or outside its accepted set.
    """
    named = None if model is None else fspath(model)
    resolved = resolve(named, Placement(revision=revision), settings)
    return count_of(resolved, video if isinstance(video, Video) else read_video(video, num_frames), question)


def count_of(model: Resolved, video: Video, question: str = QUESTION) -> TokenCount:
    """Count the tokens of a video in the prompt of a model that was found."""
    config, processor = read_config_and_processor(model)
    processor = of_whole_frames(processor)
    show_sizes_alone(processor, *video.frames.shape[1:3])
    whole = prepare_inputs(processor, question, video)["input_ids"][0]
    tokenizer = cast(Any, processor).tokenizer
    token = tokenizer.convert_tokens_to_ids(placeholder_of(processor, tokenizer.decode(whole)))
    of_video, full = int((whole == token).sum()), len(whole)
    short = _short_length(processor, question, video)
    return TokenCount(
        frames=len(video.frames),
        seconds=video.duration,
        full_video_tokens=of_video,
        full_prompt_tokens=full,
        video_tokens=None if short is None else of_video - (full - short),
        prompt_tokens=short,
        full_cache_bytes=cache_bytes(config, full),
        cache_bytes=None if short is None else cache_bytes(config, short),
    )


def _short_length(processor: Any, question: str, video: Video) -> int | None:
    """Return how long the prompt is that this project's processor writes; None if only the model can say."""
    if getattr(processor, "writes_all", True):
        return None
    frames, metadata = at_least_a_pair(processor, video)
    made = processor(
        text=[prompt_text(processor, question)],
        videos=[[frames]],
        video_metadata=[dict(metadata)],
        do_sample_frames=False,
        return_tensors="pt",
    )
    return made["input_ids"].shape[1]


def cache_bytes(config: PreTrainedConfig, length: int) -> int | None:
    """Return how many bytes the keys and values of a prompt take in the dtype of the weights; None if the language
    model keeps something else."""
    text: Any = config.get_text_config()
    numbers = 0
    for layer, kind in zip(text.per_layer_config, getattr(text, "layer_types", None) or repeat(FULL)):
        window, heads = getattr(layer, "sliding_window", None), layer.num_attention_heads
        if any(getattr(layer, name, None) for name in OF_OTHER_CACHES):
            return None
        if kind == "sliding_attention" and window is not None:
            tokens = min(length, window - 1)
        elif kind in (FULL, *STATES):
            tokens = length * (kind == FULL)
        else:
            return None
        size = getattr(layer, "head_dim", None) or layer.hidden_size // heads
        numbers += 2 * tokens * (getattr(layer, "num_key_value_heads", None) or heads) * size
    return numbers * _dtype(config).itemsize


def _dtype(config: Any) -> torch.dtype:
    dtype = config.dtype or config.get_text_config().dtype or torch.float32
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype
