"""KV caches that are kept between calls of `generate`: of the kind that a model's generation config asks for."""

from typing import Any

from transformers import Cache, DynamicCache, StaticCache

from ..errors import OptionError
from ..modeling.hosting.in_transformers import CACHE

KINDS = {None: DynamicCache, "dynamic": DynamicCache, "static": StaticCache}  # by `cache_implementation`
ROOM = 2048  # for how many tokens behind the first prompt a static cache is made, where `max_cache_len` says nothing


def check_kind(model: Any) -> None:
    """Check that a model's generation config asks for a kind of KV cache that can be kept between questions.

    Raises:
        OptionError: if it does not.
    """
    kind = model.generation_config.cache_implementation
    if kind not in KINDS:
        raise OptionError(
            f"`model.generation_config.cache_implementation` is {kind!r}, but for a KV cache that is kept between "
            "questions it must be dynamic or static. Set it to one of them, or ask each question by itself."
        )


def empty_cache(model: Any, num_tokens: int) -> Cache:
    """Return an empty KV cache for a conversation. Those that `generate` makes by itself are as long as one answer.

    A static cache has `max_cache_len` of the generation config; without that, room for `ROOM` tokens behind the prompt,
    in a multiple of `ROOM`, since Transformers compiles the steps anew for each length.

    Args:
        num_tokens: the length of the first prompt.

    Raises:
        OptionError: as `check_kind`.
    """
    check_kind(model)
    kind, most = model.generation_config.cache_implementation, model.generation_config.max_cache_len
    config = model.config.get_text_config(decoder=True)
    if KINDS[kind] is DynamicCache:
        return DynamicCache(config=config)
    return StaticCache(config=config, max_cache_len=most or (num_tokens // ROOM + 2) * ROOM)


def has_room(cache: Cache, num_tokens: int) -> bool:
    """Tell whether a KV cache holds so many tokens. One that is not static always does."""
    return not isinstance(cache, StaticCache) or num_tokens <= cache.get_max_length()


def check_room(cache: Cache, num_tokens: int) -> None:
    """Check that a KV cache holds so many tokens. A static one would write further ones beyond its end.

    Raises:
        OptionError: if it does not.
    """
    if not has_room(cache, num_tokens):
        raise OptionError(
            f"the conversation and its next answer need {num_tokens} tokens, but the static KV cache has "
            f"{cache.get_max_length()}. Ask something shorter, or begin again with a larger "
            "`model.generation_config.max_cache_len`, or with `cache_implementation='dynamic'`, which grows."
        )


def continuing(cache: Cache) -> dict[str, Any]:
    """Return the arguments with which `generate` continues a KV cache. It refuses one if it is to make one as well."""
    return {CACHE: cache, "cache_implementation": None, "max_cache_len": None}
