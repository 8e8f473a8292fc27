"""What a KV cache must know of its conversation beside keys and values, where the stock class would not know it.

Keys and values do not tell at which position the next token stands, if images or videos take up positions of their own
(M-RoPE), nor which of the caller's tokens they are, if the prompt was shortened. The model cannot remember this, since
it may serve other chats in between. So it lives with the cache, as a `Conversation`, which follows when the cache's
rows are picked, repeated or reordered, and when the cache is copied. For that the cache becomes an instance of a
subclass made on the spot. It stays the same object and the same kind of cache, for which Transformers and its users
ask.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..hosting.in_transformers import ParentCache, cached_length
from .prompt_layout import Layout, laid_out


def positions_by_order(mask: Tensor) -> Tensor:
    """Return the position of each token among the attended ones of a mask (B, L): (B, L) int64, 0 at padding."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def cached_rows(cache: Any) -> int | None:
    """Return how many rows a filled KV cache has; None if none of its layers holds keys."""
    keys = (getattr(layer, "keys", None) for layer in cache.layers)
    return next((len(each) for each in keys if isinstance(each, Tensor) and each.ndim > 1), None)


@dataclass(frozen=True)
class Conversation:
    """What a KV cache holds of the caller's conversation.

    Attributes:
        length: how many tokens the cache holds.
        caller_length: how many of the caller's tokens they stand for.
        is_known: whether a model of this project filled the cache.
        least: where its last images and videos end, if other positions or another order hold before them.
        previous: what the cache held before these.
        offset: (B, 1) position of the next token minus the number of attended tokens; None if the stock class's own
            positions are right.
        order: (B, P) int64: of the first P cached tokens, where each is in the caller's conversation; -1 at padding
            that the model made. Each later one is the caller's next. None if all are the caller's, in order.
    """

    length: int
    caller_length: int
    is_known: bool = False
    least: int = 0
    previous: "Conversation | None" = None
    offset: Tensor | None = None
    order: Tensor | None = None

    @classmethod
    def of(cls, cache: Any, num_rows: int) -> "Conversation":
        """Return what a cache holds now: what is known of it, and one token of the caller's for each later one.

        Args:
            num_rows: the number of prompts, each of which may have several rows of the cache, side by side.

        Raises:
            ValueError: if the cache was cropped into a prompt that is only known as a whole, or has other rows.
        """
        length = cached_length(cache)
        known: Conversation | None = getattr(cache, "conversation", None)
        if known is None or length == 0:
            return cls(length, length)
        least = min(length, known.length)
        while known.previous is not None and least < known.least and least <= known.previous.length:
            known = known.previous  # A turn was undone.
        if least < known.least:
            raise ValueError(
                f"The KV cache was cropped to {least} tokens, into a prompt whose images or videos end at token "
                f"{known.least}, or which the model shortened, and where its tokens stand is only known as a whole. "
                "Crop it behind them, or to what was there before this prompt, or start over without it."
            )
        rows = num_rows if known.num_rows is None else known.num_rows
        if rows % num_rows:
            raise ValueError(
                f"The KV cache has {rows} rows, but there are {num_rows} prompts now. Pass it as `generate` returned "
                "it, with the same rows, or start over without it."
            )
        return known.rows(slice(None, None, rows // num_rows)).later(length - known.length)

    @property
    def is_stock(self) -> bool:
        """Whether the stock class would have filled the cache the same way, and finds the next position by itself."""
        return self.order is None and self.offset is None

    @property
    def num_rows(self) -> int | None:
        """B; None if nothing about single rows is known."""
        of_rows = self.offset if self.order is None else self.order
        return None if of_rows is None else len(of_rows)

    def later(self, number: int, layout: Layout | None = None) -> "Conversation":
        """Return it with more tokens of the caller's, in their order, or as they were laid out."""
        after = replace(self, length=self.length + number, caller_length=self.caller_length + number)
        if layout is None:
            return after
        order, new = self._whole_order(layout.order), layout.order
        order = torch.cat([order, torch.where(new < 0, new, new + self.caller_length)], dim=1)
        return replace(after, length=order.shape[1], order=order)

    def _whole_order(self, like: Tensor) -> Tensor:
        """Return the order of all cached tokens, for as many rows as `like` has."""
        known = like.new_empty(len(like), 0) if self.order is None else self.order.to(like.device)
        num_later = self.length - known.shape[1]
        later = torch.arange(self.caller_length - num_later, self.caller_length, device=like.device)
        return torch.cat([known, later.expand(len(like), -1)], dim=1)

    def laid_out(self, past: Tensor) -> Tensor:
        """Return ids or embeddings (B, length, ...) of the cached tokens, from all of the caller's."""
        if self.order is None:
            return past
        order = self._whole_order(past[:, :0])
        return laid_out(torch.where(order < 0, order[:, -1:], order), past)  # padding repeats a token of the prompt

    def rows(self, index: Any) -> "Conversation":
        """Return that of a cache whose rows were picked, repeated or reordered."""

        def picked(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return None if value is None else value.rows(index)
            return value[index.to(value.device) if isinstance(index, Tensor) else index]

        of_rows = {name: picked(getattr(self, name)) for name in ("order", "offset", "previous")}
        return replace(self, **of_rows)

    def repeated(self, repeats: int) -> "Conversation":
        """Return that of a cache that holds each prompt several times, side by side, as for beams."""
        if self.num_rows is None or repeats == 1:
            return self
        return self.rows(torch.arange(self.num_rows).repeat_interleave(repeats))

    def masks(self, given: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
        """Return masks over the cached tokens (B, length), and over the caller's new tokens (B, n).

        Args:
            given: the caller's mask (B, C + n) over the conversation; None hides nothing but padding.
            new: (B, n, ...) the new tokens.

        Raises:
            ValueError: if it covers other tokens.
        """
        shape = (len(new), self.caller_length + new.shape[1])
        if given is None:
            given = torch.ones(shape, dtype=torch.long, device=new.device)
        elif tuple(given.shape) != shape:
            raise ValueError(
                f"`attention_mask` is {tuple(given.shape)}, but must be {shape}: it covers the {self.caller_length} "
                f"tokens of the conversation for which the KV cache stands, and {new.shape[1]} new ones."
            )
        past, of_new = given.tensor_split([self.caller_length], dim=1)
        return (past if self.order is None else laid_out(self._whole_order(past), past)), of_new

    def start(self, past: Tensor) -> Tensor:
        """Return the position (B, 1) of the next token, from the mask (B, length) over the cached ones."""
        return past.sum(dim=1, keepdim=True) + (0 if self.offset is None else self.offset.to(past.device))

    def note_on(self, cache: Any) -> None:
        """Attach it to a cache."""
        if cache is not None and self.is_known:
            cache.__class__ = remembering(type(cache))
            cache.conversation = self


class RemembersConversation(ParentCache):
    """Gives a cache a `Conversation` that follows its rows. It comes before the cache's own class."""

    conversation: Conversation | None = None
    in_use = False  # Whether a model of this project is writing to the cache at this moment.

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self._follow(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._follow(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        if self.conversation is not None:
            self.conversation = self.conversation.repeated(repeats)

    def _follow(self, indices: Tensor) -> None:
        if self.conversation is not None:
            self.conversation = self.conversation.rows(torch.as_tensor(indices))

    def crop(self, *args: Any, **kwargs: Any) -> None:
        super().crop(*args, **kwargs)
        known, length = self.conversation, int(self.get_seq_length())
        if known is not None and length < known.length:
            self.conversation = known.later(length - known.length) if length else None

    def reset(self) -> None:
        super().reset()
        self.conversation = None

    def update(self, *args: Any, **kwargs: Any) -> Any:
        self._check_user()
        return super().update(*args, **kwargs)

    # Linear attention calls these before it writes to its states. Transformers 5.19 has no `get_conv_state`, and 5.23
    # calls nothing else.

    def has_previous_state(self, *args: Any, **kwargs: Any) -> bool:
        self._check_user()
        return super().has_previous_state(*args, **kwargs)

    def get_conv_state(self, *args: Any, **kwargs: Any) -> Any:
        self._check_user()
        return super().get_conv_state(*args, **kwargs)

    def _check_user(self) -> None:
        known = self.conversation
        if known is None or self.in_use:
            return
        if known.order is None and (known.offset is None or not known.offset.any()):
            return  # It is as the stock class would have filled it.
        raise ValueError(
            f"The KV cache holds {known.caller_length} tokens of a conversation with images or videos that a VidCom² "
            "model ran, and another model does not know where their positions end, or what was dropped. Continue with "
            "the model that filled it, or start over without the cache."
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Let `copy.deepcopy` and `pickle` rebuild the class, which they cannot find by its name."""
        _, _, *state = super().__reduce_ex__(protocol)
        return _new_remembering, (type(self).__bases__[1],), *state


@functools.cache
def remembering(cache_class: type) -> type:
    """Return the subclass of `cache_class` that remembers its conversation."""
    if issubclass(cache_class, RemembersConversation):
        return cache_class
    bases = (RemembersConversation, cache_class)
    return type(cache_class.__name__, bases, {"__module__": cache_class.__module__})


def _new_remembering(cache_class: type) -> Any:
    return object.__new__(remembering(cache_class))


@contextmanager
def using(cache: Any) -> Iterator[None]:
    """Mark the cache as one that a model of this project is writing to."""
    if not isinstance(cache, RemembersConversation):
        yield
        return
    cache.in_use = True
    try:
        yield
    finally:
        cache.in_use = False
